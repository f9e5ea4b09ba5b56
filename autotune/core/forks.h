/* Whether this process is the fork of one that used CUDA, which does not work here: locks may be held by threads that
 * do not exist here, too. */

#ifndef AUTOTUNE_FORKS_H
#define AUTOTUNE_FORKS_H

#include <stdbool.h>

/* From the first call on, forks are noticed. Called before anything that at_use_cuda protects. */
void at_watch_forks(void);

/* Called before the first lock is taken, and CUDA initialised: from now on forks do not work. False if this process is
 * one. */
bool at_use_cuda(void);
bool at_is_forked(void);

/* What takes locks before CUDA is used, when a fork is allowed, keeps forks waiting meanwhile. */
void at_hold_forks(void);
void at_allow_forks(void);

#endif
