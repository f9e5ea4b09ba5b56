/* Times and depths of sums are those of the Python modules named here, in their order of operations: both give the same
 * numbers, except for the last bits of sums and exponentials. */

#include "choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DIMENSIONS 3
#define CUBLAS_DIMENSIONS (DIMENSIONS + 3)
#define NUM_PER_SM 4 /* numbers of blocks per SM that splits may aim at: perf_model/prediction.py */
#define MOST_LAUNCHES (NUM_PER_SM + 2) /* of a kernel for one call: these, and those that are accurate enough */
static const double BLOCKS_PER_SM[NUM_PER_SM - 1] = {1, 2, 4}; /* and the number that is resident */

#define NUM_NEAREST 8 /* tuned shapes that are looked through for a legal kernel */
#define CAUTION 0.5   /* deviations of a modelled time by which it is taken to be longer: what is surely good wins */
#define NEAR 1.25     /* times as large or small in m, n and k: sums that were accurate enough there are here */
#define ALIKE 1.4     /* times as many splits: one of two such launches of a kernel is ranked (decision 0057) */
#define MOST_TIMES_APART 2.0 /* as many products in a batch as in the one that was tuned */
/* Of cuBLAS's margin: by it the ratio of two kernels' times changes with the number of products (0056; unmeasured) */
#define BATCH_SHARE 0.13

/* The part of a modelled kernel, and of its time, that does not depend on the shape: perf_model/time_model.py. */
typedef struct {
    const autotune_kernel *kernel;
    int32_t number;
    bool is_splitting; /* the number of splits is an argument */
    double wanted[NUM_PER_SM];
    double l2_us, overhead_us, wait_us, caution, chains;
    double lost_m, lost_n, lost_k; /* bytes at each cut of a row by tiles, along that side */
} modelled;

struct at_chooser {
    const autotune_table *table;
    modelled *modelled[AUTOTUNE_LAYOUTS];
    double *between; /* pairs of numbers of splits: a wish below goes to the smaller */
    int32_t *slots, num_slots; /* entries, hashed by shape; -1: none */
    double *places;            /* (entries, 3) logarithms of m, n and k */
    /* Of each layout, where the shapes lie on which the level of its kernels' times, and cuBLAS's, were learned */
    double *level_places[AUTOTUNE_LAYOUTS], *cublas_places[AUTOTUNE_LAYOUTS][AUTOTUNE_BLAS_CALLS];
};

/* How deep sums are, for data of zero mean and for positive data: perf_model/sum_depths.py. */
typedef struct {
    double zero_mean, positive;
} depths;

/* ------------------------------------------------------------------------------------------ opening */

static bool splits(const autotune_kernel *kernel) {
    return kernel->reduction == AUTOTUNE_REDUCE_TWO_PASS || kernel->reduction == AUTOTUNE_REDUCE_LAST_BLOCK ||
           kernel->reduction == AUTOTUNE_REDUCE_LAST_WAVE;
}

/* Whether the number of splits decides how deep sums are. */
static bool sums_in_parts(const autotune_kernel *kernel) {
    return kernel->reduction != AUTOTUNE_REDUCE_NONE && kernel->reduction != AUTOTUNE_REDUCE_LAST_WAVE &&
           !kernel->chunk;
}

static double fmas_per_us(const autotune_table *table) { return table->fma_tflops * 1e6 / 2; }

static double lost_bytes(const autotune_table *table, int32_t extent) {
    return fmax(table->constants.line_floats - extent, 0);
}

static modelled understood(const autotune_table *table, int32_t number) {
    const autotune_kernel *kernel = &table->kernels[number];
    const autotune_constants *c = &table->constants;
    const int32_t reduction = kernel->reduction;
    const bool is_last_wave = reduction == AUTOTUNE_REDUCE_LAST_WAVE;
    const int further = at_has_planes(kernel) + !!kernel->packs_a + !!kernel->packs_b;
    const bool sums_in_splits = sums_in_parts(kernel);
    modelled found = {
        .kernel = kernel,
        .number = number,
        .is_splitting = splits(kernel),
        .l2_us = (kernel->bm + kernel->bn) * (c->fmas_per_l2_float / fmas_per_us(table)),
        .overhead_us = (kernel->overlaps ? c->launch_us : c->launch_apart_us) * further,
        .lost_m = lost_bytes(table, kernel->bm),
        .lost_n = lost_bytes(table, kernel->bn),
        .lost_k = lost_bytes(table, kernel->bk),
        .caution = 1 + CAUTION * kernel->relative_error,
        .chains = sums_in_splits && !kernel->flush_k && kernel->added_k == 1 ? (double)kernel->threads_along_k : INFINITY,
    };
    if (reduction == AUTOTUNE_REDUCE_CLUSTER) found.overhead_us += c->cluster_us;
    if (reduction == AUTOTUNE_REDUCE_LAST_BLOCK || is_last_wave)
        found.wait_us = c->last_block_us + c->last_block_float_us * kernel->bm * kernel->bn;
    for (int i = 0; i < NUM_PER_SM; i++) {
        const double resident = kernel->blocks_per_sm;
        const double per_sm = i < NUM_PER_SM - 1 ? fmin(BLOCKS_PER_SM[i], resident) : resident;
        found.wanted[i] = per_sm * (is_last_wave ? c->parts_of_last : table->num_sms);
    }
    return found;
}

static uint32_t hashed(int32_t m, int32_t n, int32_t k, int32_t layout, int64_t products) {
    uint64_t hash = (uint64_t)(uint32_t)layout;
    const uint32_t words[] = {(uint32_t)m, (uint32_t)n, (uint32_t)k, (uint32_t)products};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        hash = (hash ^ words[i]) * 0x9E3779B97F4A7C15u; /* Fibonacci hashing */
    }
    return (uint32_t)(hash >> 32);
}

