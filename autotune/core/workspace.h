/* Device memory for packed operands, partial sums and counters, by GPU and stream: runtime/workspace.py in C. */

#ifndef AUTOTUNE_WORKSPACE_H
#define AUTOTUNE_WORKSPACE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"
#include "table.h"

/* Memory that the launches of one stream use one after another. Scratch ends, and counters begin, at its
 * border. `thread`: where each has a stream of that name. */
typedef struct {
    pthread_mutex_t lock;
    uint64_t stream_id, thread;
    uint64_t base, scratch_bytes, counter_bytes;
} at_piece;

typedef struct {
    uint64_t stream_id, thread;
    uint32_t num_launches; /* 0: a free place */
} at_counted;

/* The workspaces of one GPU. Threads may share them. */
typedef struct {
    const autotune_constants *bounds;
    pthread_mutex_t lock;
    int32_t device;
    uint64_t pool, kept_bytes; /* kept: by all pieces */
    int32_t num_pieces, num_counted;
    at_piece *pieces;
    at_counted *counted; /* (2 max_counted) streams, hashed */
} at_workspaces;

/* What a launch was lent. */
typedef struct {
    uint64_t address;
    at_piece *piece; /* NULL: memory of its own, which is given back */
} at_loan;

/* NULL where memory of the host is short. The bounds must stay. */
at_workspaces *at_workspaces_new(const autotune_constants *bounds, int32_t device);
void at_workspaces_free(at_workspaces *all);

/* Lend a workspace to launches on a stream: no other thread's launch uses it before it is given back. The GPU's
 * context must be current. Return a CUresult. */
int at_borrow(at_workspaces *all, const autotune_driver *cuda, uint64_t stream, uint64_t scratch_bytes,
              uint64_t counter_bytes, at_loan *loan);
int at_give_back(const autotune_driver *cuda, uint64_t stream, at_loan *loan);

#endif
