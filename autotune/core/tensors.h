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
     * which is told of an `out` that was written. Without the first, gradients are somebody else's; without the last,
     * nobody is told. */
    void *is_grad_enabled, *is_neg, *tell, *wrote;
    void *requires_grad, *new_empty; /* names of what is asked of a tensor */
} autotune_tensors;

/* The Python of this process: set before the first product; it must stay valid. */
AUTOTUNE_API void autotune_use_python(const autotune_python *calls);

/* A function of Python (METH_FASTCALL), whose self is the address of an autotune_tensors as a number:
 * the seven (a, b, out or None, alpha, beta, trans_a, trans_b) -> C = alpha op(A) op(B) + beta C, on the current stream of the
 * library, by a plan that is remembered. Two more are a bias or None, and the number of an activation (autotune_sgemm.h): what is
 * added and made of the result. Of tensors of three dimensions it is a batch; one of two, or of one matrix, is
 * shared.
 *
 * False, with nothing launched, for a plan that says so (is_left_alone).
 *
 * None, with nothing launched, for whatever it does not serve: no plan, no float32 matrices or stacks of them on one GPU, operands that
 * overlap the result, a bias that is no packed vector for it, a tensor that needs a gradient, arguments that are none. */
AUTOTUNE_API void *autotune_sgemm_of_tensors(void *self, void *const *arguments, intptr_t num);

/* Whether the plan that is remembered for a product of tensors says that it is left alone; that is counted then. They
 * are DLTensor *, of which the last two may be NULL: without an out, C is new. Nothing of Python is called. */
AUTOTUNE_API bool autotune_is_left_alone(autotune_handle *handle, const void *a, const void *b, const void *out,
                                         const void *bias);

/* How often these met a plan; and that somebody else did. */
AUTOTUNE_API uint64_t autotune_tensor_calls(const autotune_plan *plan);
AUTOTUNE_API void autotune_count_call(autotune_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
