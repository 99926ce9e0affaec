// The few functions of the driver that torch asks for by name.
#include "state.h"

#include <algorithm>
#include <string>

using namespace standin;

extern "C" {

static int cu_unsupported() { return 801; }
static int cu_ok() { return 0; }
static int cu_state(int device, unsigned* flags, int* active) {
  auto lock = locked();
  if (flags) *flags = 0;
  *active = device >= 0 && device < state().devices && state().active[device];
  return 0;
}
static int cu_context(void** context) {
  auto lock = locked();
  static int contexts[64];
  *context = state().devices && state().active[t_device] ? &contexts[t_device] : nullptr;
  return 0;
}
static int cu_retain(void** context, int device) {
  auto lock = locked();
  static int contexts[64];
  state().active[device] = 1;
  *context = &contexts[device];
  return 0;
}
static int cu_get(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
static int cu_string(int, const char** text) {
  *text = "an error of the stand-in driver";
  return 0;
}
static int cu_attribute(int* value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device);
}
static int cu_range(uintptr_t* base, size_t* bytes, uintptr_t pointer) {
  auto lock = locked();
  auto& memory = state().memory;
  auto after = memory.upper_bound(pointer);
  if (after == memory.begin()) return 1;
  --after;
  if (base) *base = after->first;
  if (bytes) *bytes = after->second.first;
  return 0;
}
void* standin_driver_function(const char* name) {
  std::string key = name;
  if (key == "cuDevicePrimaryCtxGetState") return (void*)cu_state;
  if (key == "cuDevicePrimaryCtxRetain") return (void*)cu_retain;
  if (key == "cuCtxGetCurrent") return (void*)cu_context;
  if (key == "cuCtxSetCurrent" || key == "cuCtxPushCurrent" || key == "cuInit") return (void*)cu_ok;
  if (key == "cuDeviceGet") return (void*)cu_get;
  if (key == "cuGetErrorString") return (void*)cu_string;
  if (key == "cuDeviceGetAttribute") return (void*)cu_attribute;
  if (key == "cuMemGetAddressRange" || key == "cuMemGetAddressRange_v2") return (void*)cu_range;
  return (void*)cu_unsupported;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = standin_driver_function(symbol);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
