// Operators that need a registration of their own: memory, views, copies, and the few that torch leaves to a backend.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

#include "fallback.h"

namespace sim {
namespace {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Where = std::optional<at::Device>;
using Flag = std::optional<bool>;

c10::Device device_or_current(Where device) {
  auto where = device.value_or(c10::Device(kSim));
  return where.has_index() ? where : c10::Device(kSim, static_cast<c10::DeviceIndex>(current_device()));
}

at::Tensor empty(c10::SymIntArrayRef size, Dtype dtype, Layout, Where device, Flag,
                 std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(kSim),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
                                   format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, Dtype dtype, Layout, Where device,
                         Flag) {
  return empty_on(device_or_current(device), C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                  c10::dtype_or_default(dtype));
}

// Grows the storage as resizePrivateUse1Bytes does, which keeps what it held.
void grow(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  auto bytes = at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->dtype().itemsize(),
                                                impl->storage_offset());
  if (impl->numel() > 0 && bytes > tensor.storage().nbytes()) at::native::resize_bytes_nocuda(tensor.storage(), bytes);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  grow(self);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  at::native::set_storage_cpu_(self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                               C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  auto items = static_cast<std::int64_t>(source.nbytes() / self.dtype().itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {items}, {});
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(kSim)->allocate(0), c10::GetAllocator(kSim),
                    true);
  return at::native::set_storage_cpu_(self, std::move(none), 0, {0}, {});
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<std::int64_t>(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Copies between devices and between host and device, as CUDA's: asynchronous for the host where it said non_blocking
// and its memory is pinned or already read.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  bool up = self.device().type() != kSim, down = dst.device().type() != kSim;
  auto device = up ? dst.device() : self.device();
  auto from = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  if (dst.numel() == 0) return dst;
  bool pinned = up ? is_pinned(self.const_data_ptr()) : !down || is_pinned(dst.const_data_ptr());
  bool waits = (up || down) && !(non_blocking && (pinned || up));
  std::vector<BlockRef> keep;
  auto target = alias(dst, keep);
  auto source = up && !pinned ? from.clone() : alias(from, keep);
  auto bytes = up || down ? dst.nbytes() : 0;
  auto& on = current(device);
  on.push([source, target, keep, bytes](Stream& self, Nanos enqueued) {
    if (bytes == 0) return run_kernel(self, enqueued, "aten::copy_", [&] { at::Tensor(target).copy_(source); });
    Nanos start = self.begin(enqueued);
    at::Tensor(target).copy_(source);
    self.spend("copy", source.is_pinned() ? "to device" : "copy", start, start + copy_time(bytes), enqueued);
  });
  if (waits) {
    count(Call::copy_blocking);
    forbid_in_capture(Call::synchronize_in_capture, "A copy that the host waits for");
    on.synchronize();
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) {
    auto all = at::empty_like(input, input.options().dtype(at::kBool));
    return {input.clone(), all.fill_(true)};
  }
  auto kept = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(kept).mul_(p == 1 ? 0 : 1 / (1 - p)), kept};
}

// torch then computes attention from operators that the fallback has.
std::int64_t fused_sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                              double, bool, std::optional<double>, bool) {
  return 0;
}

const c10::OperatorHandle& find(const char* name) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<std::string, c10::OperatorHandle>;
  std::lock_guard lock(mutex);
  auto found = known.find(name);
  if (found == known.end()) found = known.emplace(name, c10::Dispatcher::singleton().findSchemaOrThrow(name, "")).first;
  return found->second;
}

void convolution(const c10::OperatorHandle&, torch::jit::Stack* stack) { launch(find("aten::convolution"), stack); }

void convolution_backward(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  // The CPU's wants the bias's sizes too; where the mask asks for no bias gradient it ignores them.
  const auto& weight = (*stack)[stack->size() - 8].toTensor();
  bool transposed = (*stack)[stack->size() - 4].toBool();
  auto groups = (*stack)[stack->size() - 2].toInt();
  std::int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->end() - 7, c10::IValue(c10::List<std::int64_t>({channels})));
  launch(find("aten::convolution_backward"), stack);
}

// Queued items hold their memory.
void record_stream(at::Tensor&, at::Stream) {}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { launch(op, stack); }

at::Tensor busy(const at::Tensor& input, double ms, std::string tag) {
  auto output = at::empty_like(input);
  std::vector<BlockRef> keep;
  auto from = alias(input, keep), to = alias(output, keep);
  auto duration = static_cast<Nanos>(ms * 1e6);
  current(input.device()).push([from, to, keep, duration, tag](Stream& self, Nanos enqueued) {
    Nanos start = self.begin(enqueued);
    at::Tensor(to).copy_(from);
    self.spend("busy", tag, start, start + duration, enqueued);
  });
  return output;
}

}  // namespace

TORCH_LIBRARY(simdevice, m) { m.def("busy(Tensor input, float ms, str tag) -> Tensor"); }
TORCH_LIBRARY_IMPL(simdevice, PrivateUse1, m) { m.impl("busy", busy); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_nothing);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("record_stream", record_stream);
  m.impl("native_dropout", native_dropout);
  m.impl("_fused_sdp_choice", fused_sdp_choice);
  // Else torch composes these of others, which round differently or warn.
  for (const char* name : {"native_layer_norm", "native_group_norm", "silu_backward", "mish_backward", "mse_loss"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace sim
