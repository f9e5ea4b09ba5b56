/* Forks before the first product is done, on a driver that stands in: the child is told, and waits for nothing.
 *
 *     early_fork before FILE     nothing of CUDA was used: parent and child multiply, while a thread has calls recorded
 *     early_fork refused         a call was refused
 *     early_fork held            a thread multiplies for the first time, within the call of the driver that
 *                                STANDIN_HOLDS names */

#define _POSIX_C_SOURCE 200809L /* fork */

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autotune_sgemm.h"
#include "gpu.h"

enum { NUM_FORKS = 50, PATIENCE_S = 30 };

void standin_wait_until_held(void);
void standin_release(void);

static autotune_handle *handle;
static const char *file;
static atomic_bool is_over;

static void need(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    _exit(1);
}

static autotune_status multiply(int lda) {
    static _Thread_local float a[16], b[16], c[16];
    use_gpu(0);
    return autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, lda, b, 4, 0, c, 4);
}

static void *multiply_once(void *none) {
    need(!multiply(4), "the parent's product");
    return none;
}

static void *record(void *none) {
    while (!atomic_load(&is_over)) need(!autotune_record_calls(handle, file), "recording");
    return none;
}

static void in_child(void) {
    autotune_pick_info pick;
    need(multiply(4) == AUTOTUNE_FORKED && multiply(3) == AUTOTUNE_FORKED, "a product of a child");
    need(autotune_record_calls(handle, "calls") == AUTOTUNE_FORKED, "recording of a child");
    need(!autotune_pick(handle, 0, 0, 4, 4, 4, &pick), "a pick of a child");
    autotune_destroy(handle);
}

static void in_free_child(void) {
    need(!autotune_record_calls(handle, file) && !multiply(4), "a free child");
    autotune_destroy(handle);
}

static void fork_off(void (*work)(void)) {
    const pid_t child = fork();
    if (!child) {
        alarm(PATIENCE_S); /* which kills it */
        work();
        _exit(0);
    }
    int ended = 1;
    need(waitpid(child, &ended, 0) == child && !ended, "the child fails, or waits for a thread that it does not have");
}

int main(int num_arguments, char **arguments) {
    pthread_t thread;
    autotune_pick_info pick;
    need(num_arguments > 1 && !autotune_create(&handle), "no table");
    need(!autotune_pick(handle, 0, 0, 4, 4, 4, &pick), "a pick");
    if (!strcmp(arguments[1], "before")) {
        file = arguments[2];
        pthread_create(&thread, NULL, record, NULL);
        for (int i = 0; i < NUM_FORKS; i++) fork_off(in_free_child);
        atomic_store(&is_over, true);
        pthread_join(thread, NULL);
        need(!multiply(4), "the parent's product");
    } else if (!strcmp(arguments[1], "refused")) {
        need(multiply(3) == AUTOTUNE_BAD_CALL, "no refusal");
        fork_off(in_child);
    } else {
        pthread_create(&thread, NULL, multiply_once, NULL);
        standin_wait_until_held();
        fork_off(in_child);
        standin_release();
        pthread_join(thread, NULL);
    }
    autotune_destroy(handle);
    return 0;
}