static bool index_entries(at_chooser *chooser) {
    const autotune_table *table = chooser->table;
    int32_t size = 4;
    while (size < 2 * table->num_entries) size *= 2;
    chooser->num_slots = size;
    chooser->slots = malloc((size_t)size * sizeof *chooser->slots);
    chooser->places = malloc((size_t)(table->num_entries + 1) * DIMENSIONS * sizeof *chooser->places);
    if (!chooser->slots || !chooser->places) return false;
    for (int32_t i = 0; i < size; i++) chooser->slots[i] = -1;
    for (int32_t i = 0; i < table->num_entries; i++) {
        const autotune_entry *entry = &table->entries[i];
        uint32_t at = hashed(entry->m, entry->n, entry->k, entry->layout, entry->products);
        while (chooser->slots[at & (uint32_t)(size - 1)] >= 0) at++;
        chooser->slots[at & (uint32_t)(size - 1)] = i;
        double *place = chooser->places + DIMENSIONS * i;
        place[0] = log1p(entry->m), place[1] = log1p(entry->n), place[2] = log1p(entry->k);
    }
    return true;
}

/* The place of a shape (perf_model/residual.py). */
static void place_of(const int32_t extents[DIMENSIONS], double *place) {
    for (int i = 0; i < DIMENSIONS; i++) place[i] = log2(extents[i] > 1 ? extents[i] : 1);
}

/* Its place among those on which cuBLAS was timed (perf_model/cublas_model.py). */
static void cublas_place_of(const int32_t extents[DIMENSIONS], double products, const autotune_constants *c,
                            double tile_apart, double *place) {
    place_of(extents, place);
    place[CUBLAS_DIMENSIONS - 1] = log2(products);
    for (int i = 0; i < 2; i++) {
        const double side = extents[i] > 1 ? extents[i] : 1;
        place[i] = log2(fmin(side, c->cublas_most));
        if (side < 2) place[i] -= c->vector_apart;
        const double empty = log2(ceil(side / c->cublas_tile) * c->cublas_tile / side);
        place[DIMENSIONS + i] = tile_apart * fmin(empty, 1);
    }
}

/* Where cuBLAS was timed; NULL if memory is short. */
static double *cublas_places_of(const autotune_blas_times *known, const autotune_constants *c) {
    const int32_t num = known->missed.num_places, *extents = known->missed.extents;
    double *places = malloc((size_t)(num + 1) * CUBLAS_DIMENSIONS * sizeof *places);
    for (int32_t i = 0; places && i < num; i++) {
        const double products = known->products ? known->products[i] : 1;
        cublas_place_of(extents + DIMENSIONS * i, products, c, known->tile_apart, places + CUBLAS_DIMENSIONS * i);
    }
    return places;
}

static bool place_shapes(at_chooser *chooser, int layout) {
    const autotune_layout *known = &chooser->table->layouts[layout];
    const autotune_residuals *level = &known->level;
    double *own = malloc((size_t)(level->num_places + 1) * DIMENSIONS * sizeof *own);
    chooser->level_places[layout] = own;
    for (int32_t i = 0; own && i < level->num_places; i++) {
        place_of(level->extents + DIMENSIONS * i, own + DIMENSIONS * i);
    }
    bool is_complete = own != NULL;
    for (int way = 0; way < AUTOTUNE_BLAS_CALLS; way++) {
        chooser->cublas_places[layout][way] = cublas_places_of(&known->cublas[way], &chooser->table->constants);
        is_complete = is_complete && chooser->cublas_places[layout][way];
    }
    return is_complete;
}

at_chooser *at_chooser_new(const autotune_table *table) {
    at_chooser *chooser = calloc(1, sizeof *chooser);
    if (!chooser) return NULL;
    chooser->table = table;
    const autotune_constants *c = &table->constants;
    chooser->between = malloc((size_t)(c->num_split_values + 1) * sizeof *chooser->between);
    bool is_complete = chooser->between && index_entries(chooser);
    for (int32_t i = 0; is_complete && i + 1 < c->num_split_values; i++) {
        chooser->between[i] = sqrt(c->split_values[i + 1] * c->split_values[i]);
    }
    for (int layout = 0; is_complete && layout < AUTOTUNE_LAYOUTS; layout++) {
        const autotune_layout *known = &table->layouts[layout];
        modelled *rows = malloc((size_t)(known->num_modelled + 1) * sizeof *rows);
        chooser->modelled[layout] = rows;
        is_complete = rows && place_shapes(chooser, layout);
        for (int32_t i = 0; rows && i < known->num_modelled; i++) rows[i] = understood(table, known->modelled[i]);
    }
    if (is_complete) return chooser;
    at_chooser_free(chooser);
    return NULL;
}

void at_chooser_free(at_chooser *chooser) {
    if (!chooser) return;
    for (int layout = 0; layout < AUTOTUNE_LAYOUTS; layout++) {
        free(chooser->modelled[layout]);
        free(chooser->level_places[layout]);
        for (int way = 0; way < AUTOTUNE_BLAS_CALLS; way++) free(chooser->cublas_places[layout][way]);
    }
    free(chooser->between);
    free(chooser->slots);
    free(chooser->places);
    free(chooser);
}

/* ------------------------------------------------------------------------------------------ accuracy */

/* Depths of the sums of a call in `split_k` splits (Sums.depths). */
static depths depths_of(const autotune_constants *c, const autotune_kernel *kernel, double split_k,
                        const at_call *call) {
    const bool is_split = sums_in_parts(kernel);
    const double k = call->k > 1 ? call->k : 1, more_splits = is_split ? split_k - 1 : 0;
    const double length = k / (kernel->threads_along_k * (more_splits + 1));
    const double flush_k = kernel->flush_k ? (double)kernel->flush_k : INFINITY;
    const double chain = fmin(flush_k, length), more_chains = fmax(length * (1 / flush_k) - 1, 0);
    const int32_t groups = kernel->reduction == AUTOTUNE_REDUCE_TWO_PASS
                               ? at_reduce_groups((int64_t)call->m * call->n, (int32_t)split_k)
                               : 1;
    const double more_groups = groups - 1, in_group = (more_splits + 1) / groups - 1;
    const double more_slices = kernel->slices - 1;
    const double levels = log2((double)kernel->threads_along_k / kernel->slices);
    const double of_zero_mean = more_slices + in_group + more_groups + c->level_zero_mean * levels;
    const double of_positive = more_slices + in_group / groups + more_groups + c->level_positive * levels;
    return (depths){chain / kernel->added_k + more_chains + of_zero_mean + kernel->parts_zero_mean,
                    (chain * chain / kernel->added_k + more_chains * length) / k + of_positive + kernel->parts_positive};
}

