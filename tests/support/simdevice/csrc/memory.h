// Memory of the device, and pinned memory of the host: plain host memory that streams' threads can keep alive.
#pragma once

#include <c10/core/Allocator.h>

#include <memory>

#include "clock.h"

namespace sim {

constexpr auto kSim = c10::DeviceType::PrivateUse1;

struct Block {
  Block(std::size_t bytes, int device);
  ~Block();
  void* data = nullptr;
  const std::size_t bytes;
  const int device;  // -1: pinned memory of the host
};

// What a queued item holds so that its memory outlives it. It must hold no tensor or storage that Python may know:
// letting go of one takes Python's lock, and the host may hold that while it waits for room in the queue.
using BlockRef = std::shared_ptr<Block>;

// The block behind a storage's memory; null where it is not ours.
BlockRef block_of(const c10::DataPtr& memory);
bool is_pinned(const void* memory);
std::size_t allocated(int device);

void register_memory();

}  // namespace sim
