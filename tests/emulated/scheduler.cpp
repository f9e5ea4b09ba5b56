// Blocks and their threads as fibres: each runs until it meets a barrier or ends, in a chosen order. The blocks
// of a cluster are there together, and run in turns: each as far as the next barrier of the cluster.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

#include "emulator.hpp"
#include "primitives_host.hpp"

// AddressSanitizer's, where the kernel that is linked to this runs under it.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void**, const void*, size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
}

static void start_switch(void** fake_stack, const void* stack, size_t bytes) {
    if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
}
static void finish_switch(void* fake_stack, const void** stack, size_t* bytes) {
    if (__sanitizer_finish_switch_fiber) __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
}

namespace emulated {

Position here;
const char* problem_name = "";

namespace {

constexpr size_t STACK_BYTES = 256 * 1024;  // thread tiles live here: at most 16 x 16 sums
constexpr size_t GUARD_BYTES = 64 * 1024;   // an overflowing stack faults at once
constexpr int EXIT_FAULT = 3;

enum class State { READY, AT_BARRIER, AT_EXCHANGE, AT_CLUSTER_BARRIER, ASLEEP, DONE };

// Where a fibre, or the scheduler, goes on. swapcontext asks the kernel for the signal mask at each switch, and
// AddressSanitizer clears the shadow of a whole stack there: half of all time.
struct Place {
    void* registers[5];
};

struct Fibre {
    ucontext_t beginning;
    bool has_begun = false;
    Place place;
    char* stack;
    void* fake_stack = nullptr;  // AddressSanitizer's, while the fibre sleeps
    State state = State::READY;
    float shown = 0;  // to the lane that it exchanges values with
    const char* file = "";  // of the barrier that it waits at
    int line = 0;
    const std::function<bool()>* wakes = nullptr;  // while it is asleep, and where
    const char* asleep_in = "";
    int asleep_at = 0;
};

std::deque<Fibre> fibres;  // kept between blocks and launches: only the stacks cost
Fibre* running = nullptr;
Place scheduler_place;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;
const std::function<void()>* body = nullptr;
std::vector<int> epochs;  // of the running cluster's blocks, by rank
int round_of_cluster = 0;
int threads_per_block = 0;

__attribute__((noinline, no_sanitize("address", "undefined"))) void go_on(Place& there) {
    __builtin_longjmp(there.registers, 1);  // not from a function that calls __builtin_setjmp
}

// Leaves from here for there, and returns when someone leaves for here.
__attribute__((noinline, no_sanitize("address", "undefined"))) void leave(Place& own, Place& there) {
    if (__builtin_setjmp(own.registers) == 0) go_on(there);
}
__attribute__((noinline, no_sanitize("address", "undefined"))) void leave(Place& own, ucontext_t& beginning) {
    if (__builtin_setjmp(own.registers) == 0) setcontext(&beginning);
}

void sleep_as(State state) {
    Fibre& self = *running;
    self.state = state;
    start_switch(&self.fake_stack, scheduler_stack, scheduler_stack_bytes);
    leave(self.place, scheduler_place);
    finish_switch(self.fake_stack, &scheduler_stack, &scheduler_stack_bytes);
}

void fibre_main() {
    finish_switch(nullptr, &scheduler_stack, &scheduler_stack_bytes);
    for (;;) {
        (*body)();
        sleep_as(State::DONE);
    }
}

void resume(Fibre& fibre) {
    running = &fibre;
    void* fake_stack = nullptr;
    start_switch(&fake_stack, running->stack, STACK_BYTES);
    if (running->has_begun) {
        leave(scheduler_place, running->place);
    } else {
        running->has_begun = true;
        leave(scheduler_place, running->beginning);
    }
    finish_switch(fake_stack, nullptr, nullptr);
}

void add_fibre() {
    void* memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
        fault("no memory for the stack of thread %zu", fibres.size());
    }
    Fibre& fibre = fibres.emplace_back();
    fibre.stack = static_cast<char*>(memory) + GUARD_BYTES;
    getcontext(&fibre.beginning);
    fibre.beginning.uc_stack.ss_sp = fibre.stack;
    fibre.beginning.uc_stack.ss_size = STACK_BYTES;
    fibre.beginning.uc_link = nullptr;
    makecontext(&fibre.beginning, fibre_main, 0);
}

void arrange(std::vector<int>& order, Order how, std::mt19937_64& random) {
    if (how == SHUFFLED) std::shuffle(order.begin(), order.end(), random);
}

std::vector<int> first_order(int count, Order how) {
    std::vector<int> order(count);
    std::iota(order.begin(), order.end(), 0);
    if (how == REVERSE) std::reverse(order.begin(), order.end());
    return order;
}

Fibre& fibre_of(int thread, int threads) { return fibres[here.rank * threads + thread]; }

// All threads of a block have run up to their next barrier or their end: it must be the same one.
State check_convergence(int threads) {
    const Fibre& first = fibre_of(0, threads);
    for (int i = 1; i < threads; ++i) {
        const Fibre& other = fibre_of(i, threads);
        if (first.state == other.state && first.line == other.line && !strcmp(first.file, other.file)) continue;
        here.thread = i;
        fault("barrier divergence: thread 0 %s %s:%d, thread %d %s %s:%d",
              first.state == State::DONE ? "ended after" : "waits at", first.file, first.line, i,
              other.state == State::DONE ? "ended after" : "waits at", other.file, other.line);
    }
    return first.state;
}

void stand_at(int block, int rank, const Launch& launch) {
    here = {0, block % launch.grid_x, block / launch.grid_x, launch.grid_x, launch.grid_y, rank};
}

// Resumes those that are asleep as often as what they wait for is there.
void wake(const std::vector<int>& order, int threads) {
    for (bool is_any = true; is_any;) {
        is_any = false;
        for (int thread : order) {
            Fibre& fibre = fibre_of(thread, threads);
            if (fibre.state != State::ASLEEP || !(*fibre.wakes)()) continue;
            here.thread = thread;
            resume(fibre);
            is_any = true;
        }
    }
    for (int thread : order) {
        const Fibre& fibre = fibre_of(thread, threads);
        here.thread = thread;
        if (fibre.state == State::ASLEEP) fault("it waits for ever at %s:%d", fibre.asleep_in, fibre.asleep_at);
    }
}

// Runs the current block to its next cluster barrier or to its end.
State run_block(const Launch& launch, std::mt19937_64& random) {
    std::vector<int> order = first_order(launch.threads, launch.thread_order);
    State state;
    do {
        arrange(order, launch.thread_order, random);
        for (int thread : order) {
            here.thread = thread;
            resume(fibre_of(thread, launch.threads));
        }
        wake(order, launch.threads);
        state = check_convergence(launch.threads);
        epochs[here.rank] += state != State::AT_EXCHANGE;  // which orders no accesses to memory
    } while (state == State::AT_BARRIER || state == State::AT_EXCHANGE);
    if (state == State::DONE) {
        end_block_memory();
        end_block_counts();
    }
    return state;
}

void begin_block(const Launch& launch) {
    begin_block_memory();
    begin_block_counts();
    for (int i = 0; i < launch.threads; ++i) {
        Fibre& fibre = fibre_of(i, launch.threads);
        fibre.state = State::READY;
        fibre.file = "its start";
        fibre.line = 0;
    }
}

// Runs the blocks of a cluster, numbered `first`, `first` + grid_x and so on, in turns.
void run_cluster(int first, const Launch& launch, std::mt19937_64& random) {
    epochs.assign(launch.cluster, 0);
    round_of_cluster = 0;
    std::vector<int> ranks = first_order(launch.cluster, launch.block_order);
    for (int rank : ranks) {
        stand_at(first + rank * launch.grid_x, rank, launch);
        begin_block(launch);
    }
    for (int num_ended = 0; num_ended == 0; ++round_of_cluster) {
        arrange(ranks, launch.block_order, random);
        for (int rank : ranks) {
            stand_at(first + rank * launch.grid_x, rank, launch);
            num_ended += run_block(launch, random) == State::DONE;
        }
        if (num_ended % launch.cluster != 0) fault("a block waits for its cluster, of which another has ended");
    }
}

}  // namespace

