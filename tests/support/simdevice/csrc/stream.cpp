#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <utility>

#include "clock.h"

namespace sim {
namespace {

// Leaked on purpose: streams' threads outlive main(), and must find these there.
struct World {
  std::mutex mutex;
  std::vector<Stream*> streams[kDevices];
  std::size_t pool_next[kDevices] = {};
  std::vector<std::int64_t> pool[kDevices];

  std::mutex log_mutex;
  std::vector<Entry> log;

  std::mutex capture_mutex;
  Captured captured;
};

World& world() {
  static auto* instance = new World;
  return *instance;
}

constexpr int kNice = -10;
constexpr Nanos kLate = 1'000'000;  // more than a thread takes to wake up
constexpr std::size_t kPool = 32;  // as CUDA's pools of streams

std::atomic<std::size_t> limit{1024};  // about what a CUDA channel takes before a launch blocks
std::atomic<bool> capture_on{false};
std::atomic<bool> real_time{false};
std::atomic<void (*)(const std::function<void()>&)> room_waiter{nullptr};

thread_local bool stream_thread = false;
thread_local int device_now = 0;
thread_local std::int64_t stream_now[kDevices] = {};

}  // namespace

bool on_stream_thread() { return stream_thread; }
void set_queue_limit(std::size_t items) { limit = std::max<std::size_t>(items, 1); }
std::size_t queue_limit() { return limit; }
void set_real_time(bool on) { real_time = on; }
void set_room_waiter(void (*waiter)(const std::function<void()>&)) { room_waiter = waiter; }
int current_device() { return device_now; }
std::int64_t current_stream(int device) { return stream_now[device]; }
void set_current_stream(int device, std::int64_t id) { stream_now[device] = id; }
bool capturing() { return capture_on; }

void set_current_device(int device) {
  if (device < 0 || device >= kDevices) throw std::out_of_range("the simulated device has no such index");
  device_now = device;
}

void forbid_in_capture(Call fault, const char* what) {
  if (!capture_on || stream_thread) return;
  count(fault);
  throw std::runtime_error(std::string(what) + " is not permitted while a stream is capturing");
}

void Stream::push(Work work) {
  touch(device);
  if (capture_on && !stream_thread) {
    std::lock_guard lock(world().capture_mutex);
    world().captured.pushes.push_back([this, work] { push(work); });
    return;
  }
  std::unique_lock lock(mutex_);
  if (queue_.size() >= limit && !stream_thread) make_room(lock);
  if (!started_) {
    started_ = true;
    std::thread(&Stream::run, this).detach();
  }
  queue_.push_back({std::move(work), now()});
  pushed_++;
  changed_.notify_all();
}

void Stream::make_room(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  count(Call::full_queue);
  auto wait = [this] {
    std::unique_lock inner(mutex_);
    changed_.wait(inner, [this] { return queue_.size() < limit; });
  };
  auto waiter = room_waiter.load();
  if (waiter)
    waiter(wait);
  else
    wait();
  lock.lock();
}

bool Stream::at_once(const std::function<bool(Nanos)>& pass) {
  touch(device);
  if (capture_on) return false;
  std::lock_guard lock(mutex_);
  return queue_.empty() && pass(std::max(now(), clock_));
}

void Stream::push_busy(Nanos duration, std::string tag) {
  push([duration, tag = std::move(tag)](Stream& self, Nanos enqueued) {
    Nanos start = self.begin(enqueued);
    self.spend("busy", tag, start, start + duration, enqueued);
  });
}

void Stream::push_record(MarkRef mark, bool timing) {
  if (at_once([&](Nanos at) {
        mark->set(at);
        return true;
      }))
    return;
  push([mark = std::move(mark), timing](Stream& self, Nanos enqueued) {
    Nanos at = timing ? self.begin(enqueued) : std::max(enqueued, self.clock_);
    self.spend("record", "", at, at, enqueued);
    mark->set(at);
  });
}

void Stream::push_wait(MarkRef mark, std::string tag) {
  if (at_once([&](Nanos at) { return mark->done() && mark->wait() <= at; })) return;
  push([mark = std::move(mark), tag = std::move(tag)](Stream& self, Nanos enqueued) {
    Nanos start = std::max(enqueued, self.clock_);  // to begin a wait, a device needs nobody
    self.spend_exactly("wait", tag, start, std::max(start, mark->wait()), enqueued);
  });
}

namespace {
Nanos real(Nanos when) {
  if (!real_time) return when;
  auto seen = now();
  return seen - when > kLate ? seen : when;
}
}  // namespace

Nanos Stream::begin(Nanos enqueued) {
  Nanos due = std::max(enqueued, clock_), start = real(due);
  if (start > due) log("late", "", due, start, enqueued);
  return start;
}

void Stream::spend(const char* kind, const std::string& tag, Nanos start, Nanos end, Nanos enqueued) {
  sleep_until(end);
  start = std::max(start, clock_);
  spend_exactly(kind, tag, start, end > start ? real(end) : end, enqueued);
}

void Stream::spend_exactly(const char* kind, const std::string& tag, Nanos start, Nanos end, Nanos enqueued) {
  sleep_until(end);
  clock_ = std::max(clock_, end);
  if (end > start) log(kind, tag, start, end, enqueued);
}

void Stream::log(const char* kind, const std::string& tag, Nanos start, Nanos end, Nanos enqueued) {
  std::lock_guard lock(world().log_mutex);
  world().log.push_back({device, id, kind, tag, start, end, enqueued});
}

void Stream::run() {
  // A device does not wait for a CPU that its host keeps busy. Where this is not allowed, it may be late in real time.
  sched_param first{1};
  if (sched_setscheduler(0, SCHED_FIFO, &first) != 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
  stream_thread = true;
  device_now = device;
  stream_now[device] = id;
  for (;;) {
    Item item;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      item = std::move(queue_.front());
      // The item stays in the queue while it runs: its slot counts.
    }
    std::string error;
    try {
      item.work(*this, item.enqueued);
    } catch (const std::exception& failure) {
      error = failure.what();
      error = error.substr(0, std::min<std::size_t>(error.find('\n'), 300));  // torch's go on for pages
      std::fprintf(stderr, "simulated device %d, stream %ld: %s\n", device, static_cast<long>(id), error.c_str());
    }
    item.work = nullptr;  // what it owned is free before the host learns that it is done
    std::lock_guard lock(mutex_);
    queue_.pop_front();
    finished_++;
    if (!error.empty() && error_.empty()) error_ = error;
    changed_.notify_all();
  }
}

bool Stream::idle() {
  std::lock_guard lock(mutex_);
  return queue_.empty();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  auto target = pushed_;
  changed_.wait(lock, [&] { return finished_ >= target; });
  if (!error_.empty()) {
    std::string error;
    error.swap(error_);
    throw std::runtime_error("simulated device: " + error);
  }
}

bool Stream::drain(Nanos timeout) {
  std::unique_lock lock(mutex_);
  auto target = pushed_;
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [&] { return finished_ >= target; });
}

