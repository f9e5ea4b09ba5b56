/* Settling on a program's own calls: the first calls of a kind are served by several plans in turn, some of them between
 * two events on the caller's stream, until it is known which serves best. Results are right whichever serves.
 *
 * What a program waits for differs. While its stream is busy, the GPU limits it: there the plan with the least time of
 * the GPU is best. While it is idle, the host does: there the one that takes the host least, if none of the GPU's time
 * is lost. A call that finds the stream busy and leaves it idle is neither. Busy and idle calls are never compared.
 *
 * Each sample costs the host some microseconds, so samples of short products are further apart; and at random, since the
 * calls of equal layers come in turns, too. One sample at a time: the next waits until the GPU has passed both events. */

#ifndef AUTOTUNE_LIVE_H
#define AUTOTUNE_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"

enum { AT_MAX_RIVALS = 4, AT_SAMPLES_EACH = 4 }; /* so at most 16 samples decide */
enum { AT_BUSY, AT_IDLE, AT_REGIMES };

/* What is known of a call signature. Times are medians, in microseconds; 0 where a plan has no sample. */
typedef struct {
    int32_t is_settled, winner; /* the winner is 0 until another one has won */
    int32_t is_dropped;         /* samples spread too far, or too few were of one regime */
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

/* Of these plans, which it holds; the first serves until another has won. `expected_us`: of one call. The driver must
 * stay. NULL where memory of the host is short. */
at_live *at_live_new(const autotune_driver *cuda, autotune_plan *const rivals[], int32_t num, double expected_us,
                     uint64_t seed);
void at_live_free(at_live *live);

autotune_plan *at_live_first(const at_live *live);
autotune_plan *at_live_winner(const at_live *live); /* NULL before it is settled */

/* Begin a call on a stream of a context, and end it behind its launches. `is_done`: it was launched. */
void at_begin_turn(at_live *live, uint64_t context, uint64_t stream, autotune_turn *turn);
void at_end_turn(at_live *live, uint64_t context, uint64_t stream, const autotune_turn *turn, bool is_done);

void at_live_tell(at_live *live, autotune_live_state *state);

#endif
