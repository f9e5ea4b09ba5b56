// The pass before the product: scales an operand, splits it in two halves of FP16, and packs it as tensor cores read it.
//
//   x = (high + low / 2^12) * divisor     high, low: 11 bits each; the divisor is a power of two, of a row (m of A, n of
//                                         B) and BK of k, such that the largest |high| there is 2^14 to 2^15
//
// FP16 has normal numbers of 2^-14 to 2^16, and multiples of 2^-24 below. The low part is stored 2^12 times as large: it
// is then at most as large as the high one may be, and rounds to 2^-24 / 2^12 at worst. So
//
//   |x - (high + low / 2^12) divisor| <= 2^-22 |x|     where |x| >= 2^-RANGE times the power of two of the largest
//
// and 2^-23 |x| where high is a normal number. Where a number of a block is smaller than that, but is not 0, or its
// largest is not finite or beyond 2^-MOST ... 2^MOST, the whole block stays as it is, and the product takes it by FMAs
// (scaled_multiply.cuh). So what tensor cores are given is within 2^-22 of what it was, number by number.
//
// Included after the parameters and primitives of a kernel that reads it: scaled_sgemm.cu, halves_sgemm.cu.
#pragma once

constexpr int RANGE = 29, MOST = 60;
constexpr int LARGEST = 14;               // the exponent of the largest number of a row, scaled
constexpr int BIAS_OF_EXPONENT = 127, FRACTION_BITS = 23;  // of FP32

constexpr int PACK_THREADS = 256;
constexpr int PACK_STEP = PACK_THREADS / BLOCK;  // rows of its block that it touches at a time
constexpr int PACK_STEPS = BLOCK / PACK_STEP;    // numbers per thread
constexpr int PACK_ROW = BLOCK + 1;              // odd: a warp that walks a column meets all banks
constexpr int SHARES = WARP / SWIZZLED_ROWS;     // lanes that share a row
constexpr int NEIGHBOURS = 2 * CHUNK;            // numbers of a chunk of 16 bytes
static_assert(BLOCK == BK, "a block is packed as it is read");

// The least and the largest |x| of a row, but for zeros, as bits.
struct Extremes {
    unsigned least = ~0u, largest = 0;

    __device__ __forceinline__ void meet(float x) {
        const unsigned size = bits_of(x) & 0x7fffffff;
        if (size > largest) largest = size;
        if (size != 0 && size < least) least = size;
    }
    // With those of the lanes that share the row.
    __device__ __forceinline__ void meet_lanes() {
#pragma unroll
        for (int apart = 1; apart < SHARES; apart *= 2) {
            const unsigned other = bits_of(of_lane_across(float_of(largest), apart));
            const unsigned less = bits_of(of_lane_across(float_of(least), apart));
            if (other > largest) largest = other;
            if (less < least) least = less;
        }
    }
    __device__ __forceinline__ int exponent() const { return static_cast<int>(largest >> FRACTION_BITS); }
    __device__ __forceinline__ bool are_in_range() const {
        if (largest == 0) return true;
        const int of_least = static_cast<int>(least >> FRACTION_BITS), apart = exponent() - BIAS_OF_EXPONENT;
        return apart >= -MOST && apart <= MOST && exponent() - of_least <= RANGE;
    }
    // A power of two: what scaled numbers are multiplied by to be those of the row again.
    __device__ __forceinline__ float divisor() const {
        return largest == 0 ? 1.0f : float_of((exponent() - LARGEST) << FRACTION_BITS);
    }
    __device__ __forceinline__ float scale() const {
        return largest == 0 ? 1.0f : float_of((2 * BIAS_OF_EXPONENT + LARGEST - exponent()) << FRACTION_BITS);
    }
};

