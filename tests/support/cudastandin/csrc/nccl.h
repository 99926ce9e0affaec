// What the files of the stand-in for NCCL share. Written from the public API documentation of NCCL.
//
// A communicator is a file in /dev/shm. When the stream of a rank reaches a collective, the rank posts the time (the
// clock is CLOCK_MONOTONIC, which all processes share) and, up to DATA bytes, its data. When all ranks have posted,
// each computes the same end: the last arrival plus latency plus bytes / bandwidth.
#pragma once
#include "engine.h"

#include <map>

namespace standin::nccl {

constexpr int RANKS = 8, RING = 8;
constexpr size_t DATA = 1 << 18;

struct Post {
  std::atomic<uint64_t> turn;  // sequence number + 1
  int64_t ready;
  uint64_t bytes;
  char data[DATA];
};
struct Shared {
  std::atomic<uint32_t> joined;
  std::atomic<bool> left[RANKS];  // which ranks have given it up
  std::atomic<int32_t> pids[RANKS];
  std::atomic<uint64_t> split_turn[RANKS];
  int32_t colour[RANKS], key[RANKS];
  Post collective[RANKS][RING];
  // For each pair: what the first sends, and when the second is ready to receive.
  Post sends[RANKS][RANKS][RING];
  struct {
    std::atomic<uint64_t> turn;
    int64_t ready;
  } receives[RANKS][RANKS][RING];
};

size_t size_of(int type);  // bytes of an ncclDataType_t

// Adds (or multiplies, ...; `op` is an ncclRedOp_t) what another rank sent to what is there.
void fold_bytes(char* to, const char* from, size_t bytes, int type, int op);
void average(char* to, size_t bytes, int type, int ranks);

enum What { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, SEND, RECV };
struct Part {
  What what;
  const void* send;
  void* recv;
  size_t count;
  int type, op, peer;  // peer: root, or the other rank
  uint64_t turn = 0;
};

}  // namespace standin::nccl

struct ncclComm {
  standin::nccl::Shared* shared = nullptr;
  std::string name;
  int ranks = 1, rank = 0, device = 0;
  uint64_t turn = 0, splits = 0;
  uint64_t send_turn[standin::nccl::RANKS] = {}, receive_turn[standin::nccl::RANKS] = {};
  std::shared_ptr<standin::OpP> last = std::make_shared<standin::OpP>();
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  std::map<int, std::atomic<uint32_t>*> bells;
  std::map<int, int> processes;  // rank -> a descriptor that is readable once its process has ended
};

namespace standin::nccl {

CommP work_of(ncclComm* comm, std::vector<Part> parts);
void ring_peers(ncclComm* comm);

}  // namespace standin::nccl
