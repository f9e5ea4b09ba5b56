/* The functions of the CUDA driver that the core calls: found at run time, so that the core builds without
 * CUDA. Types are those of cuda.h, handles are addresses. */

#ifndef AUTOTUNE_DRIVER_H
#define AUTOTUNE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AT_PER_THREAD_STREAM 2 /* CU_STREAM_PER_THREAD */
#define AT_CAPTURE_RELAXED 2   /* CU_STREAM_CAPTURE_MODE_RELAXED */
#define AT_IS_CAPTURED 1       /* CU_STREAM_CAPTURE_STATUS_ACTIVE */
#define AT_NO_SYNC 1           /* CU_USER_OBJECT_NO_DESTRUCTOR_SYNC */
#define AT_MOVE 1              /* CU_GRAPH_USER_OBJECT_MOVE: the graph takes the reference over */
#define AT_OVERLAPS 6          /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */

/* CUlaunchAttribute, with the one value that is used here. */
typedef struct {
    int32_t id;
    char padding[8 - sizeof(int32_t)];
    union {
        char bytes[64];
        int32_t flag;
    } value;
} at_launch_attribute;

/* CUlaunchConfig. */
typedef struct {
    uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes;
    uint64_t stream;
    at_launch_attribute *attributes;
    uint32_t num_attributes;
} at_launch_config;

/* CUmemPoolProps. */
typedef struct {
    int32_t allocation, handles;
    struct {
        int32_t type, id;
    } location;
    void *security;
    size_t most_bytes;
    unsigned char reserved[56];
} at_pool_properties;

/* Each returns a CUresult, 0 for success. */
typedef struct {
    int (*current_context)(uint64_t *context);
    int (*push_context)(uint64_t context);
    int (*pop_context)(uint64_t *context);
    int (*launch)(const at_launch_config *config, uint64_t kernel, void **arguments, void **extra);
    int (*stream_id)(uint64_t stream, uint64_t *id);
    int (*is_capturing)(uint64_t stream, int *status);
    int (*exchange_capture_mode)(int *mode);
    int (*make_pool)(uint64_t *pool, const at_pool_properties *properties);
    int (*set_pool)(uint64_t pool, int attribute, void *value);
    int (*allocate)(uint64_t *address, size_t num_bytes, uint64_t pool, uint64_t stream);
    int (*free)(uint64_t address, uint64_t stream);
    int (*zero)(uint64_t address, unsigned char value, size_t num_bytes, uint64_t stream);
    int (*allocate_now)(uint64_t *address, size_t num_bytes);
    int (*capture_info)(uint64_t stream, int *status, uint64_t *id, uint64_t *graph, void *nodes, void *num_nodes);
    int (*make_user_object)(uint64_t *object, void *of, void (*at_end)(void *of), unsigned references, unsigned flags);
    int (*retain_user_object)(uint64_t graph, uint64_t object, unsigned references, unsigned flags);
    int (*release_user_object)(uint64_t object, unsigned references);
    int (*make_event)(uint64_t *event, unsigned flags);
    int (*free_event)(uint64_t event);
    int (*record_event)(uint64_t event, uint64_t stream);
    int (*query_event)(uint64_t event);
    int (*elapsed)(float *ms, uint64_t first, uint64_t last);
    int (*query_stream)(uint64_t stream);
} autotune_driver;

/* Makes a context the thread's current one, if it is not. `is_pushed`: it is to be popped again. */
static inline int at_enter_context(const autotune_driver *cuda, uint64_t context, bool *is_pushed) {
    uint64_t current = 0;
    *is_pushed = cuda->current_context(&current) || current != context;
    return *is_pushed ? cuda->push_context(context) : 0;
}

#define AT_DRIVER "libcuda.so.1"

/* Finds functions of a library by name, and stores them one after the other. False if it is NULL, or lacks
 * one. */
bool at_find_calls(void *library, const char *const *names, size_t num_names, void *calls);

/* Finds these functions in the driver of this process. NULL if there is none, or it lacks one. */
const autotune_driver *at_find_driver(void);

#endif
