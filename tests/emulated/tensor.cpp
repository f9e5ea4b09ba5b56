// What stands behind the primitives of tensor cores: barriers that warpgroups wait at, multiplications under way, and those
// of a warp, which are done at once.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "emulator.hpp"

constexpr int SUMS = 1, BN = 1, BK = 1, PACKED = 1, PLANE = 1;  // of no kernel: the header's functions that need them are not called here
#include "tensor_primitives_host.hpp"

namespace emulated {

unsigned half_of(float x);
void post_halves(float* sums, int num_sums, const float* a, const float* b, int step, bool adds);
void finish_halves(int width, const char* file, int line);
void multiply_together(float* sums, const unsigned* a, const unsigned* b, bool adds, int packed, const Site& site);
void multiply_halves_together(float* sums, const unsigned* a, const unsigned* b, bool adds, const Site& site);

namespace {

constexpr int WARPGROUP = 128, WARP = 32, CHUNK = 4, MMA_WORDS = 8, MMA_M = 64;
constexpr unsigned KEPT = ~((1u << 13) - 1);  // of the bits of a float, by TF32
constexpr int HALVES = 2;                     // in a word
constexpr int SWIZZLED_ROWS = 8, ROW_OF_HALVES = 32, GROUP_OF_HALVES = 2 * SWIZZLED_ROWS * ROW_OF_HALVES;  // words

struct Multiplication {
    const MmaFragment* a;  // of each lane, or null:
    const float* tile_a;   // of halves in shared memory
    const float* b;
    int step;
    bool adds;
};

// To one set of sums.
struct Product {
    float* sums = nullptr;
    std::vector<float> before;
    std::vector<Multiplication> steps;
};

// Of a warpgroup or a warp: how many of its threads have come to wait, and how many have what they wait for.
struct Meeting {
    int come = 0, served = 0;
};

std::vector<std::vector<Product>> pending;  // by thread, until it is waited for
std::map<int, Meeting> meetings, warps;

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
float a_element(int thread, size_t product, size_t number, int half, int k, int packed) {
    const int word = k / packed, holder = thread - thread % 4 + word % 4;
    const unsigned bits = pending[holder][product].steps[number].a->bits[word / 4 * 2 + half];
    return element(float_of(bits), k % packed, packed);
}

// Element (row, k) of a tile of halves for a step.
float half_element(const float* tile, int step, int row, int k) {
    const int word = step * MMA_WORDS + k / HALVES, in_group = row % SWIZZLED_ROWS;
    const float* const at = tile + row / SWIZZLED_ROWS * GROUP_OF_HALVES + in_group * ROW_OF_HALVES +
                            (word / CHUNK ^ in_group) * CHUNK + word % CHUNK;
    check_shown(at);
    return float_of_half(bits_of(*at) >> k % HALVES * 16);
}

void multiply(int thread, size_t product, int width, int depth, int packed) {
    Product& own = pending[thread][product];
    const int row = thread % WARPGROUP / WARP * (MMA_M / 4) + thread % WARP / 4;
    for (int i = 0; i < width / 2; ++i) {
        const int half = i / 2 % 2, column = i / 4 * 8 + thread % 4 * 2 + i % 2;
        float sum = own.before[i];
        for (size_t number = 0; number < own.steps.size(); ++number) {
            const Multiplication& one = own.steps[number];
            double total = one.adds ? sum : 0.0;
            for (int k = 0; k < MMA_WORDS * packed; ++k) {
                if (one.a) {
                    const double a = a_element(thread, product, number, half, k, packed);
                    total += a * plane_element(one, k, column, depth, packed);
                } else {
                    const double a = half_element(one.tile_a, one.step, row + half * SWIZZLED_ROWS, k);
                    total += a * half_element(one.b, one.step, column, k);
                }
            }
            sum = static_cast<float>(total);
        }
        own.sums[i] = sum;
    }
}

void post(float* sums, int num_sums, const Multiplication& one) {
    std::vector<Product>& own = pending[here.thread];
    if (own.empty() || own.back().sums != sums) {
        for (const Product& before : own) {
            if (before.sums == sums) fault("sums are multiplied to, then others, then the same without a wait");
        }
        own.push_back({sums, {sums, sums + num_sums}, {}});
        for (int i = 0; i < num_sums; ++i) sums[i] = poison(SHARED_POISON);
    }
    own.back().steps.push_back(one);
}

// Until so many threads, of which this is one, have come as often.
void meet(Meeting& meeting, int threads, const std::function<void()>& serve, const char* file, int line) {
    const int goal = (meeting.come++ / threads + 1) * threads;
    wait_until([&meeting, goal] { return meeting.come >= goal; }, file, line);
    serve();
    ++meeting.served;
    wait_until([&meeting, goal] { return meeting.served >= goal; }, file, line);
}

void finish(int width, int depth, int packed, const char* file, int line) {
    const auto serve = [=] {
        for (size_t product = 0; product < pending[here.thread].size(); ++product)
            multiply(here.thread, product, width, depth, packed);
    };
    meet(meetings[here.thread / WARPGROUP], WARPGROUP, serve, file, line);
    pending[here.thread].clear();
}

// What the lanes of a warp bring to one instruction.
struct WarpProduct {
    float* sums[WARP];
    const unsigned* a[WARP];
    const unsigned* b[WARP];
    Site site;
    int come = 0;
    unsigned done = 0;  // instructions
};

std::map<int, WarpProduct> of_warps;

// sums = A * B, or added to them: 16 x 8 elements of C, by so many words along k; of four words, by halves of FP16.
void multiply_warp(const WarpProduct& warp, bool adds, int packed, int words) {
    const auto value = [=](unsigned bits, int place) {
        return words == MMA_WORDS ? element(float_of(bits), place, packed) : float_of_half(bits >> place * 16);
    };
    float found[WARP][4];
    for (int lane = 0; lane < WARP; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4, half = i / 2, column = lane % 4 * 2 + i % 2;
            double total = adds ? warp.sums[lane][i] : 0.0;
            for (int k = 0; k < words * packed; ++k) {
                const int word = k / packed, place = k % packed;
                const unsigned a = warp.a[row * 4 + word % 4][word / 4 * 2 + half];
                const unsigned b = warp.b[column * 4 + word % 4][word / 4];
                total += static_cast<double>(value(a, place)) * value(b, place);
            }
            found[lane][i] = static_cast<float>(total);
        }
    }
    for (int lane = 0; lane < WARP; ++lane) std::copy(found[lane], found[lane] + 4, warp.sums[lane]);
}

void end_phase(BarrierState* barrier) {
    if (barrier->pending > 0 || barrier->words > 0) return;
    barrier->pending = barrier->expected;
    ++barrier->phase;
}

}  // namespace

