/* How a kernel is launched for a product, and which products it may serve: kernel/launch.py in C. */

#ifndef AUTOTUNE_GRID_H
#define AUTOTUNE_GRID_H

#include <stdbool.h>
#include <stdint.h>

#include "table.h"

/* As in kernel/launch.py: the kernels are compiled for these. */
#define AT_REDUCE_BITS 8
#define AT_REDUCE_THREADS (1 << AT_REDUCE_BITS) /* per block of sgemm_reduce */
#define AT_WARP_BITS 5
#define AT_MANY_THREADS (1 << 18)
#define AT_GROUP_SPLITS 8
#define AT_PACK_THREADS 256 /* per block of sgemm_pack */
#define AT_PACK_TILE 64
#define AT_PACK_ALIGNMENT 256 /* bytes */
#define AT_PACK_SMEM_BYTES (AT_FLOAT_BYTES * AT_PACK_TILE * (AT_PACK_TILE + 1))
#define AT_WORKSPACE_LIMIT (1 << 30) /* bytes of packed operands, and of partial sums */
#define AT_COUNTER_BYTES 4
#define AT_WAIT_ELEMENTS 2048
#define AT_FILL_STEPS 2
#define AT_MAX_GRID_X 2147483647
#define AT_MAX_GRID_Y 65535
#define AT_NARROW_LD (1 << 29)
#define AT_FLOAT_BYTES 4
#define AT_WIDEST 4 /* elements of the widest vectors */
#define AT_SCHEDULE_WORDS 14
#define AT_ALIGNED (AT_WIDEST * AT_FLOAT_BYTES) /* bytes: the alignment of operands in tuning */

/* One product as it would be launched: C[m,n] = op(A) op(B), row-major; or a batch of such products. Extents are those
 * of one result and the depth; leading dimensions in elements; `low` are the addresses of A, B and C modulo
 * AT_ALIGNED. */
typedef struct {
    int32_t m, n, k, layout;
    autotune_batch batch;
    int64_t ld[3];
    uint32_t low[3];
    bool adds_bias; /* within the product, as the cuBLAS that may serve would: AUTOTUNE_ADDING */
    bool has_epilogue; /* which few kernels for batches have: a batch that was not tuned is looped */
} at_call;

#define AT_SINGLE ((autotune_batch){1, {0, 0, 0}})

/* What the products of a call share: AUTOTUNE_SHARES_NONE and so on. */
int32_t at_shared(const at_call *call);

/* A launch of sgemm_pack: `blocks` for each of its products, whose operands are `stride` elements apart. */
typedef struct {
    int32_t is_a, extent, is_k_major;
    int64_t padded, blocks, offset, num_bytes, products, stride;
} at_pack;

/* The launches of a product or a batch (launch.Grid): all but addresses and scalars. `reduce_blocks` are
 * those of each product; `batch` is as `sgemm` gets it: for packed operands that of their copies. */
typedef struct {
    int64_t x, y, tiles, split_tiles, padded_m, padded_n;
    int64_t sum_bytes, pack_bytes, counter_bytes, reduce_blocks;
    autotune_batch batch;
    int32_t split_k, reduce_group_bits, reduce_smem_bytes, num_packs;
    at_pack packs[2];
} at_grid;

bool at_trans_a(int32_t layout);
bool at_trans_b(int32_t layout);
int32_t at_a_type(int32_t layout);    /* AUTOTUNE_A_FP32 and so on */
int32_t at_plain_layout(int32_t layout); /* of the same, with an A of FP32 */
int64_t at_bytes(int32_t layout, int operand); /* of an element of A, B or C */

/* Whether all leading dimensions and products are packed, and all addresses aligned: as shapes are tuned. */
bool at_is_as_tuned(const at_call *call);

/* Whether this kernel may serve a call with this number of splits of k. m and n are at least 1. */
bool at_may_serve(const autotune_kernel *kernel, const at_call *call, int32_t split_k);

/* Whether each of this many parts of k has some work. */
bool at_has_work(const autotune_kernel *kernel, int32_t split_k, int32_t k);

/* The parts of k in a launch: as many as are asked for, or chunks (launch.num_splits). */
int32_t at_num_splits(const autotune_kernel *kernel, int32_t split_k, int32_t k);

/* How many blocks share out the chunks of so many tiles; 0: each has one of one tile (launch.num_shares). */
int64_t at_num_shares(const autotune_kernel *kernel, int64_t tiles, int32_t k);

/* Whether sgemm_reduce adds the sums of splits. */
bool at_has_planes(const autotune_kernel *kernel);

/* How many groups of threads add up the splits of AUTOTUNE_REDUCE_TWO_PASS for so many elements of C. */
int32_t at_reduce_groups(int64_t elements, int32_t splits);

/* The launch of a call that the kernel may serve. */
at_grid at_plan(const autotune_kernel *kernel, const at_call *call, int32_t split_k);

/* The words of `Schedule` of kernels/tile_scheduler.cuh. */
void at_schedule(const autotune_kernel *kernel, const at_grid *grid, uint32_t words[AT_SCHEDULE_WORDS]);

#endif
