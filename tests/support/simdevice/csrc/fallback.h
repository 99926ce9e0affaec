#pragma once

#include <ATen/core/stack.h>

#include "tensors.h"

namespace c10 {
class OperatorHandle;
}

namespace sim {

// Queues the operator's CPU kernel on the current stream; the results replace the arguments on the stack.
void launch(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace sim
