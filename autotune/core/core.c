#include "core.h"

#include <math.h>
#include <stdlib.h>

#include "choice.h"
#include "forks.h"
#include "grid.h"
#include "handle.h"
#include "plan.h"
#include "stay.h"

#ifndef AUTOTUNE_DECLARED
#define AUTOTUNE_DECLARED NULL /* built for programs in C */
#endif
const char *const autotune_declared[] = {AUTOTUNE_DECLARED, NULL};

autotune_status autotune_open(const autotune_table *table, autotune_handle **handle) {
    *handle = NULL;
    at_watch_forks();
    at_stay_loaded(autotune_declared);
    at_stay_loaded(table);
    if (table->version != AUTOTUNE_TABLE_VERSION) return AUTOTUNE_OTHER_TABLE;
    autotune_handle *made = calloc(1, sizeof *made);
    if (!made) return AUTOTUNE_NO_MEMORY;
    made->table = table;
    made->chooser = at_chooser_new(table);
    made->runner = at_runner_new(&table->constants);
    made->loader = at_loader_new(table);
    if (!made->chooser || !made->runner || !made->loader) {
        autotune_close(made);
        return AUTOTUNE_NO_MEMORY;
    }
    *handle = made;
    return AUTOTUNE_OK;
}

autotune_status autotune_open_kinds(const autotune_table tables[], int32_t num_tables, autotune_handle **handle) {
    autotune_handle *first = NULL;
    if (!handle) return AUTOTUNE_BAD_CALL;
    for (int32_t i = num_tables - 1; i >= 0; i--) {
        autotune_handle *made;
        const autotune_status status = autotune_open(&tables[i], &made);
        if (status) {
            autotune_close(first);
            *handle = NULL;
            return status;
        }
        made->next = first;
        first = made;
    }
    *handle = first;
    return AUTOTUNE_OK;
}

/* In a forked process a lock may be held, amid a change, by a thread that does not exist here; nor is the recorder's
 * thread here. */
void autotune_close(autotune_handle *handle) {
    if (at_is_forked()) return;
    while (handle) {
        autotune_handle *next = handle->next;
        at_chooser_free(handle->chooser);
        at_runner_free(handle->runner);
        at_loader_free(handle->loader);
        free(handle);
        handle = next;
    }
}

void autotune_use_driver(autotune_handle *handle, const autotune_driver *driver) { handle->runner->cuda = driver; }

void autotune_destroy(autotune_handle *handle) { autotune_close(handle); }

void autotune_use_blas(autotune_handle *handle, const autotune_blas *blas) {
    at_runner *runner = handle->runner;
    pthread_mutex_lock(&runner->lock);
    if (runner->blas != blas) runner->blas = blas; /* a thread with a later plan reads it without a lock */
    pthread_mutex_unlock(&runner->lock);
}

static autotune_status read_call(int32_t layout, int32_t m, int32_t n, int32_t k, const autotune_batch *batch,
                                 const int64_t ld[3], const uint64_t addresses[3], at_call *call) {
    if (layout < 0 || layout >= AUTOTUNE_LAYOUTS || m < 1 || n < 1 || k < 0) return AUTOTUNE_BAD_CALL;
    if (batch && (batch->products < 1 || batch->products > INT32_MAX)) return AUTOTUNE_BAD_CALL;
    *call = (at_call){.m = m, .n = n, .k = k, .layout = layout, .batch = batch ? *batch : AT_SINGLE};
    for (int i = 0; i < 3; i++) {
        if (ld[i] < 1) return AUTOTUNE_BAD_CALL;
        call->ld[i] = ld[i];
        call->low[i] = addresses ? (uint32_t)(addresses[i] % AT_ALIGNED) : 0;
    }
    return AUTOTUNE_OK;
}

static autotune_status of_choice(int status) {
    return status == 1 ? AUTOTUNE_NO_KERNEL : status ? AUTOTUNE_NO_MEMORY : AUTOTUNE_OK;
}

