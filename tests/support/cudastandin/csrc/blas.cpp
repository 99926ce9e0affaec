// The functions of cuBLAS that torch's matrix products use.
#include "blas.h"

using namespace standin;

extern "C" {

struct Handle {
  void* stream;
  int math, pointers;
};
int cublasCreate_v2(Handle** handle) {
  *handle = new Handle{};
  return 0;
}
int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return 0;
}
int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  return 0;
}
int cublasSetWorkspace_v2(Handle*, void*, size_t) { return 0; }
int cublasSetSmCountTarget(Handle*, int) { return 0; }
int cublasSetMathMode(Handle* handle, int mode) {
  handle->math = mode;
  return 0;
}
int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math;
  return 0;
}
int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointers = mode;
  return 0;
}
int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointers;
  return 0;
}
#define GEMM(f) \
  int f(Handle* h, int, int, int m, int n, int k) { return product(h->stream, "gemm", m, n, k, 1); }
GEMM(cublasSgemm_v2)
GEMM(cublasDgemm_v2) GEMM(cublasCgemm_v2) GEMM(cublasZgemm_v2) GEMM(cublasGemmEx) GEMM(cublasSgemmEx)
#define BATCHED(f)                                                                                            \
  int f(Handle* h, int, int, int m, int n, int k, const void*, const void*, int, long long, const void*, int, \
        long long, const void*, void*, int, long long, int batch) {                                           \
    return product(h->stream, "gemm", m, n, k, batch);                                                        \
  }
    BATCHED(cublasSgemmStridedBatched) BATCHED(cublasDgemmStridedBatched) BATCHED(cublasCgemmStridedBatched)
        BATCHED(cublasZgemmStridedBatched) int cublasGemmStridedBatchedEx(Handle* h, int, int, int m, int n, int k,
                                                                          const void*, const void*, int, int, long long,
                                                                          const void*, int, int, long long, const void*,
                                                                          void*, int, int, long long, int batch) {
  return product(h->stream, "gemm", m, n, k, batch);
}
int standin_blas(Handle* handle, const char* name) { return product(handle->stream, name, 0, 0, 0, 0); }

}  // extern "C"
