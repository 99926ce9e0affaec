// What the files of the stand-in for libcudart share. The other libraries need only engine.h.
#pragma once
#include "engine.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include <map>
#include <set>

namespace standin {

struct Kernel {
  const char* name;
  bool spins;  // torch.cuda._sleep: takes as many ns as its argument says
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<const void*, Kernel> kernels;
  std::vector<std::unique_ptr<Stream>> streams;        // all that ever were
  std::vector<std::unique_ptr<Stream>> defaults;       // stream 0 of each device
  std::map<uintptr_t, std::pair<size_t, int>> memory;  // address -> (bytes, device; -1: pinned host; -2: registered)
  std::vector<int64_t> used;
  std::vector<char> active;
  std::vector<std::deque<std::pair<int64_t, int64_t>>> busy;  // by device: start and end of the last kernels and copies
  std::vector<OpP> pending;  // collectives that have arrived here, not yet everywhere
  std::vector<std::pair<int64_t, OpP>> host_calls;
  std::set<CaptureP> captures;
  uint64_t next_id = 0, next_capture = 0;
  int devices = 0;
  int64_t kernel_ns, launch_ns, ps_per_thread, resolution, queue_limit, memory_limit, alloc_ns, free_ns;
  double pcie, hbm, drift;
  bool spins = false;
  int64_t lost_at = 0, stuck_at = 0;
  bool begun = false, thread_begun = false;
  std::atomic<bool> forked{false};
  std::atomic<uint32_t>* bell = nullptr;
  FILE* log = nullptr;
  int64_t origin = now_ns();
};

State& state();
extern thread_local int t_device;
extern thread_local cudaError_t t_error;
extern thread_local int t_mode;  // which unsafe calls a capture forbids this thread
uint64_t thread_id();
void write_log(const Op& op);
void note_captured();  // an event with timing was recorded into a capture

// -- engine.cpp. All but sleep_until need the lock.

void finish(const OpP& op, int64_t start, int64_t end, std::vector<OpP>& work);
void settle(std::vector<OpP>& work);  // everything in `work` has all its dependencies
void pump_locked();                   // resolves the collectives that have met
void sleep_until(int64_t at);
void wait_for(std::unique_lock<std::mutex>& lock, const OpP& op);
bool passed(const OpP& op);
void depends(const OpP& op, const OpP& on, bool in_stream);
OpP make(Stream* stream, Spec&& spec);
void start_if_ready(const OpP& op);
OpP add(std::unique_lock<std::mutex>& lock, Stream* stream, Spec spec, const OpP& also = nullptr);

// -- bell.cpp

void need_thread();

// -- submit.cpp

Stream* stream_of(cudaStream_t stream);
cudaError_t fail(cudaError_t error);      // keeps it for cudaGetLastError
cudaError_t usable(bool context = true);  // errors of a lost device, and of a process that was forked
bool unsafe_call();  // whether a capture forbids this thread an unsafe call. If so, the capture is invalid
Node* add_node(Stream* stream, Spec&& spec);
cudaError_t submit(std::unique_lock<std::mutex>& lock, cudaStream_t handle, Spec spec, OpP* made = nullptr);

// What most calls begin with.
#define USABLE(lock)             \
  auto lock = standin::locked(); \
  if (cudaError_t bad = standin::usable(); bad) return standin::fail(bad);

}  // namespace standin
