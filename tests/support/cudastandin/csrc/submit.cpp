// What every call does with its operation: checks the device, then enqueues it or adds it to a graph.
#include "state.h"

namespace standin {

Stream* stream_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return state().defaults[t_device].get();
  return (Stream*)stream;
}

cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) {
    t_error = error;
    say("error %d", error);
  }
  return error;
}

// What most calls do first: errors of a lost device, and of a process that was forked.
cudaError_t usable(bool context) {
  State& s = state();
  if (s.forked) return cudaErrorInitializationError;
  if (s.devices == 0) return cudaErrorNoDevice;
  if (s.lost_at && now_ns() > s.lost_at) return cudaErrorLaunchFailure;
  if (context) s.active[t_device] = 1;
  return cudaSuccess;
}

// Whether this thread may make a call that is unsafe during captures. If not, the captures are invalidated.
bool unsafe_call() {
  State& s = state();
  if (s.captures.empty() || t_mode == cudaStreamCaptureModeRelaxed) return false;
  bool bad = false;
  for (auto& capture : s.captures) {
    bool own = capture->thread == thread_id();
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (own || (capture->mode == cudaStreamCaptureModeGlobal && t_mode == cudaStreamCaptureModeGlobal)) {
      capture->invalid = true;
      bad = true;
    }
  }
  return bad;
}

Node* add_node(Stream* stream, Spec&& spec) {
  auto& graph = *stream->capture->graph;
  graph.nodes.emplace_back(new Node);
  Node* node = graph.nodes.back().get();
  node->kind = spec.kind;
  node->name = std::move(spec.name);
  node->duration = spec.duration;
  node->bytes = spec.bytes;
  node->effect = std::move(spec.effect);
  node->comm = std::move(spec.comm);
  node->after = stream->capture_tail;
  stream->capture_tail = {node};
  return node;
}

cudaError_t submit(std::unique_lock<std::mutex>& lock, cudaStream_t handle, Spec spec, OpP* made) {
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    add_node(stream, std::move(spec));
    return cudaSuccess;
  }
  if (!handle && !state().captures.empty()) {
    // The legacy stream would depend on the capturing ones only if these were blocking streams; torch's are not.
  }
  OpP op = add(lock, stream, std::move(spec));
  if (made) *made = op;
  return cudaSuccess;
}

int enqueue(void* stream, Spec spec) {
  USABLE(lock);
  return fail(submit(lock, (cudaStream_t)stream, std::move(spec)));
}

}  // namespace standin
