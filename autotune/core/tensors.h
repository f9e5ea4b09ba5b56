/* Calls with tensors of Python that speak DLPack's exchange in C (DLPack 1.3): nothing of Python is asked for what
 * they hold, and nothing of it is needed to build this. */

#ifndef AUTOTUNE_TENSORS_H
#define AUTOTUNE_TENSORS_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is called of Python. */
typedef struct {
    void *(*save_thread)(void); /* PyEval_SaveThread: other threads of Python go on */
    void (*restore_thread)(void *state);
    void (*clear_error)(void); /* PyErr_Clear */
} autotune_python;

/* C = alpha op(A) op(B) + beta C for three tensors of one library, on its current stream, by a plan that is
 * remembered. `exchange`: DLPackExchangeAPI of their type. Called with Python's lock held.
 *
 * AUTOTUNE_UNKNOWN, with nothing launched, for whatever this does not serve: no plan, no float32 matrices on one
 * GPU, operands that overlap the result. */
AUTOTUNE_API autotune_status autotune_multiply(autotune_handle *handle, const autotune_python *python,
                                               const void *exchange, void *a, void *b, void *c, double alpha,
                                               double beta, int32_t trans_a, int32_t trans_b);

#ifdef __cplusplus
}
#endif

#endif