int barrier_epoch() { return epochs[here.rank]; }
int cluster_round() { return round_of_cluster; }

namespace {

void wait_as(State state, const char* file, int line) {
    running->file = file;
    running->line = line;
    poison_copies_under_way();
    sleep_as(state);
}

}  // namespace

void wait_until(const std::function<bool()>& holds, const char* file, int line) {
    running->wakes = &holds;
    running->asleep_in = file;
    running->asleep_at = line;
    while (!holds()) {
        poison_copies_under_way();
        sleep_as(State::ASLEEP);
    }
}

void wait_at_barrier(const char* file, int line) { wait_as(State::AT_BARRIER, file, line); }

// All threads of the block come here as often, so that an exchange can be a meeting of the whole block.
float exchange(float value, int apart, const char* file, int line) {
    running->shown = value;
    wait_as(State::AT_EXCHANGE, file, line);
    const float taken = fibre_of(here.thread ^ apart, threads_per_block).shown;
    wait_as(State::AT_EXCHANGE, file, line);
    return taken;
}

void wait_at_cluster_barrier(const char* file, int line) { wait_as(State::AT_CLUSTER_BARRIER, file, line); }

void launch(const Launch& launch, const std::function<void()>& kernel) {
    if (launch.grid_y % launch.cluster != 0) {
        fault("%d blocks along y are no whole clusters of %d", launch.grid_y, launch.cluster);
    }
    while (fibres.size() < static_cast<size_t>(launch.threads) * launch.cluster) add_fibre();
    body = &kernel;
    threads_per_block = launch.threads;
    std::mt19937_64 random(launch.seed);
    begin_launch_memory(launch);
    begin_launch_counts(launch);
    std::vector<int> order = first_order(launch.grid_x * launch.grid_y / launch.cluster, launch.block_order);
    arrange(order, launch.block_order, random);
    for (int number : order) {
        const int row = number / launch.grid_x * launch.cluster;
        run_cluster(row * launch.grid_x + number % launch.grid_x, launch, random);
    }
    end_launch_memory();
}

float poison(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void fault(const char* format, ...) {
    fprintf(stderr, "FAULT: ");
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "; problem %s, block (%d, %d) of (%d, %d), thread %d\n", problem_name, here.block_x,
            here.block_y, here.grid_x, here.grid_y, here.thread);
    fflush(stderr);
    _Exit(EXIT_FAULT);
}

}  // namespace emulated
