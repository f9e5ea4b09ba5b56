#include "grid.h"

#include <stddef.h>

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int32_t at_plain_layout(int32_t layout) { return layout % AUTOTUNE_FLOAT_LAYOUTS; }
int32_t at_a_type(int32_t layout) { return layout / AUTOTUNE_FLOAT_LAYOUTS; }
int64_t at_bytes(int32_t layout, int operand) { return operand || !at_a_type(layout) ? AT_FLOAT_BYTES : AT_FLOAT_BYTES / 2; }

bool at_trans_a(int32_t layout) {
    const int32_t plain = at_plain_layout(layout);
    return plain == AUTOTUNE_TN || plain == AUTOTUNE_TT;
}

bool at_trans_b(int32_t layout) {
    const int32_t plain = at_plain_layout(layout);
    return plain == AUTOTUNE_NT || plain == AUTOTUNE_TT;
}

/* How many neighbouring elements of A, B and C, as stored, a product uses. */
static void neighbours(const at_call *call, int64_t found[3]) {
    found[0] = at_trans_a(call->layout) ? call->m : call->k;
    found[1] = at_trans_b(call->layout) ? call->k : call->n;
    found[2] = call->n;
}

int32_t at_shared(const at_call *call) {
    if (call->batch.products < 2 || !call->k) return AUTOTUNE_SHARES_NONE;
    if (!call->batch.stride[0]) return AUTOTUNE_SHARES_A;
    return call->batch.stride[1] ? AUTOTUNE_SHARES_NONE : AUTOTUNE_SHARES_B;
}

static bool is_packed_batch(const at_call *call) {
    if (call->batch.products < 2) return true;
    const int32_t shared = at_shared(call);
    const int64_t m = call->m, n = call->n, k = call->k;
    const int64_t packed[3] = {shared == AUTOTUNE_SHARES_A ? 0 : m * k, shared == AUTOTUNE_SHARES_B ? 0 : k * n, m * n};
    for (int i = 0; i < 3; i++) {
        if (call->batch.stride[i] != packed[i]) return false;
    }
    return true;
}

bool at_is_as_tuned(const at_call *call) {
    int64_t packed[3];
    neighbours(call, packed);
    for (int i = 0; i < 3; i++) {
        if (call->ld[i] != (packed[i] > 1 ? packed[i] : 1) || call->low[i]) return false;
    }
    return is_packed_batch(call);
}

bool at_has_work(const autotune_kernel *kernel, int32_t split_k, int32_t k) {
    return split_k == 1 || (int64_t)split_k * kernel->bk <= k;
}

int32_t at_num_splits(const autotune_kernel *kernel, int32_t split_k, int32_t k) {
    return kernel->chunk && k ? (int32_t)ceil_div(k, kernel->chunk) : split_k;
}

int64_t at_num_shares(const autotune_kernel *kernel, int64_t tiles, int32_t k) {
    const int64_t chunks = at_num_splits(kernel, 1, k), sms = kernel->num_sms, wave = kernel->wave;
    if (!kernel->chunk || !wave || chunks < 2) return 0;
    const int64_t one_each = tiles * chunks, steps = tiles * ceil_div(k, kernel->bk);
    const int64_t in_chunk = kernel->chunk / kernel->bk, whole = steps / in_chunk;
    const int64_t most = whole < wave ? whole : wave, shares = most > sms ? most - most % sms : most;
    const double tile = (double)kernel->bm * kernel->bn; /* products of these are below 2^53 where they decide */
    const double in_turn = (double)(in_chunk * shares) * ((double)ceil_div(one_each, sms) * tile + AT_WAIT_ELEMENTS);
    const double shared = (double)(steps + AT_FILL_STEPS * shares) * ((double)ceil_div(shares, sms) * tile + AT_WAIT_ELEMENTS);
    return one_each <= wave && in_turn <= shared ? 0 : shares;
}

bool at_has_planes(const autotune_kernel *kernel) {
    return kernel->reduction == AUTOTUNE_REDUCE_TWO_PASS || kernel->reduction == AUTOTUNE_REDUCE_CHUNKS;
}

static int64_t tiles_of(const autotune_kernel *kernel, const at_call *call) {
    return ceil_div(call->m, kernel->bm) * ceil_div(call->n, kernel->bn); /* of one product, below 2^62 */
}

static int64_t split_tiles_of(const autotune_kernel *kernel, int64_t tiles) {
    if (kernel->reduction == AUTOTUNE_REDUCE_NONE) return 0;
    if (kernel->reduction != AUTOTUNE_REDUCE_LAST_WAVE) return tiles;
    return tiles % (kernel->wave > 1 ? kernel->wave : 1);
}

/* An operand that all products share is packed once. */
static int64_t packed_products(const autotune_batch *batch, int operand) {
    return batch->stride[operand] ? batch->products : 1;
}

/* Floats of a row of an operand that is packed (launch.packed_floats): tiles of a depth have one more. */
static int64_t packed_row(const autotune_kernel *kernel, int32_t k) {
    return kernel->pack_depth ? ceil_div(k, kernel->pack_depth) * (kernel->pack_depth + 1) : k;
}

