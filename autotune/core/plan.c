#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "forks.h"
#include "live.h"
#include "upcast.h"

#define EPILOGUE_WORDS 5
#define STRIDES 3

/* ------------------------------------------------------------------------------------------ remembering */

static size_t num_places(const at_runner *runner) { return 2 * (size_t)runner->bounds->max_plans; }

at_runner *at_runner_new(const autotune_constants *bounds) {
    at_runner *runner = calloc(1, sizeof *runner);
    if (!runner) return NULL;
    runner->bounds = bounds;
    runner->remembered = calloc(num_places(runner), sizeof *runner->remembered);
    runner->tallies = at_tallies_new(bounds->max_tallies);
    if (!runner->remembered || !runner->tallies) {
        free(runner->remembered);
        at_tallies_free(runner->tallies);
        free(runner);
        return NULL;
    }
    pthread_mutex_init(&runner->lock, NULL);
    for (int i = 0; i < AT_MAX_DEVICES; i++) at_handles_init(&runner->handles[i]);
    return runner;
}

void at_runner_free(at_runner *runner) {
    if (!runner) return;
    at_recorder_free(runner->recorder);
    at_forget(runner);
    for (int i = 0; i < AT_MAX_DEVICES; i++) at_workspaces_free(runner->workspaces[i]);
    free(runner->remembered);
    at_tallies_free(runner->tallies);
    free(runner);
}

static at_workspaces *workspaces_of(at_runner *runner, int32_t device) {
    if (device < 0 || device >= AT_MAX_DEVICES) return NULL;
    pthread_mutex_lock(&runner->lock);
    if (!runner->workspaces[device]) runner->workspaces[device] = at_workspaces_new(runner->bounds, device);
    at_workspaces *found = runner->workspaces[device];
    pthread_mutex_unlock(&runner->lock);
    return found;
}

/* The largest power of two that divides an address, between a float's size and what vectors need. */
static int32_t alignment(uint32_t low) {
    int32_t found = AT_FLOAT_BYTES;
    while (found < AT_ALIGNED && !(low & (uint32_t)found)) found *= 2;
    return found;
}

static at_call call_of(const autotune_planned *planned, autotune_batch batch) {
    return (at_call){.m = planned->m, .n = planned->n, .k = planned->k, .layout = planned->layout, .batch = batch};
}

static at_tally *tally_of(at_runner *runner, const autotune_planned *planned) {
    const at_call call = call_of(planned, planned->batch);
    autotune_count kind = {
        .m = planned->m,
        .n = planned->n,
        .k = planned->k,
        .layout = planned->layout + AUTOTUNE_FLOAT_LAYOUTS * planned->from_type,
        .products = (int32_t)planned->batch.products,
        .shared = at_shared(&call),
        .bias = planned->bias,
        .activation = planned->activation,
        .kernel = planned->kernel,
        .split_k = planned->split_k,
        .is_cublas = planned->is_cublas,
    };
    for (int i = 0; i < 3; i++) {
        kind.alignment[i] = alignment(planned->low[i]);
        kind.ld[i] = planned->ld[i];
    }
    if (planned->from_type) kind.ld[0] = planned->from_ld;
    return at_tally_of(runner->tallies, &kind);
}

bool at_may_launch(const autotune_table *table, const autotune_planned *planned) {
    const autotune_kernel *kernel = &table->kernels[planned->kernel];
    const bool is_batch = planned->batch.products > 1 && !planned->is_looped;
    return planned->is_left_alone || (kernel->layout == planned->layout && !!kernel->is_batched == is_batch);
}

autotune_plan *at_plan_new(at_runner *runner, const autotune_table *table, const autotune_planned *planned) {
    autotune_plan *plan = calloc(1, sizeof *plan);
    at_workspaces *workspaces = workspaces_of(runner, planned->device);
    if (!plan || !workspaces) {
        free(plan);
        return NULL;
    }
    atomic_init(&plan->references, 1);
    atomic_init(&plan->num_tensor_calls, 0);
    plan->planned = *planned;
    plan->workspaces = workspaces;
    plan->handles = &runner->handles[planned->device];
    plan->tally = tally_of(runner, planned);
    plan->loop = planned->is_looped ? planned->batch : AT_SINGLE;
    if (planned->kernel == AUTOTUNE_ONLY_BLAS) return plan;
    plan->kernel = &table->kernels[planned->kernel];
    plan->has_order = table->order != NULL;
    const at_call call = call_of(planned, planned->is_looped ? AT_SINGLE : planned->batch);
    plan->grid = at_plan(plan->kernel, &call, planned->split_k);
    at_schedule(plan->kernel, &plan->grid, plan->schedule);
    return plan;
}

