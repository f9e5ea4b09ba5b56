/* A dispatch table as plain arrays, the core's input. Python fills them in, or an export writes them as C.
 *
 * Nothing here is checked again: the code that fills it in has checked it (autotune/runtime/table/soundness.py).
 * All of it must stay valid as long as a handle uses it. Copied into exported tables. */

#ifndef AUTOTUNE_TABLE_H
#define AUTOTUNE_TABLE_H

#include <stdint.h>

enum { AUTOTUNE_TABLE_VERSION = 27 }; /* of these structs: a library refuses tables of other versions */

enum { AUTOTUNE_NN, AUTOTUNE_NT, AUTOTUNE_TN, AUTOTUNE_TT, AUTOTUNE_FLOAT_LAYOUTS };

/* Of A's elements. A layout's number is that above and AUTOTUNE_FLOAT_LAYOUTS times the type. */
enum { AUTOTUNE_A_FP32, AUTOTUNE_A_BF16, AUTOTUNE_A_FP16 };
enum { AUTOTUNE_LAYOUTS = 12 };

/* How the parts of k are added up (LaunchSpec.reduction). */
enum {
    AUTOTUNE_REDUCE_NONE,
    AUTOTUNE_REDUCE_TWO_PASS,
    AUTOTUNE_REDUCE_LAST_BLOCK,
    AUTOTUNE_REDUCE_LAST_WAVE,
    AUTOTUNE_REDUCE_CLUSTER,
    AUTOTUNE_REDUCE_CHUNKS
};

/* What a kernel applies to alpha AB + beta C before it stores it. */
enum { AUTOTUNE_BIAS_NONE, AUTOTUNE_BIAS_ROWS, AUTOTUNE_BIAS_COLUMNS };

/* One kernel: how it is launched (kernel/launch.py, LaunchSpec), how it sums (perf_model/sum_depths.py), and what
 * is known of its speed (perf_model/time_model.py, ModelFigures). */
typedef struct {
    const char *id;
    int32_t layout, code; /* `code`: number of its cubin */
    int32_t bm, bn, bk, threads, smem_bytes, vec_a, vec_b, vec_c;
    int32_t reduction, split_k, wave, group;
    int32_t is_exact, is_wide, packs_a, packs_b, overlaps, is_along_m;
    int32_t is_batched; /* it serves only batches */
    int32_t batched;    /* the number of the plain kernel of this config for batches; -1: there is none */
    /* Its epilogue (kernel/launch.py, Epilogue). `plain`: the number shared by kernels that differ only in
     * their epilogue; only those without one are chosen. */
    int32_t plain, bias, activation;
    int32_t registers, blocks_per_sm;
    int32_t flush_k, threads_along_k, slices; /* flush_k 0: one chain of sums */
    int32_t added_k; /* products that are added at a time */
    /* Depths of sums that count for products of parts, in kernels of a class that promises SGEMM's error; else 0 */
    double parts_zero_mean, parts_positive;
    int32_t chunk; /* depth of a split, only for AUTOTUNE_REDUCE_CHUNKS; else 0 */
    int32_t pack_depth; /* of tiles to which operands are packed, scaled; 0: floats by k */
    int32_t num_sms; /* of the GPU, where chunks are shared out; else 0 */
    double fixed_us, round_us, step_us, memory_efficiency, relative_error;
    int64_t max_workspace; /* bytes that a launch may take; -1: no limit of the table's */
    int32_t max_k; /* depth up to which it sums in the table's order; -1: any */
} autotune_kernel;

/* Values learned on shapes (perf_model/residual.py): `extents` (num_places, 3), their m, n and k; `weights` (rows,
 * num_places). */
typedef struct {
    const int32_t *extents;
    const float *weights;
    int32_t num_places;
} autotune_residuals;

/* By which a modelled time is corrected (perf_model/launch_errors.py): the numbers of a launch, of which the first are
 * multiplied in pairs; and the terms: 1, the level of the shape, the numbers, the products. */
enum { AUTOTUNE_NUMBERS = 10, AUTOTUNE_PAIRED = 8, AUTOTUNE_TERMS = 48 };

/* How cuBLAS is called: for a product alone, as torch has it add a vector to each row, or for a strided batch. */
enum { AUTOTUNE_ALONE, AUTOTUNE_ADDING, AUTOTUNE_BATCHED, AUTOTUNE_BLAS_CALLS };

/* What is known of the times of cuBLAS, called in one of these ways (perf_model/cublas_model.py). */
typedef struct {
    const char *version; /* the timed one; NULL: nothing is known */
    autotune_residuals missed; /* of one row */
    const int32_t *products;   /* of the batch at each of its places; NULL: one */
    double level, deviation, tile_apart;
} autotune_blas_times;

