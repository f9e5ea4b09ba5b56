#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include "live.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLE_US 4.0      /* that a sample takes the host: three calls for events, two that ask */
#define MOST_SHARE 0.005   /* of the time of a kind's calls that samples take */
#define MOST_APART 1000    /* calls from one sample to the next, in the mean */
#define MOST_TRIES 64      /* samples that are begun: those between regimes tell nothing */
#define MOST_SPREAD 0.25   /* of the middle samples around their median: beyond it nothing is decided */
#define NOT_READY 600      /* CUDA_ERROR_NOT_READY */
#define MIDDLE (AT_SAMPLES_EACH / 2)

enum { NO_SAMPLE, BEGUN, WAITED_FOR };

typedef struct {
    double gpu_us[AT_SAMPLES_EACH], host_us[AT_SAMPLES_EACH]; /* ascending, each by itself */
    int32_t num;
} samples;

struct at_live {
    const autotune_driver *cuda;
    pthread_mutex_t lock;
    atomic_int winner; /* -1 before it is settled */
    autotune_plan *rivals[AT_MAX_RIVALS];
    int32_t num, apart, wait, tries;
    bool is_dropped;
    uint64_t random;
    samples found[AT_REGIMES][AT_MAX_RIVALS];
    /* the sample that is under way */
    int32_t stage, rival, regime;
    double host_us;
    uint64_t events[2]; /* 0 before the first sample */
};

static double now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

/* Of 0 ... limit - 1: xorshift64*, which nobody's aim depends on. */
static int32_t drawn(at_live *live, int32_t limit) {
    live->random ^= live->random >> 12;
    live->random ^= live->random << 25;
    live->random ^= live->random >> 27;
    return (int32_t)((live->random * 0x2545F4914F6CDD1Du >> 33) % (uint64_t)limit);
}

static void wait_anew(at_live *live) { live->wait = 1 + drawn(live, 2 * live->apart - 1); }

at_live *at_live_new(const autotune_driver *cuda, autotune_plan *const rivals[], int32_t num, double expected_us,
                     uint64_t seed) {
    at_live *live = calloc(1, sizeof *live);
    if (!live) return NULL;
    pthread_mutex_init(&live->lock, NULL);
    atomic_init(&live->winner, -1);
    live->cuda = cuda;
    live->num = num;
    for (int32_t i = 0; i < num; i++) live->rivals[i] = at_plan_hold(rivals[i]);
    const double apart = ceil(SAMPLE_US / (MOST_SHARE * fmax(expected_us, SAMPLE_US / MOST_APART)));
    live->apart = (int32_t)fmin(apart, MOST_APART);
    live->random = seed | 1;
    wait_anew(live);
    return live;
}

void at_live_free(at_live *live) {
    if (!live) return;
    for (int32_t i = 0; i < live->num; i++) at_plan_release(live->rivals[i]);
    for (int i = 0; i < 2; i++) {
        if (live->events[i]) (void)live->cuda->free_event(live->events[i]);
    }
    pthread_mutex_destroy(&live->lock);
    free(live);
}

autotune_plan *at_live_first(const at_live *live) { return live->rivals[0]; }

autotune_plan *at_live_winner(const at_live *live) {
    const int winner = atomic_load_explicit(&live->winner, memory_order_acquire);
    return winner < 0 ? NULL : live->rivals[winner];
}

/* ------------------------------------------------------------------------------------------ deciding */

static void insert(double *ascending, int32_t num, double value) {
    for (; num > 0 && ascending[num - 1] > value; num--) ascending[num] = ascending[num - 1];
    ascending[num] = value;
}

static double median(const double *ascending, int32_t num) {
    return num ? (ascending[(num - 1) / 2] + ascending[num / 2]) / 2 : 0;
}

static double median_gpu(const samples *of) { return median(of->gpu_us, of->num); }
static double median_host(const samples *of) { return median(of->host_us, of->num); }

/* Most samples of one lie below all of another: the slowest of each is not looked at. */
static bool is_surely_less(const double *one, const double *other) { return one[MIDDLE] < other[0]; }