void at_plan_release(autotune_plan *plan) {
    if (!plan || atomic_fetch_sub_explicit(&plan->references, 1, memory_order_acq_rel) > 1) return;
    at_live_free(plan->live);
    free(plan);
}

autotune_plan *at_plan_hold(autotune_plan *plan) {
    atomic_fetch_add_explicit(&plan->references, 1, memory_order_relaxed);
    return plan;
}

/* FNV-1a over words: a kind has no padding. */
_Static_assert(sizeof(autotune_kind) == 4 * 3 * 8 + 4 * 8 + 2 * 3 * 4 + 4 * 4 + 8, "a kind has no padding");

static autotune_kind normal(autotune_kind kind) {
    for (int i = 0; i < 3; i++) {
        if (kind.rows[i] < 2) kind.by_row[i] = 1;
        if (kind.columns[i] < 2) kind.by_column[i] = 1;
        if (kind.batch.products == 1) kind.batch.stride[i] = 0;
    }
    return kind;
}

/* The place of a normal kind. */
static at_remembered *place_of(at_runner *runner, const autotune_kind *kind) {
    uint64_t words[sizeof *kind / sizeof(uint64_t)], hash = 0xCBF29CE484222325u;
    memcpy(words, kind, sizeof *kind);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) hash = (hash ^ words[i]) * 0x100000001B3u;
    hash ^= hash >> 29; /* the low bits depend only on low bits */
    for (;; hash++) {
        at_remembered *place = &runner->remembered[hash % num_places(runner)];
        if (!place->plan || !memcmp(&place->kind, kind, sizeof *kind)) return place;
    }
}

static void forget(at_runner *runner) {
    for (size_t i = 0; i < num_places(runner); i++) at_plan_release(runner->remembered[i].plan);
    memset(runner->remembered, 0, num_places(runner) * sizeof *runner->remembered);
    memset(runner->recent, 0, sizeof runner->recent);
    runner->num_remembered = 0;
}

void at_forget(at_runner *runner) {
    pthread_mutex_lock(&runner->lock);
    forget(runner);
    pthread_mutex_unlock(&runner->lock);
}

void at_remember(at_runner *runner, const autotune_kind *kind, autotune_plan *plan) {
    const autotune_kind of = normal(*kind);
    pthread_mutex_lock(&runner->lock);
    if (runner->num_remembered >= runner->bounds->max_plans) forget(runner);
    at_remembered *place = place_of(runner, &of);
    if (!place->plan) runner->num_remembered++;
    if (place->plan) memset(runner->recent, 0, sizeof runner->recent);
    at_plan_release(place->plan);
    place->kind = of;
    place->plan = at_plan_hold(plan);
    pthread_mutex_unlock(&runner->lock);
}

void at_count_call(autotune_plan *plan) {
    atomic_fetch_add_explicit(&plan->num_tensor_calls, 1, memory_order_relaxed);
    if (plan->planned.is_left_alone && plan->planned.k) at_count(plan->tally); /* another library serves it */
}

static autotune_plan *wanted_of(autotune_plan *plan, int32_t wanted) {
    if (!plan || !plan->live) return plan;
    autotune_plan *winner = wanted == AUTOTUNE_AS_PLANNED ? NULL : at_live_winner(plan->live);
    if (winner) return winner;
    return wanted == AUTOTUNE_IN_TURNS ? plan : at_live_first(plan->live);
}

autotune_plan *at_recall(at_runner *runner, const autotune_kind *kind, int32_t wanted, uint64_t signature,
                         bool *is_left_alone) {
    const autotune_kind of = normal(*kind);
    *is_left_alone = false;
    if (!at_use_cuda()) return NULL;
    pthread_mutex_lock(&runner->lock);
    autotune_plan *const known = place_of(runner, &of)->plan, *plan = wanted_of(known, wanted);
    *is_left_alone = plan && !plan->live && plan->planned.is_left_alone;
    if (*is_left_alone) {
        at_count_call(plan);
        if (signature && plan == known) runner->recent[signature % AT_RECENT] = (at_recent){signature, plan};
    } else if (plan) {
        at_plan_hold(plan);
    }
    pthread_mutex_unlock(&runner->lock);
    return *is_left_alone ? NULL : plan;
}

