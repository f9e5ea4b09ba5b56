#include "tensors.h"

#include <string.h>

#include "forks.h"
#include "handle.h"


/* From dlpack.h: DLTensor and the head of DLPackExchangeAPI. */
enum { DEVICE_CUDA = 2, CODE_FLOAT = 2, CODE_BFLOAT = 4 };
enum { VECTOR = 1, MATRIX = 2, STACK = 3 }; /* dimensions */
enum { PLAIN_ARGUMENTS = 7, BIAS = 7, ACTIVATION = 8 };
/* GPUs' memory begins here, as far as is known. A tensor below may have none, and begin somewhere behind address 0:
 * Python looks (arrays.py). So may one less than the second number behind, more than any GPU's memory. */
#define LEAST_ON_GPU (UINT64_C(1) << 33)
#define MOST_BEHIND (UINT64_C(1) << 40)

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

/* The facts of an operand that the call signature does not hold. */
typedef struct {
    uint64_t address;
    int64_t products; /* matrices */
    int32_t num_dimensions;
} operand;

static bool is_of_floats(const tensor *found) {
    return found->device.type == DEVICE_CUDA && found->dtype.code == CODE_FLOAT &&
           found->dtype.bits == 32 && found->dtype.lanes == 1;
}

/* The type of A's elements: AUTOTUNE_A_BF16 and so on; AUTOTUNE_A_FP32 for all others, too. */
static int64_t a_type_of(const tensor *found) {
    const bool is_short = found->dtype.bits == 16 && found->dtype.lanes == 1 && found->device.type == DEVICE_CUDA;
    if (is_short && found->dtype.code == CODE_BFLOAT) return AUTOTUNE_A_BF16;
    return is_short && found->dtype.code == CODE_FLOAT ? AUTOTUNE_A_FP16 : AUTOTUNE_A_FP32;
}

/* Read a tensor as operand number i of a call. False if it is neither a float32 matrix on a GPU nor a stack of such
 * matrices, or has no memory for its elements. */
static bool read_operand(const tensor *found, int i, operand *seen, autotune_kind *kind) {
    const int64_t a_type = i == 0 ? a_type_of(found) : AUTOTUNE_A_FP32;
    if (i == 0) kind->a_type = a_type;
    if (!(a_type || is_of_floats(found)) || (found->num_dimensions != MATRIX && found->num_dimensions != STACK)) return false;
    const int32_t row = found->num_dimensions - 2, column = row + 1;
    seen->address = (uint64_t)(uintptr_t)found->data + found->byte_offset;
    seen->num_dimensions = found->num_dimensions;
    seen->products = row ? found->shape[0] : 1;
    kind->rows[i] = found->shape[row];
    kind->columns[i] = found->shape[column];
    kind->by_row[i] = found->strides ? found->strides[row] : found->shape[column];
    kind->by_column[i] = found->strides ? found->strides[column] : 1;
    kind->batch.stride[i] = 0;
    if (seen->products != 1) {
        kind->batch.stride[i] = found->strides ? found->strides[0] : found->shape[row] * found->shape[column];
    }
    kind->devices[i] = found->device.id;
    kind->low[i] = (uint32_t)(seen->address % AT_ALIGNED);
    const bool has_elements = kind->rows[i] > 0 && kind->columns[i] > 0;
    return seen->products > 0 && (seen->address >= LEAST_ON_GPU || !has_elements);
}

/* Read the bias of a call whose operands are known. False if it is not a packed vector on the same GPU, with a value
 * for each column of C. */
static bool read_bias(const tensor *found, uint64_t *address, const autotune_kind *kind) {
    if (!is_of_floats(found) || found->num_dimensions != VECTOR) return false;
    const bool is_packed = found->shape[0] < 2 || !found->strides || found->strides[0] == 1;
    *address = (uint64_t)(uintptr_t)found->data + found->byte_offset;
    return is_packed && found->shape[0] == kind->columns[2] && found->device.id == kind->devices[0] &&
           *address >= LEAST_ON_GPU && !(*address % AT_FLOAT_BYTES);
}

