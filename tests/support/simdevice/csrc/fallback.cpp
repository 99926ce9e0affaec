// Every operator without a registration of its own: its CPU kernel, queued on the current stream. The host learns the
// results' shapes from meta tensors and goes on. Only where a shape or a number depends on data does it wait.
#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <time.h>

#include "shapes.h"

namespace sim {
namespace {

std::atomic<Nanos> kernel_time{0};
std::atomic<double> nanos_per_byte{0};

Nanos thread_time() {
  timespec at;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
  return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}

// What the stream's thread runs: an operator, its arguments as CPU tensors, and where its results belong.
struct Job {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;
  std::vector<at::Tensor> results;
  std::vector<BlockRef> keep;

  void run() {
    at::AutoDispatchBelowADInplaceOrView below;
    torch::jit::Stack stack = arguments;  // a captured job runs more than once
    op.callBoxed(&stack);
    std::size_t at = 0;
    for (const auto& value : stack)
      for_each_tensor(value, [&](const at::Tensor& made) {
        auto& wanted = results.at(at++);
        if (!wanted.defined() || !made.defined() || made.is_same(wanted)) return;
        TORCH_CHECK(made.sizes() == wanted.sizes(), op.schema().name(), ": the CPU made ", made.sizes(), ", meta ",
                    wanted.sizes());
        if (made.data_ptr() != wanted.data_ptr()) wanted.copy_(made);
      });
  }
};

c10::Device device_of(const torch::jit::Stack& stack, std::size_t from) {
  std::optional<c10::Device> found;
  for (auto at = from; at < stack.size(); at++) {
    for_each_tensor(stack[at], [&](const at::Tensor& tensor) {
      if (!found && tensor.defined() && tensor.device().type() == kSim) found = tensor.device();
    });
    if (!found && stack[at].isDevice() && stack[at].toDevice().type() == kSim) found = stack[at].toDevice();
  }
  auto device = found.value_or(c10::Device(kSim));
  return device.has_index() ? device : c10::Device(kSim, static_cast<c10::DeviceIndex>(current_device()));
}

// An argument as the CPU kernel gets it. A CPU tensor is copied: a queued job must not own what Python may know.
c10::IValue for_cpu(const c10::IValue& value, std::vector<BlockRef>& keep) {
  if (value.isDevice()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) {
    auto generator = value.toGenerator();
    std::lock_guard lock(generator.mutex());
    auto* state = static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
    return at::detail::createCPUGenerator(state->random64());
  }
  return map_tensors(value, [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() == kSim) return alias(tensor, keep);
    auto copy = tensor.clone();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
    return copy;
  });
}

// Random operators draw from the device's generator, on the host, in the order of their calls.
void give_generator(const c10::FunctionSchema& schema, torch::jit::Stack& stack, std::size_t from, int device) {
  for (std::size_t at = 0; at < schema.arguments().size(); at++) {
    auto& value = stack[from + at];
    if (value.isNone() && schema.arguments()[at].name() == "generator")
      value = at::globalContext().defaultGenerator(c10::Device(kSim, static_cast<c10::DeviceIndex>(device)));
  }
}

void call_now(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::size_t from, c10::Device device) {
  count(Call::operator_blocking);
  forbid_in_capture(Call::synchronize_in_capture, "An operator that the host waits for");
  current(device).synchronize();
  std::vector<BlockRef> keep;
  torch::jit::Stack arguments;
  for (auto at = from; at < stack->size(); at++) arguments.push_back(for_cpu((*stack)[at], keep));
  std::vector<c10::IValue> originals(stack->begin() + static_cast<std::ptrdiff_t>(from), stack->end());
  torch::jit::drop(*stack, originals.size());
  op.callBoxed(&arguments);
  const auto& schema = op.schema();
  for (std::size_t at = 0; at < arguments.size(); at++) {
    auto written = written_argument(schema, at);
    if (written >= 0) {
      stack->push_back(originals[written]);
      continue;
    }
    stack->push_back(map_tensors(arguments[at], [&](const at::Tensor& made) {
      if (!made.defined()) return made;
      auto moved = empty_on(device, made.sizes(), made.strides(), made.scalar_type());
      std::vector<BlockRef> held;
      if (made.numel() > 0) alias(moved, held).copy_(made);
      return moved;
    }));
  }
}

}  // namespace

void set_kernel_time(Nanos time) { kernel_time = time; }
void set_copy_time(double time) { nanos_per_byte = time; }
Nanos copy_time(std::size_t bytes) { return static_cast<Nanos>(nanos_per_byte * static_cast<double>(bytes)); }

void run_kernel(Stream& on, Nanos enqueued, const std::string& name, const std::function<void()>& kernel) {
  // Gives this thread torch.set_num_threads(), which oneDNN does not ask for: with another number it rounds otherwise.
  static thread_local int threads = at::get_num_threads();
  (void)threads;
  Nanos start = on.begin(enqueued), before = thread_time();
  kernel();
  Nanos set = kernel_time;
  on.spend("kernel", name, start, start + (set >= 0 ? set : thread_time() - before), enqueued);
}

Stream& current(c10::Device device) { return stream(device.index(), current_stream(device.index())); }

at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kSim),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype);
}

at::Tensor alias(const at::Tensor& tensor, std::vector<BlockRef>& keep) {
  const auto& storage = tensor.storage();
  if (auto block = block_of(storage.data_ptr())) keep.push_back(std::move(block));
  c10::Storage same(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    c10::DataPtr(const_cast<void*>(storage.data()), c10::Device(c10::kCPU)), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(same), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

void launch(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto from = stack->size() - schema.arguments().size();
  auto device = device_of(*stack, from);
  c10::DeviceGuard guard(device);
  touch(device.index());

  auto shapes = infer(op, *stack, from);
  if (!shapes) return call_now(op, stack, from, device);
  resize_written(schema, *stack, from, *shapes);
  give_generator(schema, *stack, from, device.index());

  auto job = std::make_shared<Job>(Job{op, {}, {}, {}});
  for (auto at = from; at < stack->size(); at++) job->arguments.push_back(for_cpu((*stack)[at], job->keep));

  torch::jit::Stack results;
  for (std::size_t at = 0; at < schema.returns().size(); at++) {
    auto written = written_argument(schema, at);
    if (written >= 0) {
      results.push_back((*stack)[from + written]);
      for_each_tensor(results.back(), [&](const at::Tensor&) { job->results.emplace_back(); });
      continue;
    }
    results.push_back(map_tensors(shapes->returned[at], [&](const at::Tensor& meta) {
      at::Tensor made;
      if (meta.defined()) made = empty_on(device, meta.sizes(), meta.strides(), meta.scalar_type());
      job->results.push_back(made.defined() ? alias(made, job->keep) : made);
      return made;
    }));
  }
  torch::jit::drop(*stack, schema.arguments().size());
  for (auto& result : results) stack->push_back(std::move(result));
  current(device).push([job](Stream& self, Nanos enqueued) {
    run_kernel(self, enqueued, job->op.schema().name(), [&] { job->run(); });
  });
}

}  // namespace sim
