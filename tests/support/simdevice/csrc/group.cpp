// How a collective is queued, what its virtual time is, and what waiting for it means.
#include "group.h"

#include <ATen/core/ivalue_inl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace sim {
namespace {

std::atomic<Nanos> default_latency{0};
std::atomic<double> default_nanos_per_byte{0};

// Leaked: at exit a thread may still wait here, and destroying what it waits on would wait for it.
struct Hang {
  std::mutex mutex;
  std::condition_variable over;
  std::uint64_t era = 0;
};

Hang& hung() {
  static auto* instance = new Hang;
  return *instance;
}

// Blocks the stream's thread: what is behind in its queue waits, the host does not.
void hang() {
  std::unique_lock lock(hung().mutex);
  auto era = hung().era;
  hung().over.wait(lock, [&] { return hung().era != era; });
}

Group& of(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto* group = dynamic_cast<Group*>(backend.get());
  TORCH_CHECK(group, "not a process group of the simulated device");
  return *group;
}

c10::Stream torch_stream(int device, std::int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSim, static_cast<c10::DeviceIndex>(device)), id);
}

// As ProcessGroupNCCL's: wait() makes the current stream wait and returns to the host at once.
class DeviceWork final : public c10d::Work {
 public:
  DeviceWork(int rank, c10d::OpType type, std::string name, std::vector<at::Tensor> results, Stream& on, MarkRef end,
             bool blocks)
      : Work(rank, type),
        name_(std::move(name)),
        results_(std::move(results)),
        on_(on),
        end_(std::move(end)),
        blocks_(blocks) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{c10::Device(kSim, static_cast<c10::DeviceIndex>(on.device))});
    // Who waits for the future makes its stream wait for what is now on this one.
    c10::StreamGuard guard(torch_stream(on.device, on.id));
    future_->markCompleted(c10::IValue(results_));
  }

  bool isCompleted() override { return end_->done(); }
  bool isSuccess() const override { return end_->done(); }
  void synchronize() override {
    auto current = current_stream(on_.device);
    if (current != on_.id) stream(on_.device, current).push_wait(end_, name_);
    if (blocks_) stream(on_.device, current).synchronize();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
  void blockCurrentStream() override { synchronize(); }
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::string name_;
  std::vector<at::Tensor> results_;
  Stream& on_;
  MarkRef end_;
  bool blocks_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The ranks meet: the latest start and the longest time that any of them says.
std::pair<Nanos, Nanos> meet(c10d::Backend& gloo, Nanos start, Nanos time) {
  std::vector<at::Tensor> words{at::tensor({start, time}, at::kLong)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  gloo.allreduce(words, options)->wait();
  const auto* met = words[0].const_data_ptr<std::int64_t>();
  return {met[0], met[1]};
}

}  // namespace

void set_default_time(Nanos latency, double nanos_per_byte) {
  default_latency = latency;
  default_nanos_per_byte = nanos_per_byte;
}

void set_time(const c10::intrusive_ptr<c10d::Backend>& group, Nanos latency, double nanos_per_byte) {
  of(group).link->latency = latency;
  of(group).link->nanos_per_byte = nanos_per_byte;
}

void hang_next(const c10::intrusive_ptr<c10d::Backend>& group) { of(group).link->hangs = true; }

void release_hung() {
  std::lock_guard lock(hung().mutex);
  hung().era++;
  hung().over.notify_all();
}

c10::intrusive_ptr<c10d::Backend> make_group(const c10::intrusive_ptr<c10d::Backend>& gloo, std::string name) {
  return c10::make_intrusive<Group>(gloo, std::move(name));
}

Nanos Link::time(std::size_t bytes) const {
  Nanos fixed = latency;
  double rate = nanos_per_byte;
  if (fixed < 0) {
    fixed = default_latency;
    rate = default_nanos_per_byte;
  }
  return fixed + static_cast<Nanos>(rate * static_cast<double>(bytes));
}

Group::Group(const c10::intrusive_ptr<c10d::Backend>& gloo, std::string name)
    : Backend(gloo->getRank(), gloo->getSize()), link(std::make_shared<Link>()) {
  link->gloo = gloo;
  link->rank = gloo->getRank();
  link->size = gloo->getSize();
  link->name = std::move(name);
}

Stream& Group::own_stream(int device, const std::string& key) {
  auto found = streams_.find(key);
  if (found == streams_.end()) found = streams_.emplace(key, new_stream(device)).first;
  return stream(device, found->second);
}

// With mutex_ held, so that a group's items stand in the same order on its streams as the host issued them. As NCCL
// orders the kernels of a communicator, each waits for the one before it, whatever streams they are on.
Group::WorkRef Group::enqueue(const Call& call, Stream& on, Stream::Work work) {
  auto device = call.device.index();
  auto home = current_stream(device);
  if (on.id != home) {
    auto ready = std::make_shared<Mark>();
    stream(device, home).push_record(ready);
    on.push_wait(std::move(ready), "inputs");
  }
  if (last_) on.push_wait(last_, link->name + " order");
  on.push(std::move(work));
  last_ = std::make_shared<Mark>();
  on.push_record(last_);
  sequence_++;
  return c10::make_intrusive<DeviceWork>(rank_, call.type, link->name + " " + call.name, call.results, on, last_,
                                         call.type == c10d::OpType::BARRIER);
}

Group::WorkRef Group::collective(Call call, Body body) {
  std::lock_guard lock(mutex_);
  auto device = call.device.index();
  // A synchronous collective runs on the caller's stream (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, asyncOp).
  auto& on = call.asynchronous ? own_stream(device, "device " + std::to_string(device))
                               : stream(device, current_stream(device));
  auto time = link->time(call.bytes);
  auto tag = link->name + " " + call.name;
  bool hangs = link->hangs.exchange(false);
  return enqueue(
      call, on,
      [link = link, keep = call.keep, body = std::move(body), time, tag, hangs](Stream& self, Nanos enqueued) {
        Nanos start = self.begin(enqueued);
        if (hangs) hang();
        auto [met, longest] = meet(*link->gloo, start, time);
        body(*link->gloo);
        self.spend_exactly("rendezvous", tag, start, met, enqueued);
        self.spend("collective", tag, met, met + longest, enqueued);
      });
}

Group::WorkRef Group::transfer(std::vector<Transfer> transfers) {
  std::lock_guard lock(mutex_);
  auto device = transfers.at(0).tensor.device();
  // A batch uses the group's communicator, a single message one of the pair's own.
  std::string key = "device " + std::to_string(device.index());
  if (!coalescing_)
    key += " " + std::to_string(std::min(rank_, transfers[0].peer)) + ":" +
           std::to_string(std::max(rank_, transfers[0].peer));
  auto& on = own_stream(device.index(), key);

  struct Message {
    bool sends;
    int peer, number;
    at::Tensor memory;
    Nanos time;
  };
  std::vector<Message> messages;
  Call call{transfers.size() > 1 ? "batch"
            : transfers[0].sends ? "send"
                                 : "recv",
            transfers[0].sends ? c10d::OpType::SEND : c10d::OpType::RECV,
            device,
            0,
            true,
            {},
            {}};
  for (auto& each : transfers) {
    // Messages between two ranks meet in the order in which either of them issued them.
    auto way = each.sends ? std::make_pair(rank_, each.peer) : std::make_pair(each.peer, rank_);
    messages.push_back(
        {each.sends, each.peer, messages_[way]++, alias(each.tensor, call.keep), link->time(each.tensor.nbytes())});
    call.results.push_back(each.tensor);
  }
  // A pair's own communicator is not in the group's order: its stream alone keeps it.
  auto group_last = last_;
  if (!coalescing_) last_ = nullptr;
  bool hangs = link->hangs.exchange(false);
  auto tag = link->name + " " + call.name;
  auto work = enqueue(call, on, [link = link, keep = call.keep, messages, tag, hangs](Stream& self, Nanos enqueued) {
    Nanos start = self.begin(enqueued), met = start, end = start;
    if (hangs) hang();
    auto& gloo = *link->gloo;
    std::vector<WorkRef> works;
    std::vector<at::Tensor> theirs;
    auto mine = at::tensor({start}, at::kLong);
    for (const auto& each : messages) {
      theirs.push_back(at::tensor({start}, at::kLong));
      Tensors out{mine}, in{theirs.back()}, memory{each.memory};
      int tag_of = each.number * 3;
      works.push_back(gloo.send(out, each.peer, tag_of + (each.sends ? 0 : 1)));
      works.push_back(gloo.recv(in, each.peer, tag_of + (each.sends ? 1 : 0)));
      works.push_back(each.sends ? gloo.send(memory, each.peer, tag_of + 2) : gloo.recv(memory, each.peer, tag_of + 2));
    }
    for (auto& work : works) work->wait();
    for (std::size_t at = 0; at < messages.size(); at++) {
      Nanos both = std::max(start, theirs[at].item<std::int64_t>());
      met = at == 0 ? both : std::min(met, both);
      end = std::max(end, both + messages[at].time);
    }
    self.spend_exactly("rendezvous", tag, start, met, enqueued);
    self.spend("collective", tag, met, end, enqueued);
  });
  if (!coalescing_) last_ = group_last;
  return work;
}

void Group::startCoalescing() {
  std::lock_guard lock(mutex_);
  coalescing_ = true;
}

Group::WorkRef Group::endCoalescing() {
  std::vector<Transfer> batch;
  batch.swap(pending_);
  TORCH_CHECK(!batch.empty(), "the simulated device coalesces sends and receives only");
  auto work = transfer(std::move(batch));
  coalescing_ = false;
  return work;
}

Group::WorkRef Group::send(Tensors& tensors, int peer, int) {
  if (!coalescing_) return transfer({{true, peer, tensors.at(0)}});
  pending_.push_back({true, peer, tensors.at(0)});
  return nullptr;
}

Group::WorkRef Group::recv(Tensors& tensors, int peer, int) {
  if (!coalescing_) return transfer({{false, peer, tensors.at(0)}});
  pending_.push_back({false, peer, tensors.at(0)});
  return nullptr;
}

}  // namespace sim
