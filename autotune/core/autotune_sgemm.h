/* FP32 matrix products C = alpha op(A) op(B) + beta C by the kernels of an exported table, for programs in C and C++.
 *
 *     autotune_handle *handle;
 *     if (autotune_create(&handle)) ...
 *     autotune_status status = autotune_sgemm(handle, stream, 0, 0, m, n, k, 1, a, k, b, n, 0, c, n);
 *     if (status) fprintf(stderr, "%s\n", autotune_error_text(status));
 *     autotune_destroy(handle);
 *
 * Matrices are on the GPU of the calling thread's current context, which cudaSetDevice or cuCtxSetCurrent chose. A
 * handle serves any number of threads, streams and GPUs, each by the table for its kind. No call waits for the GPU, so
 * calls may be captured into graphs. You need nothing of CUDA to build this: the driver is located at the first
 * product. */

#ifndef AUTOTUNE_SGEMM_H
#define AUTOTUNE_SGEMM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define AUTOTUNE_API __attribute__((visibility("default")))
#else
#define AUTOTUNE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct autotune_handle autotune_handle;

typedef enum {
    AUTOTUNE_OK,
    AUTOTUNE_NO_KERNEL,   /* even the default kernel is not legal: split the product into smaller ones */
    AUTOTUNE_NO_MEMORY,   /* of the host */
    AUTOTUNE_OTHER_TABLE, /* the table is of another version of table.h */
    AUTOTUNE_BAD_CALL,    /* a NULL handle; an extent, a leading dimension, an address or the like is out of range */
    AUTOTUNE_BAD_SCALE,   /* alpha or beta is no float32 */
    AUTOTUNE_NO_DRIVER,   /* CUDA is not there, or too old */
    AUTOTUNE_UNKNOWN,     /* there is no plan for such a call */
    AUTOTUNE_NO_CONTEXT,  /* the calling thread has no GPU: call cudaSetDevice, or make a context current */
    AUTOTUNE_OTHER_GPU,   /* there is no table for this GPU model: tune on it, export-table --add */
    AUTOTUNE_OTHER_CODE,  /* a cubin does not hold the kernel named in the table: export again */
    AUTOTUNE_OVERLAP,     /* C shares memory with A, B or the bias */
    AUTOTUNE_FORKED,      /* CUDA was used before this process was forked: it does not work here */
    AUTOTUNE_NO_RECORD,   /* calls cannot be recorded there: name a file in a writable folder */
    AUTOTUNE_RECORDED,    /* calls are already recorded into another file */
    AUTOTUNE_NO_EPILOGUE, /* the table has no kernels with such an epilogue: export-table --epilogue */
    AUTOTUNE_MANY_LAUNCHES,    /* an untuned batch without cuBLAS would be more than 65536 launches: tune it, or split it */
    AUTOTUNE_NO_BLAS, /* cuBLAS alone serves, and gives no handle: it failed before, or a graph is being captured */
    AUTOTUNE_NO_CLASS, /* no table serves that class of accuracy: search and export-table with --accuracy */
    AUTOTUNE_CUDA = 1 << 16, /* and above: the driver's CUresult plus this */
    AUTOTUNE_BLAS = 1 << 17, /* and above: of cuBLAS, the place of the call times 256 and its status, plus this */
    AUTOTUNE_INSTEAD = 1 << 18 /* and above: the same plus this, but the product was served by the kernel */
} autotune_status;

/* Opens the tables that this folder holds, one for each GPU model. A shared library with them then stays loaded until
 * the process ends, even after dlclose: graphs that end call it. */
AUTOTUNE_API autotune_status autotune_create(autotune_handle **handle);

typedef enum {
    AUTOTUNE_ACCURACY_STRICT, /* FMAs in FP32: what autotune_create opens */
    AUTOTUNE_ACCURACY_FP32,   /* kernels on tensor cores, too, whose errors are no larger than cublasSgemm's */
    AUTOTUNE_ACCURACY_FP32_RANGE /* those of scaled operands, too, with cublasSgemm's infinities and NaN */
} autotune_accuracy;

/* The same for a class of accuracy: no product of this handle is served by a wider one. */
AUTOTUNE_API autotune_status autotune_create_accuracy(autotune_handle **handle, autotune_accuracy accuracy);

/* Closes a handle that no call uses any more, on the host and on GPUs; NULL is allowed. Device memory and
 * loaded code stay until the context ends: freeing them would wait for the GPU. Does nothing in a process
 * that was forked from one that used CUDA. */
AUTOTUNE_API void autotune_destroy(autotune_handle *handle);

/* C = alpha op(A) op(B) + beta C on a stream (a cudaStream_t or CUstream; NULL: the default stream). Row-major: A is
 * m x k (k x m if trans_a), B is k x n (n x k if trans_b), C is m x n; leading dimensions in elements, each at least
 * a row's length. beta = 0 does not read C, alpha = 0 neither A nor B, which then may be NULL, as a matrix without
 * elements. */
AUTOTUNE_API autotune_status autotune_sgemm(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m,
                                            int n, int k, float alpha, const float *a, int64_t lda, const float *b,
                                            int64_t ldb, float beta, float *c, int64_t ldc);

/* The same for matrices stored by columns, with the arguments of cublasSgemm. */
AUTOTUNE_API autotune_status autotune_sgemm_by_columns(autotune_handle *handle, void *stream, int trans_a,
                                                       int trans_b, int m, int n, int k, float alpha,
                                                       const float *a, int64_t lda, const float *b, int64_t ldb,
                                                       float beta, float *c, int64_t ldc);

/* A batch of products of one shape, whose matrices are `stride` elements apart: by the kernels that were
 * tuned for such batches, else as the manual says. A stride of 0 of A or B: all share the operand. No two C
 * may overlap; with one product strides are ignored, with none nothing is done. */
