// The engine of the stand-in device: a directed graph of operations with computed ("analytic") times.
//
// No thread plays the device. When an operation is enqueued and everything that it depends on has a known end, its
// start and end are computed at once: start = max(host time of the enqueue, end of the operation before it in the
// stream, ends of awaited events), end = start + duration. A query compares the end with the clock. Only collectives
// have an unknown end until all ranks have told when their stream reached them (shared memory, see comm.h).
// So the truth in the log is exact, and the "device" takes no CPU time.
#pragma once
#include <atomic>
#include <cstdint>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace standin {

int64_t now_ns();
int64_t env_int(const char* name, int64_t otherwise);
double env_double(const char* name, double otherwise);
std::string shared_file(const std::string& name);  // a path that all ranks of a run use, in STANDIN_SHARED
std::string bell_file(int pid);                    // what a rank rings at another

struct Op;
using OpP = std::shared_ptr<Op>;

// A collective: posts its arrival, then is matched with those of the other ranks.
struct CommWork {
  virtual ~CommWork() = default;
  virtual void post(int64_t ready_ns) = 0;
  // Whether all ranks have arrived; then sets the end, the last arrival and who it was, and moves the data.
  virtual bool match(int64_t& end_ns, int64_t& last_ns, int& last_rank) = 0;
  virtual bool aborted() = 0;
  virtual std::shared_ptr<CommWork> clone() = 0;  // for the next replay of a graph
  virtual void enqueued() = 0;                    // takes its place in the order of the communicator
  virtual OpP* serial() = 0;                      // the communicator's last operation
};
using CommP = std::shared_ptr<CommWork>;

struct Op {
  uint64_t id = 0;
  char kind = 'K';  // K kernel, C copy, S memset, E event, W wait, N collective, H host function, G graph
  int device = 0;
  uint32_t stream = 0;
  std::string name;
  int64_t duration = 0, enqueued = 0, bytes = 0;
  int64_t before = 0;  // end of the operation before it in its stream
  int64_t others = 0;  // latest end of what it waits for besides
  int64_t start = 0, end = 0;
  int waiting = 0;
  bool resolved = false;
  std::vector<std::pair<OpP, bool>> dependents;  // (operation, whether it is the next one in the stream)
  std::function<void()> effect;
  CommP comm;
  // The collective that set this end, if one did: its id, and when its last rank arrived.
  uint64_t by_comm = 0;
  int64_t by_last = 0;
  int by_rank = -1;
};

struct Node {
  char kind;
  std::string name;
  int64_t duration = 0, bytes = 0;
  std::function<void()> effect;
  CommP comm;
  void* event = nullptr;  // of an external record
  std::vector<Node*> after;
};

struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};

struct Capture {
  uint64_t id = 0;
  int mode = 0;
  uint64_t thread = 0;
  bool invalid = false, ended = false;
  std::shared_ptr<Graph> graph;
};
using CaptureP = std::shared_ptr<Capture>;

struct Stream {
  uint32_t number = 0;
  int device = 0, priority = 0;
  unsigned flags = 0;
  OpP tail;
  std::deque<OpP> in_flight;
  CaptureP capture;
  std::vector<Node*> capture_tail;
};

struct Event {
  unsigned flags = 0;
  int device = 0;
  OpP marker;
  CaptureP capture;
  std::vector<Node*> capture_tail;
};

struct Spec {  // what to enqueue
  char kind = 'K';
  std::string name;
  int64_t duration = 0, bytes = 0;
  std::function<void()> effect;
  CommP comm;
};

// For the other libraries. All take and give up the engine's lock themselves.
int enqueue(void* stream, Spec spec);  // a cudaError
void ring();                           // something may have become resolvable
std::atomic<uint32_t>* own_bell();
void abort_comm_ops();  // resolves operations whose work is aborted
int current_device();
std::unique_lock<std::mutex> locked();
void say(const char* format, ...);

}  // namespace standin
