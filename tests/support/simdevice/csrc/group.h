// A process group whose collectives run on streams of the simulated device, as NCCL's do on CUDA's.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tensors.h"

namespace sim {

// What queued items need of a group; they may outlive it.
struct Link {
  c10::intrusive_ptr<c10d::Backend> gloo;
  int rank, size;
  std::string name;
  std::atomic<Nanos> latency{-1};  // negative: the default of all groups
  std::atomic<double> nanos_per_byte{0};
  std::atomic<bool> hangs{false};  // the next collective of this rank never arrives

  Nanos time(std::size_t bytes) const;
};

// Applies to groups without a time of their own.
void set_default_time(Nanos latency, double nanos_per_byte);
void set_time(const c10::intrusive_ptr<c10d::Backend>& group, Nanos latency, double nanos_per_byte);
void hang_next(const c10::intrusive_ptr<c10d::Backend>& group);
void release_hung();
c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Backend>& gloo, std::string name);

struct Transfer {  // of a point-to-point batch
  bool sends;
  int peer;
  at::Tensor tensor;
};

class Group final : public c10d::Backend {
 public:
  Group(const c10::intrusive_ptr<c10d::Backend>& gloo, std::string name);

  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkRef = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "sim"; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds) override {}

  WorkRef allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkRef allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkRef broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkRef reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkRef allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkRef _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkRef allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkRef reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkRef _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkRef reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkRef alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkRef alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkRef gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkRef scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkRef barrier(const c10d::BarrierOptions& options) override;
  WorkRef send(Tensors& tensors, int peer, int tag) override;
  WorkRef recv(Tensors& tensors, int peer, int tag) override;
  void startCoalescing() override;
  WorkRef endCoalescing() override;

  const std::shared_ptr<Link> link;

 private:
  using Body = std::function<void(c10d::Backend&)>;
  struct Call {
    const char* name;
    c10d::OpType type;
    c10::Device device;
    std::size_t bytes;
    bool asynchronous;
    std::vector<BlockRef> keep;
    Tensors results;
  };
  WorkRef collective(Call call, Body body);
  WorkRef transfer(std::vector<Transfer> transfers);
  WorkRef enqueue(const Call& call, Stream& on, Stream::Work work);
  Stream& own_stream(int device, const std::string& key);

  std::mutex mutex_;
  std::map<std::string, std::int64_t> streams_;
  MarkRef last_;
  std::uint64_t sequence_ = 0;
  std::map<std::pair<int, int>, int> messages_;
  bool coalescing_ = false;
  std::vector<Transfer> pending_;
};

}  // namespace sim
