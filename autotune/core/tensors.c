#include "tensors.h"

#include <string.h>

#include "handle.h"

/* Of dlpack.h: DLTensor and the head of DLPackExchangeAPI. */
enum { DEVICE_CUDA = 2, CODE_FLOAT = 2 };

typedef struct {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t num_dimensions;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    const int64_t *shape, *strides;
    uint64_t byte_offset;
} tensor;

typedef struct {
    struct {
        uint32_t major, minor;
        void *previous;
    } header;
    int (*allocate)(void);
    int (*from_object)(void);
    int (*to_object)(void);
    int (*view)(void *object, tensor *found); /* borrows: valid as long as the object is held and not changed */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} exchange_api;

static bool is_float_matrix(const tensor *found) {
    return found->device.type == DEVICE_CUDA && found->num_dimensions == 2 && found->dtype.code == CODE_FLOAT &&
           found->dtype.bits == 32 && found->dtype.lanes == 1;
}

/* Look at a tensor as operand number i. False for what is no float32 matrix on a GPU. */
static bool look(const exchange_api *exchange, void *object, int i, autotune_kind *kind, uint64_t *address) {
    tensor found;
    if (exchange->view(object, &found) || !is_float_matrix(&found)) return false;
    *address = (uint64_t)(uintptr_t)found.data + found.byte_offset;
    kind->rows[i] = found.shape[0];
    kind->columns[i] = found.shape[1];
    kind->by_row[i] = found.strides ? found.strides[0] : found.shape[1];
    kind->by_column[i] = found.strides ? found.strides[1] : 1;
    kind->devices[i] = found.device.id;
    kind->low[i] = (uint32_t)(*address % AT_ALIGNED);
    return true;
}

static autotune_status served(autotune_handle *handle, const autotune_python *python, const autotune_plan *plan,
                              uint64_t stream, const uint64_t at[3], double alpha, double beta) {
    if (at_overlap(plan, (at_operands){at[0], at[1], at[2]})) return AUTOTUNE_UNKNOWN;
    void *state = python->save_thread(); /* a launch may wait, for a stream that is full */
    const autotune_status status = autotune_run_plan(handle, plan, stream, at[0], at[1], at[2], alpha, beta);
    python->restore_thread(state);
    return status;
}

autotune_status autotune_multiply(autotune_handle *handle, const autotune_python *python, const void *exchange,
                                  void *a, void *b, void *c, double alpha, double beta, int32_t trans_a,
                                  int32_t trans_b) {
    if (at_is_forked()) return AUTOTUNE_FORKED; /* a lock may have been held by a thread that is not here */
    const exchange_api *api = exchange;
    autotune_kind kind = {.trans_a = trans_a, .trans_b = trans_b};
    uint64_t at[3];
    void *objects[3] = {a, b, c}, *stream = NULL;
    for (int i = 0; i < 3; i++) {
        if (!look(api, objects[i], i, &kind, &at[i])) {
            python->clear_error(); /* whoever is called next says what is wrong */
            return AUTOTUNE_UNKNOWN;
        }
    }
    autotune_plan *plan = at_recall(handle->runner, &kind);
    if (!plan) return AUTOTUNE_UNKNOWN;
    autotune_status status = AUTOTUNE_UNKNOWN;
    if (api->current_stream(DEVICE_CUDA, plan->planned.device, &stream)) {
        python->clear_error();
    } else {
        status = served(handle, python, plan, (uint64_t)(uintptr_t)stream, at, alpha, beta);
    }
    at_plan_release(plan);
    return status;
}