/* Count the products; an operand with one matrix is shared. False if the numbers of matrices do not agree. */
static bool count_products(const operand seen[3], bool has_out, autotune_kind *kind) {
    const int64_t a = seen[0].products, b = seen[1].products, products = a > b ? a : b;
    const int32_t of_a = seen[0].num_dimensions, of_b = seen[1].num_dimensions;
    kind->batch.products = products;
    if ((a != 1 && a != products) || (b != 1 && b != products)) return false;
    return !has_out || (seen[2].products == products && seen[2].num_dimensions == (of_a > of_b ? of_a : of_b));
}

static const autotune_python *python;

void autotune_use_python(const autotune_python *calls) { python = calls; }

/* Whether a new reference, which is released here, refers to the given object. */
static bool is(void *found, const void *object) {
    if (found) python->release(found);
    return found == object;
}

/* Whether an object is a tensor whose elements are the values in its memory. Also notes whether it needs a gradient. */
static bool is_plain(const autotune_tensors *all, void *object, bool *needs_gradient) {
    if (all->tensor && !is(python->type_of(object), all->tensor)) return false;
    if (all->is_grad_enabled) *needs_gradient |= !is(python->attribute(object, all->requires_grad), python->no);
    return !python->error() && is(python->call(all->is_neg, object, (void *)NULL), python->no);
}

/* Whether the storage of a tensor of floats at an address has memory; it is asked only where it may have none. */
static bool is_stored(const autotune_tensors *all, void *object, uint64_t address) {
    if (address >= MOST_BEHIND) return true;
    void *told = python->call_method(object, all->storage_offset, (void *)NULL);
    const double behind = told ? python->as_double(told) * AT_FLOAT_BYTES : -1;
    if (told) python->release(told);
    return behind >= 0 && (double)address - behind >= (double)LEAST_ON_GPU;
}

static bool look(const autotune_tensors *all, void *object, int i, operand *seen, autotune_kind *kind) {
    const exchange_api *exchange = all->exchange;
    tensor found;
    if (exchange->view(object, &found) || !read_operand(&found, i, seen, kind)) return false;
    return seen->address < LEAST_ON_GPU || is_stored(all, object, seen->address); /* below, it has no elements */
}

