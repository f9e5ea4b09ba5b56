#define _XOPEN_SOURCE 700 /* for realpath, even if the compiler is restricted to C11 */

#include "recorder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "forks.h"
#include "grid.h"
#include "table.h"

#define EVERY_NS 250000000L /* between two writes: even on a busy machine the file is less than a second old */
#define SYNC_S 5           /* between two that wait for the disk: a kill loses nothing that is written, a power cut does */
#define SECOND_NS 1000000000L
#define FOLDER_MODE 0777
#define HOUR_S 3600
enum { HOST_BYTES = 65, NAME_BYTES = HOST_BYTES + 64, SPARE_ROWS = 64, NUM_TRIES = 3 };

struct at_recorder {
    at_tallies *tallies;
    char *file, *folder;  /* the file that was asked for, and the folder that holds the record */
    char *path, *part;    /* the file that is written, and its next state; until they are named, their folder */
    pthread_mutex_t lock; /* of the members below, and of both files */
    pthread_cond_t is_ending;
    pthread_t thread;
    bool is_begun, has_thread, is_over, has_told;
    uint64_t written, synced; /* calls that the file counts, and that it counts on the disk */
    time_t sync_due;          /* by CLOCK_MONOTONIC */
    at_recorder *next;
};

/* The recorders that have begun: at the process's end they write what is left. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static at_recorder *begun;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------------------------------------ writing */

static const char *const LAYOUTS[] = {"NN", "NT", "TN", "TT"};

static void print_batch(FILE *to, const autotune_count *row) {
    static const char *const SHARED[] = {"", "\"shared\": \"a\", ", "\"shared\": \"b\", "};
    if (row->products > 1) fprintf(to, "\"batch\": %" PRId32 ", %s", row->products, SHARED[row->shared]);
}

/* As autotune/kernel/launch.py names it. */
static void print_epilogue(FILE *to, const autotune_count *row) {
    static const char *const ACTIVATIONS[] = {"", "relu", "gelu", "gelu-tanh"};
    const bool has_bias = row->bias != AUTOTUNE_BIAS_NONE;
    if (!has_bias && !row->activation) return;
    fprintf(to, "\"epilogue\": \"%s%s%s\", ", has_bias ? "bias" : "", has_bias && row->activation ? "-" : "",
            ACTIVATIONS[row->activation]);
}

static void print_row(FILE *to, const autotune_count *row, const char *separator) {
    fprintf(to, "%s{\"m\": %" PRId32 ", \"n\": %" PRId32 ", \"k\": %" PRId32 ", \"layout\": \"%s\", ", separator, row->m,
            row->n, row->k, LAYOUTS[at_plain_layout(row->layout)]);
    static const char *const TYPES[] = {"", "\"a_type\": \"bf16\", ", "\"a_type\": \"fp16\", "};
    fputs(TYPES[at_a_type(row->layout)], to);
    print_batch(to, row);
    print_epilogue(to, row);
    fprintf(to,
            "\"ld\": [%" PRId64 ", %" PRId64 ", %" PRId64 "], \"align\": [%" PRId32 ", %" PRId32 ", %" PRId32 "], "
            "\"count\": %" PRIu64 "}",
            row->ld[0], row->ld[1], row->ld[2], row->alignment[0], row->alignment[1], row->alignment[2], row->calls);
}

/* Prints a suite in JSON, one shape in each line (autotune/suite.py). */
static bool print_all(FILE *to, const autotune_count *rows, int32_t num) {
    uint64_t others = 0;
    const char *separator = "";
    fprintf(to, "{\"version\": 2, \"shape\": [\n");
    for (int32_t i = 0; i < num; i++) {
        if (!rows[i].m) {
            others += rows[i].calls;
            continue;
        }
        print_row(to, &rows[i], separator);
        separator = ",\n";
    }
    fprintf(to, "\n], \"others\": %" PRIu64 "}\n", others);
    return !ferror(to);
}

/* On the disk, or in a file system that keeps nothing. */
static bool is_synced(int file) { return !fsync(file) || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP; }

static void sync_folder(const char *folder) {
    const int opened = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) return;
    fsync(opened);
    close(opened);
}

