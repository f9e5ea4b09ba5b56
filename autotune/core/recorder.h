/* Writes the counts of a handle to its own file, so that a process may be killed at any moment. */

#ifndef AUTOTUNE_RECORDER_H
#define AUTOTUNE_RECORDER_H

#include <stdbool.h>

#include "tally.h"

typedef struct at_recorder at_recorder;

/* For FILE: in the folder FILE.d, which is made if needed, under a name that no other process uses. NULL,
 * with nothing begun, if that cannot be written or memory is short. */
at_recorder *at_recorder_new(at_tallies *tallies, const char *file);

/* Begin: a thread writes changes four times a second, and the end of the process writes the rest. Not before
 * this process watches for forks: in a child the counts are its parent's. */
void at_recorder_begin(at_recorder *recorder);

bool at_recorder_is_for(const at_recorder *recorder, const char *file);

/* Write the rest, and end. The tallies must not be used any more. NULL is allowed. */
void at_recorder_free(at_recorder *recorder);

#endif
