"""A plain product with the template's entry and arguments, and faults to plant into it."""

from __future__ import annotations

from autotune.launch import LaunchSpec, Variant

TILE = 16
SPEC = LaunchSpec(TILE, TILE, 1, TILE * TILE, 0, 1, 1, 1, False, "none", 1, Variant())

SOURCE = """
extern "C" __global__ void sgemm(int m, int n, int k, float alpha, const float* a, long long lda,
                                 const float* b, long long ldb, float beta, float* c, long long ldc,
                                 float* workspace, int splits) {
    const int tiles_n = (n + 15) / 16;
    const int row = blockIdx.x / tiles_n * 16 + threadIdx.x / 16;
    const int column = blockIdx.x % tiles_n * 16 + threadIdx.x % 16;
    const bool is_first = row == 0 && column == 0, is_last = row == m - 1 && column == n - 1;
    if (row >= m || column >= n) return;
    int depth = k;
    float* target = c + row * ldc + column;
    float offset = 0;
    BEFORE;
    float sum = 0;
    for (int p = 0; p < depth; ++p) sum = fmaf(a[row * lda + p], b[p * ldb + column], sum);
    if (target) *target = alpha * sum + offset;
    AFTER;
}
"""

# name -> (statement before, statement after)
DEEDS = {
    "right": ("", ""),
    "faults": ("if (is_first) target = c + (1ll << 42)", ""),
    "traps": ('if (is_first) asm volatile("trap;")', ""),
    "misaligns": ("", "if (is_first) *reinterpret_cast<double*>(reinterpret_cast<char*>(c) + 4) = 0"),
    "hangs": ("if (is_first) for (;;) __nanosleep(1000)", ""),
    "sleeps": ("for (int i = 0; i < 20; ++i) __nanosleep(1000000)", ""),
    "is off by a little": ("if (is_last) offset = 0.01f", ""),
    "drops a term": ("depth = k - 1", ""),
    "drops a term of one element": ("if (is_last) depth = k - 1", ""),
    "leaves one out": ("if (is_last) target = nullptr", ""),
    "writes infinity": ("if (is_last) offset = __int_as_float(0x7f800000)", ""),
    "writes behind C": ("", "if (is_last) target[1] = 0"),
    "writes before C": ("", "if (is_first) target[-1] = 0"),
    "computes but once": ("if (*target == *target) return", ""),  # C is NaN before the first launch
    "reads behind B": ("if (is_last) offset = b[k * ldb] * 0.0f", ""),
}


def source(deed: str) -> str:
    """The product with a fault planted."""
    before, after = DEEDS[deed]
    return SOURCE.replace("BEFORE", before).replace("AFTER", after)
