/* The calls of a program in C. The plan of a known call signature is looked up; for a new kind a kernel is chosen,
 * loaded and planned. */

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"
#include "find_blas.h"
#include "forks.h"
#include "handle.h"
#include "loader.h"

#define RECORD "AUTOTUNE_RECORD"      /* a file: calls are recorded */
#define MAX_EXTENT (INT32_MAX - 255) /* kernels round up to whole tiles, of at most 256: gemm.py */
#define LEAST_ADDRESS (1 << 16)       /* below, systems leave everything unmapped: a matrix has no memory there */
#define MAX_REACH ((double)(1LL << 60)) /* elements of a matrix from its first row to its last: bytes fit 64 bits */

/* A row-major call. */
typedef struct {
    int trans_a, trans_b, m, n, k;
    uint64_t at[3];
    int64_t ld[3];
    autotune_batch batch;
    uint64_t bias; /* 0: none */
    int activation;
    int a_type;
} row_major;

static int layout_of(int trans_a, int trans_b, int a_type) {
    const int plain = trans_a ? (trans_b ? AUTOTUNE_TT : AUTOTUNE_TN) : trans_b ? AUTOTUNE_NT : AUTOTUNE_NN;
    return plain + AUTOTUNE_FLOAT_LAYOUTS * a_type;
}

/* Extents of the matrices as they are stored. */
static autotune_kind kind_of(const row_major *call, int32_t device) {
    autotune_kind kind = {
        .rows = {call->trans_a ? call->k : call->m, call->trans_b ? call->n : call->k, call->m},
        .columns = {call->trans_a ? call->m : call->k, call->trans_b ? call->k : call->n, call->n},
        .batch = call->batch,
        .by_column = {1, 1, 1},
        .devices = {device, device, device},
        .trans_a = call->trans_a,
        .trans_b = call->trans_b,
        .bias = call->bias ? AUTOTUNE_BIAS_COLUMNS : AUTOTUNE_BIAS_NONE,
        .activation = call->activation,
        .a_type = call->a_type,
    };
    for (int i = 0; i < 3; i++) {
        kind.by_row[i] = call->ld[i];
        kind.low[i] = (uint32_t)(call->at[i] % AT_ALIGNED);
    }
    return kind;
}

/* Each product has a C of its own. No C may overlap another; one may lie between another's rows only as whole rows. */
static bool has_batch_in_range(const row_major *call, const autotune_kind *kind) {
    const autotune_batch *batch = &call->batch;
    if (batch->products < 0 || batch->products > INT32_MAX) return false;
    if (batch->products < 2) return true;
    for (int i = 0; i < 3; i++) {
        if (batch->stride[i] < 0 || batch->stride[i] > INT64_MAX / AT_FLOAT_BYTES / batch->products) return false;
    }
    const int64_t of_c = batch->stride[2], row = kind->columns[2], ld = call->ld[2];
    if (!kind->rows[2] || !row) return true;
    const int64_t apart = kind->rows[2] > 1 ? (kind->rows[2] - 1) * ld + row : row;
    return of_c >= apart || (of_c >= row && (batch->products - 1) * of_c + row <= ld);
}

static bool is_in_range(const row_major *call, const autotune_kind *kind) {
    if (call->m > MAX_EXTENT || call->n > MAX_EXTENT || call->k > MAX_EXTENT) return false;
    if (call->trans_a & ~1 || call->trans_b & ~1 || call->bias % AT_FLOAT_BYTES) return false;
    if (call->activation < AUTOTUNE_ACTIVATION_NONE || call->activation > AUTOTUNE_ACTIVATION_GELU_TANH) return false;
    if (call->a_type < AUTOTUNE_A_FP32 || call->a_type > AUTOTUNE_A_FP16) return false;
    if ((call->at[1] | call->at[2]) % AT_FLOAT_BYTES) return false; /* kernels that pack would fault */
    if (call->at[0] % (call->a_type ? AT_FLOAT_BYTES / 2 : AT_FLOAT_BYTES)) return false;
    for (int i = 0; i < 3; i++) {
        if (kind->rows[i] < 0 || kind->columns[i] < 0 || call->ld[i] < 1) return false;
        if (kind->rows[i] < 2) continue;
        if (call->ld[i] < kind->columns[i] || (double)kind->rows[i] * (double)call->ld[i] > MAX_REACH) return false;
    }
    return has_batch_in_range(call, kind);
}

