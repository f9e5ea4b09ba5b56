/* The kernel that converts an A of BF16 or FP16 to FP32, for kernels and cuBLAS, which read FP32. */

#ifndef AUTOTUNE_UPCAST_H
#define AUTOTUNE_UPCAST_H

#include "autotune_sgemm.h"

#define AT_UPCAST "upcast"
enum { AT_UPCAST_THREADS = 256, AT_UPCAST_COLUMNS = 1024 }; /* of a row, for each block: kernels/upcast.cu */

/* Its PTX, which the driver of any GPU compiles. */
AUTOTUNE_API const char *autotune_upcast_code(void);

#endif