autotune_status autotune_choose(const autotune_handle *handle, int32_t layout, int32_t m, int32_t n, int32_t k,
                                const autotune_batch *batch, const int64_t ld[3], const uint64_t addresses[3],
                                const char *cublas_version, int32_t adds_bias, int32_t has_epilogue,
                                const double *allowed, autotune_choice *choice) {
    at_call call;
    const autotune_status status = read_call(layout, m, n, k, batch, ld, addresses, &call);
    call.adds_bias = adds_bias;
    call.has_epilogue = has_epilogue;
    return status ? status : of_choice(at_choose(handle->chooser, &call, cublas_version, allowed, choice));
}

autotune_status autotune_rank(const autotune_handle *handle, int32_t layout, int32_t m, int32_t n, int32_t k,
                              const autotune_batch *batch, const int64_t ld[3], const uint64_t addresses[3],
                              const double *allowed, int32_t room, autotune_choice *ranked, int32_t *num) {
    at_call call;
    const autotune_status status = read_call(layout, m, n, k, batch, ld, addresses, &call);
    if (status || room < 1) return AUTOTUNE_BAD_CALL;
    return of_choice(at_rank(handle->chooser, &call, allowed, room, ranked, num));
}

/* The first plan looks for the driver, here: no later call is made without one. */
autotune_status autotune_make_plan(autotune_handle *handle, const autotune_planned *planned,
                                   autotune_plan **plan) {
    if (planned->device < 0 || planned->device >= AT_MAX_DEVICES) return AUTOTUNE_BAD_CALL;
    if (planned->m < 1 || planned->n < 1 || planned->k < 0) return AUTOTUNE_BAD_CALL;
    if (planned->batch.products < 1 || planned->batch.products > INT32_MAX) return AUTOTUNE_BAD_CALL;
    const bool is_blas_alone = planned->kernel == AUTOTUNE_ONLY_BLAS && (planned->is_cublas || planned->is_left_alone);
    const bool has_kernel = planned->kernel >= 0 && planned->kernel < handle->table->num_kernels;
    if (!has_kernel && !is_blas_alone) return AUTOTUNE_BAD_CALL;
    if (has_kernel && !at_may_launch(handle->table, planned)) return AUTOTUNE_BAD_CALL;
    at_runner *runner = handle->runner;
    if (!at_use_cuda()) return AUTOTUNE_FORKED;
    pthread_mutex_lock(&runner->lock);
    if (!runner->cuda) runner->cuda = at_find_driver();
    pthread_mutex_unlock(&runner->lock);
    if (!runner->cuda) return AUTOTUNE_NO_DRIVER;
    *plan = at_plan_new(runner, handle->table, planned);
    if (!*plan) return AUTOTUNE_NO_MEMORY;
    pthread_mutex_lock(&runner->lock);
    if (runner->recorder) at_recorder_begin(runner->recorder);
    pthread_mutex_unlock(&runner->lock);
    return AUTOTUNE_OK;
}

autotune_status autotune_make_live(autotune_handle *handle, autotune_plan *const rivals[], int32_t num,
                                   const double expected_us[], uint64_t seed, int32_t winner, autotune_plan **plan) {
    if (num < 1 || num > AT_MAX_RIVALS || winner < -1 || winner >= num || !rivals[0]->planned.context) return AUTOTUNE_BAD_CALL;
    at_runner *runner = handle->runner;
    *plan = at_plan_new(runner, handle->table, &rivals[0]->planned);
    if (!*plan) return AUTOTUNE_NO_MEMORY;
    (*plan)->live = at_live_new(runner->cuda, rivals, num, expected_us, seed, winner);
    if ((*plan)->live) return AUTOTUNE_OK;
    at_plan_release(*plan);
    return AUTOTUNE_NO_MEMORY;
}

void autotune_begin_turn(const autotune_plan *plan, void *stream, autotune_turn *turn) {
    at_begin_turn(plan->live, plan->planned.context, (uint64_t)(uintptr_t)stream, turn);
}

