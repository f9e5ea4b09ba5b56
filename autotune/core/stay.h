#ifndef AUTOTUNE_STAY_H
#define AUTOTUNE_STAY_H

/* Keeps the shared library with this code or constant loaded until the process ends, even after dlclose: the recorder's
 * thread, and graphs that end, call what is in it. Does nothing for what is in no library. */
void at_stay_loaded(const void *within);

#endif