void begin_barrier(BarrierState* barrier, int arrivals) {
    *barrier = {static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0, 0};
    expect_barriers();
    pending.assign(MAX_THREADS, {});
    meetings.clear();
    warps.clear();
}

void arrive_at(BarrierState* barrier) {
    if (barrier->pending == 0) fault("more arrivals at a barrier than it counts");
    --barrier->pending;
    end_phase(barrier);
}

void expect_at(BarrierState* barrier, int bytes) {
    barrier->words += bytes / 16;
    arrive_at(barrier);
}

void copy_at_once(float* to, const float* from, int floats, BarrierState* barrier) {
    if (floats % CHUNK != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) fault("a copy in bulk of no whole vectors");
    for (int i = 0; i < floats; ++i) {
        touch_global(from + i, 1, Access::READ);
        touch_shared(to + i, 1, Access::WRITE);
        to[i] = from[i];
    }
    show_stores();
    if (barrier->words < floats / CHUNK) fault("more bytes arrive at a barrier than it expects");
    barrier->words -= floats / CHUNK;
    end_phase(barrier);
}

void land_copies() {
    commit_group();
    wait_groups(0);
}

void wait_for_phase(const BarrierState* barrier, int is_odd, const char* file, int line) {
    wait_until([=] { return static_cast<int>(barrier->phase % 2) != is_odd; }, file, line);
}

void meet_warp(const char* file, int line) {
    meet(warps[here.thread / WARP], WARP, [] {}, file, line);
}

void post_multiplication(float* sums, int num_sums, const MmaFragment* a, const float* b, int step, bool adds) {
    post(sums, num_sums, {a, nullptr, b, step, adds});
}

void finish_multiplications(int width, int depth, int packed, const char* file, int line) {
    finish(width, depth, packed, file, line);
}

void post_halves(float* sums, int num_sums, const float* a, const float* b, int step, bool adds) {
    post(sums, num_sums, {nullptr, a, b, step, adds});
}

void finish_halves(int width, const char* file, int line) { finish(width, 0, HALVES, file, line); }

namespace {

void bring(float* sums, const unsigned* a, const unsigned* b, bool adds, int packed, int words, const Site& site) {
    WarpProduct& warp = of_warps[here.thread / WARP];
    const int lane = here.thread % WARP;
    if (warp.come > 0 && warp.site.line != site.line) fault("a lane multiplies at line %d, others at %d", site.line, warp.site.line);
    warp.sums[lane] = sums, warp.a[lane] = a, warp.b[lane] = b, warp.site = site;
    if (++warp.come < WARP) {
        wait_until([&warp, number = warp.done] { return warp.done != number; }, site.file, site.line);
        return;
    }
    multiply_warp(warp, adds, packed, words);
    warp.come = 0;
    ++warp.done;
}

}  // namespace

void multiply_together(float* sums, const unsigned* a, const unsigned* b, bool adds, int packed, const Site& site) {
    bring(sums, a, b, adds, packed, MMA_WORDS, site);
}
void multiply_halves_together(float* sums, const unsigned* a, const unsigned* b, bool adds, const Site& site) {
    bring(sums, a, b, adds, HALVES, MMA_WORDS / 2, site);
}

unsigned half_of(float x) {
    const unsigned sign = bits_of(x) >> 16 & 0x8000;
    const float size = std::fabs(x);
    if (!(size <= 65504.0f)) return std::isnan(x) ? sign | 0x7e00 : size < 65520.0f ? sign | 0x7bff : sign | 0x7c00;
    int exponent;
    std::frexp(size, &exponent);
    const int last = std::max(exponent - 11, -24);  // exponent of the last bit
    const float rounded = std::nearbyint(std::ldexp(size, -last));  // to even
    const float value = std::ldexp(rounded, last);
    if (value < 0x1p-14f) return sign | static_cast<unsigned>(std::ldexp(value, 24));
    const unsigned bits = bits_of(value);
    return sign | ((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff);
}

}  // namespace emulated
