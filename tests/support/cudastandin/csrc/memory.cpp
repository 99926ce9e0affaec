// Memory of the device and pinned memory of the host, copies, and memsets.
#include "state.h"

#include <string.h>
#include <sys/mman.h>
#include <algorithm>

namespace standin {

static int where(const void* pointer) {  // device number, -1 pinned, -2 registered, -3 unknown
  auto& memory = state().memory;
  auto after = memory.upper_bound((uintptr_t)pointer);
  if (after == memory.begin()) return -3;
  --after;
  return (uintptr_t)pointer < after->first + after->second.first ? after->second.second : -3;
}

static void* take(size_t bytes, int kind) {
  size_t whole = std::max<size_t>((bytes + 4095) & ~size_t(4095), 4096);
  void* at = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  state().memory[(uintptr_t)at] = {whole, kind};
  if (kind >= 0) state().used[kind] += whole;
  return at;
}

static bool give(void* pointer) {
  auto found = state().memory.find((uintptr_t)pointer);
  if (found == state().memory.end()) return false;
  if (found->second.second >= 0) state().used[found->second.second] -= found->second.first;
  if (found->second.second != -2) munmap(pointer, found->second.first);
  state().memory.erase(found);
  return true;
}

static int64_t copy_ns(size_t bytes, bool host) { return 2000 + int64_t(bytes / (host ? state().pcie : state().hbm)); }

static cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool sync, size_t rows = 1,
                        size_t to_pitch = 0, size_t from_pitch = 0) {
  USABLE(lock);
  int target = where(to), source = where(from);
  bool host = target < 0 || source < 0, pageable = target == -3 || source == -3;
  Spec spec;
  spec.kind = 'C';
  spec.name = target < 0 ? (source < 0 ? "HtoH" : "DtoH") : (source < 0 ? "HtoD" : "DtoD");
  spec.bytes = bytes * rows;
  spec.duration = copy_ns(bytes * rows, host);
  auto move = [=] {
    for (size_t row = 0; row < rows; row++)
      memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, bytes);
  };
  bool staged = pageable && source == -3 && bytes * rows <= 65536 && !sync;
  if (staged) {  // the driver copies it before it returns
    auto kept = std::make_shared<std::vector<char>>();
    for (size_t row = 0; row < rows; row++) {
      const char* begin = (const char*)from + row * from_pitch;
      kept->insert(kept->end(), begin, begin + bytes);
    }
    spec.effect = [=] {
      for (size_t row = 0; row < rows; row++) memcpy((char*)to + row * to_pitch, kept->data() + row * bytes, bytes);
    };
  } else {
    spec.effect = move;
  }
  bool wait = sync || (pageable && !staged);
  if (stream_of(stream)->capture && wait) {
    stream_of(stream)->capture->invalid = true;
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  if (sync && unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  OpP op;
  cudaError_t error = submit(lock, stream, std::move(spec), &op);
  if (!error && wait) wait_for(lock, op);
  return fail(error);
}

static cudaError_t set(void* to, int value, size_t bytes, cudaStream_t stream) {
  USABLE(lock);
  Spec spec;
  spec.kind = 'S';
  spec.name = "memset";
  spec.bytes = bytes;
  spec.duration = copy_ns(bytes, false);
  spec.effect = [=] { memset(to, value, bytes); };
  return fail(submit(lock, stream, std::move(spec)));
}

}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  USABLE(lock);
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  if (state().used[t_device] + (int64_t)bytes > state().memory_limit) return fail(cudaErrorMemoryAllocation);
  *pointer = bytes ? take(bytes, t_device) : nullptr;
  int64_t until = now_ns() + state().alloc_ns;
  lock.unlock();
  sleep_until(until);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (!pointer) {
    USABLE(lock);
    return cudaSuccess;
  }
  if (cudaError_t error = cudaDeviceSynchronize(); error) return error;  // as the real one does implicitly
  sleep_until(now_ns() + state().free_ns);
  auto lock = locked();
  return give(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) { return cudaMalloc(pointer, bytes); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  USABLE(lock);
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  *pointer = take(bytes, -1);
  return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* pointer) {
  auto lock = locked();
  return !pointer || give(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  USABLE(lock);
  state().memory[(uintptr_t)pointer] = {bytes, -2};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  auto lock = locked();
  state().memory.erase((uintptr_t)pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  USABLE(lock);
  *total = state().memory_limit;
  *free = state().memory_limit - state().used[t_device];
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* pointer) {
  auto lock = locked();
  memset(a, 0, sizeof *a);
  int place = where(pointer);
  a->type = place >= 0 ? cudaMemoryTypeDevice : place == -3 ? cudaMemoryTypeUnregistered : cudaMemoryTypeHost;
  a->device = place >= 0 ? place : place == -3 ? -2 : t_device;
  if (place >= 0) a->devicePointer = (void*)pointer;
  if (place == -1 || place == -2) a->hostPointer = a->devicePointer = (void*)pointer;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, 0, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t tp, const void* from, size_t fp, size_t width, size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, width, stream, false, height, tp, fp);
}
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  static void* some = nullptr;
  auto lock = locked();
  if (!some) some = take(1 << 20, t_device);
  *pointer = some;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return set(to, value, bytes, 0); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return set(to, value, bytes, stream);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  static int the;
  *pool = (cudaMemPool_t)&the;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *(uint64_t*)value = 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return fail(cudaErrorNotSupported); }
cudaError_t cudaIpcCloseMemHandle(void*) { return fail(cudaErrorNotSupported); }

}  // extern "C"