static bool is_nowhere(uint64_t address) { return address < LEAST_ADDRESS; }

/* Whether what a product reads and writes is memory. */
static bool has_memory(const row_major *call, float alpha) {
    const bool is_read = call->k && alpha != 0;
    if (is_read && (is_nowhere(call->at[0]) || is_nowhere(call->at[1]))) return false;
    return !is_nowhere(call->at[2]) && (!call->bias || !is_nowhere(call->bias));
}

static int64_t packed_ld(int64_t columns) { return columns > 1 ? columns : 1; }

/* Leading dimensions as a plan has them; a single row has that of a packed one. */
static int64_t planned_ld(const autotune_kind *kind, int i) {
    return kind->rows[i] > 1 ? kind->by_row[i] : packed_ld(kind->columns[i]);
}

static uint64_t reach(const autotune_kind *kind, int i, int64_t ld) {
    if (!kind->rows[i] || !kind->columns[i]) return 0;
    const uint64_t one = (uint64_t)(kind->rows[i] - 1) * (uint64_t)ld + (uint64_t)kind->columns[i];
    const uint64_t others = (uint64_t)(kind->batch.products - 1) * (uint64_t)kind->batch.stride[i];
    return (uint64_t)at_bytes(AUTOTUNE_FLOAT_LAYOUTS * (int32_t)kind->a_type, i) * (one + others);
}

/* Make a batch one product of all its rows, if all products share B and the rows of op(A) and of C continue from
 * product to product (runtime/calls/product.py). False if they do not. */
static bool fold(autotune_planned *planned) {
    const autotune_batch *batch = &planned->batch;
    const bool is_turned = at_trans_a(planned->layout);
    const int64_t m = planned->m, rows = batch->products * m;
    if (batch->products < 2 || batch->stride[1] || !planned->k || rows > MAX_EXTENT) return false;
    int64_t lda = planned->ld[0], ldc = planned->ld[2];
    if (m == 1) { /* a row each, any distance apart */
        lda = is_turned ? lda : batch->stride[0];
        ldc = batch->stride[2];
    }
    const bool goes_on = is_turned ? batch->stride[0] == m && lda >= rows
                                   : batch->stride[0] == m * lda && lda >= planned->k;
    if (!goes_on || batch->stride[2] != m * ldc || ldc < planned->n) return false;
    planned->m = (int32_t)rows;
    planned->ld[0] = lda;
    planned->ld[2] = ldc;
    planned->batch = AT_SINGLE;
    return true;
}

/* Whether cuBLAS can be called: its leading dimensions are int, and kernels serve products with k = 0. */
static bool may_be_cublas(int k, const int64_t ld[3]) {
    return k > 0 && ld[0] <= INT_MAX && ld[1] <= INT_MAX && ld[2] <= INT_MAX;
}

/* A file that the program has named takes precedence over the environment. */
static autotune_status record_as_told(autotune_handle *handle) {
    const char *file = getenv(RECORD);
    if (!file || !*file) return AUTOTUNE_OK;
    const autotune_status status = autotune_record_calls(handle, file);
    return status == AUTOTUNE_RECORDED ? AUTOTUNE_OK : status;
}

/* A batch becomes one product of all its rows if it can, unless the batch itself was tuned. */
static void serve_as(const autotune_handle *handle, autotune_planned *planned) {
    at_call call = {
        .m = planned->m, .n = planned->n, .k = planned->k, .layout = planned->layout, .batch = planned->batch,
    };
    memcpy(call.ld, planned->ld, sizeof call.ld);
    memcpy(call.low, planned->low, sizeof call.low);
    if (planned->batch.products < 2 || at_is_tuned(handle->chooser, &call)) return;
    (void)fold(planned);
}

