// Streams and events.
#include "state.h"

#include <unistd.h>
#include <algorithm>

using namespace standin;

extern "C" {

unsigned standin_stream_number(cudaStream_t stream) {
  auto lock = locked();
  return stream_of(stream)->number;
}

static cudaError_t new_stream(cudaStream_t* stream, unsigned flags, int priority) {
  USABLE(lock);
  State& s = state();
  s.streams.emplace_back(new Stream);
  Stream* made = s.streams.back().get();
  made->number = (uint32_t)s.streams.size(), made->device = t_device, made->flags = flags, made->priority = priority;
  *stream = (cudaStream_t)made;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return new_stream(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return new_stream(stream, flags, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return new_stream(stream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  auto lock = locked();
  *priority = stream_of(stream)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  USABLE(lock);
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    stream->capture->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  pump_locked();
  return passed(stream->tail) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  USABLE(lock);
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    stream->capture->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  wait_for(lock, stream->tail);
  return fail(usable());
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  USABLE(lock);
  Stream* stream = stream_of(handle);
  Event* event = (Event*)event_handle;
  if (event->capture && !event->capture->ended) {
    if (!stream->capture) stream->capture = event->capture;
    for (Node* node : event->capture_tail)
      if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), node) == stream->capture_tail.end())
        stream->capture_tail.push_back(node);
    return cudaSuccess;
  }
  if (stream->capture) {
    if (flags & cudaEventWaitExternal) return cudaSuccess;
    if (!event->marker) return cudaSuccess;
    stream->capture->invalid = true;
    return fail(cudaErrorStreamCaptureIsolation);
  }
  if (!event->marker) return cudaSuccess;
  Spec spec;
  spec.kind = 'W';
  spec.name = "wait:" + std::to_string(event->marker->stream);
  add(lock, stream, std::move(spec), event->marker);
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t call, void* data) {
  USABLE(lock);
  Spec spec;
  spec.kind = 'H';
  spec.name = "host";
  spec.effect = [=] { call(data); };
  return fail(submit(lock, stream, std::move(spec)));
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) {
  USABLE(lock);
  Spec spec;
  spec.kind = 'H';
  spec.name = "callback";
  spec.effect = [=] { call(stream, cudaSuccess, data); };
  return fail(submit(lock, stream, std::move(spec)));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  USABLE(lock);
  Event* made = new Event;
  made->flags = flags, made->device = t_device;
  *event = (cudaEvent_t)made;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  auto lock = locked();
  delete (Event*)event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle, unsigned flags) {
  USABLE(lock);
  Event* event = (Event*)handle;
  Stream* stream = stream_of(stream_handle);
  if (event->device != stream->device) return fail(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    if (stream->capture->invalid) return fail(cudaErrorStreamCaptureInvalidated);
    if (flags & cudaEventRecordExternal) {
      if (!(event->flags & cudaEventDisableTiming)) note_captured();
      Spec spec;
      spec.kind = 'E';
      spec.name = "event";
      add_node(stream, std::move(spec))->event = event;
      return cudaSuccess;
    }
    if (!(event->flags & cudaEventDisableTiming)) note_captured();
    event->marker = nullptr;
    event->capture = stream->capture;
    event->capture_tail = stream->capture_tail;
    return cudaSuccess;
  }
  event->capture = nullptr;
  event->capture_tail.clear();
  Spec spec;
  spec.kind = 'E';
  spec.name = event->flags & cudaEventDisableTiming ? "event" : "timing";
  event->marker = add(lock, stream, std::move(spec));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t handle) {
  USABLE(lock);
  State& s = state();
  if (s.stuck_at && now_ns() > s.stuck_at) {  // a driver that does not answer any more
    lock.unlock();
    for (;;) sleep(1000);
  }
  Event* event = (Event*)handle;
  if (event->capture) {
    if (!event->capture->ended) event->capture->invalid = true;
    return fail(cudaErrorCapturedEvent);
  }
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  if (event->marker && !event->marker->resolved) pump_locked();
  return passed(event->marker) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  USABLE(lock);
  Event* event = (Event*)handle;
  if (event->capture) return fail(cudaErrorCapturedEvent);
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  wait_for(lock, event->marker);
  return fail(usable());
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  USABLE(lock);
  Event *start = (Event*)from, *end = (Event*)to;
  if (start->capture || end->capture) return fail(cudaErrorCapturedEvent);
  if ((start->flags | end->flags) & cudaEventDisableTiming) return fail(cudaErrorInvalidResourceHandle);
  if (!start->marker || !end->marker || start->device != end->device) return fail(cudaErrorInvalidResourceHandle);
  pump_locked();
  if (!passed(start->marker) || !passed(end->marker)) return cudaErrorNotReady;
  State& s = state();
  auto stamp = [&](const OpP& op) {
    double at = double(op->end - s.origin) * s.drift;
    return s.resolution ? double(int64_t(at / s.resolution)) * s.resolution : at;
  };
  *ms = float((stamp(end->marker) - stamp(start->marker)) * 1e-6);
  return cudaSuccess;
}

}  // extern "C"
