#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include "live.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLE_US 4.0      /* that a sample takes the host: three calls for events, two that ask */
#define SHARE 0.005        /* of the time of a kind's calls that samples may take, */
#define CALLS_AHEAD 3.0    /* besides the time of so many at first */
#define LEAST_CALL_US 0.8  /* that a call counts as taking: beyond it samples would never be due */
#define MOST_CALLS 1e6     /* from one sample to the next */
#define SLOWER 1.25        /* by its least time, than the least of all: such a plan has no more samples */
#define SAMPLES_OUT 2      /* that tell this: the first may have loaded what it launches */
#define AT_ONCE 1.5        /* the same by its first sample where the GPU is the limit: what loads ends busy samples, */
#define MUCH_SLOWER 3.0    /* and of torch's own kernel on an idle stream: the host takes 100 us and more for what it
                            * seldom calls (H200), each time */
#define TWICE 2.0          /* expected to take more than so many times the least: such a plan has no sample */
#define LOST_FIRST 1.5     /* calls that first samples may lose where the GPU is the limit, */
#define LOST 2.5           /* and all, */
#define CHEAP 0.1          /* but for those that lose less of a call (docs/decisions/0106) */
#define UNKNOWN_US 25.0    /* that a call counts as taking of which nothing is expected */
#define LOADING_CALLS 8    /* of a kind that are not sampled: amid them a program loads what it launches */
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
    double expected_us[AT_MAX_RIVALS]; /* 0: unknown */
    int32_t num, wait, tries, outcome, fault;
    double call_us, credit_us;
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

/* Until the calls have paid for a sample, in the mean; never of calls in a fixed order. */
static void wait_anew(at_live *live) {
    const double apart = ceil((SAMPLE_US - live->credit_us) / (SHARE * live->call_us));
    live->wait = 1 + drawn(live, 2 * (int32_t)fmin(fmax(apart, 2), MOST_CALLS) - 1);
}

/* The least expected time, infinite where nothing is expected. */
static double least_expected_us(const at_live *live) {
    double least = INFINITY;
    for (int32_t i = 0; i < live->num; i++) {
        if (live->expected_us[i] > 0) least = fmin(least, live->expected_us[i]);
    }
    return least;
}

