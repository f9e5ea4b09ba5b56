// The main loop of kernels whose lanes share out k: each sum is a dot product, straight from global memory.
//
// Where C has a column or a few, every element of A is used as often: there is nothing to keep in shared memory. A
// tile of A that is copied there in order to be transposed costs more than the product. If A is stored along k, a warp
// reads it as it lies instead, its lanes side by side. It multiplies TM rows of A by TN columns of B; its lanes take
// DOT_VEC neighbours of k each, so that a line is read 128 to 512 bytes at a time, and DOT_VECS such pieces are on
// their way at once. At the end the sums of the lanes become one. (A C of few rows, with B stored along k, is the
// same.)
//
// Worked example, TM = WM = 2, TN = WN = 1, VEC_A 4, BK 32, SLICE_K 4: DOT_VEC 4, DOT_VECS 2, a step is 1024 deep:
//
//              k = 0      4      8           124    128    132          256           512           1024
//   row 0      │ lane 0 │ lane 1 │ ... │ lane 31 │ lane 0 │ lane 1 │ ... │ slice 1 ... │ slices 2, 3 │ next step
//   row 1      │ lane 0 │ lane 1 │ ... │ lane 31 │ lane 0 │ lane 1 │ ... │ slice 1 ... │ slices 2, 3 │
//
// 4096x1x4096 on an H200: a probe of such kernels took 16.9 us, tiles through shared memory 20.7 (docs/decisions/0034).
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "thread_tile.cuh"

constexpr int DOT_VEC = max_of(IS_K_MAJOR_A ? VEC_A : 1, IS_K_MAJOR_B ? VEC_B : 1);
constexpr int DOT_VECS = max_of(SLICE_BK / DOT_VEC, 1);
static_assert(LANES_K == 1 || (SLICE_BK % DOT_VEC == 0 && UNROLL_K == SLICE_BK && STAGES == 1 && FLUSH_K == 0 &&
                               COPY_A == COPY_REGISTER && COPY_B == COPY_REGISTER),
              "rule lanes-along-k");

// Rows of A, or columns of B, that a block multiplies: its lines.
template <int VEC, bool IS_K_MAJOR, bool HAS_EDGES> struct Lines {
    const char* source;  // the first line, at the split's first k
    Stride stride;       // bytes from line to line (K-major), or from one k to the next
    int last;            // last line, from the first, that lies in the matrix

    // `matrix` as stored, `origin` the tile's first index along m or n, `extent` the matrix's extent there.
    __device__ __forceinline__ Lines(const float* matrix, long long ld, int origin, int extent, int k_begin) {
        stride = static_cast<Stride>(ld * sizeof(float));
        last = extent - 1 - origin;
        source = reinterpret_cast<const char*>(matrix) + static_cast<long long>(IS_K_MAJOR ? origin : k_begin) * stride +
                 static_cast<long long>(IS_K_MAJOR ? k_begin : origin) * static_cast<int>(sizeof(float));
    }

    // Neighbours along k of a line. Lines beyond the matrix repeat its last one: what is computed from them is never
    // stored.
    __device__ __forceinline__ Vec<DOT_VEC> load(int line, int k) const {
        if constexpr (HAS_EDGES) line = line < last ? line : last;  // edge: m, n
        Vec<DOT_VEC> x;
        if constexpr (IS_K_MAJOR) {
            const char* const from = source + static_cast<long long>(line) * stride + k * sizeof(float);
#pragma unroll
            for (int e = 0; e < DOT_VEC; e += VEC) {
                const Vec<VEC> part = load_global<VEC>(reinterpret_cast<const float*>(from) + e);
#pragma unroll
                for (int i = 0; i < VEC; ++i) x.v[e + i] = part.v[i];
            }
        } else {
#pragma unroll
            for (int e = 0; e < DOT_VEC; ++e) {
                const char* const from = source + static_cast<long long>(k + e) * stride;
                x.v[e] = load_global<1>(reinterpret_cast<const float*>(from) + line).v[0];
            }
        }
        return x;
    }

    // Moves on along k.
    __device__ __forceinline__ void advance(int depth) {
        source += IS_K_MAJOR ? depth * static_cast<long long>(sizeof(float)) : static_cast<long long>(depth) * stride;
    }
};

using LinesA = Lines<VEC_A, IS_K_MAJOR_A, HAS_EDGES_A>;
using LinesB = Lines<VEC_B, IS_K_MAJOR_B, HAS_EDGES_B>;

struct DotProducts {
    LinesA a;
    LinesB b;
    int num_steps;  // of the block's share of k
};

// Adds to `sums` the dot products of all steps, of which there is one at least, the first `depth` deep. Then makes those
// of all lanes one.
__device__ __forceinline__ void multiply_all(DotProducts& lines, const ThreadTile& thread, int depth,
                                             float (&sums)[TM][TN]) {
    const int first_k = thread.slice * SLICE_BK * LANES_K + thread_index() % LANES_K * DOT_VEC;
#pragma unroll 1
    for (int left = lines.num_steps; left > 0; --left) {
        Vec<DOT_VEC> rows[DOT_VECS][TM] = {}, columns[DOT_VECS][TN] = {};
#pragma unroll
        for (int u = 0; u < DOT_VECS; ++u) {
            const int k = first_k + u * LANES_K * DOT_VEC;
            if (k < depth) {  // edge: k
#pragma unroll
                for (int i = 0; i < TM; ++i) rows[u][i] = lines.a.load(thread.m + i, k);
#pragma unroll
                for (int j = 0; j < TN; ++j) columns[u][j] = lines.b.load(thread.n + j, k);
            }
        }
#pragma unroll
        for (int e = 0; e < DOT_VECS * DOT_VEC; ++e) {
#pragma unroll
            for (int i = 0; i < TM; ++i) {
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sums[i][j] = multiply_add(rows[e / DOT_VEC][i].v[e % DOT_VEC],
                                              columns[e / DOT_VEC][j].v[e % DOT_VEC], sums[i][j]);
            }
        }
        lines.a.advance(depth);
        lines.b.advance(depth);
        depth = STEP_K;
    }
#pragma unroll
    for (int apart = LANES_K / 2; apart > 0; apart /= 2) {
#pragma unroll
        for (int e = 0; e < TM * TN; ++e) sums[e / TN][e % TN] += of_lane_across(sums[e / TN][e % TN], apart);
    }
}
