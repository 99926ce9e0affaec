// The only thread of the device. It matches collectives when another rank rings, and runs host functions.
#include "state.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <string>
#include <thread>

namespace standin {

static int futex(std::atomic<uint32_t>* word, int what, uint32_t value, const timespec* timeout) {
  return (int)syscall(SYS_futex, (uint32_t*)word, what, value, timeout, nullptr, 0);
}

std::atomic<uint32_t>* own_bell() {
  State& s = state();
  static std::mutex once;
  std::lock_guard<std::mutex> guard(once);
  if (!s.bell) {
    std::string path = bell_file(getpid());
    int fd = open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (ftruncate(fd, 4096)) abort();
    s.bell = (std::atomic<uint32_t>*)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    static std::string kept = path;
    atexit([] {
      if (!state().forked) unlink(kept.c_str());
    });
  }
  return s.bell;
}

void ring() {
  std::atomic<uint32_t>* bell = state().bell;
  if (!bell) return;
  bell->fetch_add(1);
  futex(bell, FUTEX_WAKE, 64, nullptr);
}

// The only thread: matches collectives when a peer rings, and runs host functions at their time.
static void serve() {
  State& s = state();
  prctl(PR_SET_NAME, "standin");
  prctl(PR_SET_TIMERSLACK, 1000);
  std::atomic<uint32_t>* bell = own_bell();
  int64_t flushed = 0;
  for (;;) {
    uint32_t seen = bell->load();
    int64_t next = 200000000;
    std::vector<OpP> due;
    {
      auto lock = locked();
      pump_locked();
      if (!s.pending.empty()) next = 20000000;
      int64_t now = now_ns();
      for (size_t i = 0; i < s.host_calls.size();) {
        if (s.host_calls[i].first <= now) {
          due.push_back(s.host_calls[i].second);
          s.host_calls.erase(s.host_calls.begin() + i);
        } else {
          next = std::min(next, s.host_calls[i].first - now);
          i++;
        }
      }
      if (s.log && now - flushed > 500000000) fflush(s.log), flushed = now;
    }
    for (auto& op : due) {
      if (op->effect) op->effect();  // without the lock: it may take as long as it likes
      auto lock = locked();
      op->effect = nullptr;
      std::vector<OpP> work;
      finish(op, op->start, std::max(op->start, now_ns()), work);
      settle(work);
      s.changed.notify_all();
    }
    if (!due.empty()) continue;
    timespec wait{next / 1000000000, next % 1000000000};
    futex(bell, FUTEX_WAIT, seen, &wait);
  }
}

void need_thread() {
  State& s = state();
  if (s.thread_begun) return;
  s.thread_begun = true;
  own_bell();
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::thread(serve).detach();
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace standin