/* The kernels of one layout. */
typedef struct {
    const int32_t *modelled; /* numbers of those with a model, in the order of the rows of `missed` */
    int32_t num_modelled, default_kernel; /* -1: none, as where A is not of FP32 */
    const float *missed;      /* (num_modelled, AUTOTUNE_TERMS) weights */
    autotune_residuals level; /* of one row */
    autotune_blas_times cublas[AUTOTUNE_BLAS_CALLS];
} autotune_layout;

typedef struct {
    int32_t kernel;
    double time_us;
} autotune_ranked;

/* What the products of a batch share. */
enum { AUTOTUNE_SHARES_NONE, AUTOTUNE_SHARES_A, AUTOTUNE_SHARES_B };

/* One tuned shape, or a batch of more than one product; its kernels are ranked[first] and so on, best first.
 * `cublas_us`: of cuBLAS; 0: it was not timed, or was absent. */
typedef struct {
    int32_t m, n, k, layout, products, shared, first, num_ranked;
    double cublas_us[AUTOTUNE_BLAS_CALLS];
} autotune_entry;

/* Constants that Python's modules define and explain, under these names. */
typedef struct {
    double error_zero_mean, error_positive;            /* perf_model/sum_depths.py */
    double promised_zero_mean, promised_positive, promised_results, promised_large; /* perf_model/sum_depths.py */
    double level_zero_mean, level_positive, chain_share, splits; /* perf_model/sum_depths.py */
    double shortest_chain, least_k, least_k_of_large, large_elements; /* perf_model/sum_depths.py */
    double narrow_side, narrow_depth, narrow_parts, narrow_adding, few_rows, parts_of_few_rows; /* perf_model/sum_depths.py */
    double dot_rows, dot_elements, dot_threads, dot_added, dot_depth, dot_positive; /* perf_model/sum_depths.py */
    double prologue_steps, bandwidth_sms, launch_us, launch_apart_us;    /* perf_model/time_model.py */
    double cluster_us, last_block_us, last_block_float_us;               /* perf_model/time_model.py */
    double fmas_per_l2_float, line_floats;             /* perf_model/time_model.py */
    double residual_length;                            /* perf_model/residual.py */
    double term_centres[AUTOTUNE_NUMBERS], term_scales[AUTOTUNE_NUMBERS]; /* perf_model/launch_errors.py */
    double term_most, long_queue, deep;                /* perf_model/launch_errors.py */
    double margin, other_version, cublas_fixed_us, vector_apart;             /* perf_model/cublas_model.py */
    double cublas_tile, cublas_most;                           /* perf_model/cublas_model.py */
    double deviation_power, deviation_side, batch_step_us, batch_error; /* perf_model/cublas_model.py */
    double parts_of_last;                              /* perf_model/splits.py */
    int64_t kept_bytes, pieces_bytes, captured_bytes;  /* runtime/native/core.py */
    int32_t max_pieces, launches_to_stay, max_counted; /* runtime/native/core.py */
    int32_t max_plans, max_tallies;                    /* runtime/calls/product.py, runtime/native/core.py */
    int32_t blas_math_mode;                            /* gemm.py         */
    int64_t blas_bytes;                                /* of a workspace of cuBLAS: gemm.py */
    const double *split_values;                        /* numbers of splits, ascending, from 2 on */
    int32_t num_split_values;
} autotune_constants;

/* The number of products, and the distances of A, B and C from one product to the next, in elements. A stride
 * of 0 means that all share the operand. */
typedef struct {
    int64_t products;
    int64_t stride[3];
} autotune_batch;

/* A cubin. */
typedef struct {
    const void *data;
    uint64_t num_bytes;
} autotune_code;

typedef struct {
    int32_t version; /* AUTOTUNE_TABLE_VERSION */
    int32_t num_sms;
    double fma_tflops, bandwidth_gbs;
    autotune_constants constants;
    const char *gpu_name; /* the GPU model that the table is for */
    int32_t capability_major, capability_minor;
    int64_t smem_per_block; /* bytes, after opting in */
    const char *order; /* in which all kernels sum, which nobody promises of cuBLAS: no choice is for it; NULL: several */
    const autotune_kernel *kernels;
    autotune_layout layouts[AUTOTUNE_LAYOUTS];
    const autotune_entry *entries;
    const autotune_ranked *ranked;
    const autotune_code *codes; /* NULL if the core's user loads kernels itself */
    int32_t num_kernels, num_entries, num_codes;
} autotune_table;

#endif
