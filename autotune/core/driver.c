#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static autotune_driver found;
static bool is_there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In the order of autotune_driver, with the versions that cuda.h maps these names to. */
static const char *const NAMES[] = {
    "cuCtxGetCurrent",     "cuCtxPushCurrent_v2",     "cuCtxPopCurrent_v2",
    "cuLaunchKernelEx",    "cuStreamGetId",           "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode", "cuMemPoolCreate", "cuMemPoolSetAttribute",
    "cuMemAllocFromPoolAsync", "cuMemFreeAsync",      "cuMemsetD8Async",
    "cuMemAlloc_v2",       "cuStreamGetCaptureInfo_v2", "cuUserObjectCreate",
    "cuGraphRetainUserObject", "cuUserObjectRelease", "cuEventCreate",
    "cuEventDestroy_v2",      "cuEventRecord",          "cuEventQuery",
    "cuEventElapsedTime",     "cuStreamQuery",
};
#define NUM_NAMES (sizeof NAMES / sizeof *NAMES)
_Static_assert(sizeof(autotune_driver) == NUM_NAMES * sizeof(void *), "a name for each call");

bool at_find_calls(void *library, const char *const *names, size_t num_names, void *calls) {
    if (!library) return false;
    for (size_t i = 0; i < num_names; i++) {
        void *symbol = dlsym(library, names[i]);
        if (!symbol) return false;
        memcpy((char *)calls + i * sizeof symbol, &symbol, sizeof symbol); /* ISO C converts no data pointer */
    }
    return true;
}

static void find(void) { is_there = at_find_calls(dlopen(AT_DRIVER, RTLD_NOW), NAMES, NUM_NAMES, &found); }

const autotune_driver *at_find_driver(void) {
    pthread_once(&once, find);
    return is_there ? &found : NULL;
}
