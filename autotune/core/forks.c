#include "forks.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_bool is_forked;
static pthread_once_t watched = PTHREAD_ONCE_INIT;

static void in_child(void) { atomic_store(&is_forked, true); }
static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

void at_watch_forks(void) { pthread_once(&watched, watch); }
bool at_is_forked(void) { return atomic_load_explicit(&is_forked, memory_order_relaxed); }