/* What to plan for a call, without the launch that is chosen for it. */
static autotune_planned planned_of(const autotune_handle *handle, const row_major *call, const autotune_kind *kind) {
    autotune_planned planned = {
        .m = call->m,
        .n = call->n,
        .k = call->k,
        .layout = layout_of(call->trans_a, call->trans_b, call->a_type),
        .device = kind->devices[0],
        .bias = kind->bias,
        .activation = kind->activation,
        .batch = call->batch,
    };
    if (!call->k) planned.batch.stride[0] = planned.batch.stride[1] = 0; /* A and B are not read */
    for (int i = 0; i < 3; i++) {
        planned.ld[i] = planned_ld(kind, i);
        planned.num_bytes[i] = reach(kind, i, planned.ld[i]);
        planned.low[i] = kind->low[i];
    }
    serve_as(handle, &planned);
    return planned;
}

/* The kernel that differs from the given one only in its epilogue; -1 if the table has none. */
static int32_t variant_of(const autotune_table *table, int32_t kernel, const autotune_kind *kind) {
    for (int32_t i = 0; i < table->num_kernels; i++) {
        const autotune_kernel *one = &table->kernels[i];
        const bool is_such = one->bias == kind->bias && one->activation == kind->activation;
        if (is_such && one->plain == table->kernels[kernel].plain) return i;
    }
    return -1;
}

/* Sets which kernel serves, and whether cuBLAS does, which has no epilogue. */
static autotune_status serve_by(const autotune_handle *handle, const autotune_choice *choice, const autotune_kind *kind,
                                bool has_blas, autotune_planned *planned) {
    planned->kernel = choice->kernel;
    planned->split_k = choice->split_k;
    planned->is_looped = choice->is_looped;
    if (kind->bias || kind->activation) {
        planned->kernel = variant_of(handle->table, choice->kernel, kind);
        return planned->kernel < 0 ? AUTOTUNE_NO_EPILOGUE : AUTOTUNE_OK;
    }
    planned->is_cublas = choice->is_cublas && has_blas && may_be_cublas(planned->k, planned->ld);
    return AUTOTUNE_OK;
}

/* Have A converted to a packed one of FP32 first. */
static void convert(autotune_planned *planned) {
    planned->from_type = at_a_type(planned->layout);
    planned->from_ld = planned->ld[0];
    planned->from_stride = planned->batch.stride[0];
    planned->layout = at_plain_layout(planned->layout);
    planned->ld[0] = packed_ld(at_trans_a(planned->layout) ? planned->m : planned->k);
    if (planned->batch.stride[0]) planned->batch.stride[0] = (int64_t)planned->m * planned->k;
}

static autotune_status choose(autotune_handle *handle, const row_major *call, const autotune_kind *kind, bool has_blas,
                              const char *version, autotune_planned *planned) {
    const uint64_t addresses[3] = {planned->from_type ? 0 : call->at[0], call->at[1], call->at[2]};
    autotune_choice choice;
    const autotune_status status = autotune_choose(handle, planned->layout, planned->m, planned->n, planned->k,
                                                   &planned->batch, planned->ld, addresses, version, false,
                                                   kind->bias || kind->activation, NULL, &choice);
    return status ? status : serve_by(handle, &choice, kind, has_blas, planned);
}

static autotune_status new_plan(autotune_handle *handle, const row_major *call, const autotune_kind *kind,
                                autotune_plan **plan) {
    autotune_planned planned = planned_of(handle, call, kind);
    const char *version = NULL;
    const autotune_blas *blas = at_find_blas(&version);
    autotune_status status = choose(handle, call, kind, blas, version, &planned);
    if (at_a_type(planned.layout) && (status || planned.is_cublas || planned.is_looped)) { /* none that reads it serves */
        planned = planned_of(handle, call, kind);
        convert(&planned);
        status = choose(handle, call, kind, blas, version, &planned);
    }
    if (status) return status;
    at_loaded loaded;
    const autotune_driver *driver = at_find_driver();
    if (!driver) return AUTOTUNE_NO_DRIVER;
    if (blas) autotune_use_blas(handle, blas);
    status = at_load(handle->loader, driver, planned.device, planned.kernel, &planned.context, &loaded);
    if (!status && planned.from_type) status = at_load_upcast(handle->loader, driver, planned.device, &planned.upcast);
    if (status) return status;
    planned.sgemm = loaded.sgemm;
    planned.reduce = loaded.reduce;
    planned.pack = loaded.pack;
    status = record_as_told(handle);
    return status ? status : autotune_make_plan(handle, &planned, plan);
}

