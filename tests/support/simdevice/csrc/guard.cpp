// Streams and events as torch's device-generic interface asks for them.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace sim {
namespace {

// What torch keeps as `void*`.
struct Event {
  std::mutex mutex;
  MarkRef last;
  std::int64_t stream = 0;  // of the last recording
  bool timing = false;

  MarkRef get() {
    std::lock_guard lock(mutex);
    return last;
  }
};

Event* of(void* event) { return static_cast<Event*>(event); }
Stream& of(const c10::Stream& each) { return stream(each.device_index(), each.id()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSim; }
  c10::Device getDevice() const override { return {kSim, static_cast<c10::DeviceIndex>(current_device())}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < kDevices) set_current_device(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    if (device.has_index()) set_current_device(device.index());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static int index(c10::Device device) { return device.has_index() ? device.index() : current_device(); }
  static c10::Stream wrap(int device, std::int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, static_cast<c10::DeviceIndex>(device)), id);
  }

  c10::Stream getStream(c10::Device device) const override {
    return wrap(index(device), current_stream(index(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return wrap(index(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    touch(index(device));
    return wrap(index(device), pooled_stream(index(device)));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStreamFromGlobalPool(device, false); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = getStream(next.device());
    set_current_stream(next.device_index(), next.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream each) const override { return &of(each); }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete of(event); }

  void record(void** slot, const c10::Stream& each, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    count(Call::record_event);
    if (capturing()) count(Call::record_in_capture);
    if (!*slot) *slot = new Event;
    auto* event = of(*slot);
    auto mark = std::make_shared<Mark>();
    {
      std::lock_guard lock(event->mutex);
      event->last = mark;
      event->stream = each.id();
      event->timing = flag == c10::EventFlag::BACKEND_DEFAULT;  // torch.Event's enable_timing=True
    }
    of(each).push_record(std::move(mark), flag == c10::EventFlag::BACKEND_DEFAULT);
  }

  void block(void* event, const c10::Stream& each) const override {
    count(Call::wait_event);
    if (!event) return;
    auto mark = of(event)->get();
    if (mark) of(each).push_wait(std::move(mark), "stream " + std::to_string(of(event)->stream));
  }

  bool queryEvent(void* event) const override {
    count(Call::query_event);
    forbid_in_capture(Call::query_in_capture, "Querying an event");
    auto mark = event ? of(event)->get() : nullptr;
    return !mark || mark->done();
  }

  void synchronizeEvent(void* event) const override {
    count(Call::synchronize_event);
    forbid_in_capture(Call::synchronize_in_capture, "Synchronizing an event");
    auto mark = event ? of(event)->get() : nullptr;
    if (mark) mark->wait();
  }

  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    count(Call::elapsed_time);
    TORCH_CHECK(first && second && of(first)->timing && of(second)->timing, "Both events need enable_timing=True");
    auto from = of(first)->get(), to = of(second)->get();
    TORCH_CHECK(from->done() && to->done(), "Both events must be completed before their elapsed time is asked for");
    return static_cast<double>(to->wait() - from->wait()) / 1e6;
  }

  bool isStreamCapturing(const c10::Stream&) const override { return capturing(); }

  bool queryStream(const c10::Stream& each) const override {
    count(Call::query_stream);
    forbid_in_capture(Call::query_in_capture, "Querying a stream");
    return of(each).idle();
  }

  void synchronizeStream(const c10::Stream& each) const override {
    count(Call::synchronize_stream);
    forbid_in_capture(Call::synchronize_in_capture, "Synchronizing a stream");
    touch(each.device_index());
    of(each).synchronize();
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    count(Call::synchronize_device);
    forbid_in_capture(Call::synchronize_in_capture, "Synchronizing a device");
    touch(device);
    synchronize_device(device);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace sim