static bool spreads(const double *ascending) {
    return ascending[MIDDLE] - ascending[0] > MOST_SPREAD * median(ascending, AT_SAMPLES_EACH);
}

/* The rival that surely serves better than the first, or the first. */
static int32_t best_of(at_live *live, int32_t regime) {
    const samples *all = live->found[regime], *first = &all[0];
    int32_t best = 0;
    for (int32_t i = 1; i < live->num; i++) {
        const double *own = regime == AT_BUSY ? all[i].gpu_us : all[i].host_us;
        const double *others = regime == AT_BUSY ? first->gpu_us : first->host_us;
        if (regime == AT_IDLE && median_gpu(&all[i]) > median_gpu(first)) continue;
        const double *leader = regime == AT_BUSY ? all[best].gpu_us : all[best].host_us;
        if (is_surely_less(own, others) && median(own, AT_SAMPLES_EACH) < median(leader, AT_SAMPLES_EACH)) best = i;
    }
    return best;
}

static void settle(at_live *live, int32_t winner, bool is_dropped) {
    live->is_dropped = is_dropped;
    atomic_store_explicit(&live->winner, winner, memory_order_release);
}

static void decide(at_live *live, int32_t regime) {
    for (int32_t i = 0; i < live->num; i++) {
        if (live->found[regime][i].num < AT_SAMPLES_EACH) return;
    }
    const int32_t best = best_of(live, regime);
    const samples *first = &live->found[regime][0], *chosen = &live->found[regime][best];
    const bool is_busy = regime == AT_BUSY;
    const bool is_dropped = spreads(is_busy ? first->gpu_us : first->host_us) ||
                            spreads(is_busy ? chosen->gpu_us : chosen->host_us);
    settle(live, is_dropped ? 0 : best, is_dropped);
}

/* ------------------------------------------------------------------------------------------ sampling */

static void keep(at_live *live, double gpu_us) {
    samples *of = &live->found[live->regime][live->rival];
    if (of->num >= AT_SAMPLES_EACH) return;
    insert(of->gpu_us, of->num, gpu_us);
    insert(of->host_us, of->num, live->host_us);
    of->num++;
    decide(live, live->regime);
}

/* Take in the sample that is waited for, if the GPU has passed it. */
static void take_in(at_live *live) {
    if (live->stage != WAITED_FOR) return;
    const int state = live->cuda->query_event(live->events[1]);
    if (state == NOT_READY) return;
    live->stage = NO_SAMPLE;
    float ms = 0;
    if (!state && !live->cuda->elapsed(&ms, live->events[0], live->events[1]) && ms > 0) keep(live, (double)ms * 1e3);
}

/* The regime of a stream on which a sample may begin; -1: none may. */
static int32_t regime_of(const autotune_driver *cuda, uint64_t stream) {
    int capture = 0;
    if (cuda->is_capturing(stream, &capture) || capture) return -1;
    const int state = cuda->query_stream(stream);
    return state == NOT_READY ? AT_BUSY : state ? -1 : AT_IDLE;
}

/* One of those with the fewest samples of a regime, at random. */
static int32_t next_rival(at_live *live, int32_t regime) {
    const samples *all = live->found[regime];
    int32_t least = all[0].num, num = 0, found = 0;
    for (int32_t i = 1; i < live->num; i++) least = all[i].num < least ? all[i].num : least;
    for (int32_t i = 0; i < live->num; i++) {
        if (all[i].num == least && !drawn(live, ++num)) found = i;
    }
    return found;
}

static bool has_events(at_live *live) {
    for (int i = 0; i < 2; i++) {
        if (!live->events[i] && live->cuda->make_event(&live->events[i], 0)) return false;
    }
    return true;
}

