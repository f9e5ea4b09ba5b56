#include "workspace.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 256
#define POOL_RELEASE_THRESHOLD 4 /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
#define ALLOCATION_PINNED 1      /* CU_MEM_ALLOCATION_TYPE_PINNED */
#define LOCATION_DEVICE 1        /* CU_MEM_LOCATION_TYPE_DEVICE */

static uint64_t rounded(uint64_t num_bytes) { return (num_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

enum { IN_GRAPH, IDLE, ORPHAN }; /* states of memory that graphs keep; orphan: its workspaces are gone */

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

static void free_kept(at_kept *kept) {
    pthread_mutex_destroy(&kept->lock);
    free(kept);
}

void at_workspaces_free(at_workspaces *all) {
    if (!all) return;
    for (at_kept *kept = all->kept, *next; kept; kept = next) {
        next = kept->next;
        if (atomic_exchange(&kept->state, ORPHAN) == IDLE) free_kept(kept);
    }
    free(all->pieces);
    free(all->counted);
    free(all);
}

/* While a stream of this or another thread is captured, memory must be allocated in relaxed mode: else the driver
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

/* Count a launch on a stream without a piece; true once there were enough to give it one. */
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

/* The piece of a stream, if it has one. The handle of an ended stream may be used again, its identity may not. */
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

/* The old memory is freed in the order of the stream, after the work that still uses it. */
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

/* Whether a piece is large enough, or may grow enough. */
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

/* Runs on a thread of the driver, where no function of CUDA may be called. */
static void on_end_of_graph(void *of) {
    at_kept *kept = of;
    int expected = IN_GRAPH;
    if (!atomic_compare_exchange_strong(&kept->state, &expected, IDLE)) free_kept(kept);
}

/* Allocated at once, since no replay could wait for it. NULL if memory, or the share of pieces, does not suffice. */
static at_kept *more_kept(at_workspaces *all, const autotune_driver *cuda, uint64_t context, uint64_t num_bytes) {
    if (all->kept_bytes + num_bytes > (uint64_t)all->bounds->pieces_bytes) return NULL;
    at_kept *made = calloc(1, sizeof *made);
    int mode = AT_CAPTURE_RELAXED;
    if (!made || cuda->exchange_capture_mode(&mode)) {
        free(made);
        return NULL;
    }
    const int error = cuda->allocate_now(&made->address, num_bytes);
    if (cuda->exchange_capture_mode(&mode) || error) {
        free(made);
        return NULL;
    }
    pthread_mutex_init(&made->lock, NULL);
    made->context = context;
    made->num_bytes = num_bytes;
    atomic_init(&made->state, IDLE);
    made->next = all->kept;
    all->kept = made;
    all->kept_bytes += num_bytes;
    return made;
}

/* Have a graph hold idle memory until its last copy and executable have run and are destroyed. */
static bool held_by(uint64_t graph, const autotune_driver *cuda, at_kept *kept) {
    uint64_t object = 0;
    atomic_store(&kept->state, IN_GRAPH);
    if (cuda->make_user_object(&object, kept, on_end_of_graph, 1, AT_NO_SYNC)) {
        atomic_store(&kept->state, IDLE);
        return false;
    }
    if (!cuda->retain_user_object(graph, object, 1, AT_MOVE)) return true;
    cuda->release_user_object(object, 1); /* which ends it */
    return false;
}

/* The memory that this capture already has on this stream, else the smallest idle memory that is large enough, else new
 * memory. NULL: allocate as nodes of the graph. The size of new memory is a power of two: many graphs ask for the same.
 * Streams are identified by their handles: asking for an identity ends a capture, and no stream ends within one. */
static at_kept *kept_for(at_workspaces *all, const autotune_driver *cuda, uint64_t stream, uint64_t num_bytes) {
    int status = 0;
    uint64_t id = 0, graph = 0, context = 0, size = ALIGNMENT;
    if (cuda->capture_info(stream, &status, &id, &graph, NULL, NULL) || status != AT_IS_CAPTURED) return NULL;
    if (cuda->current_context(&context)) return NULL;
    const uint64_t thread = stream == AT_PER_THREAD_STREAM ? (uint64_t)pthread_self() : 0;
    while (size < num_bytes) size *= 2;
    at_kept *own = NULL, *idle = NULL;
    pthread_mutex_lock(&all->lock);
    for (at_kept *kept = all->kept; kept && !own; kept = kept->next) {
        if (kept->context != context || kept->num_bytes < num_bytes) continue;
        if (atomic_load(&kept->state) == IDLE) {
            if (!idle || kept->num_bytes < idle->num_bytes) idle = kept;
        } else if (kept->capture_id == id && kept->stream == stream && kept->thread == thread) {
            own = kept;
        }
    }
    if (!own) {
        own = idle ? idle : more_kept(all, cuda, context, size);
        if (own && held_by(graph, cuda, own)) {
            own->capture_id = id;
            own->stream = stream;
            own->thread = thread;
        } else {
            own = NULL;
        }
    }
    pthread_mutex_unlock(&all->lock);
    return own;
}

/* The graph zeroes the counters before each launch, so a replay that was broken off leaves no trace. */
static int lend_kept(const autotune_driver *cuda, at_kept *kept, uint64_t stream, uint64_t scratch_bytes,
                     uint64_t counter_bytes, at_loan *loan) {
    pthread_mutex_lock(&kept->lock);
    *loan = (at_loan){kept->address, NULL, kept};
    const int error = counter_bytes ? cuda->zero(kept->address + scratch_bytes, 0, counter_bytes, stream) : 0;
    if (error) pthread_mutex_unlock(&kept->lock);
    return error;
}

/* The piece of the stream, if it has one with room. */
static bool lent_piece(at_workspaces *all, const autotune_driver *cuda, uint64_t stream, uint64_t scratch_bytes,
                       uint64_t counter_bytes, at_loan *loan, int *error) {
    uint64_t stream_id = 0;
    if ((*error = cuda->stream_id(stream, &stream_id))) return false;
    const uint64_t thread = stream == AT_PER_THREAD_STREAM ? (uint64_t)pthread_self() : 0;
    at_piece *piece = piece_of(all, stream_id, thread);
    if (!piece) return false;
    pthread_mutex_lock(&piece->lock);
    const bool is_served = has_room(all, cuda, piece, scratch_bytes, counter_bytes, stream, error);
    if (is_served && !*error) {
        *loan = (at_loan){piece->base + piece->scratch_bytes - scratch_bytes, piece, NULL};
        return true;
    }
    pthread_mutex_unlock(&piece->lock);
    return false;
}

int at_borrow(at_workspaces *all, const autotune_driver *cuda, uint64_t stream, uint64_t scratch_bytes,
              uint64_t counter_bytes, at_loan *loan) {
    int is_captured = 0, error = cuda->is_capturing(stream, &is_captured);
    if (error) return error;
    if (!is_captured) {
        if (lent_piece(all, cuda, stream, scratch_bytes, counter_bytes, loan, &error)) return 0;
        if (error) return error;
    } else if (scratch_bytes + counter_bytes <= (uint64_t)all->bounds->captured_bytes) {
        at_kept *kept = kept_for(all, cuda, stream, scratch_bytes + counter_bytes);
        if (kept) return lend_kept(cuda, kept, stream, scratch_bytes, counter_bytes, loan);
    }
    /* While a graph is captured, allocating and freeing become nodes of it: so graphs share large memory. */
    *loan = (at_loan){0, NULL, NULL};
    error = allocate(all, cuda, scratch_bytes + counter_bytes, stream, &loan->address);
    if (error || !counter_bytes) return error;
    error = cuda->zero(loan->address + scratch_bytes, 0, counter_bytes, stream);
    if (error) give_memory(cuda, loan->address, stream);
    return error;
}

int at_give_back(const autotune_driver *cuda, uint64_t stream, at_loan *loan) {
    if (!loan->piece && !loan->kept) return give_memory(cuda, loan->address, stream);
    pthread_mutex_unlock(loan->piece ? &loan->piece->lock : &loan->kept->lock);
    return 0;
}
