#include "memory.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <cstdlib>
#include <cstring>
#include <map>

namespace sim {
namespace {

struct Ranges {
  std::mutex mutex;
  std::map<const char*, Block*> blocks;  // by first address
};

Ranges& ranges() {
  static auto* instance = new Ranges;
  return *instance;
}

std::atomic<std::size_t> in_use[kDevices];

Block* block_at(const void* memory) {
  std::lock_guard lock(ranges().mutex);
  auto after = ranges().blocks.upper_bound(static_cast<const char*>(memory));
  if (after == ranges().blocks.begin()) return nullptr;
  auto* block = std::prev(after)->second;
  return static_cast<const char*>(memory) < static_cast<char*>(block->data) + block->bytes ? block : nullptr;
}

void release(void* context) { delete static_cast<BlockRef*>(context); }

c10::DataPtr allocate_block(std::size_t bytes, int device) {
  c10::Device where = device < 0 ? c10::Device(c10::kCPU) : c10::Device(kSim, device);
  if (bytes == 0) return {nullptr, nullptr, &release, where};
  auto block = std::make_shared<Block>(bytes, device);
  void* data = block->data;
  return {data, new BlockRef(std::move(block)), &release, where};
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override { return allocate_block(bytes, -1); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    touch(current_device());
    return allocate_block(bytes, current_device());
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  // Queued items hold their blocks, so memory is never reused early.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<std::int64_t>(allocated(device));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

// The state of a CPU generator. Operators take a seed from it on the host, as CUDA's take an offset, so that the host
// need not wait for them to know its state (operators.cpp).
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(kSim, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator(int device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int each = 0; each < kDevices; each++) made->push_back(at::make_generator<Generator>(each));
    return made;
  }();
  return all->at(device < 0 ? current_device() : device);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return touched(device); }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = current_device();
    set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 || device >= kDevices ? current_device() : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
  c10::Device getDeviceFromPtr(void* memory) const override {
    auto* block = block_at(memory);
    TORCH_CHECK(block && block->device >= 0, "not memory of the simulated device");
    return {kSim, static_cast<c10::DeviceIndex>(block->device)};
  }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* pinned = new PinnedAllocator;
    return pinned;
  }

  // FSDP frees its buffers with resize_(0), and gets them back with another.
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    int device = storage.device().index();
    touch(device);
    auto fresh = allocate_block(bytes, device);
    std::size_t kept = std::min(bytes, impl->nbytes());
    if (kept > 0) {
      auto from = block_of(storage.data_ptr()), to = block_of(fresh);
      stream(device, current_stream(device)).push([from, to, kept](Stream&, Nanos) {
        std::memcpy(to->data, from->data, kept);
      });
    }
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

Block::Block(std::size_t bytes, int device) : bytes(bytes), device(device) {
  // New memory is filled with what makes a read before the first write show in losses: NaN.
  TORCH_CHECK(posix_memalign(&data, 64, bytes) == 0, "the simulated device has no memory for ", bytes, " bytes");
  std::memset(data, 0xff, bytes);
  if (device >= 0) in_use[device] += bytes;
  std::lock_guard lock(ranges().mutex);
  ranges().blocks[static_cast<char*>(data)] = this;
}

Block::~Block() {
  {
    std::lock_guard lock(ranges().mutex);
    ranges().blocks.erase(static_cast<char*>(data));
  }
  if (device >= 0) in_use[device] -= bytes;
  std::free(data);
}

BlockRef block_of(const c10::DataPtr& memory) {
  if (memory.get_deleter() != &release || !memory.get_context()) return nullptr;
  return *static_cast<BlockRef*>(memory.get_context());
}

bool is_pinned(const void* memory) {
  auto* block = block_at(memory);
  return block && block->device < 0;
}

std::size_t allocated(int device) { return in_use[device]; }

void register_memory() {
  static auto* memory = new DeviceMemory;
  c10::SetAllocator(kSim, memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

}  // namespace sim
