// Each collective: which memory it takes and gives, and gloo's collective that moves it.
#include <ATen/ops/empty.h>

#include "group.h"

namespace sim {
namespace {

using Tensors = Group::Tensors;

Tensors aliases(const Tensors& tensors, std::vector<BlockRef>& keep) {
  Tensors made;
  for (const auto& each : tensors) made.push_back(alias(each, keep));
  return made;
}

std::size_t bytes_of(const Tensors& tensors) {
  std::size_t total = 0;
  for (const auto& each : tensors) total += each.nbytes();
  return total;
}

// gloo cannot average: it sums, and the sum is divided.
template <typename Options>
std::pair<Options, double> averaged(Options options, int size) {
  if (options.reduceOp != c10d::ReduceOp::AVG) return {options, 1};
  options.reduceOp = c10d::ReduceOp::SUM;
  return {options, size};
}

void divide(Tensors& tensors, double by) {
  if (by != 1)
    for (auto& each : tensors) each.div_(by);
}

Tensors flatten(const Group::Lists& lists) {
  Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

Group::WorkRef Group::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  Call call{"all_reduce", c10d::OpType::ALLREDUCE, tensors.at(0).device(), bytes_of(tensors), options.asyncOp, {},
            tensors};
  auto memory = aliases(tensors, call.keep);
  auto [summed, by] = averaged(options, size_);
  return collective(std::move(call), [memory, summed = summed, by = by](c10d::Backend& gloo) {
    for (const auto& each : memory) {  // gloo takes one tensor
      Tensors one{each};
      gloo.allreduce(one, summed)->wait();
      divide(one, by);
    }
  });
}

Group::WorkRef Group::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

Group::WorkRef Group::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Call call{"broadcast", c10d::OpType::BROADCAST, tensors.at(0).device(), bytes_of(tensors), options.asyncOp, {},
            tensors};
  auto memory = aliases(tensors, call.keep);
  return collective(std::move(call), [memory, options](c10d::Backend& gloo) {
    auto one = memory;
    gloo.broadcast(one, options)->wait();
  });
}

Group::WorkRef Group::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Call call{"reduce", c10d::OpType::REDUCE, tensors.at(0).device(), bytes_of(tensors), options.asyncOp, {}, tensors};
  auto memory = aliases(tensors, call.keep);
  auto [summed, by] = averaged(options, size_);
  return collective(std::move(call), [memory, summed = summed, by = by](c10d::Backend& gloo) {
    auto one = memory;
    gloo.reduce(one, summed)->wait();
    divide(one, by);
  });
}

Group::WorkRef Group::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  auto results = outputs.at(0);
  Call call{"all_gather", c10d::OpType::ALLGATHER, inputs.at(0).device(), bytes_of(results), options.asyncOp, {},
            results};
  auto from = aliases(inputs, call.keep), to = aliases(results, call.keep);
  return collective(std::move(call), [from, to, options](c10d::Backend& gloo) {
    auto in = from;
    Lists out{to};
    gloo.allgather(out, in, options)->wait();
  });
}

Group::WorkRef Group::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Group::WorkRef Group::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  Call call{"all_gather", c10d::OpType::_ALLGATHER_BASE, inputs.at(0).device(), bytes_of(outputs), options.asyncOp, {},
            outputs};
  auto from = aliases(inputs, call.keep), to = aliases(outputs, call.keep);
  return collective(std::move(call), [from, to, options](c10d::Backend& gloo) {
    for (std::size_t at = 0; at < from.size(); at++) {
      auto in = from[at], out = to[at];
      gloo._allgather_base(out, in, options)->wait();
    }
  });
}

Group::WorkRef Group::reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) {
  auto parts = inputs.at(0);
  Call call{
      "reduce_scatter", c10d::OpType::REDUCE_SCATTER, outputs.at(0).device(), bytes_of(parts), options.asyncOp, {},
      outputs};
  auto from = aliases(parts, call.keep), to = aliases(outputs, call.keep);
  auto [summed, by] = averaged(options, size_);
  return collective(std::move(call), [from, to, summed = summed, by = by](c10d::Backend& gloo) {
    Lists in{from};
    auto out = to;
    gloo.reduce_scatter(out, in, summed)->wait();
    divide(out, by);
  });
}

Group::WorkRef Group::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Group::WorkRef Group::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const c10d::ReduceScatterOptions& options) {
  Call call{"reduce_scatter",
            c10d::OpType::_REDUCE_SCATTER_BASE,
            outputs.at(0).device(),
            bytes_of(inputs),
            options.asyncOp,
            {},
            outputs};
  auto from = aliases(inputs, call.keep), to = aliases(outputs, call.keep);
  auto [summed, by] = averaged(options, size_);
  return collective(std::move(call), [from, to, summed = summed, by = by](c10d::Backend& gloo) {
    for (std::size_t at = 0; at < from.size(); at++) {
      auto in = from[at], out = to[at];
      gloo._reduce_scatter_base(out, in, summed)->wait();
      Tensors one{out};
      divide(one, by);
    }
  });
}

Group::WorkRef Group::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                    std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  Call call{"all_to_all", c10d::OpType::ALLTOALL_BASE, input.device(), input.nbytes(), options.asyncOp, {}, {output}};
  auto from = alias(input, call.keep), to = alias(output, call.keep);
  return collective(std::move(call),
                    [from, to, outs = output_splits, ins = input_splits, options](c10d::Backend& gloo) {
                      auto in = from, out = to;
                      auto output_splits = outs, input_splits = ins;
                      gloo.alltoall_base(out, in, output_splits, input_splits, options)->wait();
                    });
}

Group::WorkRef Group::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  Call call{"all_to_all", c10d::OpType::ALLTOALL, inputs.at(0).device(), bytes_of(inputs), options.asyncOp, {},
            outputs};
  auto from = aliases(inputs, call.keep), to = aliases(outputs, call.keep);
  return collective(std::move(call), [from, to, options](c10d::Backend& gloo) {
    auto in = from, out = to;
    gloo.alltoall(out, in, options)->wait();
  });
}

Group::WorkRef Group::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  auto results = flatten(outputs);
  Call call{"gather", c10d::OpType::GATHER, inputs.at(0).device(), bytes_of(inputs), options.asyncOp, {}, results};
  auto from = aliases(inputs, call.keep), to = aliases(results, call.keep);
  return collective(std::move(call), [from, to, options](c10d::Backend& gloo) {
    auto in = from;
    Lists out;
    if (!to.empty()) out.push_back(to);
    gloo.gather(out, in, options)->wait();
  });
}

Group::WorkRef Group::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  Call call{"scatter", c10d::OpType::SCATTER, outputs.at(0).device(), bytes_of(outputs), options.asyncOp, {}, outputs};
  auto from = aliases(flatten(inputs), call.keep), to = aliases(outputs, call.keep);
  return collective(std::move(call), [from, to, options](c10d::Backend& gloo) {
    Lists in;
    if (!from.empty()) in.push_back(from);
    auto out = to;
    gloo.scatter(out, in, options)->wait();
  });
}

// The host waits too, as it does in NCCL's barrier. That the ranks meet is all a barrier needs.
Group::WorkRef Group::barrier(const c10d::BarrierOptions& options) {
  auto index = options.device_ids.empty() ? current_device() : options.device_ids[0];
  c10::Device device(kSim, static_cast<c10::DeviceIndex>(index));
  return collective({"barrier", c10d::OpType::BARRIER, device, 0, options.asyncOp, {}, {}}, [](c10d::Backend&) {});
}

}  // namespace sim
