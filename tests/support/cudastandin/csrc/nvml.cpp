// The few functions of NVML that tell how busy a device is. The driver takes the mean of a fifth of a second here. Those
// below them are what torch requires of a library of this name when memory runs out: it lists who else uses the device.
#include "state.h"

#include <algorithm>
#include <string.h>

using namespace standin;

static const int64_t WINDOW = 200000000;

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  for (int device = 0; device < state().devices; device++) {
    cudaDeviceProp p;
    char text[48] = "GPU-", *at = text + 4;
    cudaGetDeviceProperties(&p, device);
    for (int i = 0; i < 16; i++) {
      if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
      at += sprintf(at, "%02x", (unsigned char)p.uuid.bytes[i]);
    }
    if (strcmp(text, uuid)) continue;
    *handle = (void*)(intptr_t)(device + 1);
    return 0;
  }
  return 6;  // NVML_ERROR_NOT_FOUND
}
int nvmlDeviceGetUtilizationRates(void* handle, unsigned* rates) {
  auto lock = locked();
  auto spans = state().busy[(intptr_t)handle - 1];
  std::sort(spans.begin(), spans.end());
  int64_t now = now_ns(), from = now - WINDOW, sum = 0, until = from;
  for (auto [start, end] : spans) {
    start = std::max(start, until), end = std::min(end, now);
    if (end > start) sum += end - start, until = end;
  }
  rates[0] = (unsigned)((100 * sum + WINDOW / 2) / WINDOW), rates[1] = 0;
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** handle) {
  *handle = (void*)(intptr_t)1;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return 3; }  // NVML_ERROR_NOT_SUPPORTED
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}

}  // extern "C"
