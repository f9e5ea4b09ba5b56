// One product's C, and all that is to become of the product on its way there: scaled, added to, activated, stored.
#pragma once

#include "primitives.cuh"
#include "variant.cuh"

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