bool at_is_left_alone(at_runner *runner, uint64_t signature) {
    if (at_is_forked()) return false;
    pthread_mutex_lock(&runner->lock);
    const at_recent *recent = &runner->recent[signature % AT_RECENT];
    const bool is_known = recent->plan && recent->signature == signature;
    if (is_known) at_count_call(recent->plan);
    pthread_mutex_unlock(&runner->lock);
    return is_known;
}

/* ------------------------------------------------------------------------------------------ launching */

/* Arguments of the kernels, in the order that launch.Grid documents. A kernel declares only the words that it reads;
 * the others are passed as zeros. All products of a batch share the bias. */
typedef struct {
    uint32_t words[AT_SCHEDULE_WORDS];
} schedule_words;

typedef struct {
    int64_t strides[STRIDES];
    int32_t products;
} batch_words;

typedef struct {
    uint64_t words[EPILOGUE_WORDS];
} epilogue_words;

static int start(const autotune_driver *cuda, const autotune_plan *plan, uint64_t kernel, int64_t x, int64_t y,
                 int32_t threads, int32_t smem_bytes, uint64_t stream, void **arguments) {
    at_launch_attribute overlaps = {.id = AT_OVERLAPS, .value.flag = 1};
    const at_launch_config config = {
        .grid_x = (uint32_t)x,
        .grid_y = (uint32_t)y,
        .grid_z = 1,
        .block_x = (uint32_t)threads,
        .block_y = 1,
        .block_z = 1,
        .smem_bytes = (uint32_t)smem_bytes,
        .stream = stream,
        .attributes = plan->kernel->overlaps ? &overlaps : NULL,
        .num_attributes = plan->kernel->overlaps ? 1 : 0,
    };
    return cuda->launch(&config, kernel, arguments, NULL);
}

static int start_pack(const autotune_driver *cuda, const autotune_plan *plan, const at_pack *pack, uint64_t stream,
                      at_operands at, uint64_t to) {
    int32_t extent = pack->extent, k = plan->planned.k, is_k_major = pack->is_k_major;
    int32_t padded = (int32_t)pack->padded, blocks = (int32_t)pack->blocks;
    uint64_t operand = pack->is_a ? at.a : at.b;
    int64_t ld = plan->planned.ld[pack->is_a ? 0 : 1], stride = pack->stride;
    void *arguments[] = {&extent, &k, &operand, &ld, &is_k_major, &to, &padded, &blocks, &stride};
    return start(cuda, plan, plan->planned.pack, pack->blocks * pack->products, 1, AT_PACK_THREADS,
                 AT_PACK_SMEM_BYTES, stream, arguments);
}

static int start_sgemm(const autotune_driver *cuda, const autotune_plan *plan, uint64_t stream, at_operands at,
                       const int64_t ld[3], float alpha, float beta, uint64_t workspace) {
    const autotune_planned *planned = &plan->planned;
    int32_t m = planned->m, n = planned->n, k = planned->k, split_k = plan->grid.split_k;
    int64_t lda = ld[0], ldb = ld[1], ldc = ld[2];
    const autotune_batch *of = &plan->grid.batch;
    schedule_words schedule;
    memcpy(schedule.words, plan->schedule, sizeof schedule.words);
    batch_words batch = {{of->stride[0], of->stride[1], of->stride[2]}, (int32_t)of->products};
    epilogue_words epilogue = {{at.bias}};
    void *arguments[] = {&m,    &n,   &k,         &alpha,   &at.a,     &lda,   &at.b,     &ldb,
                         &beta, &at.c, &ldc, &workspace, &split_k, &schedule, &batch, &epilogue};
    return start(cuda, plan, planned->sgemm, plan->grid.x, plan->grid.y, plan->kernel->threads,
                 plan->kernel->smem_bytes, stream, arguments);
}