/* Finds the GPU of the calling thread, and the handle of its kind; the first handle if no kind fits. */
static autotune_status find_kind(autotune_handle **handle, int32_t *device) {
    for (autotune_handle *kind = *handle; kind; kind = kind->next) {
        const autotune_status status = at_current_gpu(kind->loader, device);
        if (!status) *handle = kind;
        if (status != AUTOTUNE_OTHER_GPU) return status;
    }
    return AUTOTUNE_OTHER_GPU;
}

static autotune_status multiply(autotune_handle *handle, void *stream, const row_major *call, float alpha,
                                float beta) {
    if (!handle) return AUTOTUNE_BAD_CALL;
    if (!at_use_cuda()) return AUTOTUNE_FORKED;
    if (!handle->table->codes) return AUTOTUNE_OTHER_TABLE; /* the program that opened it loads kernels itself */
    int32_t device = 0;
    autotune_status status = find_kind(&handle, &device);
    if (status) return status;
    const autotune_kind kind = kind_of(call, device);
    if (!is_in_range(call, &kind)) return AUTOTUNE_BAD_CALL;
    if (!call->m || !call->n || !call->batch.products) return AUTOTUNE_OK;
    if (!has_memory(call, alpha)) return AUTOTUNE_BAD_CALL;
    bool is_left_alone; /* never here */
    autotune_plan *plan = at_recall(handle->runner, &kind, AUTOTUNE_AS_SETTLED, 0, &is_left_alone);
    if (!plan) {
        status = new_plan(handle, call, &kind, &plan);
        if (status) return status;
        at_remember(handle->runner, &kind, plan);
    }
    const at_operands at = {call->at[0], call->at[1], call->at[2], call->bias};
    const uint64_t of = (uint64_t)(uintptr_t)stream;
    status = at_overlap(plan, at)
                 ? AUTOTUNE_OVERLAP
                 : autotune_run_plan(handle, plan, of, at.a, at.b, at.c, at.bias, (double)alpha, (double)beta);
    at_plan_release(plan);
    return status > AUTOTUNE_INSTEAD ? AUTOTUNE_OK : status; /* the kernel served */
}

static uint64_t address(const void *matrix) { return (uint64_t)(uintptr_t)matrix; }

autotune_status autotune_sgemm(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k,
                               float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                               float *c, int64_t ldc) {
    const row_major call = {
        trans_a, trans_b, m, n, k, {address(a), address(b), address(c)}, {lda, ldb, ldc}, AT_SINGLE, 0, 0, 0,
    };
    return multiply(handle, stream, &call, alpha, beta);
}

autotune_status autotune_sgemm_epilogue(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n,
                                        int k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                                        float beta, float *c, int64_t ldc, const float *bias,
                                        autotune_activation activation) {
    const row_major call = {
        trans_a, trans_b, m, n, k, {address(a), address(b), address(c)}, {lda, ldb, ldc}, AT_SINGLE, address(bias),
        (int)activation, 0,
    };
    return multiply(handle, stream, &call, alpha, beta);
}

autotune_status autotune_sgemm_strided_batched(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m,
                                               int n, int k, float alpha, const float *a, int64_t lda,
                                               int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b,
                                               float beta, float *c, int64_t ldc, int64_t stride_c, int products) {
    return autotune_sgemm_strided_batched_epilogue(handle, stream, trans_a, trans_b, m, n, k, alpha, a, lda, stride_a, b,
                                                   ldb, stride_b, beta, c, ldc, stride_c, products, NULL,
                                                   AUTOTUNE_ACTIVATION_NONE);
}

autotune_status autotune_sgemm_strided_batched_epilogue(
    autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
    int64_t lda, int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c, int64_t ldc,
    int64_t stride_c, int products, const float *bias, autotune_activation activation) {
    row_major call = {
        trans_a, trans_b, m, n, k, {address(a), address(b), address(c)}, {lda, ldb, ldc},
        {products, {stride_a, stride_b, stride_c}}, address(bias), (int)activation, 0,
    };
    if (products == 1) call.batch = AT_SINGLE;
    return multiply(handle, stream, &call, alpha, beta);
}

