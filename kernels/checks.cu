// Kernels that make operands and check results while tuning. None of them is timed, so they are plain.
//
//   fill_normal        random normal numbers, a function of (seed, index) alone
//   fill_operand       operands of one of several kinds, on which classes of accuracy are verified
//   reference_tiles    float64 product of chosen tiles of C, and the product of absolute values
//   compare_tiles      max over those tiles of |C - C64| / bound, and the sum of (C - C64)^2
//   compare_whole      count of NaN and Inf in all of C, and max |C - other| / tolerance
//   check_canaries     count of damaged words in the canary regions around operands and workspace
//
// Matrices are given by strides in elements: in product p of a batch, X[i][j] = x[p * products + i * rows +
// j * columns]; products is 0 where all products share a matrix. C is packed, one product behind the other.
// The tiles of C (CHECK_TILE x CHECK_TILE, hanging over its edges) are numbered row by row, product by product;
// a *slot* is a position in the list of chosen tiles. References are packed: [slot][row in tile][column in tile].
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int CHECK_TILE = 64;
constexpr int CHECK_DEPTH = 16;    // k per step through shared memory
constexpr int CHECK_THREADS = 256;  // as 16 x 16, each with PER_THREAD x PER_THREAD elements
constexpr int SIDE = 16;
constexpr int PER_THREAD = CHECK_TILE / SIDE;
constexpr int TILE_ELEMENTS = CHECK_TILE * CHECK_TILE;
constexpr u32 INFINITY_BITS = 0x7f800000u;

// What the checks found. Ratios are the bits of a non-negative float in the upper half, so that they order
// like integers, and below them where: the packed index of the element.
struct Findings {
    u64 worst;           // of compare_tiles
    u64 num_nonfinite;   // NaN and Inf in C
    u64 num_damaged;     // canary words overwritten
    u64 last_damaged;    // 1 + number of the last damaged canary region, counted over all launches
    u64 worst_to_other;  // of compare_whole, without an index
    double squares;      // of compare_tiles: sum over its elements of (C - C64)^2
};

// ---------------------------------------------------------------------------------------------- operands

// A permutation of 64-bit integers whose values look random (the finalizer of SplitMix64: Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014).
__device__ __forceinline__ u64 scramble(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ __forceinline__ u64 random_bits(u64 seed, u64 i) {
    return scramble(scramble(seed + 1) + i * 0x9e3779b97f4a7c15ull);
}

// In (0, 1], of 24 bits.
__device__ __forceinline__ float uniform(u64 bits) { return (static_cast<float>(bits) + 1.0f) * 0x1p-24f; }

// Box-Muller from two 24-bit uniform numbers: no value exceeds sqrt(-2 ln 2^-24) = 5.77.
__device__ __forceinline__ float normal(u64 seed, u64 i) {
    const u64 bits = random_bits(seed, i);
    return sqrtf(-2.0f * logf(uniform(bits >> 40))) * cospif(2.0f * uniform(bits & 0xffffffull));
}

extern "C" __global__ void fill_normal(float* out, u64 count, u64 seed) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = normal(seed, i);
}

// In the order of KINDS in autotune/facts/accuracy_class.py.
enum Kind { NORMAL, UNIFORM, WIDE, SCALED, CANCELLING };

constexpr u64 OF_SCALES = 0x5ca1e5, OF_CHANGES = 0xc4a9e5;  // seeds of their own
constexpr int WIDE_EXPONENT = 20, SCALED_EXPONENT = 15;
constexpr float CHANGE = 1e-4f;

__device__ __forceinline__ float power_of_two(u64 bits, int most) {
    return exp2f(static_cast<float>(static_cast<int>((bits >> 32) % (2 * most + 1)) - most));
}

// One element of an operand as stored, rows x columns for each product. p is its place along k.
//
//   UNIFORM      in (0, 1]: sums grow with k
//   WIDE         normal times 2^-20 ... 2^20 by element
//   SCALED       normal times 2^-15 ... 2^15 by row
//   CANCELLING   normal; the second half along k repeats the first, changed by 1e-4, negated in A: of what has been
//                summed at half of k little is left
__device__ __forceinline__ float element(Kind kind, u64 seed, u64 i, u64 row, u64 p, u64 depth, u64 along_k,
                                         bool negates) {
    const u64 half = depth / 2;
    if (kind == UNIFORM) return uniform(random_bits(seed, i) >> 40);
    if (kind == WIDE) return normal(seed, i) * power_of_two(random_bits(seed + OF_SCALES, i), WIDE_EXPONENT);
    if (kind == SCALED) return normal(seed, i) * power_of_two(random_bits(seed + OF_SCALES, row), SCALED_EXPONENT);
    if (kind == CANCELLING && p >= half && p < 2 * half) {
        const float changed = normal(seed, i - half * along_k) * (1.0f + CHANGE * normal(seed + OF_CHANGES, i));
        return negates ? -changed : changed;
    }
    return normal(seed, i);
}

