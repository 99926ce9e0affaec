// The state of the device, its settings (environment variables STANDIN_*), and its log.
#include "state.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace standin {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
int64_t env_int(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? atoll(text) : otherwise;
}
double env_double(const char* name, double otherwise) {
  const char* text = getenv(name);
  return text && *text ? atof(text) : otherwise;
}

std::string shared_file(const std::string& name) {
  const char* folder = getenv("STANDIN_SHARED");
  return std::string(folder ? folder : "/dev/shm") + "/standin_" + name;
}
std::string bell_file(int pid) { return shared_file("bell_" + std::to_string(pid)); }

State& state() {
  static State* the = new State;  // never destroyed: other threads may use it at exit
  return *the;
}

thread_local int t_device = 0;
thread_local cudaError_t t_error = cudaSuccess;
thread_local int t_mode = cudaStreamCaptureModeGlobal;

uint64_t thread_id() { return (uint64_t)syscall(SYS_gettid); }

void say(const char* format, ...) {
  static bool loud = env_int("STANDIN_VERBOSE", 0);
  if (!loud) return;
  va_list args;
  va_start(args, format);
  fprintf(stderr, "standin[%d] ", getpid());
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
}

static void flush_log() {
  State& s = state();
  if (s.log && !s.forked) fflush(s.log);
}

static void begin_locked() {
  State& s = state();
  if (s.begun) return;
  s.begun = true;
  s.devices = (int)env_int("STANDIN_DEVICES", 2);
  s.kernel_ns = env_int("STANDIN_KERNEL_NS", 3000);
  s.launch_ns = env_int("STANDIN_LAUNCH_NS", 0);
  s.ps_per_thread = env_int("STANDIN_PS_PER_THREAD", 2);
  s.resolution = env_int("STANDIN_RESOLUTION_NS", 500);
  s.queue_limit = env_int("STANDIN_QUEUE", 1024);
  s.memory_limit = env_int("STANDIN_MEMORY_MB", 8192) << 20;
  s.alloc_ns = env_int("STANDIN_MALLOC_NS", 100000);
  s.free_ns = env_int("STANDIN_FREE_NS", 0);
  s.spins = env_int("STANDIN_SPINS", 0);
  s.pcie = env_double("STANDIN_PCIE_GBPS", 12);
  s.hbm = env_double("STANDIN_HBM_GBPS", 1000);
  s.drift = 1 + env_double("STANDIN_DRIFT_PPM", 0) * 1e-6;
  if (double after = env_double("STANDIN_LOST_S", 0)) s.lost_at = now_ns() + int64_t(after * 1e9);
  if (double after = env_double("STANDIN_STUCK_S", 0)) s.stuck_at = now_ns() + int64_t(after * 1e9);
  s.used.assign(s.devices, 0);
  s.active.assign(s.devices, 0);
  s.busy.resize(s.devices);
  for (int device = 0; device < s.devices; device++) {
    s.defaults.emplace_back(new Stream);
    s.defaults.back()->device = device;
    s.defaults.back()->number = 0;
  }
  pthread_atfork(nullptr, nullptr, [] { state().forked = true; });
  if (const char* folder = getenv("STANDIN_LOG")) {
    std::string path = std::string(folder) + "/ops." + std::to_string(getpid()) + ".tsv";
    s.log = fopen(path.c_str(), "w");
    if (s.log) {
      setvbuf(s.log, nullptr, _IOFBF, 1 << 20);
      fprintf(s.log, "#pid %d rank %s\n", getpid(), getenv("RANK") ? getenv("RANK") : "-");
      fprintf(s.log,
              "id\tkind\tdevice\tstream\tenqueued\tbefore\tstart\tend\tbytes\tby_comm\tby_last\tby_rank\tname\n");
      atexit(flush_log);
    }
  }
}

std::unique_lock<std::mutex> locked() {
  std::unique_lock<std::mutex> lock(state().mutex);
  begin_locked();
  return lock;
}

int current_device() { return t_device; }

void note_captured() {
  if (FILE* log = state().log) fprintf(log, "#captured %ld\n", now_ns());
}

}  // namespace standin
