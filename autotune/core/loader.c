#include "loader.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "upcast.h"

/* CUdevice_attribute and CUfunction_attribute. */
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };
enum { MAX_THREADS = 0, STATIC_SMEM = 1, NUM_REGISTERS = 4, MAX_DYNAMIC_SMEM = 8, CLUSTER_WIDTH = 11, NUM_SIDES = 3 };
#define DEFAULT_SMEM (48 * 1024) /* bytes of dynamic shared memory that any kernel may have */
#define NAME_BYTES 256
#define LIKE "AUTOTUNE_LIKE" /* of the environment: the GPU that those here are accepted as */

static at_loading found;
static bool is_there;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* In the order of at_loading. */
static const char *const NAMES[] = {
    "cuInit",           "cuCtxGetDevice",       "cuDeviceGetName",      "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
    "cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetAttribute", "cuKernelSetAttribute", "cuKernelGetFunction",
};
#define NUM_NAMES (sizeof NAMES / sizeof *NAMES)
_Static_assert(sizeof(at_loading) == NUM_NAMES * sizeof(void *), "a name for each call");

static void find(void) {
    is_there = at_find_calls(dlopen(AT_DRIVER, RTLD_NOW), NAMES, NUM_NAMES, &found) && !found.init(0);
}

at_loader *at_loader_new(const autotune_table *table) {
    at_loader *loader = calloc(1, sizeof *loader);
    if (!loader) return NULL;
    loader->table = table;
    loader->libraries = calloc((size_t)table->num_codes + 1, sizeof *loader->libraries);
    if (!loader->libraries) {
        free(loader);
        return NULL;
    }
    pthread_mutex_init(&loader->lock, NULL);
    return loader;
}

void at_loader_free(at_loader *loader) {
    if (!loader) return;
    for (int i = 0; i < AT_MAX_DEVICES; i++) free(loader->gpus[i].kernels);
    free(loader->libraries);
    free(loader);
}

static autotune_status told(int error) { return error ? (autotune_status)(AUTOTUNE_CUDA + error) : AUTOTUNE_OK; }

/* A slice of a GPU has the GPU's kind: what follows " MIG " in its name is the slice's size. */
static size_t kind_length(const char *name) {
    const char *slice = strstr(name, " MIG ");
    return slice ? (size_t)(slice - name) : strlen(name);
}

static bool is_same_kind(const char *name, const char *other) {
    const size_t length = kind_length(name);
    return length == kind_length(other) && !strncmp(name, other, length);
}

static autotune_status adopt(at_loader *loader, int32_t device) {
    char name[NAME_BYTES] = "";
    int major = 0, minor = 0;
    const autotune_table *table = loader->table;
    int error = loader->cuda->device_name(name, NAME_BYTES - 1, device);
    if (!error) error = loader->cuda->device_attribute(&major, CAPABILITY_MAJOR, device);
    if (!error) error = loader->cuda->device_attribute(&minor, CAPABILITY_MINOR, device);
    if (error) return told(error);
    const bool is_capable = major == table->capability_major && minor == table->capability_minor;
    at_open_gpu *gpu = &loader->gpus[device];
    const char *like = getenv(LIKE);
    const bool is_accepted = like && is_same_kind(like, table->gpu_name);
    gpu->is_other = !is_capable || !(is_accepted || is_same_kind(name, table->gpu_name));
    if (gpu->is_other) return AUTOTUNE_OTHER_GPU;
    if (!gpu->kernels) gpu->kernels = calloc((size_t)table->num_kernels, sizeof *gpu->kernels);
    if (!gpu->kernels) return AUTOTUNE_NO_MEMORY;
    return told(loader->cuda->retain_context(&gpu->context, device));
}

autotune_status at_current_gpu(at_loader *loader, int32_t *device) {
    pthread_once(&once, find);
    if (!is_there) return AUTOTUNE_NO_DRIVER;
    int32_t current = -1;
    if (found.current_device(&current)) return AUTOTUNE_NO_CONTEXT;
    if (current < 0 || current >= AT_MAX_DEVICES) return AUTOTUNE_BAD_CALL;
    *device = current;
    pthread_mutex_lock(&loader->lock);
    loader->cuda = &found;
    const at_open_gpu *gpu = &loader->gpus[current];
    autotune_status status = gpu->is_other ? AUTOTUNE_OTHER_GPU : AUTOTUNE_OK;
    if (!status && !gpu->context) status = adopt(loader, current);
    pthread_mutex_unlock(&loader->lock);
    return status;
}

/* Whether one function of a kernel is the code that the table launches. Launch bounds are part of the code. */
static autotune_status check(const at_loader *loader, const autotune_kernel *kernel, uint64_t function, bool is_main,
                             int threads, int32_t device) {
    const at_loading *cuda = loader->cuda;
    const bool is_cluster = is_main && kernel->reduction == AUTOTUNE_REDUCE_CLUSTER;
    const int sides[NUM_SIDES] = {is_cluster, is_cluster ? kernel->split_k : 0, is_cluster};
    int max_threads = 0, registers = 0, smem_bytes = 0;
    int error = cuda->kernel_attribute(&max_threads, MAX_THREADS, function, device);
    if (!error) error = cuda->kernel_attribute(&registers, NUM_REGISTERS, function, device);
    if (!error) error = cuda->kernel_attribute(&smem_bytes, STATIC_SMEM, function, device);
    if (error) return told(error);
    bool is_right = max_threads == threads && (!is_main || registers == kernel->registers);
    const bool has_clusters = loader->table->capability_major >= 9;
    for (int side = 0; side < NUM_SIDES && has_clusters; side++) {
        int blocks = 0;
        if ((error = cuda->kernel_attribute(&blocks, CLUSTER_WIDTH + side, function, device))) return told(error);
        is_right = is_right && blocks == sides[side];
    }
    smem_bytes += is_main ? kernel->smem_bytes : 0;
    return is_right && smem_bytes <= loader->table->smem_per_block ? AUTOTUNE_OK : AUTOTUNE_OTHER_CODE;
}

