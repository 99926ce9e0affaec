// Captures and graphs.
#include "state.h"

#include <algorithm>

using namespace standin;

extern "C" {

struct Exec {
  std::shared_ptr<Graph> graph;
};
struct GraphBox {
  std::shared_ptr<Graph> graph;
};

static cudaError_t begin_capture(cudaStream_t handle, cudaStreamCaptureMode mode, std::shared_ptr<Graph> graph) {
  USABLE(lock);
  Stream* stream = stream_of(handle);
  if (handle == nullptr) return fail(cudaErrorStreamCaptureImplicit);
  if (stream->capture) return fail(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->id = ++state().next_capture;
  capture->mode = mode;
  capture->thread = thread_id();
  capture->graph = graph;
  stream->capture = capture;
  stream->capture_tail.clear();
  state().captures.insert(capture);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return begin_capture(stream, mode, std::make_shared<Graph>());
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t*,
                                          const cudaGraphEdgeData*, size_t, cudaStreamCaptureMode mode) {
  return begin_capture(stream, mode, ((GraphBox*)graph)->graph);
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  USABLE(lock);
  Stream* stream = stream_of(handle);
  CaptureP capture = stream->capture;
  if (!capture) return fail(cudaErrorIllegalState);
  capture->ended = true;
  state().captures.erase(capture);
  for (auto& each : state().streams)
    if (each->capture == capture) {
      each->capture = nullptr;
      each->capture_tail.clear();
    }
  *graph = nullptr;
  if (capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
  *graph = (cudaGraph_t) new GraphBox{capture->graph};
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  auto lock = locked();
  CaptureP capture = stream_of(handle)->capture;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                     cudaGraph_t* graph, const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  auto lock = locked();
  Stream* stream = stream_of(handle);
  CaptureP capture = stream->capture;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  if (id) *id = capture ? capture->id : 0;
  static thread_local GraphBox box;
  if (capture) box.graph = capture->graph;
  if (graph) *graph = capture ? (cudaGraph_t)&box : nullptr;
  if (nodes) *nodes = (const cudaGraphNode_t*)stream->capture_tail.data();
  if (edges) *edges = nullptr;
  if (count) *count = capture ? stream->capture_tail.size() : 0;
  return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes, const cudaGraphEdgeData*,
                                                size_t count, unsigned flags) {
  auto lock = locked();
  Stream* stream = stream_of(handle);
  if (!stream->capture) return fail(cudaErrorIllegalState);
  if (flags == cudaStreamSetCaptureDependencies) stream->capture_tail.clear();
  for (size_t i = 0; i < count; i++) stream->capture_tail.push_back((Node*)nodes[i]);
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  int old = t_mode;
  t_mode = *mode;
  *mode = (cudaStreamCaptureMode)old;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  USABLE(lock);
  if (!graph) return fail(cudaErrorInvalidValue);
  *exec = (cudaGraphExec_t) new Exec{((GraphBox*)graph)->graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  USABLE(lock);
  Stream* stream = stream_of(handle);
  if (stream->capture) return fail(cudaErrorStreamCaptureUnsupported);
  auto graph = ((Exec*)exec)->graph;
  Spec begin;
  begin.kind = 'G';
  begin.name = "graph";
  OpP base = add(lock, stream, std::move(begin));
  std::unordered_map<Node*, OpP> made;
  std::set<Node*> last;
  std::vector<OpP> all;
  for (auto& node : graph->nodes) {
    Spec spec;
    spec.kind = node->kind, spec.name = node->name, spec.duration = node->duration, spec.bytes = node->bytes;
    spec.effect = node->effect;
    if (node->comm) spec.comm = node->comm->clone();
    OpP op = make(stream, std::move(spec));
    depends(op, base, true);
    for (Node* before : node->after) {
      depends(op, made[before], false);
      last.erase(before);
    }
    made[node.get()] = op;
    last.insert(node.get());
    if (node->event) ((Event*)node->event)->marker = op, ((Event*)node->event)->capture = nullptr;
    start_if_ready(op);
  }
  Spec end;
  end.kind = 'G';
  end.name = "graph end";
  OpP join = make(stream, std::move(end));
  depends(join, base, true);
  for (Node* node : last) depends(join, made[node], false);
  stream->tail = join;
  stream->in_flight.push_back(join);
  start_if_ready(join);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  auto lock = locked();
  delete (GraphBox*)graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  auto lock = locked();
  delete (Exec*)exec;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  auto lock = locked();
  auto& all = ((GraphBox*)graph)->graph->nodes;
  if (nodes)
    for (size_t i = 0; i < *count && i < all.size(); i++) nodes[i] = (cudaGraphNode_t)all[i].get();
  *count = all.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*,
                                         size_t* count) {
  auto lock = locked();
  auto& all = ((Node*)node)->after;
  if (nodes)
    for (size_t i = 0; i < *count && i < all.size(); i++) nodes[i] = (cudaGraphNode_t)all[i];
  *count = all.size();
  return cudaSuccess;
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, const cudaGraphEdgeData*, size_t,
                             cudaGraphNodeParams*) {
  return fail(cudaErrorNotSupported);
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle*, cudaGraph_t, unsigned, unsigned) {
  return fail(cudaErrorNotSupported);
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }

}  // extern "C"
