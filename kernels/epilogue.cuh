// From sums to C: scaled, with what the kernel adds to that, VEC_C neighbours at a time, and nothing beyond C's edge.
//
// A vector lies inside C or outside it as a whole: the host gives vectors only to rows that are made of them
// (launch.refusal), so the edge is tested once for each.
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "staged_rows.cuh"
#include "thread_tile.cuh"

// What a kernel adds to C = alpha * AB + beta * C, where it is compiled with it:
//
//   value = alpha * AB + beta * C + bias       BIAS: bias[i] or bias[j]
//   kept[i * ld_kept + j] = value              KEEPS: what backward needs of an activation
//   C = activation(value)                      ACTIVATION
//
// In a batch, bias and kept of one product lie a stride from those of the one before; 0 for a bias that all share.
struct Epilogue {
    const float* bias;
    float* kept;
    long long ld_kept;
    long long stride_bias;
    long long stride_kept;
};

// GELU is x times the standard normal distribution function; gelu_tanh its usual approximation, written with one
// exponential: x / (1 + exp(-2 u)) for u = sqrt(2 / pi) * (x + 0.044715 x^3) (Hendrycks and Gimpel, "Gaussian Error Linear
// Units", 2016). NaN stays NaN in all of them.
__device__ __forceinline__ float activate(float x) {
    constexpr float SQRT_HALF = 0.70710678f, TWO_SQRT_2_OVER_PI = 1.5957691f, CUBIC = 0.044715f;
    if constexpr (ACTIVATION == ACTIVATION_RELU) return x < 0 ? 0 : x;
    if constexpr (ACTIVATION == ACTIVATION_GELU) return 0.5f * x * (1 + erff(SQRT_HALF * x));
    if constexpr (ACTIVATION == ACTIVATION_GELU_TANH)
        return divide(x, 1 + expf(-TWO_SQRT_2_OVER_PI * x * multiply_add(CUBIC * x, x, 1.0f)));
    return x;
}

// The C of one product, and all that is to become of the product on its way there.
struct Output {
    int m;
    int n;
    float alpha;
    float beta;
    float* c;
    long long ldc;
    Epilogue epilogue;

    __device__ __forceinline__ Output(int m, int n, float alpha, float beta, float* c, long long ldc,
                                      long long stride_c, int product, const Epilogue& epilogue)
        : m(m), n(n), alpha(alpha), beta(beta), c(c), ldc(ldc), epilogue(epilogue) {
        if constexpr (IS_BATCHED) {
            this->c += product * stride_c;
            this->epilogue.bias += product * epilogue.stride_bias;
            this->epilogue.kept += product * epilogue.stride_kept;
        }
    }

    // Stores VEC neighbours of the product, times `scale`: alpha, or SCALED. BLAS: beta = 0 does not read C, so NaN
    // there stays out.
    template <int VEC>
    __device__ __forceinline__ void store(int row, int column, Vec<VEC> product, float scale) const {
        float* const to = c + row * ldc + column;
        Vec<VEC> old = {};
        if (beta != 0) old = load_global<VEC>(to);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            // With a bias: by itself, so that kernels that scale elsewhere have the same bits (docs/manual/bits.md)
            const float scaled = BIAS == BIAS_NONE ? scale * product.v[e] : multiply_alone(scale, product.v[e]);
            product.v[e] = beta != 0 ? multiply_add(beta, old.v[e], scaled) : scaled;
            if constexpr (BIAS == BIAS_ROWS) product.v[e] += load_global<1>(epilogue.bias + row).v[0];
            if constexpr (BIAS == BIAS_COLUMNS) product.v[e] += load_global<1>(epilogue.bias + column + e).v[0];
        }
        if constexpr (KEEPS) store_global<VEC>(epilogue.kept + row * epilogue.ld_kept + column, product);
        if constexpr (ACTIVATION != ACTIVATION_NONE) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) product.v[e] = activate(product.v[e]);
        }
        store_global<VEC>(to, product);
    }
};

// Stores the block's tile of C by rows, a warp side by side: for a C that takes no vectors.
__device__ __forceinline__ void store_staged(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                             int origin_n, const Output& output) {
    const StagedRows rows;
#pragma unroll
    for (int first = 0; first < TM; first += STAGED_ROUND) {
        barrier();  // WAR: the last tile, or the round before, has been read by all
        if (!thread.gave_sums()) StagedRows::write(sums, thread, first, output.alpha);
        barrier();  // RAW: the rows are whole before they are read
#pragma unroll 1
        for (int at = 0; at < StagedRows::COUNT; at += StagedRows::AT_ONCE) {
            if (StagedRows::COUNT % StagedRows::AT_ONCE != 0 && rows.row + at >= StagedRows::COUNT) break;
            const int at_m = origin_m + StagedRows::row_of_tile(first, rows.row + at);
            if (IS_PREDICATED && at_m >= output.m) continue;  // edge: C
#pragma unroll
            for (int j = 0; j < BN; j += StagedRows::WIDTH) {
                const int at_n = origin_n + rows.column + j;
                if (IS_PREDICATED && at_n >= output.n) continue;  // edge: C
                output.store<VEC_C>(at_m, at_n, load_shared<VEC_C>(rows.vector(at, j)), SCALED);
            }
        }
    }
}

// Stores the block's tile of C, whose first element is (origin_m, origin_n).
__device__ __forceinline__ void store_tile(const float (&sums)[TM][TN], const ThreadTile& thread, int origin_m,
                                           int origin_n, const Output& output) {
    if constexpr (HAS_STAGED_ROWS) {
        store_staged(sums, thread, origin_m, origin_n, output);
        return;
    }
    if (thread.gave_sums()) return;
    thread.for_each_vector<VEC_C>(sums, [&](int row, int column, Vec<VEC_C> product) {
        const int at_m = origin_m + row, at_n = origin_n + column;
        if (IS_PREDICATED && (at_m >= output.m || at_n >= output.n)) return;  // edge: C
        output.store<VEC_C>(at_m, at_n, product, output.alpha);
    });
}
