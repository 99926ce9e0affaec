// A collective or a group of messages, as one rank sees it.
#include "nccl.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace standin::nccl {

static int64_t latency() {
  static int64_t ns = env_int("STANDIN_NCCL_LATENCY_NS", 30000);
  return ns;
}
static double gbps() {
  static double rate = env_double("STANDIN_GBPS", 10);
  return rate;
}

void ring_peers(ncclComm* comm) {
  for (int peer = 0; peer < comm->ranks; peer++) {
    if (peer == comm->rank) continue;
    auto& bell = comm->bells[peer];
    if (!bell) {
      std::string path = bell_file(comm->shared->pids[peer].load());
      int fd = open(path.c_str(), O_RDWR);
      if (fd < 0) continue;
      bell = (std::atomic<uint32_t>*)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
      close(fd);
    }
    bell->fetch_add(1);
    syscall(SYS_futex, (uint32_t*)bell, FUTEX_WAKE, 64, nullptr, nullptr, 0);
  }
}

struct Work : CommWork {
  ncclComm* comm;
  std::vector<Part> parts;
  std::shared_ptr<OpP> last;
  std::shared_ptr<bool> gone;
  int64_t arrived = 0;

  explicit Work(ncclComm* c) : comm(c), last(c->last), gone(c->aborted) {}

  OpP* serial() override { return last.get(); }
  bool aborted() override { return *gone; }
  CommP clone() override {
    auto copy = std::make_shared<Work>(comm);
    copy->parts = parts;
    return copy;
  }
  void enqueued() override {
    for (auto& part : parts)
      part.turn = part.what == SEND   ? comm->send_turn[part.peer]++
                  : part.what == RECV ? comm->receive_turn[part.peer]++
                                      : comm->turn++;
  }
  // What this rank sends, in bytes.
  size_t sent(const Part& part) const {
    size_t bytes = part.count * size_of(part.type);
    return part.what == REDUCE_SCATTER || part.what == ALL_TO_ALL ? bytes * comm->ranks : bytes;
  }
  void post(int64_t ready) override {
    arrived = ready;
    Shared& shared = *comm->shared;
    for (auto& part : parts) {
      if (part.what == RECV) {
        auto& slot = shared.receives[part.peer][comm->rank][part.turn % RING];
        slot.ready = ready;
        slot.turn.store(part.turn + 1, std::memory_order_release);
        continue;
      }
      Post& slot = part.what == SEND ? shared.sends[comm->rank][part.peer][part.turn % RING]
                                     : shared.collective[comm->rank][part.turn % RING];
      slot.ready = ready;
      slot.bytes = sent(part);
      bool sends = part.what != BROADCAST || part.peer == comm->rank;
      if (sends && slot.bytes <= DATA && part.send) memcpy(slot.data, part.send, slot.bytes);
      slot.turn.store(part.turn + 1, std::memory_order_release);
    }
    if (comm->ranks > 1) ring_peers(comm);
  }
  bool match(int64_t& end, int64_t& last_ns, int& who) override {
    Shared& shared = *comm->shared;
    end = last_ns = arrived, who = comm->rank;
    double transfer = 0;
    for (auto& part : parts) {
      uint64_t turn = part.turn + 1;
      size_t bytes = part.count * size_of(part.type);
      auto arrive = [&](int rank, int64_t at) {
        if (at > last_ns) last_ns = at, who = rank;
      };
      if (part.what == SEND) {
        auto& slot = shared.receives[comm->rank][part.peer][part.turn % RING];
        if (slot.turn.load(std::memory_order_acquire) < turn) return false;
        arrive(part.peer, slot.ready);
        transfer = std::max(transfer, double(bytes));
      } else if (part.what == RECV) {
        auto& slot = shared.sends[part.peer][comm->rank][part.turn % RING];
        if (slot.turn.load(std::memory_order_acquire) < turn) return false;
        arrive(part.peer, slot.ready);
        transfer = std::max(transfer, double(bytes));
      } else {
        for (int rank = 0; rank < comm->ranks; rank++) {
          Post& slot = shared.collective[rank][part.turn % RING];
          if (slot.turn.load(std::memory_order_acquire) < turn) return false;
          arrive(rank, slot.ready);
        }
        double share = double(comm->ranks - 1) / comm->ranks;
        double whole =
            part.what == ALL_GATHER || part.what == REDUCE_SCATTER ? double(bytes) * comm->ranks : double(bytes);
        transfer += part.what == ALL_REDUCE ? 2 * share * whole : part.what == BROADCAST ? whole : share * whole;
      }
    }
    end = last_ns + latency() + int64_t(transfer / gbps());
    for (auto& part : parts) move(part);
    return true;
  }
  void move(const Part& part) {
    Shared& shared = *comm->shared;
    size_t bytes = part.count * size_of(part.type), all = sent(part);
    if (all > DATA || part.what == SEND) return;
    char* to = (char*)part.recv;
    if (part.what == RECV) {
      Post& slot = shared.sends[part.peer][comm->rank][part.turn % RING];
      memcpy(to, slot.data, std::min<size_t>(bytes, slot.bytes));
      return;
    }
    auto data = [&](int rank) { return shared.collective[rank][part.turn % RING].data; };
    switch (part.what) {
      case BROADCAST:
        memcpy(to, data(part.peer), bytes);
        break;
      case ALL_GATHER:
        for (int rank = 0; rank < comm->ranks; rank++) memcpy(to + rank * bytes, data(rank), bytes);
        break;
      case ALL_TO_ALL:
        for (int rank = 0; rank < comm->ranks; rank++)
          memcpy(to + rank * bytes, data(rank) + comm->rank * bytes, bytes);
        break;
      case REDUCE:
        if (part.peer != comm->rank) break;
        [[fallthrough]];
      case ALL_REDUCE:
      case REDUCE_SCATTER: {
        size_t offset = part.what == REDUCE_SCATTER ? comm->rank * bytes : 0;
        std::vector<char> sum(data(0) + offset, data(0) + offset + bytes);
        for (int rank = 1; rank < comm->ranks; rank++)
          fold_bytes(sum.data(), data(rank) + offset, bytes, part.type, part.op);
        if (part.op == 4) average(sum.data(), bytes, part.type, comm->ranks);
        memcpy(to, sum.data(), bytes);
        break;
      }
      default:
        break;
    }
  }
};

CommP work_of(ncclComm* comm, std::vector<Part> parts) {
  auto work = std::make_shared<Work>(comm);
  work->parts = std::move(parts);
  return work;
}

}  // namespace standin::nccl
