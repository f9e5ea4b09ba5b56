/* cuBLAS as a provider: cublasSgemm in pedantic FP32 where it is expected to be faster than every kernel, and
 * cublasSgemmStridedBatched. Where there is no kernel beside it, cublasSgeam scales C if no product is computed. */

#ifndef AUTOTUNE_BLAS_H
#define AUTOTUNE_BLAS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "table.h"

/* The functions of cuBLAS that are called, as in cublas_api.h; each returns a cublasStatus_t. */
typedef struct {
    int (*create)(uint64_t *handle);
    int (*set_math_mode)(uint64_t handle, int mode);
    int (*set_pointer_mode)(uint64_t handle, int mode);
    int (*set_stream)(uint64_t handle, uint64_t stream);
    int (*set_workspace)(uint64_t handle, uint64_t address, size_t num_bytes);
    int (*sgemm)(uint64_t handle, int trans_a, int trans_b, int m, int n, int k, const float *alpha, uint64_t a,
                 int lda, uint64_t b, int ldb, const float *beta, uint64_t c, int ldc);
    int (*sgemm_batched)(uint64_t handle, int trans_a, int trans_b, int m, int n, int k, const float *alpha, uint64_t a,
                         int lda, int64_t stride_a, uint64_t b, int ldb, int64_t stride_b, const float *beta,
                         uint64_t c, int ldc, int64_t stride_c, int products);
    int (*geam)(uint64_t handle, int trans_a, int trans_b, int m, int n, const float *alpha, uint64_t a, int lda,
                const float *beta, uint64_t b, int ldb, uint64_t c, int ldc);
} autotune_blas;

/* The same, by their places: which call failed. */
enum { AT_BLAS_CREATE, AT_BLAS_MATH_MODE, AT_BLAS_POINTER_MODE, AT_BLAS_STREAM, AT_BLAS_WORKSPACE, AT_BLAS_SGEMM,
       AT_BLAS_BATCHED, AT_BLAS_GEAM };

/* A row-major product, or a batch: its transpose, by columns. */
typedef struct {
    int trans_a, trans_b, m, n, k;
    int64_t ld[3];
    autotune_batch batch;
} at_product;

typedef struct at_idle_handle {
    uint64_t handle;
    struct at_idle_handle *next;
} at_idle_handle;

/* The handles of one GPU. A call has one to itself while it enqueues its product; none is ever destroyed,
 * since that would wait for the GPU. Threads may share them. */
typedef struct {
    pthread_mutex_t lock;
    at_idle_handle *idle;
    bool is_refused; /* cuBLAS gave none */
} at_handles;

void at_handles_init(at_handles *all);

/* Take a handle, made if none is idle. Its context must be current. NULL, without a failure, if one would
 * have to be made while the stream is captured, or if cuBLAS gave none before. */
at_idle_handle *at_take_handle(at_handles *all, const autotune_blas *blas, const autotune_driver *cuda,
                               const autotune_constants *bounds, uint64_t stream, int *failure);
void at_put_handle(at_handles *all, at_idle_handle *handle);

/* Enqueue a product or a batch, in a workspace of bounds->blas_bytes. Returns 0, or which call failed and how: its place
 * times 256 and its status. */
int at_blas_sgemm(const autotune_blas *blas, const at_idle_handle *handle, const autotune_constants *bounds,
                  const at_product *product, uint64_t stream, uint64_t workspace, uint64_t a, uint64_t b,
                  uint64_t c, float alpha, float beta);

/* Enqueue C = beta C, for each of a batch, in place; beta = 0 does not read C. Returns as at_blas_sgemm. */
int at_blas_scale(const autotune_blas *blas, const at_idle_handle *handle, const at_product *product, uint64_t stream,
                  uint64_t c, float beta);

#endif
