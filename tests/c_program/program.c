/* Calls an exported table as a program in C does, on a driver that stands in, or on a GPU (gpu.h).
 *
 *     program products SEED NUM       products of any shape, layout and distance of rows, each checked
 *     program epilogues SEED NUM      the same with bias and activation, and batches
 *     program mixed SEED NUM          products and batches whose A is of BF16
 *     program threads NUM             eight threads on four streams, with call signatures in common
 *     program stress NUM              the same with so many small products of 1,000 kinds in all
 *     program picks < lines           "trans_a trans_b m n k" -> "kernel how split_k is_cublas"
 *     program errors                  each status that a call may have
 *     program record FILE NUM         as stress, with calls recorded into a file
 *     program forked                  a child closes a handle that another thread was using when it was forked
 *     program kinds FILE              what is picked without a GPU, and on each of two that it multiplies on, recorded */

#define _POSIX_C_SOURCE 200809L /* fork */

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "autotune_sgemm.h"
#include "gpu.h"
#include "handle.h"

enum { NUM_THREADS = 8, NUM_STREAMS = 4, PADDING = 3 };

static autotune_handle *handle;

static void need(int is_right, const char *what) {
    if (is_right) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static unsigned drawn(unsigned *seed, unsigned most) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % most;
}

static float *matrix(unsigned *seed, int64_t rows, int64_t ld) {
    const size_t num_floats = (size_t)(rows * ld) + 1;
    float *made = take(num_floats);
    for (size_t i = 0; i < num_floats; i++) made[i] = (float)drawn(seed, 2000) / 1000 - 1;
    return made;
}

typedef struct {
    int trans_a, trans_b, m, n, k;
} shape;

static float element(const float *x, int64_t ld, int is_transposed, int64_t row, int64_t column) {
    return is_transposed ? x[column * ld + row] : x[row * ld + column];
}

/* A product with random operands, checked element by element; what lies beside C stays as it was. */
static void multiply(shape of, unsigned *seed, void *stream, int is_by_columns) {
    const float alpha = (float)drawn(seed, 5) - 2, beta = drawn(seed, 2) ? (float)drawn(seed, 3) - 1 : 0;
    const int64_t rows_a = of.trans_a ? of.k : of.m, lda = (of.trans_a ? of.m : of.k) + (int)drawn(seed, PADDING) + 1;
    const int64_t rows_b = of.trans_b ? of.n : of.k, ldb = (of.trans_b ? of.k : of.n) + (int)drawn(seed, PADDING) + 1;
    const int64_t unused = (int)drawn(seed, PADDING), ldc = of.n + unused > 1 ? of.n + unused : 1;
    float *a = matrix(seed, rows_a, lda), *b = matrix(seed, rows_b, ldb), *c = matrix(seed, of.m, ldc);
    float *before = malloc(sizeof *c * (size_t)(of.m * ldc + 1));
    memcpy(before, c, sizeof *c * (size_t)(of.m * ldc + 1));
    const autotune_status status =
        is_by_columns ? autotune_sgemm_by_columns(handle, stream, of.trans_b, of.trans_a, of.n, of.m, of.k, alpha, b,
                                                  ldb, a, lda, beta, c, ldc)
                      : autotune_sgemm(handle, stream, of.trans_a, of.trans_b, of.m, of.n, of.k, alpha, a, lda, b,
                                       ldb, beta, c, ldc);
    need(!status, autotune_error_text(status));
    wait_for(stream);
    for (int64_t row = 0; row < of.m; row++) {
        for (int64_t column = 0; column < ldc; column++) {
            double expected = (double)before[row * ldc + column];
            if (column < of.n) {
                double sum = 0;
                for (int64_t at = 0; at < of.k; at++) {
                    sum += (double)element(a, lda, of.trans_a, row, at) * (double)element(b, ldb, of.trans_b, at, column);
                }
                expected = (double)alpha * sum + (beta != 0 ? (double)beta * expected : 0);
            }
            const double error = fabs(expected - (double)c[row * ldc + column]);
            need(error <= 1e-4 * (1 + of.k), "a wrong element");
        }
    }
    give_back(a), give_back(b), give_back(c), free(before);
}

