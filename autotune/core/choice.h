/* Which kernel of a table serves a call, and why: exact, modelled, nearest or default (runtime/selector.py). */

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
    double expected_us; /* measured (exact) or modelled */
    double cublas_us;
} autotune_choice;

/* What choices need of a table and does not change between calls. */
typedef struct at_chooser at_chooser;

/* NULL if memory is short. The table must outlive it. */
at_chooser *at_chooser_new(const autotune_table *table);
void at_chooser_free(at_chooser *chooser);

/* Whether a call is of a tuned shape, with the strides and alignment of its tuning. */
bool at_is_tuned(const at_chooser *chooser, const at_call *call);

/* The choice for a call, m and n at least 1. `cublas_version`: of the cuBLAS that would serve; NULL if
 * unknown. Returns 0; 1 if even the default kernel is not legal, which needs more tiles than a grid holds; 2
 * if memory is short. Threads may share a chooser. */
int at_choose(const at_chooser *chooser, const at_call *call, const char *cublas_version,
              autotune_choice *choice);

#endif
