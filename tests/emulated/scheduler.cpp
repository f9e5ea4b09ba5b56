// Blocks and their threads as fibres: each runs until it meets a barrier or ends, in a chosen order.
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

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#else
static void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
static void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif

namespace emulated {

Position here;
const char* problem_name = "";

namespace {

constexpr size_t STACK_BYTES = 256 * 1024;  // thread tiles live here: at most 16 x 16 sums
constexpr size_t GUARD_BYTES = 64 * 1024;   // an overflowing stack faults at once
constexpr int EXIT_FAULT = 3;

enum class State { READY, AT_BARRIER, DONE };

struct Fibre {
    ucontext_t context;
    char* stack;
    void* fake_stack = nullptr;  // AddressSanitizer's, while the fibre sleeps
    State state = State::READY;
    const char* file = "";  // of the barrier that it waits at
    int line = 0;
};

std::deque<Fibre> fibres;  // kept between blocks and launches: only the stacks cost
Fibre* running = nullptr;
ucontext_t scheduler_context;
const void* scheduler_stack = nullptr;
size_t scheduler_stack_bytes = 0;
const std::function<void()>* body = nullptr;
int epoch = 0;

void sleep_as(State state) {
    Fibre& self = *running;
    self.state = state;
    __sanitizer_start_switch_fiber(&self.fake_stack, scheduler_stack, scheduler_stack_bytes);
    swapcontext(&self.context, &scheduler_context);
    __sanitizer_finish_switch_fiber(self.fake_stack, &scheduler_stack, &scheduler_stack_bytes);
}

void fibre_main() {
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
    for (;;) {
        (*body)();
        sleep_as(State::DONE);
    }
}

void resume(int thread) {
    running = &fibres[thread];
    here.thread = thread;
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, running->stack, STACK_BYTES);
    swapcontext(&scheduler_context, &running->context);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void add_fibre() {
    void* memory = mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0) {
        fault("no memory for the stack of thread %zu", fibres.size());
    }
    Fibre& fibre = fibres.emplace_back();
    fibre.stack = static_cast<char*>(memory) + GUARD_BYTES;
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = STACK_BYTES;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, fibre_main, 0);
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

// All threads have run up to their next barrier or their end: it must be the same one.
// Returns whether the block has ended.
bool check_convergence(int threads) {
    const Fibre& first = fibres[0];
    for (int i = 1; i < threads; ++i) {
        const Fibre& other = fibres[i];
        if (first.state == other.state && first.line == other.line && !strcmp(first.file, other.file)) continue;
        here.thread = i;
        fault("barrier divergence: thread 0 %s %s:%d, thread %d %s %s:%d",
              first.state == State::DONE ? "ended after" : "waits at", first.file, first.line, i,
              other.state == State::DONE ? "ended after" : "waits at", other.file, other.line);
    }
    return first.state == State::DONE;
}

void run_block(const Launch& launch, std::mt19937_64& random) {
    begin_block_memory();
    epoch = 0;
    for (int i = 0; i < launch.threads; ++i) {
        fibres[i].state = State::READY;
        fibres[i].file = "its start";
        fibres[i].line = 0;
    }
    std::vector<int> order = first_order(launch.threads, launch.thread_order);
    do {
        arrange(order, launch.thread_order, random);
        for (int thread : order) resume(thread);
        ++epoch;
    } while (!check_convergence(launch.threads));
    end_block_memory();
}

}  // namespace

int barrier_epoch() { return epoch; }

void wait_at_barrier(const char* file, int line) {
    running->file = file;
    running->line = line;
    poison_copies_under_way();
    sleep_as(State::AT_BARRIER);
}

void launch(const Launch& launch, const std::function<void()>& kernel) {
    while (fibres.size() < static_cast<size_t>(launch.threads)) add_fibre();
    body = &kernel;
    std::mt19937_64 random(launch.seed);
    begin_launch_memory(launch);
    std::vector<int> order = first_order(launch.grid_x * launch.grid_y, launch.block_order);
    arrange(order, launch.block_order, random);
    for (int block : order) {
        here = {0, block % launch.grid_x, block / launch.grid_x, launch.grid_x, launch.grid_y};
        run_block(launch, random);
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
