// The functions of NCCL that torch uses: communicators, groups, collectives and messages.
#include "nccl.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

using namespace standin;
using namespace standin::nccl;

namespace {

enum Result {
  ncclSuccess = 0,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclRemoteError = 6
};
struct UniqueId {
  char internal[128];
};

const char* const NAMES[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast",
                             "Reduce",    "AlltoAll",  "Send",          "Recv"};

struct Grouped {
  ncclComm* comm;
  void* stream;
  std::vector<Part> parts;
};
thread_local int t_depth = 0;
thread_local std::vector<Grouped> t_grouped;

extern "C" int cudaSetDevice(int device);

// A process with communicators for several devices may end a group with another one than theirs.
struct OnDevice {
  int before = current_device();
  explicit OnDevice(ncclComm* comm) {
    if (before != comm->device) cudaSetDevice(comm->device);
  }
  ~OnDevice() {
    if (before != current_device()) cudaSetDevice(before);
  }
};

int submit(ncclComm* comm, void* stream, std::vector<Part> parts) {
  OnDevice guard(comm);
  Spec spec;
  spec.kind = 'N';
  spec.name =
      parts.size() == 1 ? NAMES[parts[0].what] : std::string(NAMES[parts[0].what]) + "x" + std::to_string(parts.size());
  spec.name += "@" + comm->name;
  for (auto& part : parts) spec.bytes += part.count * size_of(part.type);
  spec.comm = work_of(comm, std::move(parts));
  return enqueue(stream, std::move(spec)) ? ncclInternalError : ncclSuccess;
}

int call(ncclComm* comm, void* stream, Part part) {
  if (!comm) return ncclInvalidArgument;
  if (t_depth == 0) return submit(comm, stream, {part});
  for (auto& each : t_grouped)
    if (each.comm == comm && each.stream == stream) {
      each.parts.push_back(part);
      return ncclSuccess;
    }
  t_grouped.push_back({comm, stream, {part}});
  return ncclSuccess;
}

// Rank `rank` of a communicator. The others may not be there yet.
int open_rank(ncclComm** made, int ranks, const std::string& name, int rank) {
  if (ranks > RANKS) return ncclInvalidArgument;
  auto* comm = new ncclComm;
  comm->name = name.substr(name.size() > 8 ? name.size() - 8 : 0);
  comm->ranks = ranks, comm->rank = rank, comm->device = current_device();
  std::string path = shared_file(name);
  int fd = open(path.c_str(), O_CREAT | O_RDWR, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared))) return ncclSystemError;
  comm->shared = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  own_bell();
  comm->shared->pids[rank].store(getpid());
  comm->shared->joined.fetch_add(1);
  *made = comm;
  return ncclSuccess;
}

int join(ncclComm** made, int ranks, const std::string& name, int rank) {
  ncclComm* comm;
  if (int error = open_rank(&comm, ranks, name, rank)) return error;
  int64_t until = now_ns() + env_int("STANDIN_JOIN_S", 300) * 1000000000ll;
  while (comm->shared->joined.load() < (uint32_t)ranks) {
    usleep(500);
    if (now_ns() > until) return ncclSystemError;
  }
  // All have it open: nobody needs the name any more.
  if (rank == 0) unlink(shared_file(name).c_str());
  for (int peer = 0; peer < ranks; peer++)
    if (peer != rank) comm->processes[peer] = (int)syscall(SYS_pidfd_open, comm->shared->pids[peer].load(), 0);
  *made = comm;
  say("communicator %s: rank %d of %d", name.c_str(), rank, ranks);
  return ncclSuccess;
}

// Between nodes, NCCL notices that a connection broke. Within a node it does not.
bool lost_a_peer(ncclComm* comm) {
  for (auto& [peer, process] : comm->processes) {
    pollfd ended{process, POLLIN, 0};
    if (!comm->shared->left[peer].load() && poll(&ended, 1, 0) > 0) return true;
  }
  return false;
}

