// Devices and errors.
#include "state.h"

#include <stdio.h>
#include <string.h>

using namespace standin;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  auto lock = locked();
  *count = state().devices;
  if (state().forked) return fail(cudaErrorInitializationError);
  return state().devices ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  auto lock = locked();
  if (device < 0 || device >= state().devices) return fail(cudaErrorInvalidDevice);
  t_device = device;
  if (cudaError_t bad = usable(); bad) return fail(bad);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  auto lock = locked();
  if (device < 0 || device >= state().devices) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Stand-in (no GPU)");
  for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)(0xA0 + i + device);
  p->totalGlobalMem = state().memory_limit;
  p->sharedMemPerBlock = 49152, p->sharedMemPerBlockOptin = 232448, p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = 65536, p->regsPerMultiprocessor = 65536, p->warpSize = 32, p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024, p->maxThreadsPerMultiProcessor = 2048, p->maxBlocksPerMultiProcessor = 32;
  for (int i = 0; i < 3; i++) p->maxThreadsDim[i] = i == 2 ? 64 : 1024;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536, p->major = 9, p->minor = 0, p->textureAlignment = 512, p->texturePitchAlignment = 32;
  p->multiProcessorCount = 132, p->canMapHostMemory = 1, p->concurrentKernels = 1, p->asyncEngineCount = 3;
  p->unifiedAddressing = 1, p->memoryBusWidth = 5120, p->l2CacheSize = 52428800, p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = 1, p->cooperativeLaunch = 1, p->memoryPoolsSupported = 1;
  p->pciBusID = 16 + device, p->hostRegisterSupported = 1, p->clusterLaunch = 1, p->unifiedFunctionPointers = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  static const std::map<int, int> values = {
      {cudaDevAttrMultiProcessorCount, 132},
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrCooperativeLaunch, 1},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrConcurrentKernels, 1},
      {cudaDevAttrL2CacheSize, 52428800},
      {cudaDevAttrTextureAlignment, 512},
  };
  auto found = values.find(attr);
  *value = attr == cudaDevAttrPciBusId ? 16 + device : found == values.end() ? 0 : found->second;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  snprintf(text, length, "0000:%02x:00.0", 16 + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return fail(cudaErrorPeerAccessUnsupported); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  USABLE(lock);
  if (unsafe_call()) return fail(cudaErrorStreamCaptureUnsupported);
  std::vector<OpP> tails{state().defaults[t_device]->tail};
  for (auto& stream : state().streams)
    if (stream->device == t_device) tails.push_back(stream->tail);
  for (auto& tail : tails) wait_for(lock, tail);
  return fail(usable());
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaGetLastError() {
  cudaError_t error = t_error;
  t_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return t_error; }
const char* cudaGetErrorName(cudaError_t error) {
  static thread_local char text[40];
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError:
      return "cudaErrorInitializationError";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    default:
      snprintf(text, sizeof text, "cudaError%d", error);
      return text;
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInitializationError:
      return "initialization error";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    default:
      return cudaGetErrorName(error);
  }
}

}  // extern "C"