autotune_status autotune_sgemm_mixed(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n,
                                     int k, float alpha, const void *a, autotune_type type_a, int64_t lda,
                                     int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c,
                                     int64_t ldc, int64_t stride_c, int products, const float *bias,
                                     autotune_activation activation) {
    row_major call = {
        trans_a, trans_b, m, n, k, {address(a), address(b), address(c)}, {lda, ldb, ldc},
        {products, {stride_a, stride_b, stride_c}}, address(bias), (int)activation, (int)type_a,
    };
    if (products == 1) call.batch = AT_SINGLE;
    return multiply(handle, stream, &call, alpha, beta);
}

autotune_status autotune_sgemm_strided_batched_by_columns(
    autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
    int64_t lda, int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c, int64_t ldc,
    int64_t stride_c, int products) {
    return autotune_sgemm_strided_batched(handle, stream, trans_b, trans_a, n, m, k, alpha, b, ldb, stride_b, a, lda,
                                          stride_a, beta, c, ldc, stride_c, products);
}

autotune_status autotune_sgemm_strided_batched_epilogue_by_columns(
    autotune_handle *handle, void *stream, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
    int64_t lda, int64_t stride_a, const float *b, int64_t ldb, int64_t stride_b, float beta, float *c, int64_t ldc,
    int64_t stride_c, int products, const float *bias, autotune_activation activation) {
    return autotune_sgemm_strided_batched_epilogue(handle, stream, trans_b, trans_a, n, m, k, alpha, b, ldb, stride_b, a,
                                                   lda, stride_a, beta, c, ldc, stride_c, products, bias, activation);
}

autotune_status autotune_sgemm_epilogue_by_columns(autotune_handle *handle, void *stream, int trans_a, int trans_b,
                                                   int m, int n, int k, float alpha, const float *a, int64_t lda,
                                                   const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                                                   const float *bias, autotune_activation activation) {
    return autotune_sgemm_epilogue(handle, stream, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc, bias,
                                   activation);
}

