/* Finds cuBLAS for programs that let the core do so: the library that the process has loaded, else the system's. */

#include "find_blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWITCH "AUTOTUNE_CUBLAS" /* 0: cuBLAS is not called */
#define NUM_PARTS 3              /* of a version: libraryPropertyType */

static autotune_blas found;
static char version[32];
static bool is_there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *const LIBRARIES[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
#define NUM_LIBRARIES (sizeof LIBRARIES / sizeof *LIBRARIES)

/* In the order of autotune_blas. */
static const char *const NAMES[] = {
    "cublasCreate_v2",    "cublasSetMathMode",     "cublasSetPointerMode_v2",
    "cublasSetStream_v2", "cublasSetWorkspace_v2", "cublasSgemm_v2",
    "cublasSgemmStridedBatched", "cublasSgeam",
};
#define NUM_NAMES (sizeof NAMES / sizeof *NAMES)
_Static_assert(sizeof(autotune_blas) == NUM_NAMES * sizeof(void *), "a name for each call");

static void *opened(int mode) {
    for (size_t i = 0; i < NUM_LIBRARIES; i++) {
        void *library = dlopen(LIBRARIES[i], mode);
        if (library) return library;
    }
    return NULL;
}

static bool read_version(void *library) {
    int (*property)(int part, int *value);
    const char *const name = "cublasGetProperty";
    int parts[NUM_PARTS] = {0};
    if (!at_find_calls(library, &name, 1, &property)) return false;
    for (int part = 0; part < NUM_PARTS; part++) {
        if (property(part, &parts[part])) return false;
    }
    return snprintf(version, sizeof version, "%d.%d.%d", parts[0], parts[1], parts[2]) > 0;
}

static void find(void) {
    const char *told = getenv(SWITCH);
    if (told && !strcmp(told, "0")) return;
    void *library = opened(RTLD_NOLOAD | RTLD_NOW);
    if (!library) library = opened(RTLD_NOW);
    is_there = library && read_version(library) && at_find_calls(library, NAMES, NUM_NAMES, &found);
}

const autotune_blas *at_find_blas(const char **told_version) {
    pthread_once(&once, find);
    *told_version = is_there ? version : NULL;
    return is_there ? &found : NULL;
}
