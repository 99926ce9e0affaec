// Sums, products, extremes and averages of what ranks send.
#include "nccl.h"

#include <math.h>
#include <string.h>

#include <algorithm>

namespace standin::nccl {

size_t size_of(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? sizes[type] : 1;
}

template <class T>
static void fold(T* to, const T* from, size_t count, int op) {
  for (size_t i = 0; i < count; i++) {
    T a = to[i], b = from[i];
    to[i] = op == 1 ? T(a * b) : op == 2 ? std::max(a, b) : op == 3 ? std::min(a, b) : T(a + b);
  }
}
static float from_half(uint16_t h, bool brain) {
  uint32_t bits;
  if (brain) {
    bits = uint32_t(h) << 16;
  } else {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    if (exponent == 0) return (sign ? -1.f : 1.f) * ldexpf(float(fraction), -24);
    bits = sign | ((exponent == 31 ? 255 : exponent + 112) << 23) | (fraction << 13);
  }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static uint16_t to_half(float f, bool brain) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if (brain) return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  uint32_t sign = (bits >> 16) & 0x8000;
  int exponent = int((bits >> 23) & 255) - 112;
  if (exponent >= 31) return uint16_t(sign | 0x7C00 | ((bits & 0x7FFFFFFF) > 0x7F800000 ? 1 : 0));
  if (exponent <= 0) return uint16_t(sign);
  return uint16_t(sign | (uint32_t(exponent) << 10) | ((bits >> 13) & 1023));
}
void fold_bytes(char* to, const char* from, size_t bytes, int type, int op) {
  size_t count = bytes / size_of(type);
  switch (type) {
    case 0:
      return fold((int8_t*)to, (const int8_t*)from, count, op);
    case 1:
      return fold((uint8_t*)to, (const uint8_t*)from, count, op);
    case 2:
      return fold((int32_t*)to, (const int32_t*)from, count, op);
    case 3:
      return fold((uint32_t*)to, (const uint32_t*)from, count, op);
    case 4:
      return fold((int64_t*)to, (const int64_t*)from, count, op);
    case 5:
      return fold((uint64_t*)to, (const uint64_t*)from, count, op);
    case 7:
      return fold((float*)to, (const float*)from, count, op);
    case 8:
      return fold((double*)to, (const double*)from, count, op);
    case 6:
    case 9: {
      auto *a = (uint16_t*)to, *b = (uint16_t*)from;
      for (size_t i = 0; i < count; i++) {
        float x = from_half(a[i], type == 9), y = from_half(b[i], type == 9);
        fold(&x, &y, 1, op);
        a[i] = to_half(x, type == 9);
      }
    }
  }
}
void average(char* to, size_t bytes, int type, int ranks) {
  size_t count = bytes / size_of(type);
  for (size_t i = 0; i < count; i++) {
    if (type == 7)
      ((float*)to)[i] /= float(ranks);
    else if (type == 8)
      ((double*)to)[i] /= ranks;
    else if (type == 6 || type == 9) {
      auto& half = ((uint16_t*)to)[i];
      half = to_half(from_half(half, type == 9) / float(ranks), type == 9);
    }
  }
}

}  // namespace standin::nccl
