// What the stand-ins for cuBLAS and cuBLASLt share: a product takes time and computes nothing.
#pragma once
#include "engine.h"

namespace standin {

inline int product(void* stream, const char* name, double m, double n, double k, double batch) {
  static double tflops = env_double("STANDIN_TFLOPS", 20);
  static int64_t least = env_int("STANDIN_KERNEL_NS", 3000);
  Spec spec;
  spec.name = name;
  spec.duration = least + int64_t(2 * m * n * k * batch / (tflops * 1e3));
  return enqueue(stream, std::move(spec)) ? 14 : 0;
}

}  // namespace standin
