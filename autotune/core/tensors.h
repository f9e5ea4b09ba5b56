/* Products and batches of Python tensors that support DLPack's exchange in C (DLPack 1.3), as a builtin
 * function of Python: this builds without Python, and makes no Python objects for the contents of a tensor.
 * */

#ifndef AUTOTUNE_TENSORS_H
#define AUTOTUNE_TENSORS_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The functions of Python that are called, all in its stable ABI. An object is a void *. */
typedef struct {
    void *(*save_thread)(void); /* PyEval_SaveThread: other Python threads continue */
    void (*restore_thread)(void *state);
    void (*clear_error)(void);                           /* PyErr_Clear */
    void *(*error)(void);                                /* PyErr_Occurred */
    void (*hold)(void *object);                          /* Py_IncRef */
    void (*release)(void *object);                       /* Py_DecRef */
    void *(*type_of)(void *object);                      /* PyObject_Type */
    void *(*attribute)(void *object, void *name);        /* PyObject_GetAttr */
    void *(*call)(void *function, ...);                  /* PyObject_CallFunctionObjArgs: NULL ends it */
    void *(*call_method)(void *object, void *name, ...); /* PyObject_CallMethodObjArgs, likewise */
    void *(*build)(const char *format, ...);             /* Py_BuildValue */
    double (*as_double)(void *object);                   /* PyFloat_AsDouble */
    void *(*as_address)(void *object);                   /* PyLong_AsVoidPtr */
    void *none, *yes, *no;                               /* None, True and False */
} autotune_python;

/* Products of the tensors of one library. */
typedef struct {
    autotune_handle *handle;
    const void *exchange;                     /* DLPackExchangeAPI of their type */
    void *tensor;                             /* that type; NULL: whatever the exchange takes */
    /* Functions: () -> bool, (tensor) -> bool, (status, alpha, beta), which raises what a status says, and (tensor),
     * which receives an `out` that was written. Without the first, gradients are handled elsewhere; without the last,
     * nothing is called. */
    void *is_grad_enabled, *is_neg, *tell, *wrote;
    void *requires_grad, *new_empty, *storage_offset; /* names of what is asked of a tensor */
} autotune_tensors;

/* The Python of this process: set before the first product; it must stay valid. */
AUTOTUNE_API void autotune_use_python(const autotune_python *calls);

/* A function of Python (METH_FASTCALL), whose self is the address of an autotune_tensors as a number. The seven arguments
 * (a, b, out or None, alpha, beta, trans_a, trans_b) -> C = alpha op(A) op(B) + beta C, on the current stream of the
 * library, by a known plan. Two more are a bias or None, and the number of an activation (autotune_sgemm.h), which are
 * applied to the result. Tensors of three dimensions are a batch; an operand of two dimensions, or of one matrix, is
 * shared.
 *
 * Returns False, with nothing launched, for a plan that leaves a call alone (is_left_alone).
 *
 * Returns None, with nothing launched, for everything that it does not serve: no plan, tensors that are not float32
 * matrices or stacks of them on one GPU, operands that overlap the result, a bias that is not a packed vector for it, a
 * tensor that needs a gradient, invalid arguments. */
AUTOTUNE_API void *autotune_sgemm_of_tensors(void *self, void *const *arguments, intptr_t num);

/* For a router below a library's tensors, without Python: tensors are DLTensor *, of which the last two may be NULL.
 * Without an out, C is new, packed and aligned.
 *
 * The known plan that serves a product, with its own reference; NULL if there is none, or if the known plan leaves such
 * calls alone: then the call is counted. `wanted`: AUTOTUNE_AS_PLANNED and so on (plan.h). `signature`: the caller's, for
 * autotune_leaves_alone; 0: none. `answer`: the caller begins a turn of a plan whose calls take turns. */
enum { AUTOTUNE_SERVED, AUTOTUNE_LEFT_ALONE, AUTOTUNE_TURN };
AUTOTUNE_API autotune_plan *autotune_meet(autotune_handle *handle, const void *a, const void *b, const void *out,
                                          const void *bias, int32_t wanted, uint64_t signature, int32_t *answer);

/* Whether calls with this signature are known to be left alone: then the call is counted. Signatures are equal for calls
 * on which autotune_meet decides alike, and else differ; false for those that it met too long ago. */
AUTOTUNE_API int32_t autotune_leaves_alone(const autotune_handle *handle, uint64_t signature);

/* Launches such a plan for its tensors, of which only the bias may be NULL, on a stream, and counts the call. Returns
 * AUTOTUNE_OVERLAP, with nothing launched, if C shares memory with an operand, and AUTOTUNE_UNKNOWN if it is aligned
 * otherwise than the plan's. */
AUTOTUNE_API autotune_status autotune_serve(const autotune_handle *handle, autotune_plan *plan, const void *a,
                                            const void *b, const void *c, const void *bias, double alpha, double beta,
                                            void *stream);

/* How often these met a plan; and that somebody else did. */
AUTOTUNE_API uint64_t autotune_tensor_calls(const autotune_plan *plan);
AUTOTUNE_API void autotune_count_call(autotune_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