static void begin_sample(at_live *live, uint64_t stream, autotune_turn *turn) {
    wait_anew(live);
    if (++live->tries > MOST_TRIES) settle(live, 0, true);
    const int32_t regime = at_live_winner(live) ? -1 : regime_of(live->cuda, stream);
    if (regime < 0 || !has_events(live) || live->cuda->record_event(live->events[0], stream)) return;
    live->stage = BEGUN;
    live->regime = regime;
    live->rival = turn->number = next_rival(live, regime);
    turn->plan = live->rivals[turn->number];
}

/* What a thread was in while it asks the driver: no call ends another thread's capture in the relaxed mode. */
typedef struct {
    bool is_relaxed, is_pushed;
    int mode;
} state_before;

static bool enter(const autotune_driver *cuda, uint64_t context, state_before *before) {
    *before = (state_before){.mode = AT_CAPTURE_RELAXED};
    if (at_enter_context(cuda, context, &before->is_pushed)) return false;
    before->is_relaxed = !cuda->exchange_capture_mode(&before->mode);
    return true;
}

static void leave(const autotune_driver *cuda, state_before *before) {
    uint64_t popped;
    if (before->is_relaxed) (void)cuda->exchange_capture_mode(&before->mode);
    if (before->is_pushed) (void)cuda->pop_context(&popped);
}

void at_begin_turn(at_live *live, uint64_t context, uint64_t stream, autotune_turn *turn) {
    *turn = (autotune_turn){.plan = live->rivals[0], .number = -1};
    state_before before;
    if (!pthread_mutex_trylock(&live->lock)) {
        if (live->stage == NO_SAMPLE) live->wait--;
        const bool is_due = live->stage == WAITED_FOR || (live->stage == NO_SAMPLE && live->wait <= 0);
        if (is_due && enter(live->cuda, context, &before)) {
            take_in(live);
            if (live->stage == NO_SAMPLE && live->wait <= 0 && !at_live_winner(live)) begin_sample(live, stream, turn);
            leave(live->cuda, &before);
        }
        autotune_plan *winner = at_live_winner(live);
        if (winner) turn->plan = winner;
        pthread_mutex_unlock(&live->lock);
    }
    turn->is_left_alone = turn->plan->planned.is_left_alone;
    turn->began_us = turn->number < 0 ? 0 : now_us();
}

/* A stream that was busy is still, or the sample is of no regime: its GPU waited for the host in between. */
static bool is_sound(const at_live *live) {
    return live->regime == AT_IDLE || live->cuda->query_event(live->events[0]) == NOT_READY;
}

void at_end_turn(at_live *live, uint64_t context, uint64_t stream, const autotune_turn *turn, bool is_done) {
    if (turn->number < 0) return;
    const double host_us = now_us() - turn->began_us;
    state_before before;
    pthread_mutex_lock(&live->lock);
    live->host_us = host_us;
    live->stage = NO_SAMPLE;
    if (is_done && enter(live->cuda, context, &before)) {
        if (is_sound(live) && !live->cuda->record_event(live->events[1], stream)) live->stage = WAITED_FOR;
        leave(live->cuda, &before);
    }
    pthread_mutex_unlock(&live->lock);
}

void at_live_tell(at_live *live, autotune_live_state *state) {
    pthread_mutex_lock(&live->lock);
    *state = (autotune_live_state){.num_rivals = live->num, .is_dropped = live->is_dropped};
    const int winner = atomic_load(&live->winner);
    state->is_settled = winner >= 0;
    state->winner = winner < 0 ? 0 : winner;
    int32_t num[AT_REGIMES] = {0};
    for (int regime = 0; regime < AT_REGIMES; regime++) {
        for (int32_t i = 0; i < live->num; i++) num[regime] += live->found[regime][i].num;
    }
    state->regime = num[AT_IDLE] > num[AT_BUSY] ? AT_IDLE : AT_BUSY;
    state->num_samples = num[state->regime];
    for (int32_t i = 0; i < live->num; i++) {
        state->gpu_us[i] = median_gpu(&live->found[state->regime][i]);
        state->host_us[i] = median_host(&live->found[state->regime][i]);
    }
    pthread_mutex_unlock(&live->lock);
}