static shape any_shape(unsigned *seed) {
    shape of = {(int)drawn(seed, 2), (int)drawn(seed, 2), (int)drawn(seed, 90), (int)drawn(seed, 90),
                (int)drawn(seed, 2) ? (int)drawn(seed, 40) : (int)drawn(seed, 600)};
    return of;
}

static void products(unsigned seed, int num) {
    for (int i = 0; i < num; i++) {
        const shape of = any_shape(&seed);
        void *stream = stream_of((int)drawn(&seed, NUM_STREAMS));
        for (int again = 0; again < 2; again++) multiply(of, &seed, stream, again);
    }
    printf("%d launches, %d allocations\n", num_launches(), num_allocations());
}

/* A batch: its products, one behind the other with a gap, beside those of single calls; shared operands too. */
static void multiply_batch(shape of, int num, unsigned *seed, void *stream, int is_by_columns) {
    const int64_t lda = of.trans_a ? of.m : of.k, ldb = of.trans_b ? of.k : of.n, ldc = of.n;
    const int shares = (int)drawn(seed, 4); /* A, B, or none */
    const int64_t gap = (int)drawn(seed, 2) * 4, stride_c = of.m * ldc + gap;
    const int64_t stride_a = shares == 1 ? 0 : (int64_t)of.m * of.k + gap, stride_b = shares == 2 ? 0 : (int64_t)of.k * of.n + gap;
    float *a = matrix(seed, num, of.m * of.k + gap + 1), *b = matrix(seed, num, of.k * of.n + gap + 1);
    float *c = matrix(seed, num, stride_c + 1), *expected = malloc(sizeof *c * (size_t)(num * (stride_c + 1)));
    memcpy(expected, c, sizeof *c * (size_t)(num * (stride_c + 1)));
    const autotune_status status =
        is_by_columns ? autotune_sgemm_strided_batched_by_columns(handle, stream, of.trans_b, of.trans_a, of.n, of.m,
                                                                  of.k, 0.5f, b, ldb, stride_b, a, lda, stride_a, 1, c,
                                                                  ldc, stride_c, num)
                      : autotune_sgemm_strided_batched(handle, stream, of.trans_a, of.trans_b, of.m, of.n, of.k, 0.5f, a,
                                                       lda, stride_a, b, ldb, stride_b, 1, c, ldc, stride_c, num);
    need(!status, autotune_error_text(status));
    wait_for(stream);
    for (int product = 0; product < num; product++) {
        for (int64_t at = 0; at < (int64_t)of.m * of.n; at++) {
            double sum = 0;
            for (int64_t i = 0; i < of.k; i++) {
                sum += (double)element(a + product * stride_a, lda, of.trans_a, at / of.n, i) *
                       (double)element(b + product * stride_b, ldb, of.trans_b, i, at % of.n);
            }
            expected[product * stride_c + at] += (float)(0.5 * sum);
        }
    }
    for (int64_t at = 0; at < num * stride_c; at++) {
        need(fabsf(expected[at] - c[at]) <= 1e-4f * (float)(1 + of.k), "a wrong element of a batch");
    }
    give_back(a), give_back(b), give_back(c), free(expected);
}

static void batches(unsigned seed, int num) {
    static const shape TUNED[] = {{0, 0, 20, 12, 16}, {0, 1, 20, 12, 16}, {1, 0, 20, 12, 16}, {1, 1, 20, 12, 16},
                                  {0, 0, 20, 12, 64}, {0, 0, 20, 12, 80}, {0, 0, 1, 7, 5}};
    float x[64] = {0};
    for (int i = 0; i < num; i++) {
        const shape of = TUNED[drawn(&seed, sizeof TUNED / sizeof *TUNED)];
        void *stream = stream_of((int)drawn(&seed, NUM_STREAMS));
        const int products = 1 + (int)drawn(&seed, 12);
        for (int again = 0; again < 2; again++) multiply_batch(of, products, &seed, stream, again);
    }
    need(!autotune_sgemm_strided_batched(handle, NULL, 0, 0, 2, 2, 2, 1, x, 2, 4, x, 2, 4, 0, x, 2, 4, 0), "no products");
    need(autotune_sgemm_strided_batched(handle, NULL, 0, 0, 2, 2, 2, 1, x, 2, 4, x + 16, 2, 4, 0, x + 32, 2, 3, 3) ==
             AUTOTUNE_BAD_CALL, "products that share C");
    need(autotune_sgemm_strided_batched(handle, NULL, 0, 0, 2, 2, 2, 1, x, 2, 4, x + 16, 2, 4, 0, x + 32, 2, 4, -1) ==
             AUTOTUNE_BAD_CALL, "a number of products");
    need(autotune_sgemm_strided_batched(handle, NULL, 0, 0, 2, 2, 2, 1, x, 2, 4, x + 32, 2, 4, 0, x + 8, 2, 4, 3) ==
             AUTOTUNE_OVERLAP, "C within A of another product");
    printf("%d launches\n", num_launches());
}

