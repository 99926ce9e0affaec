// Operations: when each starts and ends, and who waits for them.
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <algorithm>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

namespace standin {

void write_log(const Op& op) {
  State& s = state();
  if (!s.log) return;
  fprintf(s.log, "%lu\t%c\t%d\t%u\t%ld\t%ld\t%ld\t%ld\t%ld\t%lu\t%ld\t%d\t%.60s\n", op.id, op.kind, op.device,
          op.stream, op.enqueued, op.before, op.start, op.end, op.bytes, op.by_comm, op.by_last, op.by_rank,
          op.name.c_str());
}

void finish(const OpP& op, int64_t start, int64_t end, std::vector<OpP>& work) {
  op->start = start;
  op->end = end;
  op->resolved = true;
  if (op->effect) {
    op->effect();
    op->effect = nullptr;
  }
  op->comm = nullptr;
  write_log(*op);
  if (end > start && strchr("KCS", op->kind)) {
    auto& busy = state().busy[op->device];
    busy.emplace_back(start, end);
    while (busy.front().second < now_ns() - 1000000000) busy.pop_front();
  }
  for (auto& [next, in_stream] : op->dependents) {
    (in_stream ? next->before : next->others) = std::max(in_stream ? next->before : next->others, end);
    if (op->by_comm && end >= std::max(next->before, next->others)) {
      next->by_comm = op->by_comm, next->by_last = op->by_last, next->by_rank = op->by_rank;
    }
    if (--next->waiting == 0) work.push_back(next);
  }
  op->dependents.clear();
}

static bool match(const OpP& op, std::vector<OpP>& work) {
  int64_t end = 0, last = 0;
  int who = -1;
  int64_t ready = op->start;
  if (op->comm->aborted()) {
    end = std::max(ready, now_ns()), last = end;
    op->name += "!aborted";
  } else if (!op->comm->match(end, last, who)) {
    return false;
  }
  op->by_comm = op->id, op->by_last = last, op->by_rank = who;
  finish(op, ready, std::max(end, ready), work);
  return true;
}

void settle(std::vector<OpP>& work) {  // everything in `work` has all its dependencies
  State& s = state();
  bool some = false;
  while (!work.empty()) {
    OpP op = work.back();
    work.pop_back();
    some = true;
    int64_t base = std::max(op->enqueued, op->before), ready = std::max(base, op->others);
    if (op->by_comm && op->by_last && op->kind != 'W' && op->kind != 'E') op->by_comm = 0;
    if (op->kind == 'N') {
      op->start = ready;
      op->comm->post(ready);
      if (!match(op, work)) s.pending.push_back(op);
    } else if (op->kind == 'H') {
      op->start = ready;
      s.host_calls.emplace_back(ready, op);
      ring();
    } else if (op->kind == 'W') {
      finish(op, base, ready, work);
    } else {
      finish(op, ready, ready + op->duration, work);
    }
  }
  if (some) s.changed.notify_all();
}

void pump_locked() {
  State& s = state();
  if (s.pending.empty()) return;
  std::vector<OpP> work;
  auto waiting = std::move(s.pending);
  s.pending.clear();
  for (auto& op : waiting)
    if (!match(op, work)) s.pending.push_back(op);
  settle(work);
}

void abort_comm_ops() {
  auto lock = locked();
  pump_locked();
  state().changed.notify_all();
}

void sleep_until(int64_t at) {
  static thread_local bool slack = (prctl(PR_SET_TIMERSLACK, 1000), true);
  (void)slack;
  timespec t{at / 1000000000, at % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr)) {
  }
}

void wait_for(std::unique_lock<std::mutex>& lock, const OpP& op) {
  if (!op) return;
  State& s = state();
  while (!op->resolved) {
    need_thread();
    pump_locked();
    if (op->resolved) break;
    if (s.spins) {
      lock.unlock();
      sched_yield();
      lock.lock();
    } else {
      s.changed.wait_for(lock, std::chrono::milliseconds(50));
    }
  }
  int64_t end = op->end;
  if (now_ns() < end) {
    lock.unlock();
    if (s.spins)
      while (now_ns() < end) sched_yield();
    else
      sleep_until(end);
    lock.lock();
  }
}

bool passed(const OpP& op) { return !op || (op->resolved && now_ns() >= op->end); }

void depends(const OpP& op, const OpP& on, bool in_stream) {
  if (!on) return;
  if (on->resolved) {
    int64_t& at = in_stream ? op->before : op->others;
    at = std::max(at, on->end);
    if (on->by_comm && on->end >= std::max(op->before, op->others))
      op->by_comm = on->by_comm, op->by_last = on->by_last, op->by_rank = on->by_rank;
  } else {
    on->dependents.emplace_back(op, in_stream);
    op->waiting++;
  }
}

OpP make(Stream* stream, Spec&& spec) {
  State& s = state();
  auto op = std::make_shared<Op>();
  op->id = ++s.next_id;
  op->kind = spec.kind;
  op->device = stream->device;
  op->stream = stream->number;
  op->name = std::move(spec.name);
  op->duration = spec.duration;
  op->bytes = spec.bytes;
  op->effect = std::move(spec.effect);
  op->comm = std::move(spec.comm);
  op->enqueued = now_ns();
  if (op->kind == 'N' || op->kind == 'H') need_thread();
  if (op->comm) {
    op->comm->enqueued();
    OpP* serial = op->comm->serial();
    depends(op, *serial, false);
    *serial = op;
  }
  return op;
}

void start_if_ready(const OpP& op) {
  if (op->waiting) return;
  std::vector<OpP> work{op};
  settle(work);
}

static void room(std::unique_lock<std::mutex>& lock, Stream* stream) {  // a full launch queue blocks the host
  State& s = state();
  auto& queue = stream->in_flight;
  int64_t now = now_ns();
  while (!queue.empty() && queue.front()->resolved && queue.front()->end <= now) queue.pop_front();
  while ((int64_t)queue.size() >= s.queue_limit) {
    OpP oldest = queue.front();
    wait_for(lock, oldest);
    while (!queue.empty() && queue.front()->resolved && queue.front()->end <= now_ns()) queue.pop_front();
  }
}

OpP add(std::unique_lock<std::mutex>& lock, Stream* stream, Spec spec, const OpP& also) {
  State& s = state();
  room(lock, stream);
  if (s.launch_ns && spec.kind != 'E' && spec.kind != 'W')
    for (int64_t until = now_ns() + s.launch_ns; now_ns() < until;) {
    }
  OpP op = make(stream, std::move(spec));
  depends(op, stream->tail, true);
  depends(op, also, false);
  stream->tail = op;
  if (op->kind != 'E') stream->in_flight.push_back(op);
  start_if_ready(op);
  return op;
}

}  // namespace standin