std::string name_of(const UniqueId& id) {
  char text[40];
  uint64_t first;
  memcpy(&first, id.internal, 8);
  snprintf(text, sizeof text, "comm_%016lx", first);
  return text;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22907;
  return 0;
}
int ncclGetUniqueId(UniqueId* id) {
  memset(id, 0, sizeof *id);
  FILE* random = fopen("/dev/urandom", "r");
  if (!random || fread(id->internal, 1, 16, random) != 16) return ncclSystemError;
  fclose(random);
  return 0;
}
int ncclCommInitRank(ncclComm** comm, int ranks, UniqueId id, int rank) { return join(comm, ranks, name_of(id), rank); }
int ncclCommInitRankConfig(ncclComm** comm, int ranks, UniqueId id, int rank, void*) {
  return join(comm, ranks, name_of(id), rank);
}
int ncclCommInitRankScalable(ncclComm** comm, int ranks, int rank, int, UniqueId* ids, void*) {
  return join(comm, ranks, name_of(ids[0]), rank);
}
int ncclCommInitAll(ncclComm** made, int ranks, const int* devices) {
  static std::atomic<int> turn{0};
  std::string name = "all_" + std::to_string(getpid()) + "_" + std::to_string(turn++);
  for (int rank = 0; rank < ranks; rank++) {
    if (int error = open_rank(&made[rank], ranks, name, rank)) return error;
    made[rank]->device = devices ? devices[rank] : rank;
  }
  unlink(shared_file(name).c_str());
  return ncclSuccess;
}
int ncclCommSplit(ncclComm* parent, int colour, int key, ncclComm** made, void*) {
  Shared& shared = *parent->shared;
  uint64_t turn = ++parent->splits;
  shared.colour[parent->rank] = colour, shared.key[parent->rank] = key;
  shared.split_turn[parent->rank].store(turn, std::memory_order_release);
  std::vector<std::pair<int, int>> members;
  for (int rank = 0; rank < parent->ranks; rank++) {
    while (shared.split_turn[rank].load(std::memory_order_acquire) < turn) usleep(200);
    if (shared.colour[rank] == colour) members.emplace_back(shared.key[rank], rank);
  }
  usleep(20000);  // the others must have read the colours before the next split
  if (colour < 0) {
    *made = nullptr;
    return 0;
  }
  std::sort(members.begin(), members.end());
  int rank = 0;
  for (size_t i = 0; i < members.size(); i++)
    if (members[i].second == parent->rank) rank = (int)i;
  char name[80];
  snprintf(name, sizeof name, "%s_%d_%lu_%d", parent->name.c_str(), shared.pids[0].load(), turn, colour);
  return join(made, (int)members.size(), name, rank);
}
int ncclCommShrink(ncclComm*, int*, int, ncclComm**, void*, int) { return ncclInvalidArgument; }
int ncclCommFinalize(ncclComm* comm) {
  comm->shared->left[comm->rank].store(true);
  return 0;
}
int ncclCommDestroy(ncclComm* comm) { return ncclCommFinalize(comm); }  // its memory stays: graphs may refer to it
int ncclCommAbort(ncclComm* comm) {
  if (!comm) return 0;
  comm->shared->left[comm->rank].store(true);
  *comm->aborted = true;
  abort_comm_ops();
  return 0;
}
int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  static bool sees_deaths = env_int("STANDIN_NCCL_SEES_DEATHS", 0);
  *error = sees_deaths && lost_a_peer(comm) ? ncclRemoteError : ncclSuccess;
  return 0;
}
int ncclCommCount(ncclComm* comm, int* count) {
  *count = comm->ranks;
  return 0;
}
int ncclCommUserRank(ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return 0;
}
const char* ncclGetErrorString(int error) { return error ? "an error of the stand-in for NCCL" : "no error"; }
const char* ncclGetLastError(ncclComm*) { return ""; }

int ncclGroupStart() {
  t_depth++;
  return 0;
}
int ncclGroupEnd() {
  if (--t_depth > 0) return 0;
  auto grouped = std::move(t_grouped);
  t_grouped.clear();
  for (auto& each : grouped)
    if (int error = submit(each.comm, each.stream, std::move(each.parts))) return error;
  return 0;
}

int ncclAllReduce(const void* send, void* recv, size_t count, int type, int op, ncclComm* comm, void* stream) {
  return call(comm, stream, {ALL_REDUCE, send, recv, count, type, op, 0});
}
int ncclAllGather(const void* send, void* recv, size_t count, int type, ncclComm* comm, void* stream) {
  return call(comm, stream, {ALL_GATHER, send, recv, count, type, 0, 0});
}
int ncclReduceScatter(const void* send, void* recv, size_t count, int type, int op, ncclComm* comm, void* stream) {
  return call(comm, stream, {REDUCE_SCATTER, send, recv, count, type, op, 0});
}
int ncclBroadcast(const void* send, void* recv, size_t count, int type, int root, ncclComm* comm, void* stream) {
  return call(comm, stream, {BROADCAST, send, recv, count, type, 0, root});
}
int ncclBcast(void* buffer, size_t count, int type, int root, ncclComm* comm, void* stream) {
  return call(comm, stream, {BROADCAST, buffer, buffer, count, type, 0, root});
}
int ncclReduce(const void* send, void* recv, size_t count, int type, int op, int root, ncclComm* comm, void* stream) {
  return call(comm, stream, {REDUCE, send, recv, count, type, op, root});
}
int ncclAlltoAll(const void* send, void* recv, size_t count, int type, ncclComm* comm, void* stream) {
  return call(comm, stream, {ALL_TO_ALL, send, recv, count, type, 0, 0});
}
int ncclSend(const void* send, size_t count, int type, int peer, ncclComm* comm, void* stream) {
  return call(comm, stream, {SEND, send, nullptr, count, type, 0, peer});
}
int ncclRecv(void* recv, size_t count, int type, int peer, ncclComm* comm, void* stream) {
  return call(comm, stream, {RECV, nullptr, recv, count, type, 0, peer});
}
int ncclRedOpCreatePreMulSum(int* op, void*, int, int, ncclComm*) {
  *op = 0;
  return 0;
}
int ncclRedOpDestroy(int, ncclComm*) { return 0; }
int ncclCommRegister(ncclComm*, void*, size_t, void** handle) {
  *handle = nullptr;
  return 0;
}
int ncclCommDeregister(ncclComm*, void*) { return 0; }
int ncclCommMemStats(ncclComm*, int, uint64_t* value) {
  *value = 0;
  return 0;
}

}  // extern "C"