static double activated(double x, autotune_activation activation) {
    if (activation == AUTOTUNE_ACTIVATION_RELU) return x < 0 ? 0 : x;
    if (activation == AUTOTUNE_ACTIVATION_GELU) return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    if (activation == AUTOTUNE_ACTIVATION_GELU_TANH) {
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    }
    return x;
}

/* Products, packed and one behind the other, by the call for one or for several, by rows or by columns. */
static void multiply_and_add(shape of, int num, int has_bias, autotune_activation activation, unsigned *seed,
                             void *stream) {
    const int64_t lda = of.trans_a ? of.m : of.k, ldb = of.trans_b ? of.k : of.n;
    const int64_t stride_a = (int64_t)of.m * of.k, stride_b = (int64_t)of.k * of.n, stride_c = (int64_t)of.m * of.n;
    const float beta = drawn(seed, 2) ? 0.5f : 0;
    const unsigned is_by_columns = drawn(seed, 2);
    float *a = matrix(seed, num, stride_a), *b = matrix(seed, num, stride_b), *c = matrix(seed, num, stride_c);
    float *vector = matrix(seed, 1, of.n), *bias = has_bias ? vector : NULL, *before = malloc(sizeof *c * (size_t)(num * stride_c));
    memcpy(before, c, sizeof *c * (size_t)(num * stride_c));
    autotune_status status;
    if (is_by_columns && num == 1) {
        status = autotune_sgemm_epilogue_by_columns(handle, stream, of.trans_b, of.trans_a, of.n, of.m, of.k, 0.5f, b, ldb, a,
                                                    lda, beta, c, of.n, bias, activation);
    } else if (is_by_columns) {
        status = autotune_sgemm_strided_batched_epilogue_by_columns(
            handle, stream, of.trans_b, of.trans_a, of.n, of.m, of.k, 0.5f, b, ldb, stride_b, a, lda, stride_a, beta, c, of.n,
            stride_c, num, bias, activation);
    } else if (num == 1) {
        status = autotune_sgemm_epilogue(handle, stream, of.trans_a, of.trans_b, of.m, of.n, of.k, 0.5f, a, lda, b, ldb, beta,
                                         c, of.n, bias, activation);
    } else {
        status = autotune_sgemm_strided_batched_epilogue(handle, stream, of.trans_a, of.trans_b, of.m, of.n, of.k, 0.5f, a,
                                                         lda, stride_a, b, ldb, stride_b, beta, c, of.n, stride_c, num, bias,
                                                         activation);
    }
    need(!status, autotune_error_text(status));
    wait_for(stream);
    for (int64_t at = 0; at < num * stride_c; at++) {
        const int64_t product = at / stride_c, row = at % stride_c / of.n, column = at % of.n;
        double sum = 0;
        for (int64_t i = 0; i < of.k; i++) {
            sum += (double)element(a + product * stride_a, lda, of.trans_a, row, i) *
                   (double)element(b + product * stride_b, ldb, of.trans_b, i, column);
        }
        sum = 0.5 * sum + (beta != 0 ? (double)(beta * before[at]) : 0) + (bias ? (double)bias[column] : 0);
        need(fabs(activated(sum, activation) - (double)c[at]) <= 1e-4 * (1 + of.k), "a wrong element with an epilogue");
    }
    give_back(a), give_back(b), give_back(c), give_back(vector), free(before);
}