void autotune_end_turn(const autotune_plan *plan, void *stream, const autotune_turn *turn, int32_t is_done) {
    if (turn->is_left_alone && is_done) at_count_call(turn->plan);
    at_end_turn(plan->live, plan->planned.context, (uint64_t)(uintptr_t)stream, turn, is_done);
}

void autotune_tell_live(const autotune_plan *plan, autotune_live_state *state) { at_live_tell(plan->live, state); }

/* Recording begins at the first plan: a process may be forked before that, and its children record for themselves. */
static autotune_status record_calls(at_runner *runner, const char *file) {
    autotune_status status = AUTOTUNE_OK;
    pthread_mutex_lock(&runner->lock);
    if (runner->recorder) {
        if (!at_recorder_is_for(runner->recorder, file)) status = AUTOTUNE_RECORDED;
    } else if (!(runner->recorder = at_recorder_new(runner->tallies, file))) {
        status = AUTOTUNE_NO_RECORD;
    } else if (at_has_tallies(runner->tallies)) {
        at_recorder_begin(runner->recorder);
    }
    pthread_mutex_unlock(&runner->lock);
    return status;
}

autotune_status autotune_record_calls(autotune_handle *handle, const char *file) {
    if (!handle) return AUTOTUNE_BAD_CALL;
    if (!file) return AUTOTUNE_NO_RECORD;
    if (at_is_forked()) return AUTOTUNE_FORKED;
    autotune_status status = AUTOTUNE_OK;
    at_hold_forks();
    for (; handle && !status; handle = handle->next) status = record_calls(handle->runner, file);
    at_allow_forks();
    return status;
}

int32_t autotune_counts(const autotune_handle *handle, autotune_count *counts, int32_t room) {
    return at_counts(handle->runner->tallies, counts, room);
}

void autotune_release_plan(autotune_plan *plan) { at_plan_release(plan); }

/* Converts scales to the floats that kernels take. False for a finite number that is infinite as a float. */
static bool as_floats(double alpha, double beta, float scales[2]) {
    scales[0] = (float)alpha;
    scales[1] = (float)beta;
    return !(isinf(scales[0]) && !isinf(alpha)) && !(isinf(scales[1]) && !isinf(beta));
}

static autotune_status told(at_outcome found) {
    if (found.is_too_long && !found.blas) return AUTOTUNE_MANY_LAUNCHES;
    if (found.is_left && !found.blas) return AUTOTUNE_NO_BLAS;
    if (found.cuda) return (autotune_status)(AUTOTUNE_CUDA + found.cuda);
    if (!found.blas) return AUTOTUNE_OK;
    return (autotune_status)((found.is_served ? AUTOTUNE_INSTEAD : 0) + AUTOTUNE_BLAS + found.blas);
}

autotune_status autotune_run_plan(const autotune_handle *handle, const autotune_plan *plan, uint64_t stream,
                                  uint64_t a, uint64_t b, uint64_t c, uint64_t bias, double alpha, double beta) {
    float scales[2];
    if (at_is_forked()) return AUTOTUNE_FORKED;
    if (!as_floats(alpha, beta, scales)) return AUTOTUNE_BAD_SCALE;
    const at_operands at = {a, b, c, bias};
    return told(at_run(handle->runner, plan, stream, at, scales[0], scales[1]));
}

autotune_status autotune_launch_plan(const autotune_handle *handle, const autotune_plan *plan, uint64_t stream,
                                     uint64_t a, uint64_t b, uint64_t c, uint64_t bias, double alpha, double beta,
                                     uint64_t workspace) {
    float scales[2];
    if (!as_floats(alpha, beta, scales)) return AUTOTUNE_BAD_SCALE;
    const at_operands at = {a, b, c, bias};
    return told(at_launch(handle->runner, plan, stream, at, scales[0], scales[1], workspace));
}

void autotune_remember(autotune_handle *handle, const autotune_kind *kind, autotune_plan *plan) {
    at_remember(handle->runner, kind, plan);
}

void autotune_forget(autotune_handle *handle) { at_forget(handle->runner); }
