// What stands behind the primitives of tensor cores: barriers that warpgroups wait at, and multiplications under way.
#include <cmath>
#include <map>

#include "emulator.hpp"

constexpr int SUMS = 1, BN = 1, BK = 1;  // of no kernel: the header's functions that need them are not called here
#include "tensor_primitives_host.hpp"

namespace emulated {

namespace {

constexpr int WARPGROUP = 128, WARP = 32, SWIZZLED_ROWS = 8, CHUNK = 4, MMA_K = 8;
constexpr unsigned KEPT = ~((1u << 13) - 1);  // of the bits of a float, by TF32

struct Multiplication {
    const MmaFragment* a;
    const float* b;
    int step;
    bool adds;
};

// Of one thread, until it is waited for.
struct Pending {
    float* sums = nullptr;
    std::vector<float> before;
    std::vector<Multiplication> steps;
};

// Of a warpgroup: how many of its threads have come to wait, and how many have their sums.
struct Meeting {
    int come = 0, served = 0;
};

std::vector<Pending> pending;  // by thread
std::map<int, Meeting> meetings;

float tf32(float x) { return float_of(bits_of(x) & KEPT); }

// Element (k, column) of a plane for a step.
float plane_element(const Multiplication& one, int k, int column, int depth) {
    const int chunk = (one.step * MMA_K + k) / CHUNK ^ column % SWIZZLED_ROWS;
    const float* const at = one.b + column * depth + chunk * CHUNK + k % CHUNK;
    check_shown(at);
    return tf32(*at);
}

// Element (row half, k) of A for this thread's rows: the lane beside it holds it that the instruction asks.
float a_element(int thread, size_t number, int half, int k) {
    const int holder = thread - thread % 4 + k % 4;
    return tf32(float_of(pending[holder].steps[number].a->bits[k / 4 * 2 + half]));
}

void multiply(int thread, int width, int depth) {
    Pending& own = pending[thread];
    for (int i = 0; i < width / 2; ++i) {
        const int half = i / 2 % 2, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = own.before[i];
        for (size_t number = 0; number < own.steps.size(); ++number) {
            const Multiplication& one = own.steps[number];
            double total = one.adds ? sum : 0.0;
            for (int k = 0; k < MMA_K; ++k)
                total += double{a_element(thread, number, half, k)} * plane_element(one, k, column, depth);
            sum = static_cast<float>(total);
        }
        own.sums[i] = sum;
    }
}

}  // namespace

void begin_barrier(BarrierState* barrier, int arrivals) {
    *barrier = {static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0};
    expect_barriers();
    pending.assign(MAX_THREADS, {});
    meetings.clear();
}

void arrive_at(BarrierState* barrier) {
    if (barrier->pending == 0) fault("more arrivals at a barrier than it counts");
    if (--barrier->pending > 0) return;
    barrier->pending = barrier->expected;
    ++barrier->phase;
}

void land_copies() {
    commit_group();
    wait_groups(0);
}

void wait_for_phase(const BarrierState* barrier, int is_odd, const char* file, int line) {
    wait_until([=] { return static_cast<int>(barrier->phase % 2) != is_odd; }, file, line);
}

void post_multiplication(float* sums, int num_sums, const MmaFragment* a, const float* b, int step, bool adds) {
    Pending& own = pending[here.thread];
    if (own.steps.empty()) {
        own.sums = sums;
        own.before.assign(sums, sums + num_sums);
        for (int i = 0; i < num_sums; ++i) sums[i] = poison(SHARED_POISON);
    }
    if (own.sums != sums) fault("one warpgroup multiplies to two sets of sums at a time");
    own.steps.push_back({a, b, step, adds});
}

void finish_multiplications(int width, int depth, const char* file, int line) {
    Meeting& meeting = meetings[here.thread / WARPGROUP];
    const int goal = (meeting.come++ / WARPGROUP + 1) * WARPGROUP;
    wait_until([&meeting, goal] { return meeting.come >= goal; }, file, line);
    if (!pending[here.thread].steps.empty()) multiply(here.thread, width, depth);
    ++meeting.served;
    wait_until([&meeting, goal] { return meeting.served >= goal; }, file, line);
    pending[here.thread].steps.clear();
}

}  // namespace emulated
