/* Multiplies two matrices on the first GPU, and compares the result with the host's.
 *
 *     cc -O2 -I. -Wa,-I. *.c cubins.S -o example -lm -ldl -pthread && ./example
 *
 * A program that uses the CUDA runtime has a context already, and takes its pointers and streams as they are. This one
 * asks the driver itself, so that it builds without CUDA. */

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autotune_sgemm.h"

enum { M = 130, N = 66, K = 257 };

/* The calls of the driver that this takes. */
static struct {
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*make_current)(void *context);
    int (*allocate)(uint64_t *address, size_t num_bytes);
    int (*copy_in)(uint64_t to, const void *from, size_t num_bytes);
    int (*copy_out)(void *to, uint64_t from, size_t num_bytes); /* waits for the GPU */
} cuda;

static const char *const NAMES[] = {
    "cuInit",        "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
    "cuMemAlloc_v2", "cuMemcpyHtoD_v2",          "cuMemcpyDtoH_v2",
};

static int find_cuda(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    for (size_t i = 0; library && i < sizeof NAMES / sizeof *NAMES; i++) {
        void *symbol = dlsym(library, NAMES[i]);
        if (!symbol) return 0;
        memcpy((char *)&cuda + i * sizeof symbol, &symbol, sizeof symbol);
    }
    return library != NULL;
}

static uint64_t on_gpu(const float *matrix, size_t num_floats) {
    uint64_t address = 0;
    if (cuda.allocate(&address, num_floats * sizeof *matrix)) return 0;
    return cuda.copy_in(address, matrix, num_floats * sizeof *matrix) ? 0 : address;
}

static const float *pointer(uint64_t address) { return (const float *)(uintptr_t)address; }

static float a[M * K], b[K * N], c[M * N];

static double largest_error(void) {
    double most = 0;
    for (int row = 0; row < M; row++) {
        for (int column = 0; column < N; column++) {
            double expected = 0;
            for (int at = 0; at < K; at++) expected += (double)a[row * K + at] * (double)b[at * N + column];
            most = fmax(most, fabs(expected - (double)c[row * N + column]));
        }
    }
    return most;
}

int main(void) {
    autotune_handle *handle = NULL;
    autotune_pick_info pick;
    autotune_status status = autotune_create(&handle);
    if (!status) status = autotune_pick(handle, 0, 0, M, N, K, &pick);
    if (status) {
        fprintf(stderr, "%s\n", autotune_error_text(status));
        return 1;
    }
    printf("%dx%dx%d: %s in %d parts (%s)\n", M, N, K, pick.is_cublas ? "cuBLAS" : pick.kernel, pick.split_k,
           pick.how);

    void *context = NULL;
    if (!find_cuda() || cuda.init(0) || cuda.retain(&context, 0) || cuda.make_current(context)) {
        fprintf(stderr, "no GPU\n");
        autotune_destroy(handle);
        return 2;
    }
    for (int i = 0; i < M * K; i++) a[i] = (float)rand() / (float)RAND_MAX;
    for (int i = 0; i < K * N; i++) b[i] = (float)rand() / (float)RAND_MAX;
    const uint64_t at_a = on_gpu(a, M * K), at_b = on_gpu(b, K * N), at_c = on_gpu(c, M * N);
    status = autotune_sgemm(handle, NULL, 0, 0, M, N, K, 1, pointer(at_a), K, pointer(at_b), N, 0,
                            (float *)(uintptr_t)at_c, N);
    if (status || cuda.copy_out(c, at_c, sizeof c)) {
        fprintf(stderr, "%s\n", autotune_error_text(status));
        autotune_destroy(handle);
        return 1;
    }
    autotune_destroy(handle);
    const double error = largest_error();
    printf("largest error: %.2g\n", error);
    return error < 1e-3 ? 0 : 1;
}
