/* A driver that does nothing, and a loop of calls of the core: what is left is the core's own time. */

#include <stdint.h>
#include <time.h>

#include "core.h"

static int current_context(uint64_t *context) { return *context = 1, 0; }
static int other(void) { return 0; }

/* In the order of autotune_driver; only the first and the fourth are called for a plan without a workspace. */
void nothing(autotune_driver *driver) {
    void **calls = (void **)driver;
    for (unsigned i = 0; i < sizeof *driver / sizeof *calls; i++) calls[i] = (void *)(uintptr_t)other;
    calls[0] = (void *)(uintptr_t)current_context;
}

typedef autotune_status (*run_plan)(const autotune_handle *, const autotune_plan *, uint64_t, uint64_t, uint64_t,
                                    uint64_t, uint64_t, double, double);

/* Nanoseconds of a call. */
double loop(run_plan run, const autotune_handle *handle, const autotune_plan *plan, long num) {
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long i = 0; i < num; i++) {
        if (run(handle, plan, 0, 1 << 20, 2 << 20, 3 << 20, 0, 1, 0)) return -1;
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (1e9 * (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec)) / (double)num;
}
