#include "tally.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Kinds are compared by everything before the number of calls. */
#define KIND_BYTES offsetof(autotune_count, calls)
_Static_assert(KIND_BYTES == 14 * sizeof(int32_t) + 3 * sizeof(int64_t), "a kind has no padding");

at_tallies *at_tallies_new(int32_t most) {
    at_tallies *all = calloc(1, sizeof *all);
    if (!all) return NULL;
    all->most = most;
    pthread_mutex_init(&all->lock, NULL);
    return all;
}

void at_tallies_free(at_tallies *all) {
    if (!all) return;
    for (at_tally *tally = atomic_load(&all->last); tally;) {
        at_tally *before = tally->before;
        free(tally);
        tally = before;
    }
    free(all);
}

/* FNV-1a over words. */
static size_t place_of(const autotune_count *kind) {
    uint64_t words[KIND_BYTES / sizeof(uint64_t)], hash = 0xCBF29CE484222325u;
    memcpy(words, kind, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) hash = (hash ^ words[i]) * 0x100000001B3u;
    return (hash ^ hash >> 29) % AT_TALLY_PLACES;
}

at_tally *at_tally_of(at_tallies *all, const autotune_count *kind) {
    at_tally **place = &all->places[place_of(kind)];
    pthread_mutex_lock(&all->lock);
    at_tally *found = *place;
    while (found && memcmp(&found->kind, kind, KIND_BYTES)) found = found->beside;
    if (!found && all->num < all->most && (found = calloc(1, sizeof *found))) {
        found->kind = *kind;
        found->beside = *place;
        found->before = atomic_load_explicit(&all->last, memory_order_relaxed);
        *place = found;
        all->num++;
        atomic_store_explicit(&all->last, found, memory_order_release); /* readers hold no lock */
    }
    pthread_mutex_unlock(&all->lock);
    return found ? found : &all->others;
}

static int32_t copy(at_tally *tally, autotune_count *counts, int32_t room, int32_t num) {
    const uint64_t calls = atomic_load_explicit(&tally->calls, memory_order_relaxed);
    if (!calls) return num;
    if (num < room) {
        counts[num] = tally->kind;
        counts[num].calls = calls;
    }
    return num + 1;
}

int32_t at_counts(at_tallies *all, autotune_count *counts, int32_t room) {
    int32_t num = 0;
    at_tally *tally = atomic_load_explicit(&all->last, memory_order_acquire);
    for (; tally; tally = tally->before) num = copy(tally, counts, room, num);
    return copy(&all->others, counts, room, num);
}