AUTOTUNE_API autotune_status autotune_sgemm_strided_batched(autotune_handle *handle, void *stream, int trans_a,
                                                            int trans_b, int m, int n, int k, float alpha,
                                                            const float *a, int64_t lda, int64_t stride_a,
                                                            const float *b, int64_t ldb, int64_t stride_b, float beta,
                                                            float *c, int64_t ldc, int64_t stride_c, int products);

/* The same for matrices that are stored by columns, with the arguments of cublasSgemmStridedBatched. */
AUTOTUNE_API autotune_status autotune_sgemm_strided_batched_by_columns(
    autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
    int64_t lda, int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c, int64_t ldc,
    int64_t stride_c, int products);

typedef enum {
    AUTOTUNE_ACTIVATION_NONE,
    AUTOTUNE_ACTIVATION_RELU,
    AUTOTUNE_ACTIVATION_GELU,     /* by erf */
    AUTOTUNE_ACTIVATION_GELU_TANH /* its approximation */
} autotune_activation;

/* C = activation(alpha op(A) op(B) + beta C + bias), where `bias` holds a value for each column of C, on the GPU; NULL: none.
 * Without bias and activation it is autotune_sgemm. The kernel that would serve the plain product serves it,
 * never cuBLAS; the table must have been exported with the epilogue (autotune export-table --epilogue). */
AUTOTUNE_API autotune_status autotune_sgemm_epilogue(autotune_handle *handle, void *stream, int trans_a, int trans_b,
                                                     int m, int n, int k, float alpha, const float *a, int64_t lda,
                                                     const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                                                     const float *bias, autotune_activation activation);

/* The same for a batch of products, which all share the bias. */
AUTOTUNE_API autotune_status autotune_sgemm_strided_batched_epilogue(
    autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
    int64_t lda, int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c, int64_t ldc,
    int64_t stride_c, int products, const float *bias, autotune_activation activation);

/* The same two for matrices stored by columns. `bias` holds a value for each row of C, as with cublasLt's
 * CUBLASLT_EPILOGUE_BIAS. */
AUTOTUNE_API autotune_status autotune_sgemm_epilogue_by_columns(autotune_handle *handle, void *stream, int trans_a,
                                                                int trans_b, int m, int n, int k, float alpha,
                                                                const float *a, int64_t lda, const float *b,
                                                                int64_t ldb, float beta, float *c, int64_t ldc,
                                                                const float *bias, autotune_activation activation);
AUTOTUNE_API autotune_status autotune_sgemm_strided_batched_epilogue_by_columns(
    autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
    int64_t lda, int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c, int64_t ldc,
    int64_t stride_c, int products, const float *bias, autotune_activation activation);

typedef enum {
    AUTOTUNE_FP32,
    AUTOTUNE_BF16,
    AUTOTUNE_FP16
} autotune_type;

/* autotune_sgemm_strided_batched_epilogue for an A of BF16 or FP16, with the result for A converted to FP32, which is
 * exact: by kernels that read it as it is, where the table has them for the class, else converted first, in a
 * workspace. Leading dimension and stride of A are in its elements. 1 product: no batch; NULL: no bias. */
AUTOTUNE_API autotune_status autotune_sgemm_mixed(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m,
                                                  int n, int k, float alpha, const void *a, autotune_type type_a,
                                                  int64_t lda, int64_t stride_a, const float *b, int64_t ldb,
                                                  int64_t stride_b, float beta, float *c, int64_t ldc,
                                                  int64_t stride_c, int products, const float *bias,
                                                  autotune_activation activation);

/* What a product would run. */
typedef struct {
    const char *kernel; /* its name in the table */
    const char *how;    /* exact, modelled, nearest or default */
    int split_k;        /* parts that k is split into */
    int is_cublas;      /* cuBLAS is expected to be as fast: the kernel serves if cuBLAS cannot be called */
    int is_looped;      /* if the kernel serves, it is launched for each product of the batch */
    double expected_us; /* measured (exact) or modelled; 0 if unknown */
    double cublas_us;
    const char *order;       /* in which all kernels of the table sum, as chunks:512; NULL if each has its own */
    int64_t workspace_bytes; /* that a launch of the kernel takes for packed copies and partial sums */
} autotune_pick_info;

/* For a row-major product of packed, aligned matrices, m and n at least 1. Needs no GPU: of several kinds the
 * one for the calling thread's GPU answers, or the first if it has none. */
AUTOTUNE_API autotune_status autotune_pick(autotune_handle *handle, int trans_a, int trans_b, int m, int n, int k,
                                           autotune_pick_info *pick);

/* The same for a batch of at least 1 product, packed one after the other; a flag of 1: all share A (B). If
 * the batch is one product of all rows (all share B, A is not transposed), that is the answer. */
AUTOTUNE_API autotune_status autotune_pick_strided_batched(autotune_handle *handle, int trans_a, int trans_b, int m,
                                                           int n, int k, int shares_a, int shares_b, int products,
                                                           autotune_pick_info *pick);

/* Record the calls of this handle into FILE.d, a folder that is made if needed: call signatures, and how often
 * each was served since the handle was made. A thread writes a separate file for each process and handle,
 * four times a second if something changed, and at the process's end. `autotune search --suite FILE` reads
 * them all. The environment variable AUTOTUNE_RECORD has the effect of a call with its value before the first
 * product. */
AUTOTUNE_API autotune_status autotune_record_calls(autotune_handle *handle, const char *file);

/* What a status says, and what to do about it. */
AUTOTUNE_API const char *autotune_error_text(autotune_status status);

#ifdef __cplusplus
}
#endif

#endif
