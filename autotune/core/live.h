/* Settling on a program's own calls: the first calls of a kind are served by several plans in turn, some of them between
 * two events on the caller's stream, until it is known which serves best. Results are right whichever serves.
 *
 * What a program waits for differs. While its stream is busy, the GPU limits it: there the plan with the least time of
 * the GPU is best. While it is idle, the host does, or both if the program waits for each product: there one that takes
 * either less, and neither more. A call that finds the stream busy and leaves it idle is neither. Busy and idle calls
 * are never compared.
 *
 * Samples of a kind take the time of three of its calls, and 0.5 % of those that follow: the host's microseconds, and what
 * a slower plan loses. So those of short products are further apart; and at random, since the calls of equal layers come
 * in turns, too. Each plan has one sample, and those that lead have more, as far as 16 samples go; what is surely slower
 * than the least, or cannot win any more, has no more, and what is expected to be far slower has none. Where the GPU is
 * the limit, all of them lose some three calls at most. One sample at a time: the next waits until the GPU has passed both
 * events. */

#ifndef AUTOTUNE_LIVE_H
#define AUTOTUNE_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"

enum { AT_MAX_RIVALS = 7, AT_SAMPLES_EACH = 4, AT_MOST_SAMPLES = 16 }; /* of the plans that lead; of all in a regime */
enum { AT_BUSY, AT_IDLE, AT_REGIMES };

/* What became of the last sample that was to begin, or of all: why a kind is not settled, or was dropped. */
enum {
    AT_NO_CALL,   /* none was to begin */
    AT_TAKEN,     /* it counts */
    AT_UNDER_WAY, /* the GPU has not passed it */
    AT_BETWEEN,   /* the stream was busy first and idle then */
    AT_CAPTURED,  /* the stream was captured */
    AT_NOT_MADE,  /* the call failed */
    AT_REFUSED,   /* the driver refused what it takes: `fault` */
    AT_SPREADS    /* of all: they differ too much to decide by */
};

/* What is known of a call signature. Times are medians, in microseconds; 0 where a plan has no sample. */
typedef struct {
    int32_t is_settled, winner; /* the winner is 0 until another one has won */
    int32_t is_dropped;         /* samples spread too far, or too few of those that began count */
    int32_t outcome, fault;     /* of the last sample; the driver's last fault, a CUresult */
    int32_t calls_left;         /* until the next sample is to begin */
    int32_t regime, num_rivals, num_samples;
    double gpu_us[AT_MAX_RIVALS], host_us[AT_MAX_RIVALS];
} autotune_live_state;

/* A turn: what serves one call. `number`: of the rival that is sampled, -1 for none. */
typedef struct {
    autotune_plan *plan; /* as long as the plan of the kind is held */
    int32_t is_left_alone, number;
    double began_us;
} autotune_turn;

typedef struct at_live at_live;

/* Of these plans, which it holds; the first serves until another has won. `expected_us`: of one call of each; 0: unknown.
 * `winner`: has won before; -1: none. The driver must stay. NULL where memory of the host is short. */
at_live *at_live_new(const autotune_driver *cuda, autotune_plan *const rivals[], int32_t num,
                     const double expected_us[], uint64_t seed, int32_t winner);
void at_live_free(at_live *live);

autotune_plan *at_live_first(const at_live *live);
autotune_plan *at_live_winner(const at_live *live); /* NULL before it is settled */

/* Begin a call on a stream of a context, and end it behind its launches. `is_done`: it was launched. */
void at_begin_turn(at_live *live, uint64_t context, uint64_t stream, autotune_turn *turn);
void at_end_turn(at_live *live, uint64_t context, uint64_t stream, const autotune_turn *turn, bool is_done);

void at_live_tell(at_live *live, autotune_live_state *state);

#endif