static int start_reduce(const autotune_driver *cuda, const autotune_plan *plan, uint64_t stream, at_operands at,
                        float alpha, float beta, uint64_t workspace) {
    const at_grid *grid = &plan->grid;
    int32_t m = plan->planned.m, n = plan->planned.n, split_k = grid->split_k;
    int32_t padded_m = (int32_t)grid->padded_m, padded_n = (int32_t)grid->padded_n;
    int32_t group_bits = grid->reduce_group_bits, blocks = (int32_t)grid->reduce_blocks;
    int64_t ldc = plan->planned.ld[2], stride = grid->batch.stride[2];
    epilogue_words epilogue = {{at.bias}};
    void *arguments[] = {&m,       &n,        &alpha,    &beta,       &at.c,   &ldc,    &workspace,
                         &split_k, &padded_m, &padded_n, &group_bits, &blocks, &stride, &epilogue};
    return start(cuda, plan, plan->planned.reduce, grid->reduce_blocks * grid->batch.products, 1, AT_REDUCE_THREADS,
                 grid->reduce_smem_bytes, stream, arguments);
}

/* Launches a product, or a batch that is one launch. */
static int launch_one(const autotune_driver *cuda, const autotune_plan *plan, uint64_t stream, at_operands at,
                      float alpha, float beta, uint64_t workspace) {
    at_operands read = at;
    int64_t ld[3] = {plan->planned.ld[0], plan->planned.ld[1], plan->planned.ld[2]};
    for (int32_t i = 0; i < plan->grid.num_packs; i++) {
        const at_pack *pack = &plan->grid.packs[i];
        const uint64_t to = workspace + (uint64_t)pack->offset;
        *(pack->is_a ? &read.a : &read.b) = to;
        ld[pack->is_a ? 0 : 1] = pack->padded;
        const int error = alpha != 0 ? start_pack(cuda, plan, pack, stream, at, to) : 0; /* else nothing is read */
        if (error) return error;
    }
    const uint64_t behind = workspace + (uint64_t)plan->grid.pack_bytes;
    const int error = start_sgemm(cuda, plan, stream, read, ld, alpha, beta, behind);
    if (error || !plan->grid.reduce_blocks) return error;
    return start_reduce(cuda, plan, stream, at, alpha, beta, behind);
}

static uint64_t bytes_behind(const autotune_plan *plan, int operand, int64_t product) {
    const uint64_t elements = (uint64_t)product * (uint64_t)plan->loop.stride[operand];
    return (uint64_t)at_bytes(plan->planned.layout, operand) * elements;
}

static int launch_all(const autotune_driver *cuda, const autotune_plan *plan, uint64_t stream, at_operands at,
                      float alpha, float beta, uint64_t workspace) {
    const autotune_batch *loop = &plan->loop;
    int error = 0;
    for (int64_t i = 0; !error && i < loop->products; i++) {
        const at_operands one = {
            at.a + bytes_behind(plan, 0, i), at.b + bytes_behind(plan, 1, i), at.c + bytes_behind(plan, 2, i), at.bias};
        error = launch_one(cuda, plan, stream, one, alpha, beta, workspace);
    }
    return error;
}

static int launch_in_workspace(const autotune_driver *cuda, const autotune_plan *plan, uint64_t stream,
                               at_operands at, float alpha, float beta) {
    const uint64_t scratch_bytes = (uint64_t)(plan->grid.pack_bytes + plan->grid.sum_bytes);
    if (!scratch_bytes) return launch_all(cuda, plan, stream, at, alpha, beta, 0);
    at_loan loan;
    const uint64_t counter_bytes = (uint64_t)plan->grid.counter_bytes;
    int error = at_borrow(plan->workspaces, cuda, stream, scratch_bytes, counter_bytes, &loan);
    if (error) return error;
    error = launch_all(cuda, plan, stream, at, alpha, beta, loan.address);
    const int given = at_give_back(cuda, stream, &loan);
    return error ? error : given;
}

/* Whether A and B are read. */
static bool multiplies(const autotune_plan *plan, float alpha) { return alpha != 0 && plan->planned.k; }

