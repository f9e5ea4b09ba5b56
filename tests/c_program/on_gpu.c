/* gpu.h on a GPU. Operands lie in pinned memory of the host, which the GPU reads and writes where it is; the library
 * calls the driver by way of this file, which counts launches and allocations. */

#include "gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "core.h"
#include "driver.h"

enum { NUM_OWN = 16, FIRST_OWN = 3, ALIGNED = 64, PORTABLE = 1, NON_BLOCKING = 1 };
#define ARENA_FLOATS ((size_t)4 << 20)

static struct {
    int (*init)(unsigned flags);
    int (*retain)(uint64_t *context, int device);
    int (*make_current)(uint64_t context);
    int (*pin)(void **memory, size_t num_bytes, unsigned flags);
    int (*make_stream)(void **stream, unsigned flags);
    int (*wait)(void *stream);
} cuda;
static const char *const NAMES[] = {"cuInit",         "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
                                    "cuMemHostAlloc", "cuStreamCreate",           "cuStreamSynchronize"};

static const autotune_driver *found;
static autotune_driver counting;
static atomic_int launches, allocations;
static void *streams[NUM_OWN];

static void need(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static int launch(const at_launch_config *config, uint64_t kernel, void **arguments, void **extra) {
    atomic_fetch_add(&launches, 1);
    return found->launch(config, kernel, arguments, extra);
}

static int allocate(uint64_t *address, size_t num_bytes, uint64_t pool, uint64_t stream) {
    atomic_fetch_add(&allocations, 1);
    return found->allocate(address, num_bytes, pool, stream);
}

static int release(uint64_t address, uint64_t stream) {
    atomic_fetch_sub(&allocations, 1);
    return found->free(address, stream);
}

void begin(autotune_handle *handle) {
    void *library = dlopen(AT_DRIVER, RTLD_NOW);
    need(library && at_find_calls(library, NAMES, sizeof NAMES / sizeof *NAMES, &cuda), "no driver");
    need(!cuda.init(0), "no GPU");
    use_gpu(0);
    for (int i = 0; i < NUM_OWN; i++) need(!cuda.make_stream(&streams[i], NON_BLOCKING), "no stream");
    found = at_find_driver();
    need(found != NULL, "no driver that the library takes");
    counting = *found;
    counting.launch = launch;
    counting.allocate = allocate;
    counting.free = release;
    autotune_use_driver(handle, &counting);
}

void use_gpu(int number) {
    uint64_t context = 0;
    need(number < 0 || !cuda.retain(&context, number), "no such GPU");
    need(!cuda.make_current(context), "no context");
}

/* A thread's memory is taken from front to back, and all of it is free again once all was given back. */
static _Thread_local float *arena;
static _Thread_local size_t taken, num_pieces;

float *take(size_t num_floats) {
    void *pinned = arena;
    if (!pinned) need(!cuda.pin(&pinned, ARENA_FLOATS * sizeof(float), PORTABLE), "no pinned memory");
    arena = pinned;
    float *made = arena + taken;
    taken += (num_floats + ALIGNED - 1) / ALIGNED * ALIGNED;
    need(taken <= ARENA_FLOATS, "operands are too large for their memory");
    num_pieces++;
    return made;
}

void give_back(float *memory) {
    (void)memory;
    if (!--num_pieces) taken = 0;
}

void *stream_of(int number) {
    if (number < FIRST_OWN) return (void *)(uintptr_t)number; /* the default stream, in its three forms */
    return streams[(number - FIRST_OWN) % NUM_OWN];
}

void wait_for(void *stream) { need(!cuda.wait(stream), "a fault on the GPU"); }

int num_allocations(void) { return atomic_load(&allocations); }

int num_launches(void) { return atomic_load(&launches); }