/* Whether cuBLAS computes dot products (summation._is_dots). */
static bool is_dots(const autotune_constants *c, const at_call *call) {
    const bool a_is_along_k = !at_trans_a(call->layout);
    const bool b_is_along_k = at_trans_b(call->layout);
    const bool lie_along_k = (call->m == 1 || a_is_along_k) && (call->n == 1 || b_is_along_k);
    const bool are_few_rows = call->m <= c->dot_rows && (double)call->m * call->k <= c->dot_elements;
    return lie_along_k && (call->m == 1 || call->n == 1 || are_few_rows);
}

/* The most parts that cuBLAS splits k into, as a rule. C is large if it has `large` elements per SM. */
static double most_splits(const autotune_table *table, const at_call *call, double large) {
    const autotune_constants *c = &table->constants;
    const double elements = (double)call->m * call->n / table->num_sms, k = call->k;
    const double side = call->m < call->n ? call->m : call->n;
    const bool a_is_along_k = !at_trans_a(call->layout);
    double found;
    if (is_dots(c, call)) {
        found = k / fmin(k / c->dot_threads + c->dot_added, c->dot_depth);
    } else if (side <= c->narrow_side) {
        found = fmin(k / c->narrow_depth, c->narrow_parts);
        if (call->m <= c->few_rows && a_is_along_k && k >= c->narrow_depth) found = fmax(found, c->parts_of_few_rows);
    } else if (k < (elements < large ? c->least_k : c->least_k_of_large)) {
        found = 1;
    } else {
        found = fmin(c->splits * sqrt(k) / cbrt(elements), k / c->shortest_chain);
    }
    return fmax(1, found);
}

/* How deep sums may be if nothing was measured (allowed_depths). */
static depths allowed_anywhere(const autotune_table *table, const at_call *call, double large) {
    const autotune_constants *c = &table->constants;
    const double k = fmax(call->k, c->shortest_chain), parts = most_splits(table, call, large);
    const double zero_parts = fmin(parts, sqrt(k)), positive_parts = fmin(parts, cbrt(2 * k));
    const double side = call->m < call->n ? call->m : call->n;
    const bool is_narrow = side <= c->narrow_side;
    const double zero_mean = is_narrow ? k / parts : k / zero_parts + zero_parts - 1;
    const double adding = (is_narrow ? c->narrow_adding : 1) * (positive_parts - 1);
    double positive = k / (positive_parts * positive_parts) + adding;
    if (k >= c->least_k && is_dots(c, call)) positive = c->dot_positive;
    return (depths){c->error_zero_mean * c->error_zero_mean * zero_mean,
                    c->error_positive * c->error_positive * positive};
}

/* The least of that, whatever was measured nearby: a promise is held by cuBLAS alone. */
static depths least_of_sgemm(const autotune_table *table, const at_call *call) {
    return allowed_anywhere(table, call, table->constants.promised_large * table->constants.large_elements);
}

static bool are_near(double x, double y) { return x <= NEAR * y && y <= NEAR * x; }

/* How deep sums may be: as deep as those of kernels that were accurate enough when measured at a near shape. */
static depths allowed_depths(const autotune_table *table, const at_call *call, const autotune_entry *near) {
    depths allowed = allowed_anywhere(table, call, table->constants.large_elements);
    const autotune_constants *c = &table->constants;
    if (!near || !are_near(near->m, call->m) || !are_near(near->n, call->n) || !are_near(near->k, call->k)) {
        return allowed;
    }
    for (int32_t i = 0; i < near->num_ranked; i++) {
        const autotune_kernel *kernel = &table->kernels[table->ranked[near->first + i].kernel];
        const depths found = depths_of(c, kernel, kernel->split_k, call);
        allowed.zero_mean = fmax(allowed.zero_mean, found.zero_mean);
        allowed.positive = fmax(allowed.positive, found.positive);
    }
    return allowed;
}

/* Whether a kernel of a class with a promise may break it, where sums may be so deep (Sums.may_break). */
static bool may_break(const autotune_constants *c, const autotune_kernel *kernel, const depths *sums,
                      const at_call *call, const depths *allowed) {
    const double zero_mean = allowed->zero_mean / (c->error_zero_mean * c->error_zero_mean);
    const double positive = allowed->positive / (c->error_positive * c->error_positive);
    return kernel->parts_zero_mean > 0 &&
           (sums->zero_mean > c->promised_zero_mean * zero_mean || sums->positive > c->promised_positive * positive ||
            (double)call->m * call->n < c->promised_results);
}

/* ------------------------------------------------------------------------------------------ times */

/* Covariances of a place with those of the fit (perf_model/residual.py): Matern 3/2. */
static void covariances(const double *places, int32_t num_places, int32_t num_coordinates, const autotune_table *table,
                        const double *place, double *found) {
    const double length = table->constants.residual_length;
    for (int32_t at = 0; at < num_places; at++) {
        double squares = 0;
        for (int32_t i = 0; i < num_coordinates; i++) {
            const double apart = places[num_coordinates * at + i] - place[i];
            squares += apart * apart;
        }
        const double r = sqrt(squares * (3 / (length * length)));
        found[at] = (1 + r) * exp(-r);
    }
}

/* The logarithm of the factor of the only row. */
static double correction(const autotune_residuals *known, const double *covariance) {
    const float *weights = known->weights;
    double sums[4] = {0}; /* chains that the processor adds in parallel */
    int32_t at = 0;
    for (; at + 4 <= known->num_places; at += 4) {
        for (int i = 0; i < 4; i++) sums[i] += (double)weights[at + i] * covariance[at + i];
    }
    for (; at < known->num_places; at++) sums[0] += (double)weights[at] * covariance[at];
    return sums[0] + sums[1] + (sums[2] + sums[3]);
}

/* What a shape requires of every kernel. */
typedef struct {
    const autotune_table *table;
    const at_call *call;
    const at_call *batch; /* of which `call` is one product of all rows; NULL: none */
    double least_bytes;
    double level; /* by which the logarithms of all kernels' times exceed the modelled ones */
    depths allowed;
    depths guessed;  /* what would be allowed by the shape alone */
    depths of_sgemm; /* the least that these may be by SGEMM, to which a promise is held */
} shape;

/* The kernel that is launched: in a batch the one of the same config for batches; NULL: the table has none. */
static const autotune_kernel *launched(const shape *of, const autotune_kernel *kernel) {
    if (!of->batch) return kernel;
    return kernel->batched < 0 ? NULL : &of->table->kernels[kernel->batched];
}

