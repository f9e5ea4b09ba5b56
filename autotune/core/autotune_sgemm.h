/* The core of an exported table: chooses the kernel of a product.
 *
 * A handle serves any number of threads. Copied into exported tables. */

#ifndef AUTOTUNE_SGEMM_H
#define AUTOTUNE_SGEMM_H

#include <stddef.h>
#include <stdint.h>

#include "choice.h"
#include "table.h"

#if defined(__GNUC__)
#define AUTOTUNE_API __attribute__((visibility("default")))
#else
#define AUTOTUNE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct autotune_handle autotune_handle;

typedef enum {
    AUTOTUNE_OK,
    AUTOTUNE_NO_KERNEL,   /* even the default kernel is not legal: split the product into smaller ones */
    AUTOTUNE_NO_MEMORY,   /* of the host */
    AUTOTUNE_OTHER_TABLE, /* the table is of another version of table.h */
    AUTOTUNE_BAD_CALL     /* an extent, a leading dimension or a layout is out of range */
} autotune_status;

/* Sizes in bytes of the structs of table.h and of autotune_choice: a caller in another language checks its own
 * against them. */
AUTOTUNE_API extern const uint32_t autotune_struct_bytes[7];

/* Opens a table, which must stay as long as the handle does. */
AUTOTUNE_API autotune_status autotune_open(const autotune_table *table, autotune_handle **handle);

/* Closes a handle that no call uses any more; NULL is none. */
AUTOTUNE_API void autotune_close(autotune_handle *handle);

/* What a product would run: C[m,n] = op(A) op(B), row-major, m and n at least 1. `layout`: AUTOTUNE_NN and so
 * on. `ld`: leading dimensions of A, B and C in elements. `addresses`: of A, B and C; NULL: aligned ones.
 * `cublas_version`: of the cuBLAS that would serve, as `13.1.0`; NULL where it is not known. */
AUTOTUNE_API autotune_status autotune_choose(const autotune_handle *handle, int32_t layout, int32_t m,
                                             int32_t n, int32_t k, const int64_t ld[3],
                                             const uint64_t addresses[3], const char *cublas_version,
                                             autotune_choice *choice);

#ifdef __cplusplus
}
#endif

#endif
