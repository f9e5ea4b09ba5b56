#include "workspace.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 256
#define POOL_RELEASE_THRESHOLD 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
#define ALLOCATION_PINNED 1      /* CU_MEM_ALLOCATION_TYPE_PINNED */
#define LOCATION_DEVICE 1        /* CU_MEM_LOCATION_TYPE_DEVICE */

static uint64_t rounded(uint64_t num_bytes) { return (num_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

static size_t num_places(const autotune_constants *bounds) { return 2 * (size_t)bounds->max_counted; }

at_workspaces *at_workspaces_new(const autotune_constants *bounds, int32_t device) {
    at_workspaces *all = calloc(1, sizeof *all);
    if (!all) return NULL;
    all->bounds = bounds;
    all->device = device;
    all->pieces = calloc((size_t)bounds->max_pieces, sizeof *all->pieces);
    all->counted = calloc(num_places(bounds), sizeof *all->counted);
    if (!all->pieces || !all->counted) {
        at_workspaces_free(all);
        return NULL;
    }
    pthread_mutex_init(&all->lock, NULL);
    for (int32_t i = 0; i < bounds->max_pieces; i++) pthread_mutex_init(&all->pieces[i].lock, NULL);
    return all;
}

void at_workspaces_free(at_workspaces *all) {
    if (!all) return;
    free(all->pieces);
    free(all->counted);
    free(all);
}

/* While a stream, of this or another thread, is captured, memory is taken in relaxed mode alone: else the driver
 * refuses it, and the other's capture fails. */
static int allocate(at_workspaces *all, const autotune_driver *cuda, uint64_t num_bytes, uint64_t stream,
                    uint64_t *address) {
    int mode = AT_CAPTURE_RELAXED, error = cuda->exchange_capture_mode(&mode);
    if (error) return error;
    pthread_mutex_lock(&all->lock);
    if (!all->pool) {
        at_pool_properties properties = {.allocation = ALLOCATION_PINNED};
        properties.location.type = LOCATION_DEVICE;
        properties.location.id = all->device;
        uint64_t pool = 0, kept_bytes = (uint64_t)all->bounds->kept_bytes;
        error = cuda->make_pool(&pool, &properties);
        if (!error) error = cuda->set_pool(pool, POOL_RELEASE_THRESHOLD, &kept_bytes);
        if (!error) all->pool = pool;
    }
    pthread_mutex_unlock(&all->lock);
    if (!error) error = cuda->allocate(address, num_bytes, all->pool, stream);
    const int restored = cuda->exchange_capture_mode(&mode);
    return error ? error : restored;
}

static int give_memory(const autotune_driver *cuda, uint64_t address, uint64_t stream) {
    int mode = AT_CAPTURE_RELAXED, error = cuda->exchange_capture_mode(&mode);
    if (error) return error;
    error = cuda->free(address, stream);
    const int restored = cuda->exchange_capture_mode(&mode);
    return error ? error : restored;
}

/* Count a launch of a stream without a piece; true once it stays. */
static bool stays(at_workspaces *all, uint64_t stream_id, uint64_t thread) {
    const autotune_constants *bounds = all->bounds;
    const uint32_t to_stay = (uint32_t)bounds->launches_to_stay;
    if (all->num_counted >= bounds->max_counted) {
        memset(all->counted, 0, num_places(bounds) * sizeof *all->counted);
        all->num_counted = 0;
    }
    for (uint64_t at = (stream_id ^ thread >> 12) * 0x9E3779B97F4A7C15u >> 32;; at++) {
        at_counted *found = &all->counted[at % num_places(bounds)];
        if (!found->num_launches) {
            *found = (at_counted){stream_id, thread, 1};
            all->num_counted++;
            return to_stay <= 1;
        }
        if (found->stream_id == stream_id && found->thread == thread) {
            return ++found->num_launches >= to_stay;
        }
    }
}

/* The piece of a stream, if it has one. Handles are given again after a stream's end, identities are not. */
static at_piece *piece_of(at_workspaces *all, uint64_t stream_id, uint64_t thread) {
    at_piece *found = NULL;
    pthread_mutex_lock(&all->lock);
    for (int32_t i = 0; i < all->num_pieces && !found; i++) {
        at_piece *piece = &all->pieces[i];
        if (piece->stream_id == stream_id && piece->thread == thread) found = piece;
    }
    if (!found && stays(all, stream_id, thread) && all->num_pieces < all->bounds->max_pieces) {
        found = &all->pieces[all->num_pieces++];
        found->stream_id = stream_id;
        found->thread = thread;
    }
    pthread_mutex_unlock(&all->lock);
    return found;
}

/* What the stream still works on is freed behind it. */
static int resize(at_workspaces *all, const autotune_driver *cuda, at_piece *piece, uint64_t scratch_bytes,
                  uint64_t counter_bytes, uint64_t stream) {
    int error = 0;
    if (piece->base) {
        const uint64_t base = piece->base;
        piece->base = piece->scratch_bytes = piece->counter_bytes = 0;
        error = give_memory(cuda, base, stream);
    }
    uint64_t base = 0;
    if (!error) error = allocate(all, cuda, scratch_bytes + counter_bytes, stream, &base);
    if (!error && counter_bytes) error = cuda->zero(base + scratch_bytes, 0, counter_bytes, stream);
    if (!error) {
        piece->base = base;
        piece->scratch_bytes = scratch_bytes;
        piece->counter_bytes = counter_bytes;
    }
    return error;
}

/* Whether a piece is large enough, or may grow so far. */
static bool has_room(at_workspaces *all, const autotune_driver *cuda, at_piece *piece, uint64_t scratch_bytes,
                     uint64_t counter_bytes, uint64_t stream, int *error) {
    const uint64_t scratch = rounded(most(scratch_bytes, piece->scratch_bytes));
    const uint64_t counters = rounded(most(counter_bytes, piece->counter_bytes));
    const uint64_t before = piece->scratch_bytes + piece->counter_bytes, growth = scratch + counters - before;
    if (!growth) return true;
    pthread_mutex_lock(&all->lock);
    const bool may_grow = all->kept_bytes + growth <= (uint64_t)all->bounds->pieces_bytes;
    if (may_grow) all->kept_bytes += growth;
    pthread_mutex_unlock(&all->lock);
    if (!may_grow) return false;
    *error = resize(all, cuda, piece, scratch, counters, stream);
    if (*error) {
        pthread_mutex_lock(&all->lock);
        all->kept_bytes -= before + growth - (piece->scratch_bytes + piece->counter_bytes);
        pthread_mutex_unlock(&all->lock);
    }
    return true;
}

int at_borrow(at_workspaces *all, const autotune_driver *cuda, uint64_t stream, uint64_t scratch_bytes,
              uint64_t counter_bytes, at_loan *loan) {
    int is_captured = 0, error = cuda->is_capturing(stream, &is_captured);
    if (error) return error;
    if (!is_captured) {
        uint64_t stream_id = 0;
        if ((error = cuda->stream_id(stream, &stream_id))) return error;
        const uint64_t thread = stream == AT_PER_THREAD_STREAM ? (uint64_t)pthread_self() : 0;
        at_piece *piece = piece_of(all, stream_id, thread);
        if (piece) {
            pthread_mutex_lock(&piece->lock);
            const bool is_served = has_room(all, cuda, piece, scratch_bytes, counter_bytes, stream, &error);
            if (is_served && !error) {
                *loan = (at_loan){piece->base + piece->scratch_bytes - scratch_bytes, piece};
                return 0;
            }
            pthread_mutex_unlock(&piece->lock);
            if (error) return error;
        }
    }
    /* While a graph is captured, taking and giving back become nodes of it: replays on several streams then never
     * share a workspace. */
    *loan = (at_loan){0, NULL};
    error = allocate(all, cuda, scratch_bytes + counter_bytes, stream, &loan->address);
    if (error || !counter_bytes) return error;
    error = cuda->zero(loan->address + scratch_bytes, 0, counter_bytes, stream);
    if (error) give_memory(cuda, loan->address, stream);
    return error;
}

int at_give_back(const autotune_driver *cuda, uint64_t stream, at_loan *loan) {
    if (!loan->piece) return give_memory(cuda, loan->address, stream);
    pthread_mutex_unlock(&loan->piece->lock);
    return 0;
}
