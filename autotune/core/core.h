/* The core for a runtime in another language: that supplies the table as arrays, loads kernels itself, and
 * lets the core choose, plan, keep plans and launch. A program in C calls autotune_sgemm.h. */

#ifndef AUTOTUNE_CORE_H
#define AUTOTUNE_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "autotune_sgemm.h"
#include "blas.h"
#include "choice.h"
#include "driver.h"
#include "live.h"
#include "plan.h"
#include "table.h"
#include "tally.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What these headers declare (build.py), for callers in another language; NULL ends it. */
AUTOTUNE_API extern const char *const autotune_declared[];

/* ---------------------------------------------------------------------------------------------- choosing */

/* Opens a table, which must exist as long as the handle. One without kernels is for plans of cuBLAS alone. */
AUTOTUNE_API autotune_status autotune_open(const autotune_table *table, autotune_handle **handle);

/* Opens tables for several GPU models as one handle: a program in C is served by the one for its GPU. */
AUTOTUNE_API autotune_status autotune_open_kinds(const autotune_table tables[], int32_t num_tables,
                                                 autotune_handle **handle);

/* Closes a handle that no call uses any more; NULL is allowed. Plans that are held stay valid. In a process
 * that was forked
 * from one that used CUDA it does nothing: the memory is the child's until it ends. */
AUTOTUNE_API void autotune_close(autotune_handle *handle);

/* What a product would run: C[m,n] = op(A) op(B), row-major, m and n at least 1. `layout`: AUTOTUNE_NN and so
 * on. `batch`: of a batch of several such products; NULL: one. `ld`: leading dimensions of A, B and C in elements. `addresses`: of A, B and C; NULL: aligned ones.
 * `cublas_version`: of the cuBLAS that would serve, as `13.1.0`; NULL if unknown. `adds_bias`: it would add
 * a vector to each row within the product, as torch calls it. `has_epilogue`: the kernel that serves must have one.
 * `allowed`: two depths of sums, of a product that is no batch (choice.h); NULL: by the shape. */
AUTOTUNE_API autotune_status autotune_choose(const autotune_handle *handle, int32_t layout, int32_t m,
                                             int32_t n, int32_t k, const autotune_batch *batch, const int64_t ld[3],
                                             const uint64_t addresses[3], const char *cublas_version,
                                             int32_t adds_bias, int32_t has_epilogue, const double *allowed,
                                             autotune_choice *choice);

/* Up to `room` launches that may serve such a product or batch, the best first (choice.h); `num` says how many there are.
 * `allowed`: two depths of sums; NULL: by the shape. */
AUTOTUNE_API autotune_status autotune_rank(const autotune_handle *handle, int32_t layout, int32_t m, int32_t n,
                                           int32_t k, const autotune_batch *batch, const int64_t ld[3],
                                           const uint64_t addresses[3], const double *allowed, int32_t room,
                                           autotune_choice *ranked, int32_t *num);

/* ---------------------------------------------------------------------------------------------- launching */

/* Functions of CUDA to use instead of those of this process's driver, which the first plan locates. For
 * tests: set before that; they must stay valid. */
AUTOTUNE_API void autotune_use_driver(autotune_handle *handle, const autotune_driver *driver);

/* The functions of cuBLAS to use, which must stay valid; NULL, the default: cuBLAS is not called. */
AUTOTUNE_API void autotune_use_blas(autotune_handle *handle, const autotune_blas *blas);

/* Makes a plan, which the caller holds until it releases it. `planned` names the loaded kernel and the GPU;
 * it must be legal. */
AUTOTUNE_API autotune_status autotune_make_plan(autotune_handle *handle, const autotune_planned *planned,
                                                autotune_plan **plan);
AUTOTUNE_API void autotune_release_plan(autotune_plan *plan);

/* Launches a plan on a stream: C = alpha op(A) op(B) + beta C, with the kernel's epilogue. Does not wait;
 * beta = 0 does not read C. `bias`: 0 if the kernel adds none. Makes the GPU's context current and restores
 * the caller's. */
AUTOTUNE_API autotune_status autotune_run_plan(const autotune_handle *handle, const autotune_plan *plan,
                                               uint64_t stream, uint64_t a, uint64_t b, uint64_t c, uint64_t bias,
                                               double alpha, double beta);

/* The same in a workspace of the caller's, with the GPU's context current. Of cuBLAS only if it alone serves. */
AUTOTUNE_API autotune_status autotune_launch_plan(const autotune_handle *handle, const autotune_plan *plan,
                                                  uint64_t stream, uint64_t a, uint64_t b, uint64_t c,
                                                  uint64_t bias, double alpha, double beta, uint64_t workspace);

/* Keeps a plan for all calls of a kind, or drops all plans. */
AUTOTUNE_API void autotune_remember(autotune_handle *handle, const autotune_kind *kind, autotune_plan *plan);
AUTOTUNE_API void autotune_forget(autotune_handle *handle);

/* Makes a plan whose calls are served by some plans in turn until it is known which serves best (live.h); the first serves
 * where no turns are taken. They are of one call signature and in one context, at most AT_MAX_RIVALS, and stay held.
 * `expected_us`: of a call of each, 0 where unknown; `seed`: of the order; `winner`: of an earlier process, -1 for none. */
AUTOTUNE_API autotune_status autotune_make_live(autotune_handle *handle, autotune_plan *const rivals[], int32_t num,
                                                const double expected_us[], uint64_t seed, int32_t winner,
                                                autotune_plan **plan);

/* Begins a call of such a plan on a stream, which says what serves it, and ends it when that is enqueued (`is_done`), or
 * is not. A call that is left alone is counted then. */
AUTOTUNE_API void autotune_begin_turn(const autotune_plan *plan, void *stream, autotune_turn *turn);
AUTOTUNE_API void autotune_end_turn(const autotune_plan *plan, void *stream, const autotune_turn *turn, int32_t is_done);

/* What is known so far. */
AUTOTUNE_API void autotune_tell_live(const autotune_plan *plan, autotune_live_state *state);

/* How often each call signature was served since the handle was opened: copies up to `room` counts, the newest kind
 * first, and returns how many there are. Calls of dropped plans stay counted; launches in a workspace of the
 * caller's are not counted. */
AUTOTUNE_API int32_t autotune_counts(const autotune_handle *handle, autotune_count *counts, int32_t room);

#ifdef __cplusplus
}
#endif

#endif