// `is_k_major`: the operand is contiguous along k, of which there are `columns` then, else `rows`.
extern "C" __global__ void fill_operand(float* out, u64 count, u64 seed, int kind, u64 rows, u64 columns,
                                        int is_k_major, int negates) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const u64 row = i / columns % rows, column = i % columns;
        out[i] = element(static_cast<Kind>(kind), seed, i, row, is_k_major ? column : row, is_k_major ? columns : rows,
                         is_k_major ? 1 : columns, negates != 0);
    }
}

// Rounds to the nearest BF16 (type 1) or FP16 (type 2), even where two are; FP16 ends at 65,504, so that what is larger
// becomes that. `out` holds both bytes of each.
extern "C" __global__ void shorten_operand(float* values, unsigned short* out, u64 count, int type) {
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    for (u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        const float x = values[i];
        if (type == 1) {
            const u32 bits = __float_as_uint(x);
            const u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
            out[i] = static_cast<unsigned short>(rounded >> 16);
            values[i] = __uint_as_float(rounded & 0xffff0000u);
        } else {
            const float within = fminf(fmaxf(x, -65504.0f), 65504.0f), magnitude = fabsf(within);
            // Adding what has FP16's last place as its own rounds to it: 2^-24 of the least normal, 2^-14, and below
            const float least = 0x1p-14f, exponent = __uint_as_float(__float_as_uint(magnitude) & 0x7f800000u);
            const float scale = magnitude < least ? least : exponent;
            const float rounder = scale * 0x1.8p13f, value = (magnitude + rounder) - rounder;
            values[i] = copysignf(value, x);
            const u32 bits = __float_as_uint(value);
            const u32 half = value < least ? static_cast<u32>(value * 0x1p24f) : (bits >> 13) - (112u << 10);
            out[i] = static_cast<unsigned short>(half | (__float_as_uint(x) >> 16 & 0x8000u));
        }
    }
}

// --------------------------------------------------------------------------------------------- reference

// The first element of a tile of C, and which product it is of.
struct Place {
    long long product, row, column;
    __device__ Place(int tile, int m, int n) {
        const int tiles_m = m / CHECK_TILE + (m % CHECK_TILE != 0), tiles_n = n / CHECK_TILE + (n % CHECK_TILE != 0);
        const int down = tile / tiles_n;  // rows of tiles, of all products
        product = down / tiles_m;
        row = static_cast<long long>(down % tiles_m) * CHECK_TILE;
        column = static_cast<long long>(tile % tiles_n) * CHECK_TILE;
    }
};

// Copies op(X)[first ... first + CHECK_TILE][k ... k + CHECK_DEPTH] to shared memory by (k, index), with
// zeros beyond its edges. Lanes run along k where that is contiguous.
__device__ void load_strip(double (*exact)[CHECK_TILE + 1], float (*magnitude)[CHECK_TILE + 1], const float* x,
                           long long stride_index, long long stride_k, long long first, long long extent, long long k,
                           int depth) {
    for (int e = threadIdx.x; e < CHECK_TILE * CHECK_DEPTH; e += CHECK_THREADS) {
        const int p = stride_k == 1 ? e % CHECK_DEPTH : e / CHECK_TILE;
        const int i = stride_k == 1 ? e / CHECK_DEPTH : e % CHECK_TILE;
        const bool is_inside = first + i < extent && k + p < depth;
        const float value = is_inside ? x[(first + i) * stride_index + (k + p) * stride_k] : 0.0f;
        exact[p][i] = value;
        magnitude[p][i] = fabsf(value);
    }
}

// Grid: one block per slot. reference[slot] = sum over k of a * b in double, magnitudes[slot] = the sum of
// |a * b| in float (it only scales the bound, where a relative error of k * 2^-24 does not count).
extern "C" __global__ void __launch_bounds__(CHECK_THREADS)
    reference_tiles(int m, int n, int k, const float* a, long long a_rows, long long a_columns, long long a_products,
                    const float* b, long long b_rows, long long b_columns, long long b_products, const int* tiles,
                    double* reference, float* magnitudes) {
    __shared__ double a_exact[CHECK_DEPTH][CHECK_TILE + 1], b_exact[CHECK_DEPTH][CHECK_TILE + 1];  // (k, m), (k, n)
    __shared__ float a_size[CHECK_DEPTH][CHECK_TILE + 1], b_size[CHECK_DEPTH][CHECK_TILE + 1];     // (k, m), (k, n)
    const Place at_tile(tiles[blockIdx.x], m, n);
    a += at_tile.product * a_products;
    b += at_tile.product * b_products;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    double sum[PER_THREAD][PER_THREAD] = {};
    float size[PER_THREAD][PER_THREAD] = {};
    for (long long from = 0; from < k; from += CHECK_DEPTH) {
        load_strip(a_exact, a_size, a, a_rows, a_columns, at_tile.row, m, from, k);
        load_strip(b_exact, b_size, b, b_columns, b_rows, at_tile.column, n, from, k);
        __syncthreads();  // RAW: strips are whole before they are read
#pragma unroll 4
        for (int p = 0; p < CHECK_DEPTH; ++p)
#pragma unroll
            for (int i = 0; i < PER_THREAD; ++i)
#pragma unroll
                for (int j = 0; j < PER_THREAD; ++j) {
                    sum[i][j] = fma(a_exact[p][ty + i * SIDE], b_exact[p][tx + j * SIDE], sum[i][j]);
                    size[i][j] = fmaf(a_size[p][ty + i * SIDE], b_size[p][tx + j * SIDE], size[i][j]);
                }
        __syncthreads();  // WAR: strips have been read before they are refilled
    }
    const u64 slot = static_cast<u64>(blockIdx.x) * TILE_ELEMENTS;
    for (int i = 0; i < PER_THREAD; ++i)
        for (int j = 0; j < PER_THREAD; ++j) {
            const int at = (ty + i * SIDE) * CHECK_TILE + tx + j * SIDE;
            reference[slot + at] = sum[i][j];
            magnitudes[slot + at] = size[i][j];
        }
}

