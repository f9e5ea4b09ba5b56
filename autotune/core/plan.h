/* Plans: what does not change between calls of one kind, stored by kind; and the launches of a plan. */

#ifndef AUTOTUNE_PLAN_H
#define AUTOTUNE_PLAN_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "blas.h"
#include "driver.h"
#include "grid.h"
#include "recorder.h"
#include "table.h"
#include "tally.h"
#include "workspace.h"

#define AT_MAX_DEVICES 64
enum { AUTOTUNE_ONLY_BLAS = -1 }; /* of a plan that cuBLAS alone serves */
#define AT_MAX_LOOPED (1 << 16) /* products of a batch that are launched one by one: product.py */

/* The layout in memory of two matrices and a result, and their GPU: all of a call except addresses and
 * scalars. For a batch that of one product. A stride along which there is at most one element is ignored: it
 * counts as 1, that of a batch of one as 0. */
typedef struct {
    int64_t rows[3], columns[3], by_row[3], by_column[3]; /* extents and strides of A, B and C, in elements */
    autotune_batch batch;
    int32_t devices[3];
    uint32_t low[3]; /* addresses modulo AT_ALIGNED */
    int32_t trans_a, trans_b;
    int32_t bias, activation; /* of its epilogue: table.h */
    int64_t a_type;           /* of so many bits, since a kind has no padding */
} autotune_kind;

/* The contents of a plan: the product or batch as its kernel gets it, and the kernel as loaded on a GPU. */
typedef struct {
    int32_t m, n, k, layout;
    int32_t kernel; /* AUTOTUNE_ONLY_BLAS: cuBLAS alone serves */
    int32_t split_k, device;
    int32_t is_cublas; /* cuBLAS serves, or the kernel if it cannot */
    int32_t is_left_alone; /* nothing is launched: the caller does not want it */
    int32_t is_looped;     /* the kernel is launched for each product of the batch */
    int32_t bias, activation; /* that the call asks for, whatever serves it: for counting calls */
    autotune_batch batch;
    int64_t ld[3];
    uint64_t num_bytes[3]; /* that A, B and C reach over */
    uint64_t context;      /* primary, of the GPU */
    uint64_t sgemm, reduce, pack;
    uint32_t low[3]; /* addresses of A, B and C modulo AT_ALIGNED, for counting calls */
    /* Of an A that is converted first, by `upcast`: its type, and how it lies; all above is of the product in FP32, whose A
     * is packed. AUTOTUNE_A_FP32: A is read as it is. */
    int32_t from_type;
    int64_t from_ld, from_stride;
    uint64_t upcast;
} autotune_planned;

typedef struct autotune_plan {
    atomic_int references;
    atomic_ullong num_tensor_calls; /* of autotune_sgemm_of_tensors */
    at_tally *tally;                /* to count a call, nothing behind the first of `planned` is read */
    autotune_planned planned;
    struct at_live *live; /* several plans serve in turn, until one has won (live.h); NULL: this one serves */
    const autotune_kernel *kernel; /* NULL: cuBLAS alone serves */
    at_workspaces *workspaces;
    at_handles *handles;
    at_grid grid;
    autotune_batch loop; /* products that are launched separately */
    bool has_order; /* the table is of one summation order */
    uint32_t schedule[AT_SCHEDULE_WORDS];
} autotune_plan;

typedef struct {
    autotune_kind kind;
    autotune_plan *plan; /* NULL: a free place */
} at_remembered;

/* A remembered plan that leaves calls alone, by a signature of theirs: a router's hash of all that tells kinds apart.
 * A call that is found by it reads less than half of the instructions, and of the memory, that its tensors take. */
typedef struct {
    uint64_t signature;
    autotune_plan *plan; /* NULL: a free place */
} at_recent;
enum { AT_RECENT = 512 };

/* What runs plans. Threads may share it. */
typedef struct {
    const autotune_driver *cuda; /* NULL before the first plan */
    const autotune_blas *blas;   /* NULL: cuBLAS is not called */
    pthread_mutex_t lock;
    at_workspaces *workspaces[AT_MAX_DEVICES];
    at_handles handles[AT_MAX_DEVICES];
    at_tallies *tallies;
    at_recorder *recorder; /* NULL: calls are counted, and not written */
    const autotune_constants *bounds;
    int32_t num_remembered;
    at_remembered *remembered; /* (2 max_plans), hashed */
    at_recent recent[AT_RECENT];
} at_runner;

/* Addresses. `bias`: of as many elements as C has columns; 0 if the kernel adds none. */
typedef struct {
    uint64_t a, b, c, bias;
} at_operands;

/* NULL where memory of the host is short. The bounds must stay. */
at_runner *at_runner_new(const autotune_constants *bounds);
void at_runner_free(at_runner *runner);

/* Whether the kernel computes what is planned: such a layout, and one product or a batch at a launch. */
bool at_may_launch(const autotune_table *table, const autotune_planned *planned);

/* A plan with one reference; NULL where memory of the host is short. */
autotune_plan *at_plan_new(at_runner *runner, const autotune_table *table, const autotune_planned *planned);
autotune_plan *at_plan_hold(autotune_plan *plan);
void at_plan_release(autotune_plan *plan);

/* Keep a plan for calls of a kind; if there are too many, all are dropped. */
void at_remember(at_runner *runner, const autotune_kind *kind, autotune_plan *plan);
void at_forget(at_runner *runner);

/* Which plan is wanted of a kind that is settled on its own calls: the first one, whatever was settled; the one that has
 * won, or the first; or before one has won the one whose calls take turns. */
enum { AUTOTUNE_AS_PLANNED, AUTOTUNE_AS_SETTLED, AUTOTUNE_IN_TURNS };

/* The plan for a call signature, with its own reference; NULL if there is none, or this process is the fork of one that
 * used CUDA, or if the plan leaves such calls alone: then this one is counted. `signature`: of such calls, for
 * at_is_left_alone; 0: none. */
autotune_plan *at_recall(at_runner *runner, const autotune_kind *kind, int32_t wanted, uint64_t signature,
                         bool *is_left_alone);

/* Whether the plan of calls with this signature was recalled of late, and leaves them alone: then this one is counted. */
bool at_is_left_alone(at_runner *runner, uint64_t signature);

/* One call more of tensors. */
void at_count_call(autotune_plan *plan);

/* Whether C shares a range of addresses with A, B or the bias. */
bool at_overlap(const autotune_plan *plan, at_operands at);

/* The result of a call: a CUresult, and for cuBLAS that of at_blas_sgemm. `is_served`: by the kernel,
 * although cuBLAS failed. `is_too_long`: nothing was launched, since it would be a launch for each of too many products;
 * `is_left`: since cuBLAS alone serves, and gives no handle. */
typedef struct {
    int cuda, blas;
    bool is_served, is_too_long, is_left;
} at_outcome;

/* Launch a plan on a stream with the GPU's context current, and restore the caller's. Does not wait. */
at_outcome at_run(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at, float alpha,
                  float beta);

/* Only the launches: in a workspace of the caller's, with the GPU's context current. */
at_outcome at_launch(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at, float alpha,
                     float beta, uint64_t workspace);

#endif
