/* A dense layer, y = x w^T, by the kernels that a program was built with. Matrices are row-major; `stream` is a
 * cudaStream_t or CUstream, and x, w and y are on the GPU of the thread's current context.
 *
 *     dense BATCH INPUTS OUTPUTS      says which kernel serves the layer, which needs no GPU
 *
 * Without CMake: cc -O2 -I$T/c -Wa,-I$T/c dense.c $(ls $T/c/[!e]*.c) $T/c/cubins.S -lm -ldl -pthread */

#include <stdio.h>
#include <stdlib.h>

#include "autotune_sgemm.h"

autotune_status dense(autotune_handle *handle, void *stream, int batch, int inputs, int outputs, const float *x,
                      const float *w, float *y);

autotune_status dense(autotune_handle *handle, void *stream, int batch, int inputs, int outputs, const float *x,
                      const float *w, float *y) {
    return autotune_sgemm(handle, stream, 0, 1, batch, outputs, inputs, 1, x, inputs, w, inputs, 0, y, outputs);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: dense BATCH INPUTS OUTPUTS\n");
        return 2;
    }
    int batch = atoi(argv[1]), inputs = atoi(argv[2]), outputs = atoi(argv[3]);
    autotune_handle *handle = NULL;
    autotune_pick_info pick;
    autotune_status status = autotune_create(&handle);
    if (!status) status = autotune_pick(handle, 0, 1, batch, outputs, inputs, &pick);
    if (status) {
        fprintf(stderr, "%s\n", autotune_error_text(status));
        return 1;
    }
    printf("%s (%s)\n", pick.is_cublas ? "cuBLAS" : pick.kernel, pick.how);
    autotune_destroy(handle);
    return 0;
}
