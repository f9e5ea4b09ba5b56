/* Device memory for packed operands, partial sums and counters, by GPU and stream.
 *
 * A stream that launches repeatedly gets its own piece. A piece has a border: scratch (packed operands, then sums) ends
 * there, counters begin there. A launch gets the address that is the size of its scratch before the border, so counters
 * are at the same address for every shape. They are zeroed once: every launch leaves them zero. All other launches take
 * memory from a pool and give it back, both in the order of their stream.
 *
 * What a GPU keeps between calls is bounded. The driver does not tell when a stream ends, so a piece is never taken back;
 * a stream that makes a few launches and ends never gets one.
 *
 * Captured launches get pieces that their graph keeps, so that it need not take and give back memory at each replay
 * (decision 0055); larger ones take memory and give it back as nodes of their graph. */

#ifndef AUTOTUNE_WORKSPACE_H
#define AUTOTUNE_WORKSPACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "table.h"

/* Memory that the launches of one stream use one after another. Scratch ends, and counters begin, at its
 * border. `thread`: if each thread has a stream of that name. */
typedef struct {
    pthread_mutex_t lock;
    uint64_t stream_id, thread;
    uint64_t base, scratch_bytes, counter_bytes;
} at_piece;

typedef struct {
    uint64_t stream_id, thread;
    uint32_t num_launches; /* 0: a free place */
} at_counted;

/* Memory that the launches of one stream, captured into one graph, use one after another. The driver reports
 * on its own thread when no graph holds it any more: then another may use it. */
typedef struct at_kept {
    struct at_kept *next;
    pthread_mutex_t lock;
    uint64_t capture_id, stream, thread;
    uint64_t context, address, num_bytes;
    atomic_int state;
} at_kept;

/* The workspaces of one GPU. Threads may share them. */
typedef struct {
    const autotune_constants *bounds;
    pthread_mutex_t lock;
    int32_t device;
    uint64_t pool, kept_bytes; /* kept: by all pieces, those of graphs too */
    int32_t num_pieces, num_counted;
    at_piece *pieces;
    at_counted *counted; /* (2 max_counted) streams, hashed */
    at_kept *kept;       /* by graphs, or once */
} at_workspaces;

/* What a launch was lent. */
typedef struct {
    uint64_t address;
    at_piece *piece; /* NULL, like `kept`: memory that is freed after use */
    at_kept *kept;
} at_loan;

/* NULL if host memory is short. The bounds must stay valid. */
at_workspaces *at_workspaces_new(const autotune_constants *bounds, int32_t device);
void at_workspaces_free(at_workspaces *all);

/* Lend a workspace to launches on a stream: no other thread's launch uses it before it is given back. The GPU's
 * context must be current. Return a CUresult. */
int at_borrow(at_workspaces *all, const autotune_driver *cuda, uint64_t stream, uint64_t scratch_bytes,
              uint64_t counter_bytes, at_loan *loan);
int at_give_back(const autotune_driver *cuda, uint64_t stream, at_loan *loan);

#endif
