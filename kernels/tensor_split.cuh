// A float as the sum of parts that tensor cores take as they are.
//
//   TF32X3   x = high + low + rest   high: x, rounded to 11 bits     low: x - high, which is exact, rounded to 11 bits
//   BF16X6   x = high + mid + low    high: the first 8 bits of x     mid: x - high, rounded to 8 bits     low: what is left,
//                                    8 bits at most
//
// Of the products of parts those count whose places add up to less than PARTS. What is left out is at most 2^-24 of the
// whole, as much as rounding the product to a float: low low' of TF32, with |low| <= 2^-12 |x|, whose |rest| is at most
// 2^-24 |x|; of BF16 mid low', low mid' and low low', whose signs are random, as mid is rounded.
//
// Infinity less itself is NaN: so is then every element of C that it is part of. In TF32 a value beyond
// 3.4e38 (1 - 2^-12) rounds to infinity.
#pragma once

#include "tensor_primitives.cuh"

struct Parts {
    unsigned bits[PARTS];  // of floats; tensor cores drop what is no part of theirs, or `packed` does
};

__device__ __forceinline__ Parts split(float x) {
#if SCHEME == SCHEME_TF32X3
    const unsigned high = rounded_to_tf32(x);
    return {high, rounded_to_tf32(x - float_of(high))};
#else
    constexpr unsigned FIRST = 0xffff0000, HALF = 0x8000;
    const unsigned high = bits_of(x) & FIRST;
    const float rest = x - float_of(high);
    const unsigned mid = (bits_of(rest) + HALF) & FIRST;  // of NaN 0, which then low is
    return {high, mid, bits_of(rest - float_of(mid))};
#endif
}

// The words of PACKED neighbours, for each part.
__device__ __forceinline__ Parts packed(const float (&x)[PACKED]) {
    if constexpr (PACKED == 1) return split(x[0]);
    const Parts first = split(x[0]), second = split(x[PACKED - 1]);
    Parts words;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        words.bits[part] = first.bits[part] >> 16 | (second.bits[part] & 0xffff0000);
    return words;
}