/* Bytes of an operand that is packed to whole tiles: a double, since they may exceed 64 bits. */
static double packed_bytes(const autotune_kernel *kernel, const at_call *call, int operand, int64_t padded) {
    const double row = (double)packed_row(kernel, call->k);
    return (double)AT_FLOAT_BYTES * (double)padded * row * (double)packed_products(&call->batch, operand);
}

static bool has_few_blocks(const at_grid *grid) {
    if (grid->reduce_blocks * grid->batch.products > AT_MAX_GRID_X) return false;
    for (int32_t i = 0; i < grid->num_packs; i++) {
        if (grid->packs[i].blocks * grid->packs[i].products > AT_MAX_GRID_X) return false;
    }
    return true;
}

/* Whether the packed operands and the partial sums are as small as the table wants them. */
static bool has_room(const autotune_kernel *kernel, const at_call *call, int32_t split_k) {
    if (kernel->max_workspace < 0) return true;
    const at_grid grid = at_plan(kernel, call, split_k);
    return grid.pack_bytes + grid.sum_bytes + grid.counter_bytes <= kernel->max_workspace;
}

static bool fits(const autotune_kernel *kernel, const at_call *call, int32_t split_k) {
    int64_t tiles = tiles_of(kernel, call);
    if (tiles > AT_MAX_GRID_X) return false;
    tiles *= call->batch.products;
    if (tiles > AT_MAX_GRID_X) return false;
    const int64_t split_tiles = split_tiles_of(kernel, tiles);
    const bool is_last_wave = kernel->reduction == AUTOTUNE_REDUCE_LAST_WAVE;
    if (is_last_wave && tiles + split_tiles * (split_k - 1) > AT_MAX_GRID_X) return false;
    const int32_t splits = at_num_splits(kernel, split_k, call->k);
    if (kernel->reduction != AUTOTUNE_REDUCE_LAST_WAVE && splits > AT_MAX_GRID_Y) return false;
    const double tile = (double)kernel->bm * kernel->bn;
    if (kernel->reduction != AUTOTUNE_REDUCE_NONE && kernel->reduction != AUTOTUNE_REDUCE_CLUSTER) {
        /* a double, since they may exceed 64 bits */
        const double shares = (double)at_num_shares(kernel, tiles, call->k);
        if (AT_FLOAT_BYTES * (splits * (double)split_tiles + shares) * tile > AT_WORKSPACE_LIMIT) return false;
    }
    double num_bytes = 0;
    if (kernel->packs_a) num_bytes += packed_bytes(kernel, call, 0, ceil_div(call->m, kernel->bm) * kernel->bm);
    if (kernel->packs_b) num_bytes += packed_bytes(kernel, call, 1, ceil_div(call->n, kernel->bn) * kernel->bn);
    if (num_bytes > AT_WORKSPACE_LIMIT) return false;
    if (num_bytes == 0 && call->batch.products == 1) return true;
    const at_grid grid = at_plan(kernel, call, split_k);
    return grid.pack_bytes <= AT_WORKSPACE_LIMIT && has_few_blocks(&grid);
}

bool at_may_serve(const autotune_kernel *kernel, const at_call *call, int32_t split_k) {
    if (kernel->layout != call->layout || !!kernel->is_batched != (call->batch.products > 1)) return false;
    if (kernel->max_k >= 0 && call->k > kernel->max_k) return false;
    if (kernel->is_exact && (call->m % kernel->bm || call->n % kernel->bn)) return false;
    const bool is_packed[3] = {kernel->packs_a, kernel->packs_b, false};
    const int32_t vectors[3] = {kernel->vec_a, kernel->vec_b, kernel->vec_c};
    int64_t along[3];
    neighbours(call, along);
    for (int i = 0; i < 3; i++) {
        const int64_t vec = vectors[i] * AT_FLOAT_BYTES / at_bytes(call->layout, i);
        if (is_packed[i]) continue;
        if (!kernel->is_wide && call->ld[i] >= AT_NARROW_LD) return false;
        if (along[i] % vec || call->ld[i] % vec || call->batch.stride[i] % vec) return false;
        if (call->low[i] % (uint32_t)(vectors[i] * AT_FLOAT_BYTES)) return false;
    }
    return fits(kernel, call, split_k) && has_room(kernel, call, split_k);
}

/* How many threads, as a power of two, a group of sgemm_reduce has (launch.reduce_groups). */
static int32_t group_bits(int64_t elements, int32_t splits) {
    int32_t bits = AT_REDUCE_BITS;
    for (; bits > AT_WARP_BITS; bits--) {
        const int64_t groups = (int64_t)1 << (AT_REDUCE_BITS - bits);
        if (elements * groups >= AT_MANY_THREADS || splits < 2 * groups * AT_GROUP_SPLITS) break;
    }
    return bits;
}

