/* Stands in for the driver of CUDA, libcuda.so.1: its device memory is the host's, and its kernels compute from the
 * arguments that a launch passes. A "cubin" is a line of text with what this has to know of a kernel. */

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define OUT __attribute__((visibility("default")))
enum { INVALID_VALUE = 1, INVALID_CONTEXT = 201, MAJOR = 75, NUM_GPUS = 2 };

typedef struct {
    int threads, registers, split_k, is_cluster, trans_a, trans_b, packs_a, packs_b, is_two_pass, is_batched;
    int bias, activation; /* as core/table.h and autotune_sgemm.h number them */
    char name[16];
} kernel;

static _Thread_local uint64_t current[8];
static _Thread_local int depth, mode;
static atomic_int num_allocations, num_launches;
static int context_of_gpu_0 = 7;

/* What a GPU holds is no leak of the host: a list keeps it. */
static void *held[1 << 12];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void exchange(void *old, void *other) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (held[i] != old) i++;
    held[i] = other;
    pthread_mutex_unlock(&lock);
}

static const char *told(const char *name, const char *otherwise) {
    const char *found = getenv(name);
    return found ? found : otherwise;
}

/* A thread within the call that STANDIN_HOLDS names stays there until it is released. */
static sem_t is_held, is_released;
__attribute__((constructor)) static void begin(void) {
    sem_init(&is_held, 0, 0);
    sem_init(&is_released, 0, 0);
}
static void hold(const char *call) {
    if (strcmp(told("STANDIN_HOLDS", ""), call)) return;
    sem_post(&is_held);
    sem_wait(&is_released);
}
OUT void standin_wait_until_held(void) { sem_wait(&is_held); }
OUT void standin_release(void) { sem_post(&is_released); }

OUT int cuInit(unsigned flags) {
    hold("cuInit");
    return flags ? INVALID_VALUE : 0;
}
OUT int cuCtxGetDevice(int32_t *device) {
    *device = depth ? (int32_t)current[depth - 1] - context_of_gpu_0 : 0;
    return depth ? 0 : INVALID_CONTEXT;
}
OUT int cuDeviceGetName(char *name, int num_bytes, int32_t device) {
    const char *const names[NUM_GPUS] = {told("STANDIN_GPU", "NVIDIA H200"), told("STANDIN_OTHER_GPU", "NVIDIA H200")};
    if (device >= NUM_GPUS) return INVALID_VALUE;
    snprintf(name, (size_t)num_bytes, "%s", names[device]);
    return 0;
}
OUT int cuDeviceGetAttribute(int *value, int attribute, int32_t device) {
    *value = attribute == MAJOR ? 9 : 0;
    return device < NUM_GPUS ? 0 : INVALID_VALUE;
}
OUT int cuDevicePrimaryCtxRetain(uint64_t *context, int32_t device) {
    *context = (uint64_t)(context_of_gpu_0 + device);
    return device < NUM_GPUS ? 0 : INVALID_VALUE;
}
OUT int cuCtxGetCurrent(uint64_t *context) {
    *context = depth ? current[depth - 1] : 0;
    return 0;
}
OUT int cuCtxSetCurrent(uint64_t context) {
    depth = context ? 1 : 0;
    current[0] = context;
    return 0;
}
OUT int cuCtxPushCurrent_v2(uint64_t context) {
    current[depth++] = context;
    return 0;
}
OUT int cuCtxPopCurrent_v2(uint64_t *context) {
    *context = current[--depth];
    return 0;
}
OUT int cuThreadExchangeStreamCaptureMode(int *other) {
    const int before = mode;
    mode = *other;
    *other = before;
    return 0;
}
OUT int cuStreamGetId(uint64_t stream, uint64_t *id) {
    *id = stream + 1000;
    return stream == 99 ? 900 : 0; /* which ends the capture */
}
OUT int cuStreamIsCapturing(uint64_t stream, int *status) {
    *status = stream == 99;
    return 0;
}

