/* Unloads a shared library with a table while its thread runs and a graph holds its memory, on a driver that stands in.
 *
 *     unloaded LIBRARY FILE     calls are recorded into FILE */

#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "autotune_sgemm.h"
#include "gpu.h"

#define BETWEEN_TWO_WRITES 400000000L /* ns, and more */
enum { CAPTURED = 99, SIDE = 64 };

void standin_end_graph(void);

static void *library;

static void need(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* ISO C converts no data pointer to one of a function. */
static void find(const char *name, void *function) {
    void *const found = dlsym(library, name);
    need(found != NULL, name);
    memcpy(function, &found, sizeof found);
}

int main(int num_arguments, char **arguments) {
    static autotune_handle *open, *closed;
    static float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE];
    autotune_status (*create)(autotune_handle **), (*record_calls)(autotune_handle *, const char *);
    autotune_status (*sgemm)(autotune_handle *, void *, int, int, int, int, int, float, const float *, int64_t,
                             const float *, int64_t, float, float *, int64_t);
    void (*destroy)(autotune_handle *);
    need(num_arguments == 3 && (library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL)), "no library");
    find("autotune_create", &create);
    find("autotune_record_calls", &record_calls);
    find("autotune_sgemm", &sgemm);
    find("autotune_destroy", &destroy);
    use_gpu(0);
    need(!create(&open) && !create(&closed), "no table");
    need(!record_calls(open, arguments[2]), "no record");
    need(!sgemm(open, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4), "a product");
    for (int k = 1; k <= SIDE; k++) {
        need(!sgemm(closed, stream_of(CAPTURED), 0, 0, SIDE, SIDE, k, 1, a, k, b, SIDE, 0, c, SIDE), "a capture");
    }
    destroy(closed);
    dlclose(library);
    standin_end_graph();
    nanosleep(&(struct timespec){.tv_nsec = BETWEEN_TWO_WRITES}, NULL);
    return 0;
}
