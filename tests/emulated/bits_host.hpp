// Host twin of kernels/bits.cuh.
#pragma once

#include <cstring>

inline unsigned bits_of(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float float_of(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

inline float float_of_half(unsigned bits) {
    const unsigned sign = (bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
    if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(fraction) * 0x1p-24f));
    if (exponent < 31) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    return float_of(fraction ? 0x7fffffff : sign | 0x7f800000);  // the NaN that GPUs compute
}
