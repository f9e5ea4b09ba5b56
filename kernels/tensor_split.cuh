// A float as the sum of two that tensor cores take as they are: TF32, with 11 bits of significand.
//
//   x = high + low + rest     high: x, rounded to 11 bits     low: x - high, which is exact, rounded to 11 bits
//
// |low| <= 2^-12 |x|, |rest| <= 2^-24 |x|. Of (high + low) (high' + low') three products are taken: low low' is at most
// 2^-24 of the whole, as much as rounding the product to a float. A value beyond 3.4e38 (1 - 2^-12) rounds to infinity,
// and infinity less itself is NaN: so is then every element of C that it is part of.
#pragma once

#include "tensor_primitives.cuh"

constexpr unsigned LOST_BITS = 13;  // of a float's significand
constexpr unsigned HALF = 1u << (LOST_BITS - 1);
constexpr unsigned KEPT = ~((1u << LOST_BITS) - 1);

struct Parts {
    unsigned high;
    unsigned low;
};

__device__ __forceinline__ Parts split(float x) {
    const unsigned high = (bits_of(x) + HALF) & KEPT;
    return {high, bits_of(x - float_of(high)) + HALF};  // tensor cores drop the lost bits themselves
}