/* Enqueues what cuBLAS serves. Returns 0, or which call failed and how. */
static int enqueue_blas(const at_runner *runner, const autotune_plan *plan, const at_idle_handle *handle,
                        uint64_t stream, at_operands at, float alpha, float beta, uint64_t workspace) {
    const autotune_planned *planned = &plan->planned;
    const at_product product = {
        .trans_a = at_trans_a(planned->layout),
        .trans_b = at_trans_b(planned->layout),
        .m = planned->m,
        .n = planned->n,
        .k = planned->k,
        .ld = {planned->ld[0], planned->ld[1], planned->ld[2]},
        .batch = planned->batch,
    };
    if (!multiplies(plan, alpha)) return at_blas_scale(runner->blas, handle, &product, stream, at.c, beta);
    return at_blas_sgemm(runner->blas, handle, runner->bounds, &product, stream, workspace, at.a, at.b, at.c, alpha,
                         beta);
}

/* Have cuBLAS serve, if it can; false if the kernel must. `workspace`: the caller's; 0: one that is borrowed. */
static bool served_by_blas(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at,
                           float alpha, float beta, uint64_t workspace, at_outcome *outcome) {
    if (!plan->planned.is_cublas || !runner->blas || (plan->kernel && !multiplies(plan, alpha))) return false;
    if (plan->has_order && (alpha != 1 || beta != 0)) return false; /* its sums are known, not how it scales them */
    const autotune_driver *cuda = runner->cuda;
    at_idle_handle *handle =
        at_take_handle(plan->handles, runner->blas, cuda, runner->bounds, stream, &outcome->blas);
    if (!handle) return false;
    at_loan loan = {.address = workspace};
    const bool borrows = !workspace && multiplies(plan, alpha);
    const uint64_t num_bytes = (uint64_t)runner->bounds->blas_bytes;
    if (borrows) outcome->cuda = at_borrow(plan->workspaces, cuda, stream, num_bytes, 0, &loan);
    if (!outcome->cuda) {
        outcome->blas = enqueue_blas(runner, plan, handle, stream, at, alpha, beta, loan.address);
        if (borrows) outcome->cuda = at_give_back(cuda, stream, &loan);
    }
    at_put_handle(plan->handles, handle);
    return true;
}

at_outcome at_launch(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at, float alpha,
                     float beta, uint64_t workspace) {
    at_outcome outcome = {0};
    if (plan->kernel) {
        outcome.cuda = launch_all(runner->cuda, plan, stream, at, alpha, beta, workspace);
    } else {
        outcome.is_left = !served_by_blas(runner, plan, stream, at, alpha, beta, workspace, &outcome);
    }
    return outcome;
}

static int64_t products_of_a(const autotune_planned *planned) {
    return planned->batch.stride[0] ? planned->batch.products : 1;
}

/* Rounded up to where the rest of a workspace begins. */
static uint64_t upcast_bytes(const autotune_planned *planned) {
    const uint64_t elements = (uint64_t)planned->m * (uint64_t)planned->k * (uint64_t)products_of_a(planned);
    return (elements * AT_FLOAT_BYTES + AT_PACK_ALIGNMENT - 1) / AT_PACK_ALIGNMENT * AT_PACK_ALIGNMENT;
}

static int start_upcast(const autotune_driver *cuda, const autotune_plan *plan, uint64_t stream, uint64_t from,
                        uint64_t to) {
    const autotune_planned *planned = &plan->planned;
    int64_t ld = planned->from_ld, stride = planned->from_stride;
    int32_t rows = at_trans_a(planned->layout) ? planned->k : planned->m, columns = at_trans_a(planned->layout) ? planned->m : planned->k;
    int32_t is_half = planned->from_type == AUTOTUNE_A_FP16;
    const int64_t blocks = rows * ((columns + (int64_t)AT_UPCAST_COLUMNS - 1) / AT_UPCAST_COLUMNS); /* of a product */
    const int64_t most = INT32_MAX / blocks, products = products_of_a(planned); /* of a launch: memory ends before one has none */
    void *arguments[] = {&from, &to, &ld, &stride, &rows, &columns, &is_half};
    int error = 0;
    for (int64_t i = 0; !error && i < products; i += most) {
        const int64_t now = products - i < most ? products - i : most;
        const at_launch_config config = {
            .grid_x = (uint32_t)(blocks * now), .grid_y = 1, .grid_z = 1,
            .block_x = AT_UPCAST_THREADS, .block_y = 1, .block_z = 1, .stream = stream,
        };
        error = cuda->launch(&config, planned->upcast, arguments, NULL);
        from += (uint64_t)(now * stride) * (AT_FLOAT_BYTES / 2);
        to += (uint64_t)(now * rows * columns) * AT_FLOAT_BYTES;
    }
    return error;
}