// ------------------------------------------------------------------------------------------------ checks

// Bits of |difference| / bound: 0 for no difference, infinity where there is one and the bound is 0 or
// the difference is NaN.
__device__ __forceinline__ u32 ratio_bits(double difference, double bound) {
    if (difference == 0.0) return 0;
    const float ratio = static_cast<float>(fabs(difference) / bound);
    return ratio >= 0.0f ? __float_as_uint(ratio) : INFINITY_BITS;  // NaN compares false
}

// Grid: one block per slot. The bound of an element is `gamma` times its sum of |a * b|.
extern "C" __global__ void __launch_bounds__(CHECK_THREADS)
    compare_tiles(int m, int n, const float* c, const int* tiles, const double* reference, const float* magnitudes,
                  double gamma, Findings* findings) {
    const Place at_tile(tiles[blockIdx.x], m, n);
    const u64 slot = static_cast<u64>(blockIdx.x) * TILE_ELEMENTS;
    __shared__ double squares[CHECK_THREADS];  // (thread)
    u64 worst = 0;
    double own_squares = 0;
    for (int e = threadIdx.x; e < TILE_ELEMENTS; e += CHECK_THREADS) {
        const long long i = at_tile.row + e / CHECK_TILE, j = at_tile.column + e % CHECK_TILE;
        if (i >= m || j >= n) continue;  // edge: C
        const double difference = c[(at_tile.product * m + i) * n + j] - reference[slot + e];
        own_squares += difference * difference;
        const u64 found = static_cast<u64>(ratio_bits(difference, gamma * magnitudes[slot + e])) << 32;
        const u64 candidate = found ? found | ((slot + e) & 0xffffffffull) : 0;
        worst = candidate > worst ? candidate : worst;
    }
    if (worst) atomicMax(&findings->worst, worst);
    squares[threadIdx.x] = own_squares;
    for (u32 half = CHECK_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();  // RAW: both halves are written
        if (threadIdx.x < half) squares[threadIdx.x] += squares[threadIdx.x + half];
    }
    if (threadIdx.x == 0) atomicAdd(&findings->squares, squares[0]);
}

// Any grid. `other` (null: none) is a result that C may differ from by `tolerance`.
extern "C" __global__ void __launch_bounds__(CHECK_THREADS)
    compare_whole(const float* c, const float* other, u64 count, double tolerance, Findings* findings) {
    u64 num_nonfinite = 0, worst = 0;
    const u64 step = static_cast<u64>(gridDim.x) * CHECK_THREADS;
    for (u64 i = static_cast<u64>(blockIdx.x) * CHECK_THREADS + threadIdx.x; i < count; i += step) {
        if (!isfinite(c[i])) ++num_nonfinite;
        if (other == nullptr) continue;
        const u64 found = static_cast<u64>(ratio_bits(static_cast<double>(c[i]) - other[i], tolerance)) << 32;
        worst = found > worst ? found : worst;
    }
    if (num_nonfinite) atomicAdd(&findings->num_nonfinite, num_nonfinite);
    if (worst) atomicMax(&findings->worst_to_other, worst);
}

struct Canary {
    const u32* words;
    u64 count;
};

// Grid: one block per canary region, numbered from `first` on; every word of it must still be `pattern`.
extern "C" __global__ void __launch_bounds__(CHECK_THREADS)
    check_canaries(const Canary* canaries, u32 first, u32 pattern, Findings* findings) {
    const Canary canary = canaries[blockIdx.x];
    u64 num_damaged = 0;
    for (u64 i = threadIdx.x; i < canary.count; i += CHECK_THREADS)
        if (canary.words[i] != pattern) ++num_damaged;
    if (!num_damaged) return;
    atomicAdd(&findings->num_damaged, num_damaged);
    atomicMax(&findings->last_damaged, static_cast<u64>(first) + blockIdx.x + 1);
}
