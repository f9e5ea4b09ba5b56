/* Writes the counts of a handle to a file of its own, so that a process may be killed at any moment. */

#ifndef AUTOTUNE_RECORDER_H
#define AUTOTUNE_RECORDER_H

#include <stdbool.h>

#include "tally.h"

typedef struct at_recorder at_recorder;

/* For FILE: in the folder FILE.d, which is made if need be, under a name that no other process takes. NULL, with
 * nothing begun, where that cannot be written or memory is short. */
at_recorder *at_recorder_new(at_tallies *tallies, const char *file);

/* Begin: a thread writes four times a second what has changed, and the end of the process what is left. Not before this
 * process watches for forks: in a child the counts are its parent's. */
void at_recorder_begin(at_recorder *recorder);

bool at_recorder_is_for(const at_recorder *recorder, const char *file);

/* Write what is left, and end. Nobody may use the tallies any more. NULL is none. */
void at_recorder_free(at_recorder *recorder);

#endif