OUT int cuLibraryLoadData(uint64_t *library, const void *code, void *jit, void **values, unsigned num, void *options,
                          void **more, unsigned num_more) {
    hold("cuLibraryLoadData");
    *library = (uint64_t)(uintptr_t)code;
    const int is_plain = !jit && !values && !num && !options && !more && !num_more;
    return is_plain && mode == AT_CAPTURE_RELAXED ? 0 : INVALID_VALUE;
}
OUT int cuLibraryGetKernel(uint64_t *found, uint64_t library, const char *name) {
    kernel *made = calloc(1, sizeof *made);
    exchange(NULL, made);
    const char *text = (const char *)(uintptr_t)library;
    snprintf(made->name, sizeof made->name, "%s", name);
    *found = (uint64_t)(uintptr_t)made;
    if (!strcmp(name, "upcast")) return strncmp(text, ".version", 8) || !strstr(text, ".entry upcast(");
    const int num = sscanf(text, "%d %d %d %d %d %d %d %d %d %d %d %d", &made->threads, &made->registers, &made->split_k,
                           &made->is_cluster, &made->trans_a, &made->trans_b, &made->packs_a, &made->packs_b,
                           &made->is_two_pass, &made->is_batched, &made->bias, &made->activation);
    if (strcmp(name, "sgemm")) made->threads = 256;
    return num == 12 ? 0 : INVALID_VALUE;
}
static kernel *of(uint64_t handle) { return (kernel *)(uintptr_t)handle; }
OUT int cuKernelGetAttribute(int *value, int attribute, uint64_t handle, int32_t device) {
    const int is_cluster = of(handle)->is_cluster && !strcmp(of(handle)->name, "sgemm");
    switch (attribute) {
        case 0: *value = of(handle)->threads; break;
        case 1: *value = 0; break;
        case 4: *value = of(handle)->registers; break;
        case 11: case 13: *value = is_cluster; break;
        case 12: *value = is_cluster ? of(handle)->split_k : 0; break;
        default: return INVALID_VALUE;
    }
    return device < NUM_GPUS ? 0 : INVALID_VALUE;
}
OUT int cuKernelSetAttribute(int attribute, int value, uint64_t handle, int32_t device) {
    return attribute == 8 && value > 0 && handle && device < NUM_GPUS ? 0 : INVALID_VALUE;
}
OUT int cuKernelGetFunction(uint64_t *function, uint64_t handle) {
    *function = handle;
    return depth && mode == AT_CAPTURE_RELAXED ? 0 : INVALID_CONTEXT;
}