typedef struct {
    autotune_kind kind;
    operand of[3];
    uint64_t bias;
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

/* Reads what the epilogue applies: a bias or None, and the number of an activation. */
static bool read_epilogue(const autotune_tensors *all, void *const *arguments, product *found) {
    double activation;
    bool needs_gradient = false;
    const bool has_bias = arguments[BIAS] != python->none;
    if (has_bias && !is_plain(all, arguments[BIAS], &needs_gradient)) return false;
    if (needs_gradient && !is(python->call(all->is_grad_enabled, (void *)NULL), python->no)) return false;
    const exchange_api *exchange = all->exchange;
    tensor bias;
    if (has_bias && exchange->view(arguments[BIAS], &bias)) return false;
    if (has_bias && !read_bias(&bias, &found->bias, &found->kind)) return false;
    if (has_bias && !is_stored(all, arguments[BIAS], found->bias)) return false;
    if (!read_scale(arguments[ACTIVATION], &activation)) return false;
    found->kind.bias = has_bias ? AUTOTUNE_BIAS_COLUMNS : AUTOTUNE_BIAS_NONE;
    found->kind.activation = (int32_t)activation;
    return true;
}

/* A new result is packed, and aligned as allocations are. */
static void expect_new(autotune_kind *kind) {
    kind->rows[2] = kind->trans_a ? kind->columns[0] : kind->rows[0];
    kind->columns[2] = kind->trans_b ? kind->rows[1] : kind->columns[1];
    kind->by_row[2] = kind->columns[2] > 1 ? kind->columns[2] : 1;
    kind->by_column[2] = 1;
    kind->batch.stride[2] = kind->batch.products > 1 ? kind->rows[2] * kind->columns[2] : 0;
    kind->devices[2] = kind->devices[0];
    kind->low[2] = 0;
}

/* Read all arguments. False if such a call is not served. */
static bool read_product(const autotune_tensors *all, void *const *arguments, product *found) {
    const bool has_out = arguments[2] != python->none;
    autotune_kind *kind = &found->kind;
    bool needs_gradient = false;
    for (int i = 0; i < 2 + has_out; i++) {
        if (!is_plain(all, arguments[i], &needs_gradient)) return false;
    }
    if (needs_gradient && !is(python->call(all->is_grad_enabled, (void *)NULL), python->no)) return false;
    if (!read_scale(arguments[3], &found->alpha) || !read_scale(arguments[4], &found->beta)) return false;
    if (!read_flag(arguments[5], &kind->trans_a) || !read_flag(arguments[6], &kind->trans_b)) return false;
    for (int i = 0; i < 2 + has_out; i++) {
        if (!look(all, arguments[i], i, &found->of[i], kind)) return false;
    }
    if (!count_products(found->of, has_out, kind)) return false;
    if (!has_out) expect_new(kind);
    return has_out || found->beta == 0;
}

/* A new tensor for the result. NULL if memory is short, with an error set, or if the tensor is not as expected. */
static void *new_result(const autotune_tensors *all, void *like, product *asked) {
    autotune_kind made = asked->kind;
    const long long rows = made.rows[2], columns = made.columns[2], products = made.batch.products;
    const bool is_stack = asked->of[0].num_dimensions == STACK || asked->of[1].num_dimensions == STACK;
    void *shape = is_stack ? python->build("(LLL)", products, rows, columns) : python->build("(LL)", rows, columns);
    void *out = shape ? python->call_method(like, all->new_empty, shape, (void *)NULL) : NULL;
    if (shape) python->release(shape);
    if (!out || (look(all, out, 2, &asked->of[2], &made) && !made.low[2])) return out;
    python->release(out);
    return NULL;
}

static autotune_status launch(const autotune_tensors *all, const product *asked, const autotune_plan *plan) {
    const exchange_api *exchange = all->exchange;
    const at_operands at = {asked->of[0].address, asked->of[1].address, asked->of[2].address, asked->bias};
    void *stream = NULL;
    if (at_overlap(plan, at) ||
        exchange->current_stream(DEVICE_CUDA, plan->planned.device, &stream)) {
        return AUTOTUNE_UNKNOWN;
    }
    void *state = python->save_thread(); /* a launch may wait until a full stream has room */
    const autotune_status status = autotune_run_plan(all->handle, plan, (uint64_t)(uintptr_t)stream, at.a, at.b, at.c,
                                                     at.bias, asked->alpha, asked->beta);
    python->restore_thread(state);
    return status;
}

/* True if the status is OK, or if a kernel served anyway; else an error of Python is set. */
static bool is_told(const autotune_tensors *all, autotune_status status, void *const *arguments) {
    if (status == AUTOTUNE_OK) return true;
    void *number = python->build("i", (int)status);
    void *told = number ? python->call(all->tell, number, arguments[3], arguments[4], (void *)NULL) : NULL;
    if (number) python->release(number);
    if (told) python->release(told);
    return told;
}

/* Tells the library, if it counts writes, that a tensor was written. If that fails, an error of Python is set. */
static bool is_counted(const autotune_tensors *all, void *out) {
    if (!all->wrote) return true;
    void *counted = python->call(all->wrote, out, (void *)NULL);
    if (counted) python->release(counted);
    return counted;
}

static void *answer(void *object) {
    python->clear_error(); /* the code that is called next reports what is wrong */
    python->hold(object);
    return object;
}

/* The result as a new reference; on failure NULL, with an error set. */
static void *served(const autotune_tensors *all, void *const *arguments, product *asked, const autotune_plan *plan) {
    const bool has_out = arguments[2] != python->none;
    void *out = has_out ? arguments[2] : new_result(all, arguments[1], asked);
    const autotune_status status = out ? launch(all, asked, plan) : AUTOTUNE_UNKNOWN;
    const bool is_served =
        status != AUTOTUNE_UNKNOWN && is_told(all, status, arguments) && (!has_out || is_counted(all, out));
    if (is_served) python->hold(out);
    if (out && !has_out) python->release(out);
    return is_served ? out : status == AUTOTUNE_UNKNOWN ? answer(python->none) : NULL;
}

void autotune_count_call(autotune_plan *plan) { at_count_call(plan); }

void *autotune_sgemm_of_tensors(void *self, void *const *arguments, intptr_t num) {
    const autotune_tensors *all = python->as_address(self);
    product asked = {.alpha = 1};
    if (at_is_forked()) { /* a lock may be held by a thread that does not exist here */
        return is_told(all, AUTOTUNE_FORKED, arguments) ? answer(python->none) : NULL;
    }
    const bool is_read = read_product(all, arguments, &asked) &&
                         (num == PLAIN_ARGUMENTS || read_epilogue(all, arguments, &asked));
    bool is_left_alone = false;
    at_runner *runner = all->handle->runner;
    autotune_plan *plan = is_read ? at_recall(runner, &asked.kind, AUTOTUNE_AS_SETTLED, 0, &is_left_alone) : NULL;
    if (!plan) return answer(is_left_alone ? python->no : python->none);
    at_count_call(plan);
    void *result = served(all, arguments, &asked, plan);
    at_plan_release(plan);
    return result;
}

autotune_plan *autotune_meet(autotune_handle *handle, const void *a, const void *b, const void *out, const void *bias,
                             int32_t wanted, uint64_t signature, int32_t *answer) {
    const tensor *const operands[] = {a, b, out};
    product asked = {.kind.bias = bias ? AUTOTUNE_BIAS_COLUMNS : AUTOTUNE_BIAS_NONE};
    *answer = AUTOTUNE_SERVED;
    if (at_is_forked()) return NULL;
    for (int i = 0; i < 2 + (out != NULL); i++) {
        if (!read_operand(operands[i], i, &asked.of[i], &asked.kind)) return NULL;
    }
    if (!count_products(asked.of, out, &asked.kind)) return NULL;
    if (!out) expect_new(&asked.kind);
    if (bias && !read_bias(bias, &asked.bias, &asked.kind)) return NULL;
    bool is_left_alone;
    autotune_plan *plan = at_recall(handle->runner, &asked.kind, wanted, signature, &is_left_alone);
    *answer = is_left_alone ? AUTOTUNE_LEFT_ALONE : plan && plan->live ? AUTOTUNE_TURN : AUTOTUNE_SERVED;
    return plan;
}

int32_t autotune_leaves_alone(const autotune_handle *handle, uint64_t signature) {
    return at_is_left_alone(handle->runner, signature);
}

static uint64_t address_of(const tensor *x) { return x ? (uint64_t)(uintptr_t)x->data + x->byte_offset : 0; }

autotune_status autotune_serve(const autotune_handle *handle, autotune_plan *plan, const void *a, const void *b,
                               const void *c, const void *bias, double alpha, double beta, void *stream) {
    const at_operands at = {address_of(a), address_of(b), address_of(c), address_of(bias)};
    if (at.c < LEAST_ON_GPU || at.c % AT_ALIGNED != plan->planned.low[2]) return AUTOTUNE_UNKNOWN;
    if (at_overlap(plan, at)) return AUTOTUNE_OVERLAP;
    const autotune_status status = autotune_run_plan(handle, plan, (uint64_t)(uintptr_t)stream, at.a, at.b, at.c,
                                                     at.bias, alpha, beta);
    if (!status) at_count_call(plan);
    return status;
}

uint64_t autotune_tensor_calls(const autotune_plan *plan) {
    return atomic_load_explicit(&plan->num_tensor_calls, memory_order_relaxed);
}