/* Tiles along all rows: those of a batch end with each product. */
static double tiles_along_m(const shape *of, const autotune_kernel *kernel) {
    if (!of->batch) return ceil((double)of->call->m / kernel->bm);
    return ceil((double)of->batch->m / kernel->bm) * (double)of->batch->batch.products;
}

/* Of the tiles along all rows, those whose A is read: fewer where the products of a batch share it. */
static double own_a(const shape *of) {
    return of->batch && !of->batch->batch.stride[0] ? 1 / (double)of->batch->batch.products : 1;
}

/* Products that have a B of their own. */
static double own_b(const shape *of) {
    return of->batch && of->batch->batch.stride[1] ? (double)of->batch->batch.products : 1;
}

/* Adds the steps of waves, and of the queue on the busiest SM, for blocks of `k_steps` steps each. */
static void add_steps(const shape *of, const autotune_kernel *kernel, double blocks, double k_steps,
                      double *wave_steps, double *queue_steps) {
    const double queue = ceil(blocks / of->table->num_sms);
    const double steps = k_steps + of->table->constants.prologue_steps;
    *wave_steps += ceil(queue / kernel->blocks_per_sm) * steps;
    *queue_steps += queue * steps;
}

/* Bytes lost where tiles cut rows of A and B. */
static double lost_of(const shape *of, const modelled *row, double tiles_m, double tiles_n, double k_tiles) {
    const autotune_kernel *kernel = row->kernel;
    const double m = of->call->m, n = of->call->n, k = of->call->k;
    const double cuts_k = fmax(k_tiles - 1, 0) * row->lost_k;
    const double of_a = at_trans_a(kernel->layout) ? k * ((tiles_m - 1) * row->lost_m) : m * cuts_k;
    const double of_b = at_trans_b(kernel->layout) ? n * cuts_k : k * ((tiles_n - 1) * row->lost_n);
    return (kernel->packs_a ? 0 : of_a * own_a(of)) + (kernel->packs_b ? 0 : of_b * own_b(of));
}

/* The logarithm of the factor by which a kernel takes longer than modelled. `numbers` of the launch, as they are. */
static double missed_by(const shape *of, const float *weights, double numbers[AUTOTUNE_NUMBERS]) {
    const autotune_constants *c = &of->table->constants;
    double sum = weights[0] + weights[1] * of->level;
    weights += 2;
    for (int i = 0; i < AUTOTUNE_NUMBERS; i++) {
        const double number = (numbers[i] - c->term_centres[i]) / c->term_scales[i];
        numbers[i] = fmin(fmax(number, -c->term_most), c->term_most);
        sum += *weights++ * numbers[i];
    }
    for (int i = 0; i < AUTOTUNE_PAIRED; i++) {
        double with_others = 0;
        for (int other = i; other < AUTOTUNE_PAIRED; other++) with_others += *weights++ * numbers[other];
        sum += numbers[i] * with_others;
    }
    return sum;
}

/* Time in us of a kernel with as many splits as are `asked` for (TimeModel.work, parts_us, launch_errors.terms). */
static double expected_us(const shape *of, const modelled *row, const float *weights, double asked) {
    const autotune_table *table = of->table;
    const autotune_kernel *kernel = row->kernel;
    const double split_k = kernel->chunk ? at_num_splits(kernel, 1, of->call->k) : asked;
    const double n = of->call->n, k = of->call->k;
    const double tiles_m = tiles_along_m(of, kernel), tiles_n = ceil(n / kernel->bn), tiles = tiles_m * tiles_n;
    const bool is_last_wave = kernel->reduction == AUTOTUNE_REDUCE_LAST_WAVE;
    const double split_tiles = is_last_wave ? fmod(tiles, kernel->wave > 1 ? kernel->wave : 1) : tiles;
    const double shares = kernel->chunk ? (double)at_num_shares(kernel, (int64_t)tiles, of->call->k) : 0;
    const double sum_bytes = row->is_splitting || kernel->chunk
                                 ? (double)AT_FLOAT_BYTES * kernel->bm * kernel->bn * (split_tiles * split_k + shares)
                                 : 0;
    const double granule = (double)AT_FLOAT_BYTES / AT_PACK_ALIGNMENT;
    double pack_bytes = 0, wave_steps = 0, queue_steps = 0;
    if (kernel->packs_a) pack_bytes += AT_PACK_ALIGNMENT * ceil(kernel->bm * granule * (tiles_m * own_a(of)) * k);
    if (kernel->packs_b) pack_bytes += AT_PACK_ALIGNMENT * ceil(kernel->bn * granule * (tiles_n * own_b(of)) * k);

    const double k_tiles = ceil(k / kernel->bk);
    double num_blocks = split_tiles * split_k, wait_us = row->wait_us * split_k;
    double depth = kernel->chunk ? fmin(k_tiles, (double)kernel->chunk / kernel->bk) : ceil(k_tiles / split_k);
    if (shares > 0) { /* each begins anew with each part of a chunk */
        const double of_share = tiles * k_tiles / shares, parts = of_share * kernel->bk / kernel->chunk;
        depth = of_share + table->constants.prologue_steps * parts;
        num_blocks = shares;
    }
    add_steps(of, kernel, num_blocks, depth, &wave_steps, &queue_steps);
    if (is_last_wave) {
        add_steps(of, kernel, tiles - split_tiles, k_tiles, &wave_steps, &queue_steps);
        num_blocks = tiles;
        wait_us *= fmin(split_tiles, 1);
    }
    const double bytes_per_us = table->bandwidth_gbs * 1e3;
    const double asking_blocks = table->constants.bandwidth_sms * table->num_sms;
    const double reach = fmin(bytes_per_us, num_blocks * (bytes_per_us / asking_blocks));
    const double lost = lost_of(of, row, tiles_m, tiles_n, k_tiles);
    const double memory_us = (of->least_bytes + 2 * (sum_bytes + pack_bytes) + lost) / reach;
    const double l2_us = tiles * row->l2_us * k;
    const double round_us = kernel->round_us * wave_steps, compute_us = round_us + kernel->step_us * queue_steps;
    const double bytes_us = memory_us / kernel->memory_efficiency;
    const double compute2 = compute_us * compute_us, memory2 = bytes_us * bytes_us;
    const double bound_us = fmax(sqrt(sqrt(compute2 * compute2 + memory2 * memory2)), l2_us);
    const double more_us = row->overhead_us + wait_us, time_us = kernel->fixed_us + bound_us + more_us;

    const autotune_constants *c = &table->constants;
    const double blocks = tiles * split_k, resident = kernel->blocks_per_sm, queue = ceil(blocks / table->num_sms);
    double numbers[AUTOTUNE_NUMBERS] = {
        log2(fmin(queue, c->long_queue)),
        log2(fmin(queue / resident, 1)),
        log2(blocks / (table->num_sms * resident * ceil(queue / resident))),
        log2(split_k),
        log2(fmin(fmax(ceil(k_tiles / split_k), 1), c->deep)),
        bytes_us / time_us,
        more_us / time_us,
        kernel->fixed_us / time_us,
        l2_us / time_us,
        round_us / time_us,
    };
    return time_us * exp(missed_by(of, weights, numbers));
}

