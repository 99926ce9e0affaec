// What some kernels would compute, computed on the host. See "Values" in README.md.
//
// A kernel of the stand-in takes time and computes nothing. Where a program reads a result and decides by it, that is not
// enough. For the operators below, this library adds an operation to the stream that computes the same operator on the
// CPU, with tensors that lie where those of the device lie. It is in the order of the stream, so it computes after what
// it depends on, and again in each replay of a graph. It takes no time on the device.
//
// BackendSelect is a dispatch key that all operators pass, below autograd and above the backend.
#include "engine.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

namespace {

constexpr int64_t LARGEST = 1 << 14;  // elements. Larger tensors are data, and no program decides by a single element

const char* const OPERATORS[] = {
    "fill_.Scalar", "fill_.Tensor", "zero_", "copy_", "cat", "stack", "sum", "sum.dim_IntList", "max", "min", "any",
    "all", "argmax", "abs", "cumsum", "where.self", "masked_fill_.Scalar", "bitwise_not",
    "logical_not", "logical_and", "logical_or", "bitwise_and.Tensor", "bitwise_or.Tensor", "isnan", "reciprocal",
    "reciprocal_", "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor", "lt.Scalar", "lt.Tensor", "le.Scalar",
    "le.Tensor", "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor", "add.Tensor", "add_.Tensor", "sub.Tensor",
    "mul.Tensor", "mul_.Tensor", "mul.Scalar", "div.Tensor", "div_.Tensor", "clamp", "sqrt", "pow.Tensor_Scalar",
    "_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_", "linalg_vector_norm", "index_select",
};

// A tensor of the CPU in the memory of one of the device. None where it cannot be had.
std::optional<at::Tensor> seen(const at::Tensor& tensor) {
  if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) return tensor;  // a number
  if (!tensor.is_cuda() || !tensor.has_storage() || tensor.numel() > LARGEST || tensor.is_neg() || tensor.is_conj())
    return std::nullopt;
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

// Computes an operator and writes its results to where the device would write them.
void compute(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, const at::Tensor& result) {
  c10::impl::ExcludeDispatchKeyGuard no_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PythonDispatcher}));
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  try {
    torch::jit::Stack stack(arguments.begin(), arguments.end());
    op.callBoxed(&stack);
    if (!result.defined() || stack.empty() || !stack[0].isTensor()) return;
    at::Tensor made = stack[0].toTensor();
    if (made.defined() && made.data_ptr() != result.data_ptr()) at::Tensor(result).copy_(made);
  } catch (const std::exception& error) {  // the device goes on, with whatever the memory holds
    standin::say("%s: %s", op.schema().name().c_str(), error.what());
  }
}

void select(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  size_t count = op.schema().arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - count, stack->end());
  at::Tensor device;
  bool known = true;
  for (auto& each : arguments) {
    if (each.isTensor() && each.toTensor().defined() && each.toTensor().is_cuda()) device = each.toTensor();
    if (each.isTensorList() && !each.toTensorVector().empty() && each.toTensorVector()[0].is_cuda())
      device = each.toTensorVector()[0];
    known = known && replace(each);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect), stack);
  if (!known || !device.defined()) return;
  at::Tensor result;
  if (!stack->empty() && stack->back().isTensor()) {
    auto found = seen(stack->back().toTensor());
    if (!found || !stack->back().toTensor().is_cuda()) return;
    result = *found;
  }
  c10::impl::VirtualGuardImpl guard(at::kCUDA);
  standin::Spec spec;
  spec.name = "value";
  spec.effect = [op, arguments, result] { compute(op, arguments, result); };
  standin::enqueue(guard.getStream(device.device()).native_handle(), std::move(spec));
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, BackendSelect, library) {
  for (const char* name : OPERATORS) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&select>());
}