/* The previous file stays whole until this one is complete; if this one `syncs`, whatever happens to the power. */
static bool replace_file(at_recorder *recorder, const autotune_count *rows, int32_t num, bool syncs) {
    mkdir(recorder->folder, FOLDER_MODE); /* it may have been removed meanwhile */
    FILE *to = fopen(recorder->part, "w");
    if (!to) return false;
    const bool is_printed = print_all(to, rows, num) && !fflush(to) && (!syncs || is_synced(fileno(to)));
    const bool is_closed = !fclose(to);
    if (is_printed && is_closed && !rename(recorder->part, recorder->path)) {
        if (syncs && !recorder->synced) sync_folder(recorder->folder); /* the name is new */
        return true;
    }
    const int code = errno;
    unlink(recorder->part);
    errno = code;
    return false;
}

/* Tries again where the folder or the part was removed meanwhile: see is_left. */
static bool write_rows(at_recorder *recorder, const autotune_count *rows, int32_t num, bool syncs) {
    for (int i = 0; i < NUM_TRIES; i++) {
        if (replace_file(recorder, rows, num, syncs)) return true;
        if (errno != ENOENT) return false;
    }
    return false;
}

/* Says once why nothing can be written; errno says it. */
static void tell(at_recorder *recorder) {
    if (recorder->has_told) return;
    recorder->has_told = true;
    fprintf(stderr,
            "autotune: calls cannot be recorded in %s (%s); make room there, or see to its rights: they are still "
            "counted, and written once that succeeds\n",
            recorder->folder, strerror(errno));
}

static time_t seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* The caller holds the recorder's lock. If writing fails now, it is tried again later. */
static void write_changes(at_recorder *recorder, bool syncs) {
    int32_t room = 0, num = 0;
    autotune_count *rows = NULL;
    while ((num = at_counts(recorder->tallies, rows, room)) > room) { /* more may have been added since */
        free(rows);
        room = num + SPARE_ROWS;
        rows = malloc((size_t)room * sizeof *rows);
        if (!rows) {
            tell(recorder);
            return;
        }
    }
    uint64_t calls = 0;
    for (int32_t i = 0; i < num; i++) calls += rows[i].calls;
    if (calls != (syncs ? recorder->synced : recorder->written)) {
        if (write_rows(recorder, rows, num, syncs)) {
            recorder->written = calls;
            if (syncs) {
                recorder->synced = calls;
                recorder->sync_due = seconds_now() + SYNC_S;
            }
        } else {
            tell(recorder);
        }
    }
    free(rows);
}

/* ------------------------------------------------------------------------------------------ what others left */

static void name_host(char host[HOST_BYTES]) {
    memset(host, 0, HOST_BYTES);
    gethostname(host, HOST_BYTES - 1);
    for (char *at = host; *at; at++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-", *at)) *at = '-';
    }
}

/* Where the id of its process begins in .HOST-PID-HEX.json; NULL for other names. */
static const char *writer_in(const char *name) {
    const char *hex = strrchr(name, '-'), *pid = hex;
    if (*name != '.' || !hex || strcmp(hex + 1 + strspn(hex + 1, "0123456789abcdef"), ".json")) return NULL;
    while (pid > name && isdigit((unsigned char)pid[-1])) pid--;
    return pid < hex && pid - name > 1 && pid[-1] == '-' ? pid : NULL;
}

/* Whether a process that was killed left this part. Of another machine it is known by its age, and where this process
 * has that one's id. A living process that is taken for dead, as in another container of the same name, writes its
 * part again. */
static bool is_left(const char *name, time_t written) {
    char host[HOST_BYTES];
    const char *at = writer_in(name);
    if (!at) return false;
    name_host(host);
    const size_t length = (size_t)(at - name) - 2;
    const pid_t pid = (pid_t)strtol(at, NULL, 10);
    if (strncmp(name + 1, host, length) || host[length] || pid == getpid()) return time(NULL) - written > HOUR_S;
    return kill(pid, 0) && errno == ESRCH;
}

static void remove_left(const at_recorder *recorder) {
    DIR *folder = opendir(recorder->folder);
    if (!folder) return;
    struct stat found;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (fstatat(dirfd(folder), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) || !S_ISREG(found.st_mode)) continue;
        if (is_left(entry->d_name, found.st_mtime)) unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
}

static void *keep_writing(void *own) {
    at_recorder *recorder = own;
    remove_left(recorder);
    pthread_mutex_lock(&recorder->lock);
    while (!recorder->is_over) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += EVERY_NS;
        until.tv_sec += until.tv_nsec / SECOND_NS;
        until.tv_nsec %= SECOND_NS;
        while (!recorder->is_over && !pthread_cond_timedwait(&recorder->is_ending, &recorder->lock, &until)) continue;
        write_changes(recorder, recorder->is_over || seconds_now() >= recorder->sync_due);
    }
    pthread_mutex_unlock(&recorder->lock);
    return NULL;
}

