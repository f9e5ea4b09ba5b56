"""A plain product with the template's entry and arguments, and faults to plant into it."""

from __future__ import annotations

from dataclasses import replace

from autotune.kernel.launch import LaunchSpec, Variant

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

# All products of a batch; NaN where an argument that is not used here is not what a plain launch says.
BATCHED_SPEC = replace(SPEC, variant=Variant(is_batched=True))
BATCHED_SOURCE = """
struct Schedule { unsigned words[14]; };
struct Batch { long long a, b, c; int products; };
struct Epilogue { unsigned long long words[5]; };
extern "C" __global__ void sgemm(int m, int n, int k, float alpha, const float* a, long long lda,
                                 const float* b, long long ldb, float beta, float* c, long long ldc,
                                 float* workspace, int splits, Schedule schedule, Batch batch,
                                 Epilogue epilogue) {
    const int tiles_n = (n + 15) / 16, tiles = (m + 15) / 16 * tiles_n;
    const long long product = blockIdx.x / tiles;
    const int row = blockIdx.x % tiles / tiles_n * 16 + threadIdx.x / 16;
    const int column = blockIdx.x % tiles % tiles_n * 16 + threadIdx.x % 16;
    if (row >= m || column >= n) return;
    a += product * batch.a;
    b += product * batch.b;
    float sum = 0;
    for (int p = 0; p < k; ++p) sum = fmaf(a[row * lda + p], b[p * ldb + column], sum);
    bool is_plain = splits == 1 && schedule.words[0] == tiles && schedule.words[13] == 0;
    for (int i = 0; i < 5; ++i) is_plain = is_plain && epilogue.words[i] == 0;
    c[product * batch.c + row * ldc + column] = is_plain ? alpha * sum : __int_as_float(0x7fffffff);
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
