// A float as the sum of parts that tensor cores take as they are.
//
//   TF32X3   x = high + low + rest   high: x, rounded to 11 bits     low: x - high, which is exact, as 11 bits
//   BF16X6   x = high + mid + low    high: the first 8 bits of x     mid: x - high, rounded to 8 bits     low: what is left,
//                                    8 bits at most
//
// Of the products of parts those count whose places add up to less than PARTS. What is left out is at most 2^-24 of the
// whole, as much as rounding the product to a float: low low' of TF32, with |low| <= 2^-12 |x|, whose |rest| is at most
// 2^-24 |x|; of BF16 mid low', low mid' and low low', whose signs are random, as mid is rounded.
//
// Infinity less itself is NaN: so is then every element of C that it is part of. In TF32 a value beyond
// 3.4e38 (1 - 2^-12) rounds to infinity. Half a bit added to the bits of NaN may make 0 of it, as of the NaN that GPUs
// compute, all of whose bits are set. So low, which is NaN then, is rounded by a factor: what is cut off of 11 bits is half
// of the last one on average, and so is what the factor adds. It misses the nearest by 0.31 of the last bit where rounding
// does by 0.29. The instruction that rounds (cvt.rna) made 4096x4096x4096 a tenth slower.
#pragma once

struct Parts {
    unsigned bits[PARTS];  // of floats; tensor cores drop what is no part of theirs, or `packed` does
};

__device__ __forceinline__ Parts split(float x) {
#if SCHEME == SCHEME_TF32X3
    constexpr unsigned HALF = 1u << 12, KEPT = ~((1u << 13) - 1);
    constexpr float NUDGE = 1 + 0x1.6p-12f;
    const unsigned high = (bits_of(x) + HALF) & KEPT;
    return {high, bits_of((x - float_of(high)) * NUDGE)};  // tensor cores drop the lost bits themselves
#else
    constexpr unsigned FIRST = 0xffff0000, HALF = 0x8000;
    const unsigned high = bits_of(x) & FIRST;
    const float rest = x - float_of(high);
    const unsigned mid = (bits_of(rest) + HALF) & FIRST;  // of NaN 0, which then low is
    return {high, mid, bits_of(rest - float_of(mid))};
#endif
}

// An element of A from the word that it is in: BF16 is the upper half of a float. The NaN that FP16 becomes has all bits set,
// and in TF32 no low part follows that is NaN, too: it is given bits that half a bit may be added to.
__device__ __forceinline__ float element_of_a(float word, int place) {
    constexpr int NAN_TO_ROUND = 0x7fffe000;  // beyond all other floats, as numbers with a sign
    if constexpr (A_TYPE == A_FP32) return word;
    const unsigned half = place == 0 ? bits_of(word) & 0xffff : bits_of(word) >> 16;
    if constexpr (A_TYPE == A_BF16) return float_of(half << 16);
    const int bits = static_cast<int>(bits_of(float_of_half(half)));
    return float_of(bits < NAN_TO_ROUND ? bits : NAN_TO_ROUND);
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