/* Converts A, and has a kernel or cuBLAS serve, all in one workspace: what is lent to a stream twice is the same. */
static at_outcome run_converted(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at,
                                float alpha, float beta) {
    at_outcome outcome = {0};
    const uint64_t of_a = upcast_bytes(&plan->planned), of_blas = (uint64_t)runner->bounds->blas_bytes;
    const uint64_t of_kernel = (uint64_t)(plan->grid.pack_bytes + plan->grid.sum_bytes);
    const uint64_t scratch_bytes = of_a + (of_kernel < of_blas && plan->planned.is_cublas ? of_blas : of_kernel);
    at_loan loan;
    outcome.cuda = at_borrow(plan->workspaces, runner->cuda, stream, scratch_bytes,
                             (uint64_t)plan->grid.counter_bytes, &loan);
    if (outcome.cuda) return outcome;
    outcome.cuda = start_upcast(runner->cuda, plan, stream, at.a, loan.address);
    at.a = loan.address;
    /* A kernel's counters are behind all scratch, so its own comes last */
    const uint64_t workspace = of_kernel ? loan.address + scratch_bytes - of_kernel : 0;
    if (!outcome.cuda && !served_by_blas(runner, plan, stream, at, alpha, beta, loan.address + of_a, &outcome)) {
        outcome.is_left = !plan->kernel;
        outcome.is_too_long = plan->loop.products > AT_MAX_LOOPED;
        if (!outcome.is_left && !outcome.is_too_long) {
            outcome.cuda = launch_all(runner->cuda, plan, stream, at, alpha, beta, workspace);
            outcome.is_served = !outcome.cuda;
        }
    }
    const int given = at_give_back(runner->cuda, stream, &loan);
    if (!outcome.cuda) outcome.cuda = given;
    return outcome;
}

static at_outcome run_here(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at,
                           float alpha, float beta) {
    if (plan->planned.from_type && multiplies(plan, alpha))
        return run_converted(runner, plan, stream, at, alpha, beta);
    at_outcome outcome = {0};
    if (served_by_blas(runner, plan, stream, at, alpha, beta, 0, &outcome)) return outcome;
    outcome.is_left = !plan->kernel;
    outcome.is_too_long = plan->loop.products > AT_MAX_LOOPED;
    if (outcome.is_left || outcome.is_too_long) return outcome;
    outcome.cuda = launch_in_workspace(runner->cuda, plan, stream, at, alpha, beta);
    outcome.is_served = !outcome.cuda;
    return outcome;
}

static at_outcome counted(const autotune_plan *plan, at_outcome outcome) {
    const bool is_launched = !outcome.is_too_long && !outcome.is_left;
    const bool is_done = is_launched && !outcome.cuda && (!outcome.blas || outcome.is_served);
    if (is_done) at_count(plan->tally);
    return outcome;
}

at_outcome at_run(const at_runner *runner, const autotune_plan *plan, uint64_t stream, at_operands at, float alpha,
                  float beta) {
    bool is_pushed;
    const int error = at_enter_context(runner->cuda, plan->planned.context, &is_pushed);
    if (error) return (at_outcome){.cuda = error};
    at_outcome outcome = counted(plan, run_here(runner, plan, stream, at, alpha, beta));
    if (!is_pushed) return outcome;
    uint64_t popped;
    const int left = runner->cuda->pop_context(&popped);
    if (!outcome.cuda) outcome.cuda = left;
    return outcome;
}

/* A matrix without bytes shares none, wherever it is. */
static bool share(uint64_t a, uint64_t bytes_a, uint64_t c, uint64_t bytes_c) {
    return bytes_a && a < c + bytes_c && c < a + bytes_a;
}

bool at_overlap(const autotune_plan *plan, at_operands at) {
    const uint64_t *bytes = plan->planned.num_bytes;
    const uint64_t of_bias = at.bias ? AT_FLOAT_BYTES * (uint64_t)plan->planned.n : 0;
    return share(at.a, bytes[0], at.c, bytes[2]) || share(at.b, bytes[1], at.c, bytes[2]) ||
           share(at.bias, of_bias, at.c, bytes[2]);
}