// Launch: blocks of the packed operand, those along the extent first, of one product after the other; PACK_THREADS
// threads; BLOCK * PACK_ROW floats of shared memory. Operands of a batch lie `stride` numbers apart.
extern "C" __global__ void __launch_bounds__(PACK_THREADS)
    sgemm_pack(int extent, int k, const float* READ_ONLY from, long long ld, int is_k_major, float* __restrict__ to,
               int padded, int blocks_per_product, long long stride) {
    const int product = IS_BATCHED ? block_index_x() / blocks_per_product : 0;
    const int block = block_index_x() - product * blocks_per_product;
    if constexpr (IS_BATCHED) {
        from += product * stride;
        to += product * (first_divisor(k, padded) + static_cast<long long>(tiles_of_k(k)) * padded);
    }
    const int across = padded / BLOCK;
    const int first_i = block % across * BLOCK, tile_k = block / across, first_p = tile_k * BK;
    const int column = thread_index() % BLOCK, row = thread_index() / BLOCK;

    wait_for_kernels_before();  // WAR too: `to` may be what the call before still reads
    let_next_kernel_begin();

    // Neighbouring threads run along what is contiguous in the source: p where it is K-major, else i.
    float held[PACK_STEPS];
#pragma unroll
    for (int step = 0; step < PACK_STEPS; ++step) {
        const int along = row + step * PACK_STEP;
        const int i = first_i + (is_k_major ? along : column), p = first_p + (is_k_major ? column : along);
        const long long at = is_k_major ? i * ld + p : p * ld + i;
        held[step] = i < extent && p < k ? load_global<1>(from + at).v[0] : 0.0f;  // edge: m, n, k
    }
    float* const tile = shared_memory();  // (p, i)
#pragma unroll
    for (int step = 0; step < PACK_STEPS; ++step) {
        const int along = row + step * PACK_STEP;
        store_shared<1>(tile + (is_k_major ? column * PACK_ROW + along : along * PACK_ROW + column), {held[step]});
    }
    barrier();  // RAW: the tile is whole before its rows are read

    // Four lanes share a row, eight rows a warp: each has two chunks, `share` and the one SHARES behind.
    const int own_i = thread_index() / SHARES, share = thread_index() % SHARES;
    float x[2][NEIGHBOURS];
    Extremes of_row;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int e = 0; e < NEIGHBOURS; ++e) {
            x[half][e] = load_shared<1>(tile + ((half * SHARES + share) * NEIGHBOURS + e) * PACK_ROW + own_i).v[0];
            of_row.meet(x[half][e]);
        }
    }
    of_row.meet_lanes();
    // Whether all rows are in range, through what is left over of the tile's rows.
    if (share == 0) store_shared<1>(tile + own_i * PACK_ROW + BLOCK, {of_row.are_in_range() ? 0.0f : 1.0f});
    barrier();  // RAW: all rows are judged
    float are_exact = 0;
#pragma unroll
    for (int other = 0; other < BLOCK; other += WARP)
        are_exact += load_shared<1>(tile + (other + thread_index() % WARP) * PACK_ROW + BLOCK).v[0];
#pragma unroll
    for (int apart = 1; apart < WARP; apart *= 2) are_exact += of_lane_across(are_exact, apart);

    float* const blocks = to + (static_cast<long long>(tile_k) * across + first_i / BLOCK) * BLOCK_WORDS;
    float* const divisors = to + first_divisor(k, padded) + static_cast<long long>(tile_k) * padded + first_i;
    if (share == 0) store_global<1>(divisors + own_i, {are_exact > 0 ? 0.0f : of_row.divisor()});
    if (are_exact > 0) {
#pragma unroll
        for (int step = 0; step < PACK_STEPS; ++step) {
            const int p = row + step * PACK_STEP;
            store_global<1>(blocks + p * EXACT_ROW + column, load_shared<1>(tile + p * PACK_ROW + column));
        }
        return;
    }
    const float scale = of_row.scale();
    const int group = own_i / SWIZZLED_ROWS, in_group = own_i % SWIZZLED_ROWS;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        Vec<CHUNK> high, low;
#pragma unroll
        for (int word = 0; word < CHUNK; ++word) {
            const float first = x[half][2 * word] * scale, second = x[half][2 * word + 1] * scale;
            const unsigned both = halves_of(first, second);
            const float rest = (first - float_of_half(both)) * LOW_SCALE;
            const float rest_of_second = (second - float_of_half(both >> 16)) * LOW_SCALE;
            high.v[word] = float_of(both);
            low.v[word] = float_of(halves_of(rest, rest_of_second));
        }
        const int chunk = half * SHARES + share;
        float* const at = blocks + group * 2 * PART + in_group * ROW + (chunk ^ in_group) * CHUNK;
        store_global<CHUNK>(at, high);
        store_global<CHUNK>(at + PART, low);
    }
}