/* The place of the first value that is not below a wish (NumPy's searchsorted). */
static int32_t first_not_below(const double *values, int32_t num, double wish) {
    int32_t at = 0;
    while (at < num && values[at] < wish) at++;
    return at;
}

/* From how many splits on a kernel's sums are hardly deeper than allowed. */
static double accurate_splits(const autotune_constants *c, const modelled *row, const depths *allowed, double deep) {
    const double zero_mean = c->chain_share * allowed->zero_mean;
    return deep / (row->chains * fmin(zero_mean, sqrt(c->chain_share * allowed->positive * deep)));
}

/* Numbers of splits worth considering for a kernel that takes any (perf_model/prediction.py); equal ones occur. A depth
 * that is known to be allowed takes nothing away that the guess would have considered: of the last two the faster counts. */
static int32_t split_choices(const at_chooser *chooser, const shape *of, const modelled *row,
                             double found[MOST_LAUNCHES]) {
    const autotune_constants *c = &of->table->constants;
    const autotune_kernel *kernel = row->kernel;
    const double k = of->call->k, deep = k > 1 ? k : 1;
    const double tiles = tiles_along_m(of, kernel) * ceil((double)of->call->n / kernel->bn);
    const bool counts_tiles = kernel->reduction != AUTOTUNE_REDUCE_LAST_WAVE;
    int32_t most = -1; /* the greatest that leaves each part some work */
    while (most + 1 < c->num_split_values && c->split_values[most + 1] <= k / kernel->bk) most++;
    const bool is_guessed =
        of->allowed.zero_mean == of->guessed.zero_mean && of->allowed.positive == of->guessed.positive;
    const int32_t num = MOST_LAUNCHES - is_guessed;
    for (int i = 0; i < num; i++) {
        const depths *allowed = i == NUM_PER_SM ? &of->allowed : &of->guessed;
        const double wish = i < NUM_PER_SM ? row->wanted[i] / fmax(counts_tiles ? tiles : 0, 1)
                                           : accurate_splits(c, row, allowed, deep);
        int32_t at = i < NUM_PER_SM ? first_not_below(chooser->between, c->num_split_values - 1, wish)
                                    : first_not_below(c->split_values, c->num_split_values, wish);
        if (at > most) at = most;
        found[i] = c->split_values[at > 0 ? at : 0];
    }
    return num;
}

/* ------------------------------------------------------------------------------------------ choosing */

/* A launch that may serve a call. Of two that are otherwise equal, the one of the lower order serves. */
typedef struct {
    double handicapped_us, careful_us, time_us, excess; /* careful: will hardly be exceeded */
    int32_t row, split_k, order;
} candidate;

/* What the model says of a call. */
typedef struct {
    shape of;
    const autotune_entry *near; /* the nearest tuned shape; NULL: none */
    double *covariance;         /* room for the places of the layout, and of its cuBLAS */
    candidate *candidates;
    int32_t num_candidates, num_kernels; /* that may serve */
    double relative_error;               /* of the chosen one's time */
} forecast;

/* Adds a launch, if it may serve. */
static void consider(forecast *by, const modelled *row, double split_k, candidate mine) {
    const autotune_kernel *kernel = row->kernel;
    const at_call *call = by->of.call;
    mine.split_k = (int32_t)split_k;
    const bool leaves_work = !(row->is_splitting || kernel->reduction == AUTOTUNE_REDUCE_CLUSTER) ||
                             split_k * kernel->bk <= call->k;
    const autotune_kernel *one = launched(&by->of, kernel);
    if (!leaves_work || !one || !at_may_serve(one, by->of.batch ? by->of.batch : call, mine.split_k)) return;
    const float *weights = by->of.table->layouts[call->layout].missed + (size_t)mine.row * AUTOTUNE_TERMS;
    mine.time_us = expected_us(&by->of, row, weights, split_k);
    mine.careful_us = mine.time_us * row->caution;
    const depths sums = depths_of(&by->of.table->constants, kernel, split_k, call);
    const depths allowed = by->of.allowed;
    if (may_break(&by->of.table->constants, kernel, &sums, call, &by->of.of_sgemm)) return;
    mine.excess = fmax(1, fmax(sums.zero_mean / allowed.zero_mean, sums.positive / allowed.positive));
    const double squares = mine.excess * mine.excess; /* the fourth power: steep (decision 0062) */
    mine.handicapped_us = mine.careful_us * (squares * squares);
    by->candidates[by->num_candidates++] = mine;
}

/* Drops the slower of the last two launches. */
static void keep_faster(forecast *by) {
    candidate *last = &by->candidates[--by->num_candidates];
    if (last->handicapped_us < last[-1].handicapped_us) last[-1] = *last;
}

/* Adds the launches of all kernels of the layout that have a model. */
static void consider_all(const at_chooser *chooser, forecast *by) {
    const autotune_layout *known = &by->of.table->layouts[by->of.call->layout];
    for (int32_t i = 0; i < known->num_modelled; i++) {
        const modelled *row = &chooser->modelled[by->of.call->layout][i];
        const int32_t before = by->num_candidates;
        if (!row->is_splitting) {
            consider(by, row, row->kernel->split_k, (candidate){.row = i, .order = i});
        } else {
            double choices[MOST_LAUNCHES];
            const int32_t num = split_choices(chooser, &by->of, row, choices);
            int32_t by_known = before;
            for (int32_t at = 0; at < num; at++) { /* the order of perf_model/prediction.py */
                const candidate mine = {.row = i, .order = (at + 1) * known->num_modelled + i};
                if (at == NUM_PER_SM) by_known = by->num_candidates;
                if (!at || choices[at] != choices[at - 1]) consider(by, row, choices[at], mine);
            }
            if (by->num_candidates == by_known + 2) keep_faster(by);
        }
        by->num_kernels += by->num_candidates > before;
    }
}

