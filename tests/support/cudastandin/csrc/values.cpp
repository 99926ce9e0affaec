// What some kernels would compute, computed on the host. See "Values" in README.md.
//
// A kernel of the stand-in takes time and computes nothing. Where a program reads a result and decides by it, that is
// not enough. So for the operators below, this library adds an operation to the stream. It computes the same operator
// on the CPU, in the memory of the device's tensors. Because it is in the stream, it computes after what it depends on,
// and again in each replay of a graph. It takes no time on the device.
//
// BackendSelect is a dispatch key that all operators pass, below autograd and above the backend.
#include "engine.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

namespace {

// Elements. Larger tensors are data, and no program decides by a single element of them.
constexpr int64_t LARGEST = 1 << 20, LARGEST_FLOATING = 64;

const char* const OPERATORS[] = {
    // to make and to move
    "fill_.Scalar", "fill_.Tensor", "zero_", "copy_", "cat", "stack", "index_select", "where.self",
    "masked_fill_.Scalar",
    // to compare
    "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar", "lt.Tensor", "le.Scalar", "le.Tensor",
    "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor", "isnan", "logical_not", "logical_and", "logical_or",
    "bitwise_not", "bitwise_and.Tensor", "bitwise_or.Tensor",
    // to calculate
    "abs", "clamp", "sqrt", "pow.Tensor_Scalar", "reciprocal", "reciprocal_", "cumsum", "add.Tensor", "add_.Tensor",
    "sub.Tensor", "mul.Tensor", "mul_.Tensor", "mul.Scalar", "div.Tensor", "div_.Tensor",
    // of torch.amp.GradScaler
    "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_",
};
// Where these read more than the largest tensors, a small result is 0, and not what the memory held before.
const char* const REDUCTIONS[] = {
    "sum", "sum.dim_IntList", "mean", "max", "min", "any", "all", "argmax", "linalg_vector_norm",
    "_foreach_norm.Scalar",
};

// A tensor of the CPU in the memory of one of the device. None where it cannot be had.
std::optional<at::Tensor> seen(const at::Tensor& tensor) {
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;  // a number
  if (!tensor.is_cuda() || !tensor.has_storage() || tensor.is_neg() || tensor.is_conj()) return std::nullopt;
  if (tensor.numel() > (tensor.is_floating_point() ? LARGEST_FLOATING : LARGEST)) return std::nullopt;
  auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), options);
}

// Replaces the tensors of a value by those of `seen`. Whether all could be had.
bool replace(c10::IValue& value) {
  if (value.isTensor()) {
    auto found = seen(value.toTensor());
    if (found) value = *found;
    return found.has_value();
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      auto found = seen(each);
      if (!found) return false;
      list.push_back(*found);
    }
    value = list;
    return true;
  }
  if (value.isDevice()) value = c10::Device(at::kCPU);
  return !value.isList() || !value.toList().elementType()->isSubtypeOf(*c10::OptionalType::ofTensor());
}

// On any thread, with the engine's lock.
template <class Function>
void quietly(Function function) {
  using c10::DispatchKey;
  c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher}));
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  try {
    function();
  } catch (const std::exception& error) {  // the device goes on, with whatever the memory holds
    standin::say("%s", error.what());
  }
}

// Computes an operator and writes its results to where the device would write them.
void compute(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, const at::Tensor& result) {
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  op.callBoxed(&stack);
  if (!result.defined() || stack.empty() || !stack[0].isTensor()) return;
  at::Tensor made = stack[0].toTensor();
  if (made.defined() && made.data_ptr() != result.data_ptr()) at::Tensor(result).copy_(made);
}

void add(const at::Tensor& device, std::function<void()> effect) {
  c10::impl::VirtualGuardImpl guard(at::kCUDA);
  standin::Spec spec;
  spec.name = "value";
  spec.effect = [effect = std::move(effect)] { quietly(effect); };
  standin::enqueue(guard.getStream(device.device()).native_handle(), std::move(spec));
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>();
}

at::Tensor first_on_device(const std::vector<c10::IValue>& values) {
  for (auto& value : values)
    for (auto& tensor : tensors_of(value))
      if (tensor.defined() && tensor.is_cuda()) return tensor;
  return {};
}

// Calls the backend. Returns whether the arguments, on the device when it was called, could be had.
bool call_backend(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                  std::vector<c10::IValue>& arguments, at::Tensor& device) {
  arguments.assign(stack->end() - op.schema().arguments().size(), stack->end());
  device = first_on_device(arguments);
  bool known = device.defined();
  for (auto& each : arguments) known = known && replace(each);
  auto below = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  op.redispatchBoxed(keys & below, stack);
  return known;
}

template <bool reduces>
void select(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<c10::IValue> arguments;
  at::Tensor device;
  bool known = call_backend(op, keys, stack, arguments, device);
  if (!device.defined() || (!known && !reduces)) return;
  auto results = stack->empty() ? std::vector<at::Tensor>() : tensors_of(stack->back());
  if (known && results.size() <= 1) {
    auto result = results.empty() ? at::Tensor() : seen(results[0]);
    if (result) add(device, [op, arguments, result] { compute(op, arguments, *result); });
  } else if (reduces) {
    for (auto& each : results)
      if (auto result = seen(each)) add(device, [result] { result->zero_(); });
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, BackendSelect, library) {
  for (const char* name : OPERATORS) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&select<false>>());
  for (const char* name : REDUCTIONS) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&select<true>>());
}
