// Kernels: their registration, their launch, and what is asked about them.
#include "state.h"

#include <string.h>
#include <algorithm>

namespace standin {

static cudaError_t launch(const void* function, dim3 grid, dim3 block, void** args, cudaStream_t stream) {
  USABLE(lock);
  State& s = state();
  auto found = s.kernels.find(function);
  Spec spec;
  spec.name = found == s.kernels.end() ? "?" : found->second.name;
  int64_t threads = int64_t(grid.x) * grid.y * grid.z * block.x * block.y * block.z;
  spec.duration = s.kernel_ns + threads * s.ps_per_thread / 1000;
  if (found != s.kernels.end() && found->second.spins) spec.duration = std::max<int64_t>(0, *(int64_t*)args[0]);
  return fail(submit(lock, stream, std::move(spec)));
}

}  // namespace standin

using namespace standin;

extern "C" {

static void* the_module[16];
void** __cudaRegisterFatBinary(void*) { return the_module; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  std::lock_guard<std::mutex> guard(state().mutex);
  state().kernels[host] = {name, strstr(name, "spin_kernel") != nullptr};
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = (cudaKernel_t)host;
  return cudaSuccess;
}
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> t_configurations;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
  t_configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (t_configurations.empty()) return cudaErrorMissingConfiguration;
  Configuration last = t_configurations.back();
  t_configurations.pop_back();
  *grid = last.grid, *block = last.block, *shared = last.shared;
  *(cudaStream_t*)stream = last.stream;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t, cudaStream_t stream) {
  return launch((const void*)kernel, grid, block, args, stream);
}
cudaError_t cudaLaunchKernel(const void* f, dim3 grid, dim3 block, void** args, size_t, cudaStream_t stream) {
  return launch(f, grid, block, args, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 grid, dim3 block, void** args, size_t,
                                        cudaStream_t stream) {
  return launch(f, grid, block, args, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
  return launch(f, c->gridDim, c->blockDim, args, c->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024, a->numRegs = 32, a->ptxVersion = 90, a->binaryVersion = 90;
  a->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned, cudaLibraryOption*,
                                void**, unsigned) {
  return fail(cudaErrorNotSupported);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, const char*) { return fail(cudaErrorNotSupported); }
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int size, size_t) {
  *blocks = std::max(1, 2048 / std::max(1, size));
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int size, size_t,
                                                                   unsigned) {
  *blocks = std::max(1, 2048 / std::max(1, size));
  return cudaSuccess;
}

}  // extern "C"