static int in_order(const void *one, const void *other) {
    const candidate *a = one, *b = other;
    if (a->handicapped_us != b->handicapped_us) return a->handicapped_us < b->handicapped_us ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

static autotune_choice choice_of(const at_chooser *chooser, const forecast *by, const candidate *one) {
    const autotune_kernel *kernel = chooser->modelled[by->of.call->layout][one->row].kernel;
    return (autotune_choice){
        .how = AUTOTUNE_MODELLED,
        .kernel = (int32_t)(launched(&by->of, kernel) - by->of.table->kernels),
        .split_k = one->split_k,
        .entry = by->near ? (int32_t)(by->near - by->of.table->entries) : -1,
        .num_legal = by->num_kernels,
        .expected_us = one->time_us,
        .excess = one->excess,
    };
}

/* The launch with the least modelled time that is accurate enough, if there is one. False if no kernel with a model may
 * serve. */
static bool choose_modelled(const at_chooser *chooser, forecast *by, autotune_choice *choice) {
    consider_all(chooser, by);
    if (!by->num_candidates) return false;
    const candidate *best = by->candidates, *surest = best;
    for (int32_t i = 1; i < by->num_candidates; i++) {
        const candidate *one = &by->candidates[i];
        if (in_order(one, best) < 0) best = one;
        if (one->careful_us < surest->careful_us) surest = one;
    }
    *choice = choice_of(chooser, by, best);
    choice->is_for_accuracy = best->careful_us > surest->careful_us;
    by->relative_error = chooser->modelled[by->of.call->layout][best->row].kernel->relative_error;
    return true;
}

static const autotune_entry *tuned(const at_chooser *chooser, const at_call *call) {
    const uint32_t mask = (uint32_t)(chooser->num_slots - 1);
    const int32_t shared = at_shared(call);
    for (uint32_t at = hashed(call->m, call->n, call->k, call->layout, call->batch.products);; at++) {
        const int32_t number = chooser->slots[at & mask];
        if (number < 0) return NULL;
        const autotune_entry *entry = &chooser->table->entries[number];
        if (entry->m == call->m && entry->n == call->n && entry->k == call->k &&
            entry->layout == call->layout && entry->products == call->batch.products && entry->shared == shared) {
            return entry;
        }
    }
}

/* As it would be called, if that was timed. */
static double cublas_us_of(const autotune_entry *entry, const at_call *call) {
    const double adding_us = call->adds_bias ? entry->cublas_us[AUTOTUNE_ADDING] : 0;
    return adding_us > 0 ? adding_us : entry->cublas_us[AUTOTUNE_ALONE];
}

static bool choose_exact(const at_chooser *chooser, const at_call *call, autotune_choice *choice) {
    const autotune_table *table = chooser->table;
    const autotune_entry *entry = at_is_as_tuned(call) ? tuned(chooser, call) : NULL;
    for (int32_t i = 0; entry && i < entry->num_ranked; i++) {
        const autotune_ranked *ranked = &table->ranked[entry->first + i];
        const autotune_kernel *kernel = &table->kernels[ranked->kernel];
        if (!at_may_serve(kernel, call, kernel->split_k)) continue;
        choice->how = AUTOTUNE_EXACT;
        choice->kernel = ranked->kernel;
        choice->split_k = kernel->split_k;
        choice->entry = (int32_t)(entry - table->entries);
        choice->expected_us = ranked->time_us;
        choice->cublas_us = cublas_us_of(entry, call);
        choice->is_cublas = choice->cublas_us > 0 && choice->cublas_us < ranked->time_us;
        return true;
    }
    return false;
}

static double apart(const double *place, const double *other) {
    double squares = 0;
    for (int i = 0; i < DIMENSIONS; i++) squares += (place[i] - other[i]) * (place[i] - other[i]);
    return squares;
}

/* The tuned shape nearest to a call, among those farther than `behind` or as far and later in the table; the first of
 * several. -1 if there is none. */
static int32_t nearest(const at_chooser *chooser, const at_call *call, int32_t behind) {
    const autotune_table *table = chooser->table;
    const double place[DIMENSIONS] = {log1p(call->m), log1p(call->n), log1p(call->k)};
    const double least = behind < 0 ? -1 : apart(chooser->places + DIMENSIONS * behind, place);
    double best = INFINITY;
    int32_t found = -1;
    for (int32_t i = 0; i < table->num_entries; i++) {
        if (table->entries[i].layout != call->layout || table->entries[i].products > 1) continue;
        const double squares = apart(chooser->places + DIMENSIONS * i, place);
        if (squares < least || (squares == least && i <= behind)) continue;
        if (squares < best) best = squares, found = i;
    }
    return found;
}

/* The best legal kernel of the nearest tuned shape that has one. */
static bool choose_nearest(const at_chooser *chooser, const at_call *call, autotune_choice *choice) {
    const autotune_table *table = chooser->table;
    const depths allowed = least_of_sgemm(table, call);
    int32_t at = -1;
    for (int32_t looked = 0; looked < NUM_NEAREST; looked++) {
        at = nearest(chooser, call, at);
        if (at < 0) return false;
        for (int32_t i = 0; i < table->entries[at].num_ranked; i++) {
            const int32_t number = table->ranked[table->entries[at].first + i].kernel;
            const autotune_kernel *kernel = &table->kernels[number];
            if (!at_has_work(kernel, kernel->split_k, call->k)) continue;
            if (!at_may_serve(kernel, call, kernel->split_k)) continue;
            const depths sums = depths_of(&table->constants, kernel, kernel->split_k, call);
            if (may_break(&table->constants, kernel, &sums, call, &allowed)) continue;
            choice->how = AUTOTUNE_NEAREST;
            choice->kernel = number;
            choice->split_k = kernel->split_k;
            choice->entry = at;
            return true;
        }
    }
    return false;
}

/* Whether cuBLAS is expected to be as fast as what the model chose, or nearly (perf_model/cublas_model.py). */
static void look_at_cublas(const at_chooser *chooser, const forecast *by, const char *version,
                           autotune_choice *choice) {
    const shape *of = &by->of;
    const autotune_table *table = of->table;
    const autotune_constants *c = &table->constants;
    const autotune_blas_times *ways = table->layouts[of->call->layout].cublas;
    const at_call *call = of->batch ? of->batch : of->call;
    const int alone = of->batch ? AUTOTUNE_BATCHED : AUTOTUNE_ALONE;
    const int way = call->adds_bias && ways[AUTOTUNE_ADDING].version ? AUTOTUNE_ADDING : alone;
    const autotune_blas_times *known = &ways[way];
    if (!known->version) return;
    const double side = fmax(call->m < call->n ? call->m : call->n, 1), products = (double)call->batch.products;
    const double flops = 2.0 * call->m * call->n * call->k * products;
    double limit_us = fmax(flops / (table->fma_tflops * 1e6), of->least_bytes / (table->bandwidth_gbs * 1e3));
    if (of->batch && side > 1) limit_us = hypot(limit_us, c->batch_step_us * call->k);
    double place[CUBLAS_DIMENSIONS];
    cublas_place_of((const int32_t[]){call->m, call->n, call->k}, products, c, known->tile_apart, place);
    covariances(chooser->cublas_places[of->call->layout][way], known->missed.num_places, CUBLAS_DIMENSIONS, table,
                place, by->covariance);
    const double level = exp(known->level);
    choice->cublas_us = (c->cublas_fixed_us + limit_us) * level * exp(correction(&known->missed, by->covariance));
    const bool is_other = version && strcmp(version, known->version) != 0;
    const double deviation = known->deviation * pow(side / c->deviation_side, -c->deviation_power);
    const double error = by->relative_error, in_batch = of->batch ? c->batch_error : 0;
    const double doubt = is_other ? c->other_version : 0;
    choice->margin = c->margin * sqrt(deviation * deviation + error * error + in_batch * in_batch + doubt * doubt);
    choice->is_cublas = choice->cublas_us < choice->expected_us * exp(choice->margin);
}

bool at_is_tuned(const at_chooser *chooser, const at_call *call) {
    return at_is_as_tuned(call) && tuned(chooser, call);
}

/* ------------------------------------------------------------------------------------------ batches */

static double times_apart(int64_t one, int64_t other) {
    return one > other ? (double)one / (double)other : (double)other / (double)one;
}

static bool is_alike(const autotune_entry *entry, const at_call *call) {
    return entry->m == call->m && entry->n == call->n && entry->k == call->k && entry->layout == call->layout &&
           entry->products > 1 && entry->shared == at_shared(call);
}

/* The best kernel of an entry that may serve a call; NULL if none may. */
static const autotune_ranked *best_legal(const autotune_table *table, const autotune_entry *entry,
                                         const at_call *call) {
    for (int32_t i = 0; i < entry->num_ranked; i++) {
        const autotune_ranked *ranked = &table->ranked[entry->first + i];
        const autotune_kernel *kernel = &table->kernels[ranked->kernel];
        if (at_may_serve(kernel, call, kernel->split_k)) return ranked;
    }
    return NULL;
}

/* The best legal kernel of the tuned batch with the nearest number of such products; the first of several. */
static bool choose_near_batch(const at_chooser *chooser, const at_call *call, autotune_choice *choice) {
    const autotune_table *table = chooser->table;
    const autotune_ranked *best = NULL;
    const autotune_entry *near = NULL;
    double least = INFINITY;
    for (int32_t i = 0; i < table->num_entries; i++) {
        const autotune_entry *entry = &table->entries[i];
        const double apart = is_alike(entry, call) ? times_apart(entry->products, call->batch.products) : INFINITY;
        const autotune_ranked *ranked = apart < least ? best_legal(table, entry, call) : NULL;
        if (ranked) best = ranked, near = entry, least = apart;
    }
    if (!near) return false;
    const double by = (double)call->batch.products / near->products;
    choice->how = AUTOTUNE_NEAREST;
    choice->kernel = best->kernel;
    choice->split_k = table->kernels[best->kernel].split_k;
    choice->entry = (int32_t)(near - table->entries);
    choice->expected_us = by * best->time_us;
    const double cublas_us = near->cublas_us[AUTOTUNE_ALONE]; /* nothing adds a bias to a batch within it */
    choice->cublas_us = by * cublas_us;
    choice->margin = BATCH_SHARE * table->constants.margin;
    const bool is_surely_faster = cublas_us > 0 && cublas_us >= best->time_us * exp(choice->margin);
    choice->is_cublas = !is_surely_faster || least > MOST_TIMES_APART;
    return true;
}

/* One product of a batch. Its addresses have the least alignment of all products. */
static at_call one_of(const at_call *call) {
    at_call single = *call;
    for (int i = 0; i < 3; i++) {
        const uint64_t apart = (uint64_t)at_bytes(call->layout, i) * (uint64_t)call->batch.stride[i];
        single.low[i] = (uint32_t)((call->low[i] | apart) % AT_ALIGNED);
    }
    single.batch = AT_SINGLE;
    return single;
}

/* ------------------------------------------------------------------------------------------ any call */

/* `allowed`: how deep sums may be, where that is known better than by the shape; else NULL. False if memory is short. */
static bool begin_forecast(const at_chooser *chooser, const at_call *call, const depths *allowed, forecast *by) {
    const autotune_table *table = chooser->table;
    const autotune_layout *known = &table->layouts[call->layout];
    const int32_t num_level = known->level.num_places;
    int32_t num_places = num_level;
    for (int way = 0; way < AUTOTUNE_BLAS_CALLS; way++) {
        const int32_t num = known->cublas[way].missed.num_places;
        if (num > num_places) num_places = num;
    }
    by->covariance = malloc(((size_t)num_places + 1) * sizeof *by->covariance);
    by->candidates = malloc((size_t)(known->num_modelled * MOST_LAUNCHES + 1) * sizeof *by->candidates);
    if (!by->covariance || !by->candidates) return false;
    double place[DIMENSIONS];
    place_of((const int32_t[]){call->m, call->n, call->k}, place);
    covariances(chooser->level_places[call->layout], num_level, DIMENSIONS, table, place, by->covariance);
    const int32_t at = nearest(chooser, call, -1);
    by->near = at < 0 ? NULL : &table->entries[at];
    const double m = call->m, n = call->n, k = call->k;
    const depths guessed = allowed_depths(table, call, by->near);
    by->of = (shape){
        .table = table,
        .call = call,
        .least_bytes = AT_FLOAT_BYTES * (k * n + m * n) + (double)at_bytes(call->layout, 0) * m * k,
        .level = correction(&known->level, by->covariance),
        .allowed = allowed ? *allowed : guessed,
        .guessed = guessed,
        .of_sgemm = allowed ? *allowed : least_of_sgemm(table, call),
    };
    return true;
}

static void end_forecast(forecast *by) {
    free(by->covariance);
    free(by->candidates);
}

/* What the model says of a batch: as of `whole`, one product of all its rows, but for tiles and bytes. Returns as
 * at_choose. */
static int by_batch(const at_chooser *chooser, const at_call *call, at_call *whole, forecast *by,
                    autotune_choice *choice) {
    const int64_t products = call->batch.products;
    if (products > INT32_MAX / call->m) return 1;
    *whole = one_of(call);
    whole->m *= (int32_t)products;
    if (!begin_forecast(chooser, whole, NULL, by)) return 2;
    const double m = call->m, n = call->n, k = call->k;
    const double of_a = (double)at_bytes(call->layout, 0) * m * k * (call->batch.stride[0] ? (double)products : 1);
    const double of_b = k * n * (call->batch.stride[1] ? (double)products : 1);
    by->of.batch = call;
    const at_call one = one_of(call); /* of few rows or columns cuBLAS splits k in a batch, too */
    const autotune_constants *c = &chooser->table->constants;
    if (fmin(m, n) <= c->narrow_side) {
        by->of.allowed = by->of.guessed = allowed_anywhere(chooser->table, &one, c->large_elements);
        by->of.of_sgemm = least_of_sgemm(chooser->table, &one);
    }
    by->of.least_bytes = AT_FLOAT_BYTES * (of_b + m * n * (double)products) + of_a;
    return choose_modelled(chooser, by, choice) ? 0 : 1;
}

/* The choice without cuBLAS, and what the model says if it chose. `takes_guess`: its splits may also be those that are
 * accurate by the guess. */
static int by_kernels(const at_chooser *chooser, const at_call *call, const double *allowed, bool takes_guess,
                      forecast *by, autotune_choice *choice) {
    const autotune_table *table = chooser->table;
    const depths known = allowed ? (depths){allowed[0], allowed[1]} : (depths){0};
    *choice = (autotune_choice){.entry = -1};
    if (choose_exact(chooser, call, choice)) return 0;
    if (!begin_forecast(chooser, call, allowed ? &known : NULL, by)) return 2;
    if (!takes_guess) by->of.guessed = by->of.allowed;
    if (choose_modelled(chooser, by, choice) || choose_nearest(chooser, call, choice)) return 0;
    const int32_t number = table->layouts[call->layout].default_kernel;
    if (number < 0) return 1;
    const autotune_kernel *last = &table->kernels[number];
    if (!at_may_serve(last, call, last->split_k)) return 1;
    choice->how = AUTOTUNE_DEFAULT;
    choice->kernel = number;
    choice->split_k = last->split_k;
    return 0;
}

/* The choice among kernels and cuBLAS. */
static int by_all(const at_chooser *chooser, const at_call *call, const char *cublas_version,
                  const double *allowed, autotune_choice *choice) {
    const bool is_single = call->batch.products == 1;
    *choice = (autotune_choice){.entry = -1};
    if (!is_single && (choose_exact(chooser, call, choice) || choose_near_batch(chooser, call, choice))) return 0;
    forecast by = {0};
    const bool is_timed = chooser->table->layouts[call->layout].cublas[AUTOTUNE_BATCHED].version != NULL;
    const bool is_of_vectors = call->m == 1 || call->n == 1; /* neither side's time is known well (0120) */
    if (!is_single && !call->has_epilogue && is_timed && !is_of_vectors) {
        at_call whole;
        const int found = by_batch(chooser, call, &whole, &by, choice);
        if (!found) look_at_cublas(chooser, &by, cublas_version, choice);
        end_forecast(&by);
        if (found != 1) return found;
        by = (forecast){0};
    }
    const at_call single = is_single ? *call : one_of(call);
    const int status = by_kernels(chooser, &single, is_single ? allowed : NULL, true, &by, choice);
    if (is_single) {
        if (!status && choice->how == AUTOTUNE_MODELLED) look_at_cublas(chooser, &by, cublas_version, choice);
    } else {
        choice->expected_us *= (double)call->batch.products;
        choice->cublas_us = 0;
        choice->is_cublas = choice->is_looped = true;
    }
    end_forecast(&by);
    return status;
}

int at_choose(const at_chooser *chooser, const at_call *call, const char *cublas_version, const double *allowed,
              autotune_choice *choice) {
    const int status = by_all(chooser, call, cublas_version, allowed, choice);
    if (chooser->table->order) choice->is_cublas = false;
    return status;
}

/* Whether a launch is nearly one of these: their times hardly differ. */
static bool is_among(const autotune_choice *ranked, int32_t num, const autotune_choice *one) {
    for (int32_t i = 0; i < num; i++) {
        if (ranked[i].kernel == one->kernel && times_apart(ranked[i].split_k, one->split_k) < ALIKE) return true;
    }
    return false;
}

int at_rank(const at_chooser *chooser, const at_call *call, const double *allowed, int32_t room,
            autotune_choice *ranked, int32_t *num) {
    forecast by = {0};
    at_call whole;
    *ranked = (autotune_choice){.entry = -1};
    const int status = call->batch.products == 1 ? by_kernels(chooser, call, allowed, false, &by, ranked)
                                                 : by_batch(chooser, call, &whole, &by, ranked);
    *num = !status;
    ranked->cublas_us = ranked->is_cublas = 0;
    if (!status && ranked->how == AUTOTUNE_MODELLED) {
        qsort(by.candidates, (size_t)by.num_candidates, sizeof *by.candidates, in_order);
        for (int32_t i = 0; i < by.num_candidates && *num < room; i++) {
            const autotune_choice one = choice_of(chooser, &by, &by.candidates[i]);
            if (one.excess <= ranked->excess && !is_among(ranked, *num, &one)) ranked[(*num)++] = one;
        }
    }
    end_forecast(&by);
    return status;
}
