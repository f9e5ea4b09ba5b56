/* How often each call signature was served, for as long as a handle is open. */

#ifndef AUTOTUNE_TALLY_H
#define AUTOTUNE_TALLY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A call signature, what serves it, and how often. m is 0 for the calls of all kinds beyond the limit. */
typedef struct {
    int32_t m, n, k, layout, products, shared; /* shared: AUTOTUNE_SHARES_NONE and so on */
    int32_t bias, activation;                  /* that the call asked for: table.h */
    int32_t kernel, split_k, is_cublas;
    int32_t alignment[3]; /* of the addresses of A, B and C, in bytes: 4, 8 or 16 */
    int64_t ld[3];
    uint64_t calls;
} autotune_count;

typedef struct at_tally at_tally;
struct at_tally {
    autotune_count kind;        /* its `calls` is not used */
    atomic_uint_fast64_t calls; /* that a launch of was enqueued */
    at_tally *beside;           /* at the same place */
    at_tally *before;           /* that was made before this one */
};

enum { AT_TALLY_PLACES = 4096 };

/* Threads may share it. A tally stays until all are freed: plans that are made again find theirs. */
typedef struct {
    pthread_mutex_t lock;
    int32_t most, num;
    at_tally *places[AT_TALLY_PLACES];
    _Atomic(at_tally *) last;
    at_tally others; /* of kinds that came after the first `most` */
} at_tallies;

/* NULL if host memory is short. */
at_tallies *at_tallies_new(int32_t most);
void at_tallies_free(at_tallies *all);

/* The tally of a kind, whose padding and `calls` are zero; that of all others if there are too many. */
at_tally *at_tally_of(at_tallies *all, const autotune_count *kind);

/* Whether the tally exists, even if still zero. */
static inline bool at_has_tallies(at_tallies *all) { return atomic_load(&all->last); }

/* Copy up to `room` counts that are not zero, the newest kind first. Returns how many there are. */
int32_t at_counts(at_tallies *all, autotune_count *counts, int32_t room);

static inline void at_count(at_tally *tally) { atomic_fetch_add_explicit(&tally->calls, 1, memory_order_relaxed); }

#endif
