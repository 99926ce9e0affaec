#include "shapes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>

#include <mutex>
#include <unordered_map>

namespace sim {
namespace {

std::mutex cache_mutex;
auto& cache = *new std::unordered_map<std::string, std::shared_ptr<const Shapes>>;

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

void append(std::string& key, const void* bytes, std::size_t count) {
  key.append(static_cast<const char*>(bytes), count);
}

template <typename T>
void append(std::string& key, char kind, const T& value) {
  key.push_back(kind);
  append(key, &value, sizeof(value));
}

void append_tensor(std::string& key, const at::Tensor& tensor) {
  if (!tensor.defined()) return key.push_back('u');
  append(key, tensor.device().type() == kSim ? 't' : 'c', tensor.scalar_type());
  append(key, 'n', tensor.dim());
  append(key, tensor.sizes().data(), tensor.dim() * sizeof(std::int64_t));
  append(key, tensor.strides().data(), tensor.dim() * sizeof(std::int64_t));
  key.push_back(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 'w' : 'x');
}

// Adds the value to the key; false where it is of a kind that the key cannot tell apart.
bool append_value(std::string& key, const c10::IValue& value) {
  if (value.isTensor()) {
    append_tensor(key, value.toTensor());
  } else if (value.isNone() || value.isGenerator()) {
    key.push_back('0');
  } else if (value.isInt()) {
    append(key, 'i', value.toInt());
  } else if (value.isDouble()) {
    append(key, 'd', value.toDouble());
  } else if (value.isBool()) {
    append(key, 'b', value.toBool());
  } else if (value.isDevice()) {
    append(key, 'D', value.toDevice().index());
  } else if (value.isString()) {
    append(key, 's', value.toStringRef().size());
    key += value.toStringRef();
  } else if (value.isList()) {
    auto list = value.toListRef();
    append(key, '[', list.size());
    for (const auto& each : list)
      if (!append_value(key, each)) return false;
  } else {
    return false;
  }
  return true;
}

at::Tensor to_meta(const at::Tensor& tensor) {
  // A number that Python wrapped stays on the CPU: operators take it beside tensors of any device.
  if (!tensor.defined() || tensor.device().type() != kSim) return tensor;
  auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

std::shared_ptr<const Shapes> ask_meta(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                       std::size_t from) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto shapes = std::make_shared<Shapes>();
  torch::jit::Stack metas;
  for (auto at = from; at < stack.size(); at++) {
    const auto& value = stack[at];
    if (value.isDevice())
      metas.emplace_back(c10::Device(c10::kMeta));
    else if (value.isGenerator())
      metas.emplace_back();
    else
      metas.push_back(map_tensors(value, to_meta));
    if (is_out(op.schema().arguments()[at - from])) shapes->written.push_back(metas.back());
  }
  try {
    op.callBoxed(&metas);
  } catch (const std::exception&) {
    return nullptr;  // depends on data, has no meta kernel, or is wrong: the CPU kernel says which
  }
  shapes->returned.assign(metas.begin(), metas.end());
  return shapes;
}

}  // namespace

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) return visit(value.toTensor());
  if (!value.isTensorList() && !value.isOptionalTensorList()) return;
  for (const auto& each : value.toListRef()) visit(each.isNone() ? at::Tensor() : each.toTensor());
}

c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const auto& each : value.toTensorVector()) changed.push_back(change(each));
    return changed;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const auto& each : value.toListRef())
      changed.push_back(each.isNone() ? std::optional<at::Tensor>() : change(each.toTensor()));
    return changed;
  }
  return value;
}

int written_argument(const c10::FunctionSchema& schema, std::size_t returned) {
  const auto* info = schema.returns()[returned].alias_info();
  if (!info || !info->isWrite()) return -1;
  for (std::size_t at = 0; at < schema.arguments().size(); at++) {
    const auto* other = schema.arguments()[at].alias_info();
    if (other && other->isWrite() && other->beforeSets() == info->beforeSets()) return static_cast<int>(at);
  }
  return -1;
}

std::shared_ptr<const Shapes> infer(const c10::OperatorHandle& op, const torch::jit::Stack& stack, std::size_t from) {
  const auto& schema = op.schema();
  bool new_or_out = false;
  for (std::size_t at = 0; at < schema.returns().size(); at++) {
    auto kind = schema.returns()[at].type()->kind();
    bool tensors = kind == c10::TypeKind::TensorType ||
                   (kind == c10::TypeKind::ListType && written_argument(schema, at) >= 0) ||
                   schema.returns()[at].type()->isSubtypeOf(*c10::ListType::ofTensors());
    if (!tensors) return nullptr;  // a number: the host needs the data
    new_or_out |= written_argument(schema, at) < 0;
  }
  for (const auto& argument : schema.arguments()) new_or_out |= is_out(argument);
  static const auto in_place = std::make_shared<const Shapes>();
  if (!new_or_out) return in_place;

  std::string key;
  const auto* identity = &schema;
  append(key, 'o', identity);
  bool known = true;
  for (auto at = from; at < stack.size() && known; at++) known = append_value(key, stack[at]);
  if (known) {
    std::lock_guard lock(cache_mutex);
    auto found = cache.find(key);
    if (found != cache.end()) return found->second;
  }
  auto shapes = ask_meta(op, stack, from);
  if (known && shapes) {
    std::lock_guard lock(cache_mutex);
    cache.emplace(std::move(key), shapes);
  }
  return shapes;
}

void resize_written(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, std::size_t from,
                    const Shapes& shapes) {
  std::size_t next = 0;
  for (std::size_t at = 0; at < schema.arguments().size() && next < shapes.written.size(); at++) {
    if (!is_out(schema.arguments()[at])) continue;
    std::vector<at::Tensor> metas;
    for_each_tensor(shapes.written[next++], [&](const at::Tensor& meta) { metas.push_back(meta); });
    std::size_t each = 0;
    for_each_tensor(stack[from + at], [&](const at::Tensor& tensor) {
      const auto& meta = metas.at(each++);
      if (meta.defined() && meta.sizes() != tensor.sizes()) tensor.resize_(meta.sizes());
    });
  }
}

}  // namespace sim
