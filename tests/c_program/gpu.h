/* What program.c computes on: a driver that stands in (on_standin.c), or a GPU (on_gpu.c). */

#ifndef GPU_H
#define GPU_H

#include <stddef.h>

#include "autotune_sgemm.h"

/* Once, before anything is multiplied. */
void begin(autotune_handle *handle);

/* Makes this GPU the thread's own; -1: none. */
void use_gpu(int number);

/* Memory that this thread and its GPU reach; all of it is given back before a thread runs out of it. */
float *take(size_t num_floats);
void give_back(float *memory);

/* A stream of the current GPU by its number; 0 is the default stream. */
void *stream_of(int number);
void wait_for(void *stream);

/* Pieces of the GPU's memory that the library holds, and what it launched so far. */
int num_allocations(void);
int num_launches(void);

#endif