OUT int cuMemPoolCreate(uint64_t *pool, const at_pool_properties *properties) {
    *pool = 5;
    return properties->allocation == 1 && properties->location.type == 1 ? 0 : INVALID_VALUE;
}
OUT int cuMemPoolSetAttribute(uint64_t pool, int attribute, void *value) {
    return pool == 5 && attribute == 4 && *(uint64_t *)value ? 0 : INVALID_VALUE;
}
OUT int cuMemAllocFromPoolAsync(uint64_t *address, size_t num_bytes, uint64_t pool, uint64_t stream) {
    void *memory = aligned_alloc(256, (num_bytes + 255) / 256 * 256);
    exchange(NULL, memory);
    memset(memory, 0xFF, num_bytes); /* NaN as floats, not zero as counters */
    *address = (uint64_t)(uintptr_t)memory;
    atomic_fetch_add(&num_allocations, 1);
    return pool == 5 && stream != 98 && mode == AT_CAPTURE_RELAXED ? 0 : INVALID_VALUE;
}
OUT int cuMemFreeAsync(uint64_t address, uint64_t stream) {
    exchange((void *)(uintptr_t)address, NULL);
    free((void *)(uintptr_t)address);
    atomic_fetch_sub(&num_allocations, 1);
    return stream != 98 ? 0 : INVALID_VALUE;
}
OUT int cuMemsetD8Async(uint64_t address, unsigned char value, size_t num_bytes, uint64_t stream) {
    memset((void *)(uintptr_t)address, value, num_bytes);
    return stream != 98 ? 0 : INVALID_VALUE;
}
OUT int cuMemAlloc_v2(uint64_t *address, size_t num_bytes) {
    void *memory = aligned_alloc(256, (num_bytes + 255) / 256 * 256);
    exchange(NULL, memory);
    *address = (uint64_t)(uintptr_t)memory;
    return depth ? 0 : INVALID_CONTEXT;
}
OUT int cuStreamGetCaptureInfo_v2(uint64_t stream, int *status, uint64_t *id, uint64_t *graph, void *nodes,
                                  void *num_nodes) {
    *status = stream == 99;
    *id = *graph = 1;
    return nodes || num_nodes ? INVALID_VALUE : 0;
}
/* Nothing here is asynchronous, and no time passes. */
OUT int cuEventCreate(uint64_t *event, unsigned flags) {
    *event = 1;
    return flags ? INVALID_VALUE : 0;
}
OUT int cuEventDestroy_v2(uint64_t event) { return event == 1 ? 0 : INVALID_VALUE; }
OUT int cuEventRecord(uint64_t event, uint64_t stream) { return event == 1 && stream != 99 ? 0 : INVALID_VALUE; }
OUT int cuEventQuery(uint64_t event) { return event == 1 ? 0 : INVALID_VALUE; }
OUT int cuEventElapsedTime(float *ms, uint64_t first, uint64_t last) {
    *ms = 1;
    return first == 1 && last == 1 ? 0 : INVALID_VALUE;
}
OUT int cuStreamQuery(uint64_t stream) { return stream == 99 ? INVALID_VALUE : 0; }
/* The graph of stream 99, and what it calls at its end. */
static void (*end_of_graph)(void *);
static void *held_by_graph;
OUT int cuUserObjectCreate(uint64_t *object, void *of, void (*at_end)(void *), unsigned references, unsigned flags) {
    *object = (uint64_t)(uintptr_t)of;
    end_of_graph = at_end;
    return at_end && references == 1 && flags == 1 ? 0 : INVALID_VALUE;
}
OUT int cuGraphRetainUserObject(uint64_t graph, uint64_t object, unsigned references, unsigned flags) {
    exchange(NULL, held_by_graph = (void *)(uintptr_t)object);
    return graph == 1 && references == 1 && flags == 1 ? 0 : INVALID_VALUE;
}
OUT int cuUserObjectRelease(uint64_t object, unsigned references) { return object && references ? 0 : INVALID_VALUE; }
OUT int cuCtxSynchronize(void) { return depth ? 0 : INVALID_CONTEXT; }
OUT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t num_bytes) {
    memcpy((void *)(uintptr_t)to, from, num_bytes);
    return 0;
}
OUT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t num_bytes) {
    memcpy(to, (const void *)(uintptr_t)from, num_bytes);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- kernels */

#define INT(i) (*(const int32_t *)arguments[i])
#define LONG(i) (*(const int64_t *)arguments[i])
#define FLOAT(i) (*(const float *)arguments[i])
#define FLOATS(i) (*(float **)arguments[i])

static void pack(const at_launch_config *config, void **arguments) {
    const int extent = INT(0), k = INT(1), padded = INT(6), is_k_major = INT(4);
    const int64_t ld = LONG(3), stride = LONG(8), products = config->grid_x / (uint32_t)INT(7);
    for (int64_t product = 0; product < products; product++) {
        const float *from = FLOATS(2) + product * stride;
        float *to = FLOATS(5) + product * k * padded;
        for (int64_t at = 0; at < k; at++) {
            for (int64_t i = 0; i < padded; i++) {
                to[at * padded + i] = i >= extent ? 0 : is_k_major ? from[i * ld + at] : from[at * ld + i];
            }
        }
    }
}

/* BF16 alone. */
static int upcast(const at_launch_config *config, void **arguments) {
    const int64_t ld = LONG(2), stride = LONG(3), rows = INT(4), columns = INT(5);
    const int64_t blocks = rows * ((columns + 1023) / 1024), products = config->grid_x / blocks;
    if (config->block_x != 256 || config->grid_x % blocks || config->num_attributes || INT(6)) return INVALID_VALUE;
    for (int64_t i = 0; i < products * rows * columns; i++) {
        const int64_t product = i / columns / rows, row = i / columns % rows;
        const uint32_t bits = (uint32_t)(*(const uint16_t **)arguments[0])[product * stride + row * ld + i % columns] << 16;
        memcpy(&FLOATS(1)[i], &bits, sizeof bits);
    }
    return 0;
}

/* `Batch` of the kernels. */
typedef struct {
    int64_t strides[3];
    int32_t products;
} batch;

/* `Epilogue` of the kernels: a bias and what is never used here. */
typedef struct {
    const float *bias;
    uint64_t others[4];
} epilogue;

static int is_as_compiled(const kernel *self, const epilogue *of) {
    const int is_for_columns = self->bias == 2;
    return !of->bias == !is_for_columns && (is_for_columns || !self->bias) &&
           !(of->others[0] | of->others[1] | of->others[2] | of->others[3]);
}

static float finished(const kernel *self, const epilogue *of, double sum, float alpha, float beta, float old,
                      int64_t column) {
    double x = (double)alpha * sum + (beta != 0 ? (double)(beta * old) : 0) + (of->bias ? (double)of->bias[column] : 0);
    if (self->activation == 1) x = x < 0 ? 0 : x;
    if (self->activation == 2) x *= 0.5 * (1 + erf(x * sqrt(0.5)));
    if (self->activation == 3) x *= 0.5 * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return (float)x;
}

/* Kernels whose last block adds up, or none: everything at once. Two passes: the sums of all k in the first plane. */
static void multiply_one(const kernel *self, void **arguments, int64_t product) {
    const batch *of = arguments[14];
    const int64_t m = INT(0), n = INT(1), k = INT(2), lda = LONG(5), ldb = LONG(7), ldc = LONG(10);
    const float alpha = FLOAT(3), beta = FLOAT(8);
    const float *a = FLOATS(4), *b = FLOATS(6); /* NULL, if they are not read */
    if (product) a += product * of->strides[0], b += product * of->strides[1];
    const int a_by_k = self->trans_a || self->packs_a, b_by_n = self->trans_b && !self->packs_b;
    const int64_t padded_n = (n + 63) / 64 * 64, padded_m = (m + 63) / 64 * 64;
    float *c = FLOATS(9) + product * of->strides[2];
    float *workspace = self->is_two_pass ? FLOATS(11) + product * INT(12) * padded_m * padded_n : NULL;
    for (int split = 1; self->is_two_pass && split < INT(12); split++) {
        memset(workspace + split * padded_m * padded_n, 0, sizeof(float) * (size_t)(padded_m * padded_n));
    }
    for (int64_t row = 0; row < m; row++) {
        for (int64_t column = 0; column < n; column++) {
            double sum = 0;
            for (int64_t at = 0; at < k && alpha != 0; at++) {
                const float left = a_by_k ? a[at * lda + row] : a[row * lda + at];
                sum += (double)left * (double)(b_by_n ? b[column * ldb + at] : b[at * ldb + column]);
            }
            if (self->is_two_pass) {
                workspace[row * padded_n + column] = (float)sum;
            } else {
                float *to = &c[row * ldc + column];
                *to = finished(self, arguments[15], sum, alpha, beta, *to, column);
            }
        }
    }
}

static int multiply(const kernel *self, const at_launch_config *config, void **arguments) {
    const batch *of = arguments[14];
    if (config->block_x != (uint32_t)self->threads || config->grid_z != 1) return INVALID_VALUE;
    if (config->num_attributes != 1 || config->attributes->id != AT_OVERLAPS) return INVALID_VALUE;
    if (self->is_batched != (of->products > 1) || !is_as_compiled(self, arguments[15])) return INVALID_VALUE;
    for (int64_t product = 0; product < of->products; product++) multiply_one(self, arguments, product);
    return 0;
}

static void reduce_one(const kernel *self, void **arguments, int64_t product) {
    const int64_t m = INT(0), n = INT(1), ldc = LONG(5), padded_m = INT(8), padded_n = INT(9);
    const float alpha = FLOAT(2), beta = FLOAT(3);
    const float *workspace = FLOATS(6) + product * INT(7) * padded_m * padded_n;
    float *c = FLOATS(4) + product * LONG(12);
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0;
        for (int64_t split = 0; split < INT(7); split++) {
            sum += (double)workspace[(split * padded_m + i / n) * padded_n + i % n];
        }
        float *to = &c[i / n * ldc + i % n];
        *to = finished(self, arguments[13], sum, alpha, beta, *to, i % n);
    }
}

OUT int cuLaunchKernelEx(const at_launch_config *config, uint64_t handle, void **arguments, void **extra) {
    const kernel *self = of(handle);
    if (!depth || extra || current[depth - 1] - (uint64_t)context_of_gpu_0 >= NUM_GPUS) return INVALID_CONTEXT;
    atomic_fetch_add(&num_launches, 1);
    if (config->stream == 97) return 700; /* an illegal access */
    if (!strcmp(self->name, "sgemm_pack")) return pack(config, arguments), 0;
    if (!strcmp(self->name, "upcast")) return upcast(config, arguments);
    for (int64_t product = 0; !strcmp(self->name, "sgemm_reduce"); product++) {
        if (product == config->grid_x / (uint32_t)INT(11)) return 0;
        reduce_one(self, arguments, product);
    }
    return multiply(self, config, arguments);
}

OUT void standin_end_graph(void) {
    exchange(held_by_graph, NULL);
    end_of_graph(held_by_graph);
}

/* For the test: memory that is still taken, and launches so far. */
OUT int standin_allocations(void) { return atomic_load(&num_allocations); }
OUT int standin_launches(void) { return atomic_load(&num_launches); }
