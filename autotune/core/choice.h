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
    int32_t entry;      /* the tuned shape that it rests on; -1: none */
    int32_t is_cublas;  /* cuBLAS is taken to be as fast: the kernel serves where it cannot be called */
    int32_t is_looped;  /* the kernel is launched for each product of a batch */
    double expected_us; /* measured (exact) or modelled */
    double cublas_us;
} autotune_choice;

/* All that choices need of a table and does not change between calls. */
typedef struct at_chooser at_chooser;

/* NULL where memory is short. The table must stay. */
at_chooser *at_chooser_new(const autotune_table *table);
void at_chooser_free(at_chooser *chooser);

/* Whether a call is of a shape that was tuned, and lies as it did then. */
bool at_is_tuned(const at_chooser *chooser, const at_call *call);

/* The choice for a call, m and n at least 1. `cublas_version`: of the cuBLAS that would serve; NULL where that
 * is not known. Returns 0; 1 where even the default kernel is not legal, which needs more tiles than a grid
 * holds; 2 where memory is short. Threads may share a chooser. */
int at_choose(const at_chooser *chooser, const at_call *call, const char *cublas_version,
              autotune_choice *choice);

#endif
