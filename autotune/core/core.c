#include "autotune_sgemm.h"

#include <stdlib.h>

#include "choice.h"
#include "grid.h"

struct autotune_handle {
    const autotune_table *table;
    at_chooser *chooser;
};

const uint32_t autotune_struct_bytes[7] = {
    sizeof(autotune_kernel), sizeof(autotune_residuals), sizeof(autotune_layout), sizeof(autotune_ranked),
    sizeof(autotune_entry),  sizeof(autotune_table),     sizeof(autotune_choice),
};

autotune_status autotune_open(const autotune_table *table, autotune_handle **handle) {
    *handle = NULL;
    if (table->version != AUTOTUNE_TABLE_VERSION) return AUTOTUNE_OTHER_TABLE;
    autotune_handle *made = malloc(sizeof *made);
    if (!made) return AUTOTUNE_NO_MEMORY;
    *made = (autotune_handle){table, at_chooser_new(table)};
    if (!made->chooser) {
        free(made);
        return AUTOTUNE_NO_MEMORY;
    }
    *handle = made;
    return AUTOTUNE_OK;
}

void autotune_close(autotune_handle *handle) {
    if (!handle) return;
    at_chooser_free(handle->chooser);
    free(handle);
}

autotune_status autotune_choose(const autotune_handle *handle, int32_t layout, int32_t m, int32_t n, int32_t k,
                                const int64_t ld[3], const uint64_t addresses[3], const char *cublas_version,
                                autotune_choice *choice) {
    if (layout < 0 || layout >= AUTOTUNE_LAYOUTS || m < 1 || n < 1 || k < 0) return AUTOTUNE_BAD_CALL;
    at_call call = {.m = m, .n = n, .k = k, .layout = layout};
    for (int i = 0; i < 3; i++) {
        if (ld[i] < 1) return AUTOTUNE_BAD_CALL;
        call.ld[i] = ld[i];
        call.low[i] = addresses ? (uint32_t)(addresses[i] % AT_ALIGNED) : 0;
    }
    switch (at_choose(handle->chooser, &call, cublas_version, choice)) {
        case 0: return AUTOTUNE_OK;
        case 1: return AUTOTUNE_NO_KERNEL;
        default: return AUTOTUNE_NO_MEMORY;
    }
}
