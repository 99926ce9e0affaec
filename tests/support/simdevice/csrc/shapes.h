// The shapes of an operator's results, before it has run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>

#include "tensors.h"

namespace sim {

struct Shapes {
  std::vector<c10::IValue> returned;  // meta tensors, one value a return
  std::vector<c10::IValue> written;   // meta tensors, one value an out argument, in their order
};

// Null where they cannot be known without the data.
std::shared_ptr<const Shapes> infer(const c10::OperatorHandle& op, const torch::jit::Stack& stack, std::size_t from);
// Gives out= arguments the size that their result has.
void resize_written(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, std::size_t from,
                    const Shapes& shapes);
// The argument that this return is, as in-place and out= operators return theirs; -1 for a new tensor.
int written_argument(const c10::FunctionSchema& schema, std::size_t returned);

// For a value that is a tensor or a list of tensors.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);
c10::IValue map_tensors(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& change);

}  // namespace sim