static void epilogues(unsigned seed, int num) {
    static const struct {
        int has_bias;
        autotune_activation activation;
    } HELD[] = {{0, AUTOTUNE_ACTIVATION_NONE}, {1, AUTOTUNE_ACTIVATION_NONE}, {0, AUTOTUNE_ACTIVATION_RELU},
                {1, AUTOTUNE_ACTIVATION_GELU}, {1, AUTOTUNE_ACTIVATION_GELU_TANH}};
    for (int i = 0; i < num; i++) {
        shape of = any_shape(&seed);
        of.m++, of.n++, of.k++; /* packed matrices of no rows have no leading dimension */
        const shape tuned = {of.trans_a, of.trans_b, 20, 12, 16};
        void *stream = stream_of((int)drawn(&seed, NUM_STREAMS));
        const unsigned which = drawn(&seed, sizeof HELD / sizeof *HELD);
        for (int again = 0; again < 2; again++) {
            multiply_and_add(of, 1, HELD[which].has_bias, HELD[which].activation, &seed, stream);
            multiply_and_add(i % 2 ? tuned : of, i % 2 ? 6 : 2, HELD[which].has_bias, HELD[which].activation, &seed, stream);
        }
    }
    static float a[16], b[16], c[16], bias[8];
    const autotune_activation none = AUTOTUNE_ACTIVATION_NONE, relu = AUTOTUNE_ACTIVATION_RELU;
    const float *astray = (const float *)((const char *)bias + 2);
    const int before = num_launches();
    need(autotune_sgemm_epilogue(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4, bias, relu) == AUTOTUNE_NO_EPILOGUE,
         "an epilogue that the table lacks");
    need(autotune_sgemm_epilogue(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4, c + 4, none) == AUTOTUNE_OVERLAP,
         "a bias within C");
    need(autotune_sgemm_epilogue(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4, astray, none) == AUTOTUNE_BAD_CALL,
         "a bias that is not aligned");
    need(autotune_sgemm_epilogue(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4, bias, (autotune_activation)4) ==
             AUTOTUNE_BAD_CALL, "an activation");
    need(strstr(autotune_error_text(AUTOTUNE_NO_EPILOGUE), "export-table --epilogue") != NULL, "text");
    need(num_launches() == before, "something was launched");
    printf("%d launches\n", num_launches());
}

/* Products of a BF16 A at any address of two bytes, with any distance of rows, some of them in a batch; a bias is added
 * to some. */
static void multiply_mixed(shape of, int num, unsigned *seed, void *stream) {
    const int64_t rows = of.trans_a ? of.k : of.m, lda = (of.trans_a ? of.m : of.k) + (int)drawn(seed, PADDING);
    const int64_t ldb = of.trans_b ? of.k : of.n, stride_a = drawn(seed, 3) ? rows * lda + (int)drawn(seed, PADDING) : 0;
    const int64_t stride_b = (int64_t)of.k * of.n, stride_c = (int64_t)of.m * of.n;
    float *a = matrix(seed, num + 1, rows * lda + PADDING), *b = matrix(seed, num, stride_b), *c = matrix(seed, num, stride_c);
    float *vector = matrix(seed, 1, of.n), *bias = drawn(seed, 2) ? vector : NULL;
    uint16_t *shorts = (uint16_t *)a + drawn(seed, 4);
    for (int64_t at = 0; at < num * (rows * lda + PADDING); at++) { /* from -2 to 2, of 8 bits */
        shorts[at] = (uint16_t)(drawn(seed, 2) << 15 | 0x3F00 | drawn(seed, 0x100));
    }
    const autotune_status status =
        autotune_sgemm_mixed(handle, stream, of.trans_a, of.trans_b, of.m, of.n, of.k, 0.5f, shorts, AUTOTUNE_BF16, lda,
                             stride_a, b, ldb, stride_b, 0, c, of.n, stride_c, num, bias, AUTOTUNE_ACTIVATION_NONE);
    need(!status, autotune_error_text(status));
    wait_for(stream);
    for (int64_t at = 0; at < num * stride_c; at++) {
        const int64_t product = at / stride_c, row = at % stride_c / of.n, column = at % of.n;
        double sum = 0;
        for (int64_t i = 0; i < of.k; i++) {
            const uint32_t bits = (uint32_t)shorts[product * stride_a + (of.trans_a ? i * lda + row : row * lda + i)] << 16;
            float left;
            memcpy(&left, &bits, sizeof left);
            sum += (double)left * (double)element(b + product * stride_b, ldb, of.trans_b, i, column);
        }
        sum = 0.5 * sum + (bias ? (double)bias[column] : 0);
        need(fabs(sum - (double)c[at]) <= 1e-4 * (1 + of.k), "a wrong element with an A of BF16");
    }
    give_back(a), give_back(b), give_back(c), give_back(vector);
}