Stream& stream(int device, std::int64_t id) {
  std::lock_guard lock(world().mutex);
  auto& all = world().streams[device];
  if (id < 0 || id >= kStreams) throw std::out_of_range("the simulated device has at most 256 streams");
  while (static_cast<std::int64_t>(all.size()) <= id) all.push_back(new Stream(device, all.size()));
  return *all[id];
}

std::int64_t new_stream(int device) {
  stream(device, 0);
  std::int64_t id;
  {
    std::lock_guard lock(world().mutex);
    id = world().streams[device].size();
  }
  return stream(device, id).id;
}

std::int64_t pooled_stream(int device) {
  std::size_t turn;
  {
    std::lock_guard lock(world().mutex);
    turn = world().pool_next[device]++ % kPool;
    if (turn < world().pool[device].size()) return world().pool[device][turn];
  }
  auto id = new_stream(device);
  std::lock_guard lock(world().mutex);
  world().pool[device].push_back(id);
  return id;
}

namespace {
std::vector<Stream*> streams_of(int device) {
  std::lock_guard lock(world().mutex);
  return world().streams[device];
}
}  // namespace

void synchronize_device(int device) {
  for (auto* each : streams_of(device)) each->synchronize();
}

bool drain(Nanos timeout) {
  Nanos deadline = now() + timeout;
  for (int device = 0; device < kDevices; device++)
    for (auto* each : streams_of(device))
      if (!each->drain(std::max<Nanos>(deadline - now(), 0))) return false;
  return true;
}

std::vector<Entry> schedule() {
  std::lock_guard lock(world().log_mutex);
  return world().log;
}

void clear_schedule() {
  std::lock_guard lock(world().log_mutex);
  world().log.clear();
}

void begin_capture() {
  std::lock_guard lock(world().capture_mutex);
  world().captured.pushes.clear();
  capture_on = true;
}

Captured end_capture() {
  std::lock_guard lock(world().capture_mutex);
  capture_on = false;
  return std::exchange(world().captured, {});
}

}  // namespace sim
