#include "forks.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_bool is_used, is_forked;
static pthread_once_t watched = PTHREAD_ONCE_INIT;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

void at_hold_forks(void) { pthread_mutex_lock(&held); }
void at_allow_forks(void) { pthread_mutex_unlock(&held); }

static void in_child(void) {
    if (atomic_load(&is_used)) atomic_store(&is_forked, true);
    at_allow_forks();
}

static void watch(void) { pthread_atfork(at_hold_forks, at_allow_forks, in_child); }

void at_watch_forks(void) { pthread_once(&watched, watch); }

bool at_is_forked(void) { return atomic_load_explicit(&is_forked, memory_order_relaxed); }

bool at_use_cuda(void) {
    if (!atomic_load_explicit(&is_used, memory_order_relaxed)) atomic_store(&is_used, true);
    return !at_is_forked();
}