static void mixed(unsigned seed, int num) {
    for (int i = 0; i < num; i++) {
        shape of = any_shape(&seed);
        of.m++, of.n++, of.k++;
        const shape tuned = {of.trans_a, of.trans_b, 20, 12, 16};
        void *stream = stream_of((int)drawn(&seed, NUM_STREAMS));
        for (int again = 0; again < 2; again++) {
            multiply_mixed(of, 1, &seed, stream);
            multiply_mixed(i % 2 ? tuned : of, i % 2 ? 6 : 2, &seed, stream);
        }
    }
    static float a[16], b[16], c[16];
    const char *astray = (const char *)a + 1;
    const autotune_activation none = AUTOTUNE_ACTIVATION_NONE;
    const int before = num_launches();
    need(autotune_sgemm_mixed(handle, NULL, 0, 0, 4, 4, 4, 1, astray, AUTOTUNE_FP16, 4, 0, b, 4, 0, 0, c, 4, 0, 1, NULL,
                              none) == AUTOTUNE_BAD_CALL, "an A at half an element");
    need(autotune_sgemm_mixed(handle, NULL, 0, 0, 4, 4, 4, 1, a, (autotune_type)3, 4, 0, b, 4, 0, 0, c, 4, 0, 1, NULL,
                              none) == AUTOTUNE_BAD_CALL, "a type");
    need(autotune_sgemm_mixed(handle, NULL, 0, 0, 4, 4, 4, 1, c + 8, AUTOTUNE_FP16, 4, 0, b, 4, 0, 0, c, 4, 0, 1, NULL,
                              none) == AUTOTUNE_OVERLAP, "an A within C");
    need(autotune_sgemm_mixed(handle, NULL, 0, 0, 2, 4, 4, 1, c + 8, AUTOTUNE_BF16, 4, 0, b, 4, 0, 0, c, 4, 0, 1, NULL,
                              none) == AUTOTUNE_OK, "an A behind C");
    need(num_launches() > before, "nothing was launched");
    printf("%d launches\n", num_launches());
}

static int num_of_thread, is_stress;

/* One of 1,000 small ones. */
static shape small_shape(unsigned kind) {
    const int i = (int)kind;
    shape of = {i & 1, i >> 1 & 1, 1 + i % 11, 1 + i / 11 % 10, 1 + i / 110};
    return of;
}

static void *work(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number;
    use_gpu(0);
    for (int i = 0; i < num_of_thread; i++) {
        unsigned kind = drawn(&seed, is_stress ? 1000 : 20); /* threads have kinds in common, at the same time */
        const shape of = is_stress ? small_shape(kind) : any_shape(&kind);
        multiply(of, &seed, stream_of((int)drawn(&seed, NUM_STREAMS) + 10), 0);
    }
    return NULL;
}

