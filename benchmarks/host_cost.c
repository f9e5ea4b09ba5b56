/* What a call of autotune_sgemm takes the host, and what cuLaunchKernelEx takes of that: host_cost SIZE CALLS.
 *
 * Prints microseconds, the medians of rounds of calls that a stream takes without waiting. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core.h"

enum { ROUND = 200 };

static autotune_driver driver;
static int (*launch)(const at_launch_config *, uint64_t, void **, void **);
static double launching_us;

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int timed_launch(const at_launch_config *config, uint64_t kernel, void **arguments, void **extra) {
    const double began = now_us();
    const int error = launch(config, kernel, arguments, extra);
    launching_us += now_us() - began;
    return error;
}

static void *call(const char *name) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *symbol = library ? dlsym(library, name) : NULL;
    if (!symbol) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(1);
    }
    return symbol;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void need(int error, const char *what) {
    if (!error) return;
    fprintf(stderr, "%s: %d\n", what, error);
    exit(1);
}

int main(int num_arguments, char **arguments) {
    if (num_arguments != 3) return 2;
    const int size = atoi(arguments[1]), rounds = atoi(arguments[2]) / ROUND;
    int (*init)(unsigned) = (int (*)(unsigned))call("cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))call("cuDevicePrimaryCtxRetain");
    int (*make_current)(void *) = (int (*)(void *))call("cuCtxSetCurrent");
    int (*allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))call("cuMemAlloc_v2");
    int (*wait)(void) = (int (*)(void))call("cuCtxSynchronize");
    void *context;
    need(init(0) || retain(&context, 0) || make_current(context), "no GPU");
    uint64_t at[3];
    for (int i = 0; i < 3; i++) need(allocate(&at[i], sizeof(float) * (size_t)size * (size_t)size), "memory");
    autotune_handle *handle;
    need((int)autotune_create(&handle), "create");
    driver = *at_find_driver();
    launch = driver.launch;
    driver.launch = timed_launch;
    autotune_use_driver(handle, &driver);
    double *calls_us = calloc((size_t)rounds + 1, sizeof *calls_us), *launches_us = calloc((size_t)rounds + 1, sizeof *calls_us);
    for (int round = 0; round <= rounds; round++) { /* the first one loads, and is left out */
        need(wait(), "waiting");
        launching_us = 0;
        const double began = now_us();
        for (int i = 0; i < ROUND; i++) {
            need((int)autotune_sgemm(handle, NULL, 0, 0, size, size, size, 1, (const float *)(uintptr_t)at[0], size,
                                     (const float *)(uintptr_t)at[1], size, 0, (float *)(uintptr_t)at[2], size),
                 "sgemm");
        }
        calls_us[round] = (now_us() - began) / ROUND;
        launches_us[round] = launching_us / ROUND;
    }
    qsort(calls_us + 1, (size_t)rounds, sizeof *calls_us, ascending);
    qsort(launches_us + 1, (size_t)rounds, sizeof *launches_us, ascending);
    printf("%.3f %.3f\n", calls_us[1 + rounds / 2], launches_us[1 + rounds / 2]);
    autotune_destroy(handle);
    return 0;
}