/* A separate thread writes, so no call waits for a file. It takes no signals from the program's threads. */
static void start_thread(at_recorder *recorder) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    recorder->has_thread = !pthread_create(&recorder->thread, NULL, keep_writing, recorder);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ------------------------------------------------------------------------------------------ the process's end */

static void write_all(void) {
    if (at_is_forked()) return; /* the parent counts; a lock may be held by a thread that does not exist here */
    pthread_mutex_lock(&lock);
    for (at_recorder *recorder = begun; recorder; recorder = recorder->next) {
        pthread_mutex_lock(&recorder->lock);
        write_changes(recorder, true);
        pthread_mutex_unlock(&recorder->lock);
    }
    pthread_mutex_unlock(&lock);
}

static void write_at_exit(void) { atexit(write_all); }

/* ------------------------------------------------------------------------------------------ names */

/* One text followed by another, with `room` for more. */
static char *joined(const char *a, const char *b, size_t room) {
    const size_t length = strlen(a) + strlen(b) + room + 1;
    char *made = malloc(length);
    if (made) snprintf(made, length, "%s%s", a, b);
    return made;
}

/* Names the files by host, process and time, and only when recording begins: until then the process may be forked. */
static void name_files(at_recorder *recorder) {
    static atomic_uint num_named;
    char host[HOST_BYTES], name[NAME_BYTES];
    struct timespec now;
    name_host(host);
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, sizeof name, "%s-%ld-%llx%lx%x.json", host, (long)getpid(), (unsigned long long)now.tv_sec,
             (unsigned long)now.tv_nsec, atomic_fetch_add(&num_named, 1));
    strcat(strcat(recorder->path, "/"), name);
    strcat(strcat(recorder->part, "/."), name);
}

static bool is_writable(const char *folder) {
    struct stat found;
    if (mkdir(folder, FOLDER_MODE) && errno != EEXIST) return false;
    return !stat(folder, &found) && S_ISDIR(found.st_mode) && !access(folder, W_OK | X_OK);
}

/* ------------------------------------------------------------------------------------------ life */

static void free_memory(at_recorder *recorder) {
    free(recorder->file);
    free(recorder->folder);
    free(recorder->path);
    free(recorder->part);
    free(recorder);
}

at_recorder *at_recorder_new(at_tallies *tallies, const char *file) {
    at_recorder *recorder = calloc(1, sizeof *recorder);
    if (!recorder) return NULL;
    recorder->file = joined(file, "", 0);
    char *named = joined(file, ".d", 0);
    /* An absolute path: the program may change its working folder. */
    recorder->folder = named && is_writable(named) ? realpath(named, NULL) : NULL;
    if (recorder->folder) {
        recorder->path = joined(recorder->folder, "", NAME_BYTES);
        recorder->part = joined(recorder->folder, "", NAME_BYTES);
    }
    free(named);
    if (!recorder->file || !recorder->path || !recorder->part) {
        free_memory(recorder);
        return NULL;
    }
    recorder->tallies = tallies;
    pthread_mutex_init(&recorder->lock, NULL);
    pthread_condattr_t by_clock;
    pthread_condattr_init(&by_clock);
    pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&recorder->is_ending, &by_clock);
    pthread_condattr_destroy(&by_clock);
    return recorder;
}

void at_recorder_begin(at_recorder *recorder) {
    pthread_once(&once, write_at_exit);
    pthread_mutex_lock(&lock);
    if (!recorder->is_begun) {
        recorder->is_begun = true;
        name_files(recorder);
        recorder->next = begun;
        begun = recorder;
        start_thread(recorder);
    }
    pthread_mutex_unlock(&lock);
}

bool at_recorder_is_for(const at_recorder *recorder, const char *file) { return !strcmp(recorder->file, file); }

static void end_thread(at_recorder *recorder) {
    pthread_mutex_lock(&recorder->lock);
    recorder->is_over = true;
    pthread_cond_signal(&recorder->is_ending);
    pthread_mutex_unlock(&recorder->lock);
    if (recorder->has_thread) pthread_join(recorder->thread, NULL);
    write_changes(recorder, true); /* the thread may have ended before its first */
}

void at_recorder_free(at_recorder *recorder) {
    if (!recorder) return;
    pthread_mutex_lock(&lock);
    for (at_recorder **at = &begun; *at; at = &(*at)->next) {
        if (*at == recorder) {
            *at = recorder->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (recorder->is_begun) end_thread(recorder);
    free_memory(recorder);
}
