#include "blas.h"

#include <stdlib.h>

#include "grid.h"

#define POINTERS_TO_HOST 0 /* CUBLAS_POINTER_MODE_HOST */
#define OF_CALL 256        /* statuses of cuBLAS are below */

static int failed(int place, int status) { return status ? place * OF_CALL + status : 0; }

void at_handles_init(at_handles *all) { pthread_mutex_init(&all->lock, NULL); }

static int make(const autotune_blas *blas, const autotune_constants *bounds, uint64_t *handle) {
    int failure = failed(AT_BLAS_CREATE, blas->create(handle));
    if (!failure) failure = failed(AT_BLAS_MATH_MODE, blas->set_math_mode(*handle, bounds->blas_math_mode));
    if (!failure) failure = failed(AT_BLAS_POINTER_MODE, blas->set_pointer_mode(*handle, POINTERS_TO_HOST));
    return failure;
}

/* While another thread's stream is captured, a handle can be made in relaxed mode only. */
static at_idle_handle *made(at_handles *all, const autotune_blas *blas, const autotune_driver *cuda,
                            const autotune_constants *bounds, int *failure) {
    at_idle_handle *found = malloc(sizeof *found);
    int mode = AT_CAPTURE_RELAXED;
    if (!found || cuda->exchange_capture_mode(&mode)) {
        free(found);
        return NULL;
    }
    *failure = make(blas, bounds, &found->handle);
    cuda->exchange_capture_mode(&mode);
    if (!*failure) return found;
    all->is_refused = true;
    free(found);
    return NULL;
}

at_idle_handle *at_take_handle(at_handles *all, const autotune_blas *blas, const autotune_driver *cuda,
                               const autotune_constants *bounds, uint64_t stream, int *failure) {
    *failure = 0;
    pthread_mutex_lock(&all->lock);
    at_idle_handle *found = all->idle;
    if (found) {
        all->idle = found->next;
    } else if (!all->is_refused) {
        int is_captured = 0;
        if (!cuda->is_capturing(stream, &is_captured) && !is_captured) {
            found = made(all, blas, cuda, bounds, failure);
        }
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

void at_put_handle(at_handles *all, at_idle_handle *handle) {
    pthread_mutex_lock(&all->lock);
    handle->next = all->idle;
    all->idle = handle;
    pthread_mutex_unlock(&all->lock);
}

int at_blas_sgemm(const autotune_blas *blas, const at_idle_handle *handle, const autotune_constants *bounds,
                  const at_product *product, uint64_t stream, uint64_t workspace, uint64_t a, uint64_t b,
                  uint64_t c, float alpha, float beta) {
    const uint64_t of = handle->handle;
    int failure = failed(AT_BLAS_STREAM, blas->set_stream(of, stream)); /* this resets the workspace */
    if (!failure) {
        const size_t num_bytes = (size_t)bounds->blas_bytes;
        failure = failed(AT_BLAS_WORKSPACE, blas->set_workspace(of, workspace, num_bytes));
    }
    if (failure) return failure;
    const int lda = (int)product->ld[0], ldb = (int)product->ld[1], ldc = (int)product->ld[2];
    /* C^T = op(B)^T op(A)^T: a row-major matrix that is read by columns is its transpose */
    const autotune_batch *batch = &product->batch;
    if (batch->products > 1) {
        const int status = blas->sgemm_batched(of, product->trans_b, product->trans_a, product->n, product->m, product->k,
                                               &alpha, b, ldb, batch->stride[1], a, lda, batch->stride[0], &beta, c,
                                               ldc, batch->stride[2], (int)batch->products);
        return failed(AT_BLAS_BATCHED, status);
    }
    const int status = blas->sgemm(of, product->trans_b, product->trans_a, product->n, product->m, product->k,
                                   &alpha, b, ldb, a, lda, &beta, c, ldc);
    return failed(AT_BLAS_SGEMM, status);
}

/* cuBLAS states that it does not read an operand whose scale is 0: here the second, and A and B of the product. */
int at_blas_scale(const autotune_blas *blas, const at_idle_handle *handle, const at_product *product, uint64_t stream,
                  uint64_t c, float beta) {
    const uint64_t of = handle->handle, apart = (uint64_t)AT_FLOAT_BYTES * (uint64_t)product->batch.stride[2];
    const int ld = (int)product->ld[2];
    const float none = 0;
    int failure = failed(AT_BLAS_STREAM, blas->set_stream(of, stream));
    for (int64_t i = 0; !failure && i < product->batch.products; i++, c += apart) {
        failure = failed(AT_BLAS_GEAM,
                         blas->geam(of, 0, 0, product->n, product->m, &beta, c, ld, &none, c, ld, c, ld));
    }
    return failure;
}
