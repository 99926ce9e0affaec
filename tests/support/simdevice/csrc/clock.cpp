#include "clock.h"

#include <time.h>

#include <stdexcept>

namespace sim {
namespace {

constexpr std::array<const char*, static_cast<int>(Call::count_)> names = {
    "synchronize_device", "synchronize_stream",  "synchronize_event", "query_event",       "query_stream",
    "record_event",       "wait_event",          "elapsed_time",      "copy_blocking",     "operator_blocking",
    "full_queue",         "full_queue_with_gil", "query_in_capture",  "record_in_capture", "synchronize_in_capture"};

constexpr int kLabels = 16;
std::atomic<std::int64_t> counts[kLabels][static_cast<int>(Call::count_)];
std::atomic<void (*)(Call)> observer{nullptr};
thread_local int this_label = 0;
thread_local bool observing = false;  // the observer's own calls are not told to it

std::atomic<bool> contexts[kDevices];

}  // namespace

Nanos now() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1'000'000'000LL + at.tv_nsec;
}

void sleep_until(Nanos when) {
  if (when <= now()) return;
  timespec at{when / 1'000'000'000, when % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) != 0) {
  }
}

void count(Call call) {
  counts[this_label][static_cast<int>(call)]++;
  auto tell = observer.load();
  if (tell && !observing && !on_stream_thread()) {
    observing = true;
    tell(call);
    observing = false;
  }
}

const char* name_of(Call call) { return names[static_cast<int>(call)]; }
int label() { return this_label; }
void set_observer(void (*tell)(Call)) { observer = tell; }
std::int64_t counted(int label, Call call) { return counts[label][static_cast<int>(call)]; }

void set_label(int label) {
  if (label < 0 || label >= kLabels) throw std::out_of_range("the simulated device counts under at most 16 labels");
  this_label = label;
}

void reset_counts() {
  for (auto& row : counts)
    for (auto& cell : row) cell = 0;
}

void touch(int device) { contexts[device] = true; }
bool touched(int device) { return contexts[device]; }

void forget_contexts() {
  for (auto& context : contexts) context = false;
}

void Mark::set(Nanos time) {
  std::lock_guard lock(mutex_);
  time_ = time;
  done_ = true;
  changed_.notify_all();
}

bool Mark::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

Nanos Mark::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  return time_;
}

}  // namespace sim
