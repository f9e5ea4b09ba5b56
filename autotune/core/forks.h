/* Whether this process is the fork of one that used CUDA. CUDA does not work there. */

#ifndef AUTOTUNE_FORKS_H
#define AUTOTUNE_FORKS_H

#include <stdbool.h>

/* From the first call on, forks are noticed. */
void at_watch_forks(void);
bool at_is_forked(void);

#endif
