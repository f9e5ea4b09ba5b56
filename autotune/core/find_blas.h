#ifndef AUTOTUNE_FIND_BLAS_H
#define AUTOTUNE_FIND_BLAS_H

#include "blas.h"

/* The functions of cuBLAS and its version; NULL if there is none, or it is switched off. */
const autotune_blas *at_find_blas(const char **told_version);

#endif