/* Loads one function of a kernel into the GPU's context now, not at its first launch. */
static autotune_status load_function(const at_loader *loader, const autotune_kernel *kernel, const char *name,
                                     int threads, int32_t device, uint64_t *function) {
    const at_loading *cuda = loader->cuda;
    const bool is_main = !strcmp(name, "sgemm");
    uint64_t handle = 0, resident = 0;
    int error = cuda->get_kernel(&handle, loader->libraries[kernel->code], name);
    if (error) return told(error);
    const autotune_status status = check(loader, kernel, handle, is_main, threads, device);
    if (status) return status;
    if (is_main && kernel->smem_bytes > DEFAULT_SMEM) {
        error = cuda->set_kernel_attribute(MAX_DYNAMIC_SMEM, kernel->smem_bytes, handle, device);
    }
    if (!error) error = cuda->kernel_function(&resident, handle);
    if (!error) *function = handle;
    return told(error);
}

static autotune_status load(at_loader *loader, int32_t device, const autotune_kernel *kernel, at_loaded *loaded) {
    uint64_t *library = &loader->libraries[kernel->code];
    const autotune_code *code = &loader->table->codes[kernel->code];
    autotune_status status = AUTOTUNE_OK;
    if (!*library) {
        status = told(loader->cuda->load_library(library, code->data, NULL, NULL, 0, NULL, NULL, 0));
    }
    at_loaded made = {0, 0, 0};
    if (!status) status = load_function(loader, kernel, "sgemm", kernel->threads, device, &made.sgemm);
    if (!status && at_has_planes(kernel)) {
        status = load_function(loader, kernel, "sgemm_reduce", AT_REDUCE_THREADS, device, &made.reduce);
    }
    if (!status && (kernel->packs_a || kernel->packs_b)) {
        status = load_function(loader, kernel, "sgemm_pack", AT_PACK_THREADS, device, &made.pack);
    }
    if (!status) *loaded = made;
    return status;
}

/* A GPU has a library of its own: what it lacks at a launch could not be loaded while a stream is captured. */
static autotune_status load_upcast(const at_loader *loader, uint64_t *upcast) {
    uint64_t library = 0, resident = 0, kernel = 0;
    int error = loader->cuda->load_library(&library, autotune_upcast_code(), NULL, NULL, 0, NULL, NULL, 0);
    if (!error) error = loader->cuda->get_kernel(&kernel, library, AT_UPCAST);
    if (!error) error = loader->cuda->kernel_function(&resident, kernel);
    if (!error) *upcast = kernel;
    return told(error);
}

enum { OF_UPCAST = -1 }; /* instead of a kernel of the table */

/* While a stream of this or another thread is captured, code can be loaded in relaxed mode only. The GPU's primary
 * context is made current, since the program's may be another. */
static autotune_status load_apart(at_loader *loader, const autotune_driver *cuda, int32_t device, int32_t kernel) {
    at_open_gpu *gpu = &loader->gpus[device];
    int mode = AT_CAPTURE_RELAXED, error = cuda->push_context(gpu->context);
    uint64_t popped;
    if (error) return told(error);
    error = cuda->exchange_capture_mode(&mode);
    autotune_status status = told(error);
    if (!error) {
        status = kernel == OF_UPCAST
                     ? load_upcast(loader, &gpu->upcast)
                     : load(loader, device, &loader->table->kernels[kernel], &gpu->kernels[kernel]);
        cuda->exchange_capture_mode(&mode);
    }
    cuda->pop_context(&popped);
    return status;
}

autotune_status at_load(at_loader *loader, const autotune_driver *cuda, int32_t device, int32_t kernel,
                        uint64_t *context, at_loaded *loaded) {
    at_open_gpu *gpu = &loader->gpus[device];
    pthread_mutex_lock(&loader->lock);
    const autotune_status status =
        gpu->kernels[kernel].sgemm ? AUTOTUNE_OK : load_apart(loader, cuda, device, kernel);
    *context = gpu->context;
    *loaded = gpu->kernels[kernel];
    pthread_mutex_unlock(&loader->lock);
    return status;
}

autotune_status at_load_upcast(at_loader *loader, const autotune_driver *cuda, int32_t device, uint64_t *upcast) {
    const at_open_gpu *gpu = &loader->gpus[device];
    pthread_mutex_lock(&loader->lock);
    const autotune_status status = gpu->upcast ? AUTOTUNE_OK : load_apart(loader, cuda, device, OF_UPCAST);
    *upcast = gpu->upcast;
    pthread_mutex_unlock(&loader->lock);
    return status;
}
