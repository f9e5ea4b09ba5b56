// What stands behind the primitives of tensor cores: barriers that warpgroups wait at, and multiplications under way.
#include <cmath>
#include <map>

#include "emulator.hpp"

constexpr int SUMS = 1, BN = 1, BK = 1, PACKED = 1, PLANE = 1;  // of no kernel: the header's functions that need them are not called here
#include "tensor_primitives_host.hpp"

namespace emulated {

namespace {

constexpr int WARPGROUP = 128, WARP = 32, CHUNK = 4, MMA_WORDS = 8;
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

// Element `place` of a word: it is TF32, or two of BF16.
float element(float word, int place, int packed) {
    if (packed == 1) return float_of(bits_of(word) & KEPT);
    return float_of(place == 0 ? bits_of(word) << 16 : bits_of(word) & 0xffff0000u);
}

// Element (k, column) of a plane for a step. Rows of 128 bytes are swizzled by their number, those of 64 by half of it.
float plane_element(const Multiplication& one, int k, int column, int depth, int packed) {
    const int words = depth / packed, word = one.step * MMA_WORDS + k / packed;
    const int chunk = word / CHUNK ^ column / packed % (words / CHUNK);
    const float* const at = one.b + column * words + chunk * CHUNK + word % CHUNK;
    check_shown(at);
    return element(*at, k % packed, packed);
}

// Element (row half, k) of A for this thread's rows: the lane beside it holds it that the instruction asks.
float a_element(int thread, size_t number, int half, int k, int packed) {
    const int word = k / packed, holder = thread - thread % 4 + word % 4;
    const unsigned bits = pending[holder].steps[number].a->bits[word / 4 * 2 + half];
    return element(float_of(bits), k % packed, packed);
}

void multiply(int thread, int width, int depth, int packed) {
    Pending& own = pending[thread];
    for (int i = 0; i < width / 2; ++i) {
        const int half = i / 2 % 2, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = own.before[i];
        for (size_t number = 0; number < own.steps.size(); ++number) {
            const Multiplication& one = own.steps[number];
            double total = one.adds ? sum : 0.0;
            for (int k = 0; k < MMA_WORDS * packed; ++k) {
                const double a = a_element(thread, number, half, k, packed);
                total += a * plane_element(one, k, column, depth, packed);
            }
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

void finish_multiplications(int width, int depth, int packed, const char* file, int line) {
    Meeting& meeting = meetings[here.thread / WARPGROUP];
    const int goal = (meeting.come++ / WARPGROUP + 1) * WARPGROUP;
    wait_until([&meeting, goal] { return meeting.come >= goal; }, file, line);
    if (!pending[here.thread].steps.empty()) multiply(here.thread, width, depth, packed);
    ++meeting.served;
    wait_until([&meeting, goal] { return meeting.served >= goal; }, file, line);
    pending[here.thread].steps.clear();
}

}  // namespace emulated
