// An A of BF16 or FP16 as FP32, which holds both exactly: for kernels, and for cuBLAS, that read FP32.
//
// Row `r` of a product lies `ld` elements behind the one before, products `stride`; in `to` all are packed. The core holds
// what this compiles to as PTX (autotune/core/upcast.c, written by docs/tools/upcast_ptx.py), which every GPU's driver
// compiles: a table's cubins hold no such kernel.
//
// Launch: UPCAST_THREADS threads, a block for each UPCAST_COLUMNS elements of each row of each product.
enum { UPCAST_THREADS = 256, UPCAST_COLUMNS = 1024 };

extern "C" __global__ void __launch_bounds__(UPCAST_THREADS)
    upcast(const unsigned short* from, float* to, long long ld, long long stride, int rows, int columns, int is_half) {
    const unsigned chunks = (static_cast<unsigned>(columns) + UPCAST_COLUMNS - 1) / UPCAST_COLUMNS;
    const unsigned row = blockIdx.x / chunks, chunk = blockIdx.x % chunks, product = row / rows;
    from += product * stride + row % rows * ld;
    to += static_cast<long long>(row) * columns;
#pragma unroll
    for (int i = 0; i < UPCAST_COLUMNS / UPCAST_THREADS; ++i) {
        const int at = chunk * UPCAST_COLUMNS + i * UPCAST_THREADS + threadIdx.x;
        if (at >= columns) break;  // edge: the row
        const unsigned short bits = from[at];
        float x = __uint_as_float(static_cast<unsigned>(bits) << 16);
        if (is_half) asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
        to[at] = x;
    }
}