int32_t at_reduce_groups(int64_t elements, int32_t splits) {
    return 1 << (AT_REDUCE_BITS - group_bits(elements, splits));
}

static void add_pack(at_grid *grid, const autotune_kernel *kernel, bool is_a, bool is_k_major, int32_t extent,
                     int64_t padded, int32_t k) {
    at_pack *pack = &grid->packs[grid->num_packs++];
    int64_t *stride = &grid->batch.stride[is_a ? 0 : 1];
    pack->products = packed_products(&grid->batch, is_a ? 0 : 1);
    pack->stride = *stride;
    const int64_t floats = packed_row(kernel, k) * padded;
    if (*stride) *stride = floats;
    pack->is_a = is_a;
    pack->is_k_major = is_k_major;
    pack->extent = extent;
    pack->padded = padded;
    pack->blocks = ceil_div(padded, AT_PACK_TILE) * ceil_div(k, AT_PACK_TILE);
    pack->offset = grid->pack_bytes;
    const int64_t num_bytes = AT_FLOAT_BYTES * floats * pack->products;
    pack->num_bytes = ceil_div(num_bytes, AT_PACK_ALIGNMENT) * AT_PACK_ALIGNMENT;
    grid->pack_bytes += pack->num_bytes;
}

at_grid at_plan(const autotune_kernel *kernel, const at_call *call, int32_t split_k) {
    const int64_t tiles_m = ceil_div(call->m, kernel->bm), tiles_n = ceil_div(call->n, kernel->bn);
    const int64_t products = call->batch.products;
    const int64_t tiles = tiles_m * tiles_n * products, split_tiles = split_tiles_of(kernel, tiles);
    const int32_t reduction = kernel->reduction;
    const bool is_cluster = reduction == AUTOTUNE_REDUCE_CLUSTER;
    const bool has_planes = at_has_planes(kernel);
    const bool is_last_wave = reduction == AUTOTUNE_REDUCE_LAST_WAVE;
    const int32_t splits = at_num_splits(kernel, split_k, call->k);
    const int64_t results = (int64_t)call->m * call->n;
    const int64_t tile = (int64_t)kernel->bm * kernel->bn; /* elements */
    const int64_t shares = at_num_shares(kernel, tiles, call->k);
    at_grid grid = {
        .x = shares ? shares : is_last_wave ? tiles + split_tiles * (split_k - 1) : tiles,
        .y = shares || is_last_wave ? 1 : splits,
        .tiles = tiles,
        .split_tiles = split_tiles,
        .padded_m = tiles_m * kernel->bm,
        .padded_n = tiles_n * kernel->bn,
        .sum_bytes = is_cluster ? 0 : AT_FLOAT_BYTES * (splits * split_tiles + shares) * tile,
        .counter_bytes = AT_COUNTER_BYTES * (is_cluster || has_planes ? shares : split_tiles),
        .batch = call->batch,
        .split_k = splits,
        .reduce_group_bits = has_planes ? group_bits(results * products, splits) : AT_REDUCE_BITS,
    };
    if (has_planes) grid.reduce_blocks = ceil_div(results, (int64_t)1 << grid.reduce_group_bits);
    if (grid.reduce_group_bits < AT_REDUCE_BITS) grid.reduce_smem_bytes = AT_FLOAT_BYTES * AT_REDUCE_THREADS;
    if (call->k) {
        const bool is_k_major_a = !at_trans_a(call->layout), is_k_major_b = at_trans_b(call->layout);
        if (kernel->packs_a) add_pack(&grid, kernel, true, is_k_major_a, call->m, grid.padded_m, call->k);
        if (kernel->packs_b) add_pack(&grid, kernel, false, is_k_major_b, call->n, grid.padded_n, call->k);
    }
    return grid;
}

/* `Divisor` of kernels/tile_scheduler.cuh (launch.divisor): n / value == n * words[1] >> words[2]. */
static void divisor(int64_t value, uint32_t words[3]) {
    uint32_t bits = 0;
    while ((value - 1) >> bits) bits++;
    const uint64_t power = (uint64_t)1 << (31 + bits);
    words[0] = (uint32_t)value;
    words[1] = (uint32_t)((power + (uint64_t)value - 1) / (uint64_t)value);
    words[2] = 31 + bits;
}

void at_schedule(const autotune_kernel *kernel, const at_grid *grid, uint32_t words[AT_SCHEDULE_WORDS]) {
    const int64_t tiles_m = grid->padded_m / kernel->bm, tiles_n = grid->padded_n / kernel->bn;
    const int64_t along = kernel->is_along_m ? tiles_m : tiles_n, across = kernel->is_along_m ? tiles_n : tiles_m;
    const int64_t width = kernel->group < across ? kernel->group : across, last_width = across % width;
    const int64_t values[4] = {tiles_m * tiles_n, width * along, width, last_width ? last_width : 1};
    for (size_t i = 0; i < 4; i++) divisor(values[i], words + 3 * i);
    words[12] = (uint32_t)(across / width);
    words[13] = (uint32_t)kernel->is_along_m;
}
