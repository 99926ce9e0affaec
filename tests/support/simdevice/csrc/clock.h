// The device's clock, streams and events. Nothing here knows torch.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace sim {

using Nanos = std::int64_t;

constexpr int kDevices = 2;
// NCCL, pools of streams and users' streams share these; ids beyond are refused.
constexpr std::int64_t kStreams = 256;

Nanos now();  // CLOCK_MONOTONIC
void sleep_until(Nanos when);

// What a test may want to count. `names` in clock.cpp has the same order.
enum class Call : int {
  synchronize_device,
  synchronize_stream,
  synchronize_event,
  query_event,
  query_stream,
  record_event,
  wait_event,
  elapsed_time,
  copy_blocking,      // a copy between host and device that the host waits for
  operator_blocking,  // an operator whose result the host needs: item(), nonzero()
  full_queue,         // a launch that waited for room in the queue
  full_queue_with_gil,
  query_in_capture,
  record_in_capture,
  synchronize_in_capture,
  count_
};

// Counts a call under the calling thread's label, and tells the observer.
void count(Call call);
const char* name_of(Call call);
// The label that this thread's calls are counted under; labels are small numbers that Python names.
void set_label(int label);
int label();
std::int64_t counted(int label, Call call);
void reset_counts();
// Called for each counted call, on the calling thread. Null for none.
void set_observer(void (*observer)(Call));

// A device's context exists from the first thing that needs it.
void touch(int device);
bool touched(int device);
void forget_contexts();

// One recording of an event.
class Mark {
 public:
  void set(Nanos time);
  bool done() const;
  // Blocks until the recording has happened; its time.
  Nanos wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  Nanos time_ = 0;
};
using MarkRef = std::shared_ptr<Mark>;

// A line of the schedule: what a stream did, and from when to when.
struct Entry {
  int device;
  std::int64_t stream;
  std::string kind;
  std::string tag;
  Nanos start, end, enqueued;
};

// A FIFO queue and the thread that works it off, on a clock of its own: an item begins at the latest of the end of the
// item before it, the host's time when it was enqueued, and the time of the events it waits for. The thread sleeps
// until the wall clock is there too, so that the host sees nothing finished early; how late the thread wakes up changes
// no recorded time.
class Stream {
 public:
  using Work = std::function<void(Stream&, Nanos enqueued)>;

  Stream(int device, std::int64_t id) : device(device), id(id) {}

  const int device;
  const std::int64_t id;

  // From the host. Blocks while the queue is full; during a capture the work is kept and not run.
  void push(Work work);
  void push_busy(Nanos duration, std::string tag);
  // With timing, the event is late in real time if the thread is: the host may have asked for it. An event without is for
  // streams alone, and none of them waits because a thread got no CPU.
  void push_record(MarkRef mark, bool timing = false);
  void push_wait(MarkRef mark, std::string tag);
  bool idle();
  // Blocks until what was pushed so far is done. Throws what an item threw.
  void synchronize();
  // As synchronize, for at most so long, and throws nothing: whether all was done.
  bool drain(Nanos timeout);

  // From the stream's own thread.
  // When an item begins. In real time, logs for how long the thread was late for it.
  Nanos begin(Nanos enqueued);
  // Advances the clock to `end`, or later in real time, and logs the span unless it is empty.
  void spend(const char* kind, const std::string& tag, Nanos start, Nanos end, Nanos enqueued);
  // The same for a wait: it ends with what is awaited, however late the thread hears of it. What is next is late then.
  void spend_exactly(const char* kind, const std::string& tag, Nanos start, Nanos end, Nanos enqueued);

 private:
  struct Item {
    Work work;
    Nanos enqueued;
  };
  void run();
  // What takes no time is over at once on an idle stream, without its thread: no real device waits for a CPU to pass an
  // event. `pass` gets the time and says whether it is over.
  bool at_once(const std::function<bool(Nanos)>& pass);
  void log(const char* kind, const std::string& tag, Nanos start, Nanos end, Nanos enqueued);
  void make_room(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  std::uint64_t pushed_ = 0, finished_ = 0;
  bool started_ = false;
  std::string error_;
  Nanos clock_ = 0;  // for the stream's thread, and for others under the lock while the queue is empty
};

Stream& stream(int device, std::int64_t id);
// Streams that a test or torch makes. Id 0 is the device's default stream.
std::int64_t new_stream(int device);
std::int64_t pooled_stream(int device);
std::int64_t current_stream(int device);
void set_current_stream(int device, std::int64_t id);
int current_device();
void set_current_device(int device);

void synchronize_device(int device);
bool drain(Nanos timeout);

std::vector<Entry> schedule();
void clear_schedule();

// Whether items that the stream's thread comes to late are late, not only the thread.
void set_real_time(bool on);

void set_queue_limit(std::size_t limit);
std::size_t queue_limit();
// How a thread that holds Python's lock waits for room: bindings.cpp sets it. The core does not know Python.
void set_room_waiter(void (*waiter)(const std::function<void()>&));

// While a capture is on, streams keep what is pushed to them, and queries, synchronisations and records are faults.
struct Captured {
  std::vector<std::function<void()>> pushes;
};
void begin_capture();
Captured end_capture();
bool capturing();
// Throws during a capture, after counting the fault.
void forbid_in_capture(Call fault, const char* what);

// Whether this is a stream's thread. Such a thread must not wait for Python's lock: the host may hold it while it waits
// for room in this very stream's queue.
bool on_stream_thread();

}  // namespace sim