autotune_status autotune_sgemm_by_columns(autotune_handle *handle, void *stream, int trans_a, int trans_b, int m,
                                          int n, int k, float alpha, const float *a, int64_t lda, const float *b,
                                          int64_t ldb, float beta, float *c, int64_t ldc) {
    /* C^T = op(B)^T op(A)^T, and a matrix stored by columns is the transpose of one stored by rows */
    return autotune_sgemm(handle, stream, trans_b, trans_a, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
}

autotune_status autotune_pick(autotune_handle *handle, int trans_a, int trans_b, int m, int n, int k,
                              autotune_pick_info *pick) {
    return autotune_pick_strided_batched(handle, trans_a, trans_b, m, n, k, 0, 0, 1, pick);
}

autotune_status autotune_pick_strided_batched(autotune_handle *handle, int trans_a, int trans_b, int m, int n, int k,
                                              int shares_a, int shares_b, int products, autotune_pick_info *pick) {
    static const char *const HOWS[] = {"exact", "modelled", "nearest", "default"};
    row_major call = {
        .trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k,
        .ld = {packed_ld(trans_a ? m : k), packed_ld(trans_b ? k : n), packed_ld(n)},
        .batch = AT_SINGLE,
    };
    if (!handle || !pick || m < 1 || n < 1 || products < 1 || shares_a & ~1 || shares_b & ~1) return AUTOTUNE_BAD_CALL;
    if (products > 1) {
        const int64_t rows[] = {trans_a ? k : m, trans_b ? n : k, m};
        const bool is_shared[] = {shares_a, shares_b, false};
        call.batch.products = products;
        for (int i = 0; i < 3; i++) call.batch.stride[i] = is_shared[i] ? 0 : rows[i] * call.ld[i];
    }
    const autotune_kind kind = kind_of(&call, 0);
    if (!is_in_range(&call, &kind)) return AUTOTUNE_BAD_CALL;
    int32_t device;
    if (handle->next && at_use_cuda()) (void)find_kind(&handle, &device); /* without a GPU the first kind answers */
    const autotune_planned planned = planned_of(handle, &call, &kind);
    const char *version = NULL;
    const bool has_blas = at_find_blas(&version);
    autotune_choice choice;
    const autotune_status status = autotune_choose(handle, planned.layout, planned.m, planned.n, planned.k,
                                                   &planned.batch, planned.ld, call.at, version, false, false, NULL,
                                                   &choice);
    if (status) return status;
    const at_call as_launched = {
        .m = planned.m, .n = planned.n, .k = planned.k, .layout = planned.layout,
        .batch = choice.is_looped ? AT_SINGLE : planned.batch,
    };
    const at_grid grid = at_plan(&handle->table->kernels[choice.kernel], &as_launched, choice.split_k);
    *pick = (autotune_pick_info){
        .kernel = handle->table->kernels[choice.kernel].id,
        .how = HOWS[choice.how],
        .split_k = choice.split_k,
        .is_cublas = choice.is_cublas && has_blas && may_be_cublas(k, planned.ld),
        .is_looped = choice.is_looped,
        .expected_us = choice.expected_us,
        .cublas_us = choice.cublas_us,
        .order = handle->table->order,
        .workspace_bytes = grid.pack_bytes + grid.sum_bytes + grid.counter_bytes,
    };
    return AUTOTUNE_OK;
}

const char *autotune_error_text(autotune_status status) {
    if (status > AUTOTUNE_BLAS) return "a call of cuBLAS failed (status - AUTOTUNE_BLAS, modulo 256, is a "
                                       "cublasStatus_t); set AUTOTUNE_CUBLAS=0 to do without cuBLAS";
    if (status > AUTOTUNE_CUDA) return "a call of the CUDA driver failed (status - AUTOTUNE_CUDA is its CUresult)";
    switch (status) {
        case AUTOTUNE_OK: return "all is well";
        case AUTOTUNE_NO_KERNEL: return "no kernel serves so large a product; split it into smaller ones";
        case AUTOTUNE_NO_MEMORY: return "the host's memory is short";
        case AUTOTUNE_OTHER_TABLE: return "the table is not one for this code; export it again";
        case AUTOTUNE_BAD_CALL: return "the handle is NULL (autotune_create failed), an extent, a leading dimension, a "
                                       "stride, a flag or an activation is out of range, or "
                                       "a matrix or a bias is no address of floats, or NULL; a leading "
                                       "dimension is at least the length of a row, a flag is 0 or 1, and products of "
                                       "a batch do not share C";
        case AUTOTUNE_BAD_SCALE: return "alpha or beta is no float";
        case AUTOTUNE_NO_DRIVER: return "no CUDA driver of CUDA 12.0 or later can be used; install or update it";
        case AUTOTUNE_UNKNOWN: return "no plan is remembered for such a call";
        case AUTOTUNE_NO_CONTEXT: return "the calling thread has no GPU; call cudaSetDevice and cudaFree(0) first";
        case AUTOTUNE_OTHER_GPU: return "the table is for another GPU model; tune on this one, and add its table with "
                                        "export-table --add --format c";
        case AUTOTUNE_OTHER_CODE: return "a cubin does not hold the kernel that the table says; export again";
        case AUTOTUNE_FORKED: return "CUDA was used before this process was forked, and does not work in it; start "
                                     "processes anew, or fork before the first product";
        case AUTOTUNE_NO_RECORD: return "calls cannot be recorded there; name a file in a folder that can be written, "
                                        "with AUTOTUNE_RECORD or autotune_record_calls";
        case AUTOTUNE_RECORDED: return "calls are recorded into another file already; record into one";
        case AUTOTUNE_OVERLAP: return "C overlaps A, B or the bias in memory; pass another C, or a copy";
        case AUTOTUNE_NO_EPILOGUE: return "the table holds no kernels with such a bias and activation; export it with "
                                          "autotune export-table --epilogue (bias, relu, bias-relu and so on)";
        case AUTOTUNE_MANY_LAUNCHES: return "the batch was not tuned, and cuBLAS cannot be called: it would be a launch for "
                                            "each of more than 65536 products; tune such batches, let cuBLAS serve, or "
                                            "pass parts of the batch";
        case AUTOTUNE_NO_CLASS: return "no table serves that class of accuracy: run `autotune search` and `autotune "
                                       "export-table --format c` with --accuracy";
        case AUTOTUNE_NO_BLAS: return "cuBLAS gives no handle, and no kernel is there to serve";
        default: return "no status of this library";
    }
}
