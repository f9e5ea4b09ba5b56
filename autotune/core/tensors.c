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

static const autotune_python *python;

void autotune_use_python(const autotune_python *calls) { python = calls; }

/* Of a new reference, which is given back: whether it is an object that is there anyway. */
static bool is(void *found, const void *object) {
    if (found) python->release(found);
    return found == object;
}

/* Whether an object is a tensor whose elements are what its memory holds; and whether it needs a gradient. */
static bool is_plain(const autotune_tensors *all, void *object, bool *needs_gradient) {
    if (!is(python->type_of(object), all->tensor)) return false;
    *needs_gradient |= !is(python->attribute(object, all->requires_grad), python->no);
    return !python->error() && is(python->call(all->is_neg, object, (void *)NULL), python->no);
}

typedef struct {
    autotune_kind kind;
    uint64_t at[3];
    double alpha, beta;
} product;

static bool read_scale(void *object, double *scale) {
    *scale = python->as_double(object);
    return *scale != -1.0 || !python->error();
}

static bool read_flag(const void *object, int32_t *flag) {
    *flag = object == python->yes;
    return *flag || object == python->no;
}

/* Read all arguments, and make the result where none is given: *out, which the caller then owns. False for what is
 * not served. */
static bool read_product(const autotune_tensors *all, void *const *arguments, product *found, void **out) {
    const bool has_out = *out != python->none;
    autotune_kind *kind = &found->kind;
    bool needs_gradient = false;
    for (int i = 0; i < 2 + has_out; i++) {
        if (!is_plain(all, arguments[i], &needs_gradient)) return false;
    }
    if (needs_gradient && !is(python->call(all->is_grad_enabled, (void *)NULL), python->no)) return false;
    if (!read_scale(arguments[3], &found->alpha) || !read_scale(arguments[4], &found->beta)) return false;
    if (!read_flag(arguments[5], &kind->trans_a) || !read_flag(arguments[6], &kind->trans_b)) return false;
    for (int i = 0; i < 2; i++) {
        if (!look(all->exchange, arguments[i], i, kind, &found->at[i])) return false;
    }
    if (!has_out) {
        if (found->beta != 0) return false;
        const long long m = kind->trans_a ? kind->columns[0] : kind->rows[0];
        const long long n = kind->trans_b ? kind->rows[1] : kind->columns[1];
        void *shape = python->build("(LL)", m, n);
        *out = shape ? python->call_method(arguments[0], all->new_empty, shape, (void *)NULL) : NULL;
        if (shape) python->release(shape);
    }
    return *out && look(all->exchange, *out, 2, kind, &found->at[2]);
}

static autotune_status served(const autotune_tensors *all, const product *asked) {
    const exchange_api *exchange = all->exchange;
    autotune_plan *plan = at_recall(all->handle->runner, &asked->kind);
    if (!plan) return AUTOTUNE_UNKNOWN;
    autotune_status status = AUTOTUNE_UNKNOWN;
    const uint64_t *at = asked->at;
    void *stream = NULL;
    if (!at_overlap(plan, (at_operands){at[0], at[1], at[2]}) &&
        !exchange->current_stream(DEVICE_CUDA, plan->planned.device, &stream)) {
        void *state = python->save_thread(); /* a launch may wait, for a stream that is full */
        status = autotune_run_plan(all->handle, plan, (uint64_t)(uintptr_t)stream, at[0], at[1], at[2], asked->alpha,
                                   asked->beta);
        python->restore_thread(state);
    }
    at_plan_release(plan);
    return status;
}

/* Whether a status is none, or a kernel served all the same: else an error of Python is set. */
static bool is_told(const autotune_tensors *all, autotune_status status, void *const *arguments) {
    if (status == AUTOTUNE_OK) return true;
    void *number = python->build("i", (int)status);
    void *told = number ? python->call(all->tell, number, arguments[3], arguments[4], (void *)NULL) : NULL;
    if (number) python->release(number);
    if (told) python->release(told);
    return told;
}

void *autotune_sgemm_of_tensors(void *self, void *const *arguments, intptr_t num) {
    const autotune_tensors *all = python->as_address(self);
    void *out = arguments[2];
    product asked = {.alpha = 1};
    autotune_status status = AUTOTUNE_FORKED; /* a lock may have been held by a thread that is not here */
    (void)num;
    if (!at_is_forked()) {
        status = read_product(all, arguments, &asked, &out) ? served(all, &asked) : AUTOTUNE_UNKNOWN;
        if (status == AUTOTUNE_UNKNOWN) python->clear_error(); /* whoever is called next says what is wrong */
    }
    void *result = status == AUTOTUNE_UNKNOWN ? python->none : is_told(all, status, arguments) ? out : NULL;
    if (result) python->hold(result);
    if (out && out != arguments[2]) python->release(out); /* it is new, and this was its one reference */
    return result;
}
