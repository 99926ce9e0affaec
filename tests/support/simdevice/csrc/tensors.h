// Tensors of the device as the streams' threads see them: CPU tensors over the same memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "memory.h"

namespace sim {

// A CPU tensor over the tensor's memory, whose block is added to `keep`. Python never sees it.
at::Tensor alias(const at::Tensor& tensor, std::vector<BlockRef>& keep);
Stream& current(c10::Device device);
at::Tensor empty_on(c10::Device device, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype);

// How long a kernel of the CPU occupies its stream: 0 (the default), so that a stream's time is what busy() and
// collectives say, or a set time, or, if negative, the time its thread took.
void set_kernel_time(Nanos time);
// Copies between host and device take this long a byte; 0 is the default.
void set_copy_time(double nanos_per_byte);
Nanos copy_time(std::size_t bytes);
// Runs a kernel on the stream's thread and advances its clock.
void run_kernel(Stream& on, Nanos enqueued, const std::string& name, const std::function<void()>& kernel);

}  // namespace sim