static void threads(int num) {
    pthread_t made[NUM_THREADS];
    num_of_thread = num;
    for (uintptr_t i = 0; i < NUM_THREADS; i++) pthread_create(&made[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < NUM_THREADS; i++) pthread_join(made[i], NULL);
    const int before = num_allocations();
    work((void *)1);
    printf("%d allocations\n", num_allocations());
    need(num_allocations() == before, "memory grows after a warm-up");
}

static void picks(void) {
    shape of;
    int shares_a, shares_b, products;
    while (scanf("%d %d %d %d %d %d %d %d", &of.trans_a, &of.trans_b, &of.m, &of.n, &of.k, &shares_a, &shares_b,
                 &products) == 8) {
        autotune_pick_info pick;
        const autotune_status status =
            products == 1 ? autotune_pick(handle, of.trans_a, of.trans_b, of.m, of.n, of.k, &pick)
                          : autotune_pick_strided_batched(handle, of.trans_a, of.trans_b, of.m, of.n, of.k, shares_a,
                                                          shares_b, products, &pick);
        need(!status, autotune_error_text(status));
        printf("%s %s %d %d %d %a %a %lld\n", pick.kernel, pick.how, pick.split_k, pick.is_cublas, pick.is_looped,
               pick.expected_us, pick.cublas_us, (long long)pick.workspace_bytes);
    }
}

static void errors(void) {
    static float a[64], b[64], c[64];
    autotune_pick_info pick;
    use_gpu(-1);
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4) == AUTOTUNE_NO_CONTEXT, "no context");
    use_gpu(0);
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, 3, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "a short row");
    need(autotune_sgemm(handle, NULL, 2, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "a flag");
    need(autotune_sgemm(handle, NULL, 0, 0, -1, 4, 4, 1, a, 4, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "an extent");
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, b, 4) == AUTOTUNE_OVERLAP, "overlap");
    need(!autotune_sgemm(handle, NULL, 0, 0, 0, 4, 4, 1, a, 4, b, 4, 0, c, 4), "nothing to do");
    need(!autotune_sgemm(handle, NULL, 0, 0, 4, 4, 0, 1, a, 1, b, 4, 0, c, 4), "no depth");
    need(!autotune_sgemm(handle, NULL, 0, 0, 4, 4, 0, 1, c + 4, 1, c + 8, 4, 0, c, 4), "nothing that C overlaps");
    const float *astray = (const float *)((const char *)a + 2);
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, astray, 4, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "no floats");
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, INT64_MAX / 2, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL,
         "rows that no memory holds");
    need(autotune_sgemm_strided_batched(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, 0, b, 4, 0, 0, c, INT64_MAX, 16, 2) ==
             AUTOTUNE_BAD_CALL, "rows of a batch that no memory holds");
    need(!autotune_sgemm(handle, NULL, 0, 0, 1, 4, 4, 1, a, INT64_MAX, b, 4, 0, c, INT64_MAX), "distances of one row");
    need(autotune_sgemm(NULL, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "no handle");
    need(autotune_pick(NULL, 0, 0, 4, 4, 4, &pick) == AUTOTUNE_BAD_CALL, "a pick without a handle");
    need(autotune_pick(handle, 0, 0, 4, 4, 4, NULL) == AUTOTUNE_BAD_CALL, "no pick");
    need(autotune_record_calls(NULL, "calls") == AUTOTUNE_BAD_CALL, "a record without a handle");
    need(autotune_record_calls(handle, NULL) == AUTOTUNE_NO_RECORD, "no file");
    need(autotune_create(NULL) == AUTOTUNE_BAD_CALL, "nowhere to open it");
    autotune_destroy(NULL);
    need(strstr(autotune_error_text(AUTOTUNE_BAD_CALL), "handle is NULL") != NULL, "text");
    enum { MANY = (1 << 16) + 1, SIDE = 2 };
    float *many[3];
    for (int i = 0; i < 3; i++) many[i] = take((size_t)MANY * SIDE * SIDE);
    need(autotune_sgemm_strided_batched(handle, NULL, 0, 0, SIDE, SIDE, SIDE, 1, many[0], SIDE, SIDE * SIDE, many[1], SIDE,
                                        SIDE * SIDE, 0, many[2], SIDE, SIDE * SIDE, MANY) == AUTOTUNE_MANY_LAUNCHES,
         "a launch for each");
    for (int i = 0; i < 3; i++) give_back(many[i]);
    const float *const beyond = (const float *)16; /* of NULL */
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, NULL, 4, b, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "no A");
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, beyond, 4, 0, c, 4) == AUTOTUNE_BAD_CALL, "no B");
    need(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 0, 1, a, 4, b, 4, 0, NULL, 4) == AUTOTUNE_BAD_CALL, "no C");
    need(autotune_sgemm_strided_batched_by_columns(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, 0, NULL, 4, 0, 0, c, 4, 16, 2) ==
             AUTOTUNE_BAD_CALL, "no B of a batch");
    need(autotune_sgemm_epilogue(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4, beyond,
                                 AUTOTUNE_ACTIVATION_NONE) == AUTOTUNE_BAD_CALL, "no bias");
    need(!autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 0, NULL, 4, NULL, 4, 0, c, 4), "nothing that is read");
    need(!autotune_sgemm(handle, NULL, 0, 0, 4, 4, 0, 1, NULL, 4, NULL, 4, 0, c, 4), "operands without elements");
    need(!autotune_sgemm(handle, NULL, 0, 0, 0, 4, 4, 1, NULL, 4, NULL, 4, 0, NULL, 4), "a C without elements");
    void *faulty = stream_of(97);
    need((int)autotune_sgemm(handle, faulty, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4) == AUTOTUNE_CUDA + 700, "a fault");
    need(autotune_pick(handle, 0, 0, 0, 4, 4, &pick) == AUTOTUNE_BAD_CALL, "an empty pick");
    need(autotune_pick_strided_batched(handle, 0, 0, 4, 4, 4, 0, 0, 0, &pick) == AUTOTUNE_BAD_CALL, "no products");
    need(autotune_pick_strided_batched(handle, 0, 0, 4, 4, 4, 2, 0, 3, &pick) == AUTOTUNE_BAD_CALL, "no flag");
    need(strstr(autotune_error_text(AUTOTUNE_OVERLAP), "overlaps") != NULL, "text");
    printf("told\n");
}

