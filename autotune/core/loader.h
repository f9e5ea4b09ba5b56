/* Loads a table's kernels onto GPUs, for programs that let the core do that. */

#ifndef AUTOTUNE_LOADER_H
#define AUTOTUNE_LOADER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "autotune_sgemm.h"
#include "plan.h"
#include "table.h"

/* The functions of the CUDA driver for that; each returns a CUresult. */
typedef struct {
    int (*init)(unsigned flags);
    int (*current_device)(int32_t *device);
    int (*device_name)(char *name, int num_bytes, int32_t device);
    int (*device_attribute)(int *value, int attribute, int32_t device);
    int (*retain_context)(uint64_t *context, int32_t device);
    int (*load_library)(uint64_t *library, const void *code, void *jit, void **jit_values, unsigned num_jit,
                        void *options, void **values, unsigned num_options);
    int (*get_kernel)(uint64_t *kernel, uint64_t library, const char *name);
    int (*kernel_attribute)(int *value, int attribute, uint64_t kernel, int32_t device);
    int (*set_kernel_attribute)(int attribute, int value, uint64_t kernel, int32_t device);
    int (*kernel_function)(uint64_t *function, uint64_t kernel);
} at_loading;

/* A kernel on one GPU: functions are 0 before it is loaded, or if it has none. */
typedef struct {
    uint64_t sgemm, reduce, pack;
} at_loaded;

typedef struct {
    uint64_t context; /* primary; 0 before the first product */
    bool is_other;    /* the table is not for it */
    at_loaded *kernels;
    uint64_t upcast; /* the kernel of upcast.h; 0 before it is loaded */
} at_open_gpu;

/* Threads may share one. */
typedef struct {
    const autotune_table *table;
    const at_loading *cuda; /* NULL before the first product */
    pthread_mutex_t lock;
    uint64_t *libraries; /* by cubin; 0 before it is loaded */
    at_open_gpu gpus[AT_MAX_DEVICES];
} at_loader;

at_loader *at_loader_new(const autotune_table *table); /* NULL if host memory is short */
void at_loader_free(at_loader *loader);

/* The GPU of the calling thread, if the table is for it. */
autotune_status at_current_gpu(at_loader *loader, int32_t *device);

/* A kernel on that GPU, loaded at the first request. */
autotune_status at_load(at_loader *loader, const autotune_driver *cuda, int32_t device, int32_t kernel,
                        uint64_t *context, at_loaded *loaded);

/* The kernel that converts A, loaded at the first request. */
autotune_status at_load_upcast(at_loader *loader, const autotune_driver *cuda, int32_t device, uint64_t *upcast);

#endif