at_live *at_live_new(const autotune_driver *cuda, autotune_plan *const rivals[], int32_t num,
                     const double expected_us[], uint64_t seed, int32_t winner) {
    at_live *live = calloc(1, sizeof *live);
    if (!live) return NULL;
    pthread_mutex_init(&live->lock, NULL);
    atomic_init(&live->winner, winner);
    live->cuda = cuda;
    live->num = num;
    for (int32_t i = 0; i < num; i++) live->rivals[i] = at_plan_hold(rivals[i]);
    for (int32_t i = 0; i < num; i++) live->expected_us[i] = expected_us[i];
    const double least = least_expected_us(live);
    live->call_us = fmax(isinf(least) ? UNKNOWN_US : least, LEAST_CALL_US);
    live->credit_us = CALLS_AHEAD * live->call_us;
    live->random = seed | 1;
    wait_anew(live);
    live->wait += LOADING_CALLS;
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

/* The same will be so of fewer samples, whatever follows: unless too many are not below them already. */
static bool may_be_surely_less(const double *one, int32_t num, const double *other) {
    return num < AT_SAMPLES_EACH - MIDDLE || one[num - (AT_SAMPLES_EACH - MIDDLE)] < other[0];
}

static double spread(const double *ascending) {
    return (ascending[MIDDLE] - ascending[0]) / median(ascending, AT_SAMPLES_EACH);
}

/* Where either side's time may decide, one that is steady does. */
static bool spreads(const samples *of, int32_t regime) {
    if (of->num < AT_SAMPLES_EACH) return false;
    const double of_gpu = spread(of->gpu_us);
    return (regime == AT_BUSY ? of_gpu : fmin(of_gpu, spread(of->host_us))) > MOST_SPREAD;
}

/* The least time of the GPU in a regime, infinite without a sample. */
static double least_us(const at_live *live, int32_t regime) {
    double least = INFINITY;
    for (int32_t i = 0; i < live->num; i++) {
        const samples *of = &live->found[regime][i];
        if (of->num) least = fmin(least, of->gpu_us[0]);
    }
    return least;
}

/* The time that a call takes at least, of the side that is the limit in a regime that has a sample. */
static double limit_us(const at_live *live, int32_t regime) {
    double least = least_us(live, regime);
    for (int32_t i = 0; i < live->num && regime == AT_IDLE; i++) {
        if (live->found[regime][i].num) least = fmin(least, live->found[regime][i].host_us[0]);
    }
    return least;
}

/* Whether more samples of one that has some tell nothing: it is too slow, or cannot win any more. */
static bool is_out(const at_live *live, int32_t regime, int32_t rival) {
    const samples *of = &live->found[regime][rival], *first = live->found[regime];
    const double slower = of->gpu_us[0] / least_us(live, regime);
    const bool is_guest = rival && live->rivals[rival]->planned.is_left_alone;
    const double once = regime == AT_BUSY ? AT_ONCE : is_guest ? MUCH_SLOWER : INFINITY;
    if (slower > once || (of->num >= SAMPLES_OUT && slower > SLOWER)) return true;
    const bool may_win = may_be_surely_less(of->gpu_us, of->num, first->gpu_us) ||
                         (regime == AT_IDLE && may_be_surely_less(of->host_us, of->num, first->host_us));
    return rival && first->num && !may_win;
}

/* What a rival has taken at least, or may take: what is expected of it, or that over what is expected of another times
 * what the other took, whichever is less. 0 where nothing tells how good expectations are. */
static double foreseen_us(const at_live *live, int32_t regime, int32_t rival) {
    const samples *all = live->found[regime];
    if (all[rival].num) return all[rival].gpu_us[0];
    double foreseen = INFINITY;
    for (int32_t i = 0; i < live->num; i++) {
        if (!all[i].num || live->expected_us[i] <= 0) continue;
        const double over = live->expected_us[rival] / live->expected_us[i];
        foreseen = fmin(foreseen, fmin(live->expected_us[rival], over * all[i].gpu_us[0]));
    }
    return isinf(foreseen) ? 0 : foreseen;
}

/* What samples have lost against as many calls of the least. */
static double lost_us(const at_live *live, int32_t regime) {
    double lost = 0;
    for (int32_t i = 0; i < live->num; i++) {
        const samples *of = &live->found[regime][i];
        if (of->num) lost += of->num * (of->gpu_us[0] - least_us(live, regime));
    }
    return lost;
}

/* Whether another sample of a rival would lose more than samples may: it is not looked for among the slow. Of the first,
 * what serves else, one is needed. On an idle stream the GPU's time is not what a program loses. */
static bool costs_too_much(const at_live *live, int32_t regime, int32_t rival) {
    const bool is_new = !live->found[regime][rival].num;
    const double least = least_us(live, regime);
    if (isinf(least)) return rival && live->expected_us[rival] > TWICE * least_expected_us(live);
    if (is_new && !rival) return false;
    const double foreseen = foreseen_us(live, regime, rival), loses = foreseen - least;
    if (is_new && foreseen > TWICE * least) return true;
    if (regime == AT_IDLE) return false;
    /* what a first one loses is only foreseen: there are none once that has been far too little */
    const double lost = lost_us(live, regime), most = (is_new ? LOST_FIRST : LOST) * least;
    return loses > CHEAP * least ? lost + loses > most : is_new && lost > most;
}

static bool is_open(const at_live *live, int32_t regime, int32_t rival) {
    const int32_t num = live->found[regime][rival].num;
    if (costs_too_much(live, regime, rival)) return false;
    return !num || (num < AT_SAMPLES_EACH && !is_out(live, regime, rival));
}

static int32_t num_samples(const at_live *live, int32_t regime) {
    int32_t num = 0;
    for (int32_t i = 0; i < live->num; i++) num += live->found[regime][i].num;
    return num;
}

/* Whether a rival has a sample in a regime and leads: there may be enough of all that are ahead of it, and of it. */
static bool leads(const at_live *live, int32_t regime, int32_t rival) {
    const samples *all = live->found[regime];
    int32_t left = AT_MOST_SAMPLES - num_samples(live, regime);
    for (int32_t i = 0; i < live->num; i++) {
        const bool is_ahead = !i || i == rival || all[i].gpu_us[0] < all[rival].gpu_us[0];
        if (is_ahead && is_open(live, regime, i)) left -= AT_SAMPLES_EACH - all[i].num;
    }
    return is_open(live, regime, rival) && left >= 0;
}

/* Whether a rival is to have a sample, or another, in a regime: the first only where another may win. */
static bool is_wanted(const at_live *live, int32_t regime, int32_t rival) {
    const samples *all = live->found[regime];
    if (!all[rival].num) return is_open(live, regime, rival);
    if (rival || !is_open(live, regime, 0)) return leads(live, regime, rival);
    bool may_win = false;
    for (int32_t i = 1; i < live->num; i++) {
        const bool has_enough = all[i].num == AT_SAMPLES_EACH;
        may_win = may_win || (has_enough ? !is_out(live, regime, i) : leads(live, regime, i));
    }
    return may_win;
}

/* By the GPU's time alone where that is the limit; else by either side's, if the other's is not longer. */
static bool is_surely_better(const samples *one, const samples *first, int32_t regime) {
    const bool takes_gpu_less = is_surely_less(one->gpu_us, first->gpu_us);
    if (regime == AT_BUSY) return takes_gpu_less;
    const bool takes_host_less = is_surely_less(one->host_us, first->host_us);
    return (takes_gpu_less && median_host(one) <= median_host(first)) ||
           (takes_host_less && median_gpu(one) <= median_gpu(first));
}

/* The rival with the least time of the GPU of those that surely serve better than the first, or the first. */
static int32_t best_of(const at_live *live, int32_t regime) {
    const samples *all = live->found[regime];
    int32_t best = 0;
    for (int32_t i = 1; i < live->num; i++) {
        const bool is_complete = all[i].num == AT_SAMPLES_EACH;
        if (!is_complete || !is_surely_better(&all[i], &all[0], regime)) continue;
        if (!best || median_gpu(&all[i]) < median_gpu(&all[best])) best = i;
    }
    return best;
}

static void settle(at_live *live, int32_t winner, bool is_dropped) {
    live->is_dropped = is_dropped;
    atomic_store_explicit(&live->winner, winner, memory_order_release);
}

static void decide(at_live *live, int32_t regime) {
    for (int32_t i = 0; i < live->num; i++) {
        if (is_wanted(live, regime, i)) return;
    }
    const int32_t best = best_of(live, regime);
    const samples *all = live->found[regime];
    const bool is_dropped = spreads(&all[0], regime) || spreads(&all[best], regime);
    if (is_dropped) live->outcome = AT_SPREADS;
    settle(live, is_dropped ? 0 : best, is_dropped);
}

/* ------------------------------------------------------------------------------------------ sampling */

/* Keep a sample, which costs what its plan loses: but the first, which may load what later calls have. A call takes what
 * the least of them has taken of the side that is the limit. */
static void keep(at_live *live, double gpu_us) {
    samples *of = &live->found[live->regime][live->rival];
    insert(of->gpu_us, of->num, gpu_us);
    insert(of->host_us, of->num, live->host_us);
    if (of->num++) live->credit_us -= of->gpu_us[0] - least_us(live, live->regime);
    live->call_us = fmax(live->call_us, limit_us(live, live->regime));
    live->outcome = AT_TAKEN;
    decide(live, live->regime);
    wait_anew(live);
}

/* Whether a call of the driver succeeded; `fault` is its last other result. */
static bool is_well(at_live *live, int result) {
    if (!result) return true;
    live->outcome = AT_REFUSED;
    live->fault = result;
    return false;
}

/* Take in the sample that is waited for, if the GPU has passed it. */
static void take_in(at_live *live) {
    if (live->stage != WAITED_FOR) return;
    const int state = live->cuda->query_event(live->events[1]);
    if (state == NOT_READY) return;
    live->stage = NO_SAMPLE;
    float ms = 0;
    if (!is_well(live, state) || !is_well(live, live->cuda->elapsed(&ms, live->events[0], live->events[1]))) return;
    if (ms > 0) keep(live, (double)ms * 1e3);
}

static bool is_captured(at_live *live, uint64_t stream) {
    int capture = 0;
    const bool is_known = is_well(live, live->cuda->is_capturing(stream, &capture));
    if (capture) live->outcome = AT_CAPTURED;
    return is_known && capture;
}

/* The regime of a stream; -1: it is in none. */
static int32_t regime_of(at_live *live, uint64_t stream) {
    const int state = live->cuda->query_stream(stream);
    return state == NOT_READY ? AT_BUSY : is_well(live, state) ? AT_IDLE : -1;
}

/* One of those with the fewest samples of a regime of all that are to have another, at random: of those without any, one
 * of which the least is expected, as the others may lose too much then. */
static int32_t next_rival(at_live *live, int32_t regime) {
    int32_t least = AT_SAMPLES_EACH, num = 0, found = 0;
    double least_us = INFINITY;
    for (int32_t i = 0; i < live->num; i++) {
        const int32_t own = live->found[regime][i].num;
        const double own_us = own ? 0 : live->expected_us[i];
        if (own > least || (own == least && own_us > least_us) || !is_wanted(live, regime, i)) continue;
        if (own < least || own_us < least_us) num = 0;
        least = own;
        least_us = own_us;
        if (!drawn(live, ++num)) found = i;
    }
    return found;
}

static bool has_events(at_live *live) {
    for (int i = 0; i < 2; i++) {
        if (!live->events[i] && !is_well(live, live->cuda->make_event(&live->events[i], 0))) return false;
    }
    return true;
}

/* Whether another sample may begin: all that do are paid for, and end if too few count. */
static bool may_begin(at_live *live) {
    live->credit_us -= SAMPLE_US;
    wait_anew(live);
    if (++live->tries > MOST_TRIES) settle(live, 0, true);
    return live->tries <= MOST_TRIES;
}

static void begin_sample(at_live *live, uint64_t stream, autotune_turn *turn) {
    if (is_captured(live, stream) || !may_begin(live)) return;
    const int32_t regime = regime_of(live, stream);
    if (regime < 0 || !has_events(live) || !is_well(live, live->cuda->record_event(live->events[0], stream))) return;
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

static bool enter(at_live *live, uint64_t context, state_before *before) {
    *before = (state_before){.mode = AT_CAPTURE_RELAXED};
    if (!is_well(live, at_enter_context(live->cuda, context, &before->is_pushed))) return false;
    before->is_relaxed = !live->cuda->exchange_capture_mode(&before->mode);
    return true;
}

static void leave(const autotune_driver *cuda, state_before *before) {
    uint64_t popped;
    if (before->is_relaxed) (void)cuda->exchange_capture_mode(&before->mode);
    if (before->is_pushed) (void)cuda->pop_context(&popped);
}

static bool is_due(const at_live *live) {
    return live->stage == NO_SAMPLE && live->wait <= 0 && !at_live_winner(live);
}

void at_begin_turn(at_live *live, uint64_t context, uint64_t stream, autotune_turn *turn) {
    *turn = (autotune_turn){.plan = live->rivals[0], .number = -1};
    state_before before;
    if (!pthread_mutex_trylock(&live->lock)) {
        live->credit_us += SHARE * live->call_us;
        live->wait--;
        if ((live->stage == WAITED_FOR || is_due(live)) && enter(live, context, &before)) {
            take_in(live);
            if (is_due(live)) begin_sample(live, stream, turn);
            leave(live->cuda, &before);
        } else if (is_due(live)) {
            (void)may_begin(live); /* the driver refuses the context */
        }
        autotune_plan *winner = at_live_winner(live);
        if (winner) turn->plan = winner;
        pthread_mutex_unlock(&live->lock);
    }
    turn->is_left_alone = turn->plan->planned.is_left_alone;
    turn->began_us = turn->number < 0 ? 0 : now_us();
}

/* A stream that was busy is still, or the sample is of no regime: its GPU waited for the host in between. */
static bool is_sound(at_live *live) {
    const int state = live->regime == AT_IDLE ? NOT_READY : live->cuda->query_event(live->events[0]);
    if (state != NOT_READY && is_well(live, state)) live->outcome = AT_BETWEEN;
    return state == NOT_READY;
}

void at_end_turn(at_live *live, uint64_t context, uint64_t stream, const autotune_turn *turn, bool is_done) {
    if (turn->number < 0) return;
    const double host_us = now_us() - turn->began_us;
    state_before before;
    pthread_mutex_lock(&live->lock);
    live->host_us = host_us;
    live->stage = NO_SAMPLE;
    if (!is_done) live->outcome = AT_NOT_MADE;
    if (is_done && enter(live, context, &before)) {
        if (is_sound(live) && is_well(live, live->cuda->record_event(live->events[1], stream))) live->stage = WAITED_FOR;
        leave(live->cuda, &before);
    }
    pthread_mutex_unlock(&live->lock);
}

void at_live_tell(at_live *live, autotune_live_state *state) {
    pthread_mutex_lock(&live->lock);
    *state = (autotune_live_state){.num_rivals = live->num,
                                   .is_dropped = live->is_dropped,
                                   .outcome = live->stage == NO_SAMPLE ? live->outcome : AT_UNDER_WAY,
                                   .fault = live->fault,
                                   .calls_left = live->wait > 0 ? live->wait : 0};
    const int winner = atomic_load(&live->winner);
    state->is_settled = winner >= 0;
    state->winner = winner < 0 ? 0 : winner;
    state->regime = num_samples(live, AT_IDLE) > num_samples(live, AT_BUSY) ? AT_IDLE : AT_BUSY;
    state->num_samples = num_samples(live, state->regime);
    for (int32_t i = 0; i < live->num; i++) {
        state->gpu_us[i] = median_gpu(&live->found[state->regime][i]);
        state->host_us[i] = median_host(&live->found[state->regime][i]);
    }
    pthread_mutex_unlock(&live->lock);
}