/* Ends as programs do that close no handle. */
static void record(const char *file, int num) {
    need(autotune_record_calls(handle, "/no folder/of this name") == AUTOTUNE_NO_RECORD, "no such folder");
    need(!autotune_record_calls(handle, file) && !autotune_record_calls(handle, file), "twice");
    need(autotune_record_calls(handle, "other") == AUTOTUNE_RECORDED, "another file");
    is_stress = 1;
    threads(num / NUM_THREADS);
    exit(0);
}

/* This thread plays the other one, which is within a call, too. */
static void forked(void) {
    unsigned seed = 1;
    const shape of = {0, 0, 4, 4, 4};
    multiply(of, &seed, NULL, 0);
    pthread_mutex_lock(&handle->runner->lock);
    const pid_t child = fork();
    if (!child) {
        alarm(20); /* which kills it */
        autotune_destroy(handle);
        _exit(0);
    }
    pthread_mutex_unlock(&handle->runner->lock);
    int ended = 1;
    need(waitpid(child, &ended, 0) == child && !ended, "the child waits for a thread that it does not have");
}

static void kinds(const char *file) {
    unsigned seed = 1;
    need(!autotune_record_calls(handle, file), "recording");
    for (int gpu = -1; gpu < 2; gpu++) {
        use_gpu(gpu);
        autotune_pick_info pick;
        need(!autotune_pick(handle, 0, 0, 64, 64, 64, &pick), "a pick");
        printf("%s\n", pick.kernel);
        const shape of = {0, 0, 64, 64, 64};
        for (int again = 0; gpu >= 0 && again < 3; again++) multiply(of, &seed, NULL, 0);
    }
}

int main(int num_arguments, char **arguments) {
    const autotune_status status = autotune_create(&handle);
    need(!status && num_arguments > 1, autotune_error_text(status));
    begin(handle);
    const char *what = arguments[1];
    if (!strcmp(what, "products")) products((unsigned)atoi(arguments[2]), atoi(arguments[3]));
    if (!strcmp(what, "batches")) batches((unsigned)atoi(arguments[2]), atoi(arguments[3]));
    if (!strcmp(what, "epilogues")) epilogues((unsigned)atoi(arguments[2]), atoi(arguments[3]));
    if (!strcmp(what, "mixed")) mixed((unsigned)atoi(arguments[2]), atoi(arguments[3]));
    if (!strcmp(what, "threads")) threads(atoi(arguments[2]));
    is_stress = !strcmp(what, "stress");
    if (is_stress) threads(atoi(arguments[2]) / NUM_THREADS);
    if (!strcmp(what, "picks")) picks();
    if (!strcmp(what, "errors")) errors();
    if (!strcmp(what, "forked")) forked();
    if (!strcmp(what, "kinds")) kinds(arguments[2]);
    if (!strcmp(what, "record")) record(arguments[2], atoi(arguments[3]));
    if (!strcmp(what, "one")) {
        static float a[16], b[16], c[16];
        printf("%s\n", autotune_error_text(autotune_sgemm(handle, NULL, 0, 0, 4, 4, 4, 1, a, 4, b, 4, 0, c, 4)));
    }
    autotune_destroy(handle);
    return 0;
}
