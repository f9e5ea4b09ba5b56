/* What a handle holds, for the files of the core. */

#ifndef AUTOTUNE_HANDLE_H
#define AUTOTUNE_HANDLE_H

#include "core.h"
#include "loader.h"

struct autotune_handle {
    const autotune_table *table;
    at_chooser *chooser;
    at_runner *runner;
    at_loader *loader;
    autotune_handle *next; /* for another GPU model; NULL: none */
};

#endif
