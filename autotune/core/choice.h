/* Which kernel of a table serves a call, and why. A kernel is legal if at_may_serve says so. In this order:
 *
 * exact     the shape was tuned, packed and aligned as the call is, and a kernel ranked for it is legal
 * modelled  the legal kernel with the least modelled time (perf_model/prediction.py), in its best number of splits, the
 *           default competing. The less is known of a kernel, the slower it is assumed to be. A kernel whose sums are
 *           too deep (perf_model/sum_depths.py) counts as slower by the fourth power of the excess: it wins only where all
 *           else is far slower
 * nearest   no legal kernel has a model: the best legal kernel of the nearest tuned shape
 * default   nothing else is legal
 *
 * Where cuBLAS is expected to be as fast, or nearly (perf_model/cublas_model.py), it is named as the provider; on a
 * tuned shape, if it was faster in the same rounds.
 *
 * A batch is served by kernels for batches (decision 0056):
 *
 * exact     this batch was tuned
 * nearest   the best legal kernel of the batch whose number of products is the nearest. It serves if the numbers are
 *           not too far apart and it was faster than cuBLAS by more than a margin, else cuBLAS
 * modelled  where cuBLAS was timed on batches (decision 0120): the legal kernel for batches with the least modelled
 *           time, as for a product of all rows; it serves if it is expected to be faster than cuBLAS by a margin
 * looped    there is none: cuBLAS, or if that cannot be called, a launch for each product */

#ifndef AUTOTUNE_CHOICE_H
#define AUTOTUNE_CHOICE_H

#include <stdbool.h>

#include "grid.h"
#include "table.h"

enum { AUTOTUNE_EXACT, AUTOTUNE_MODELLED, AUTOTUNE_NEAREST, AUTOTUNE_DEFAULT };

/* What would run. Times are those of one launch; 0 where nothing is known. */
typedef struct {
    int32_t how, kernel, split_k;
    int32_t entry;      /* the tuned shape that it is based on; -1: none */
    int32_t is_cublas;  /* cuBLAS is expected to be as fast: the kernel serves if cuBLAS cannot be called */
    int32_t is_looped;  /* the kernel is launched for each product of a batch */
    int32_t num_legal;  /* modelled: kernels among which it was chosen */
    int32_t is_for_accuracy; /* modelled: another is expected to be faster, with sums that are too deep */
    double expected_us;      /* measured (exact) or modelled */
    double cublas_us;
    double margin; /* logarithm of the factor by which it has to be faster than cuBLAS */
    double excess; /* modelled: times that its sums are too deep, at least 1 */
} autotune_choice;

/* What choices need of a table and does not change between calls. */
typedef struct at_chooser at_chooser;

/* NULL if memory is short. The table must outlive it. */
at_chooser *at_chooser_new(const autotune_table *table);
void at_chooser_free(at_chooser *chooser);

/* Whether a call is of a tuned shape, with the strides and alignment of its tuning. */
bool at_is_tuned(const at_chooser *chooser, const at_call *call);

/* The choice for a call, m and n at least 1. `cublas_version`: of the cuBLAS that would serve; NULL if
 * unknown. `allowed`: depths of sums for data of zero mean and for positive data, where these are known better than by
 * the shape; else NULL, as of a batch. Returns 0; 1 if even the default kernel is not legal, which needs more tiles than a
 * grid holds; 2 if memory is short. Threads may share a chooser. */
int at_choose(const at_chooser *chooser, const at_call *call, const char *cublas_version, const double *allowed,
              autotune_choice *choice);

/* Up to `room` launches of kernels for a call, at least one, the one that is chosen without cuBLAS first; for a batch
 * those that the model knows, tuned or not. More than one only where the model chooses; none behind the first is less
 * accurate than is allowed, or than the first, and none is of a kernel with nearly as many splits as before it.
 * `allowed`, and what is returned, are as of at_choose. */
int at_rank(const at_chooser *chooser, const at_call *call, const double *allowed, int32_t room,
            autotune_choice *ranked, int32_t *num);

#endif
