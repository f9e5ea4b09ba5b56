/* A program with two tables: each part is compiled with the header of its table, and -DPART=first or -DPART=second; the
 * rest without. */

#include <stdio.h>

#ifdef PART

#include "autotune_sgemm.h"

const char *PART(void) {
    autotune_handle *handle;
    autotune_pick_info pick = {0};
    if (autotune_create(&handle) || autotune_pick(handle, 0, 0, 4, 4, 4, &pick)) return "none";
    autotune_destroy(handle);
    static char told[256];
    snprintf(told, sizeof told, "%s,%s", pick.kernel, pick.order ? pick.order : "none");
    return told;
}

#else

const char *first(void);
const char *second(void);

int main(void) { return printf("%s %s\n", first(), second()) < 0; }

#endif
