// Counts what warps ask of memory, from what their threads do: which lanes make an access together, and what it takes.
//
// Threads run one after the other, so an access of a warp is put together again. Lanes make it together if they do so
// between the same barriers, at the same place of the source, in the same turn of all loops around it: that tells a lane
// that leaves out an access at an edge from one that is behind. Loops tell of their turns in kernels that are compiled
// with COUNTED (instance.cpp).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "emulator.hpp"
#include "primitives_host.hpp"

namespace emulated {

namespace {

constexpr int WARP_LANES = 32, NUM_BANKS = 32, SECTOR_FLOATS = 8, LINE_FLOATS = 32;
constexpr uint64_t MIX = 0x9e3779b97f4a7c15ull;

uint64_t mixed(uint64_t key, uint64_t value) { return (key ^ value) * MIX + (key >> 29); }

// A turn of a loop, or the body of the kernel: how often each loop within it has turned, and each access been made.
struct Turn {
    uint64_t key = 0;
    std::vector<std::pair<uint64_t, int>> seen;

    uint64_t next(uint64_t what) {
        for (auto& [known, count] : seen) {
            if (known == what) return mixed(mixed(key, what), ++count);
        }
        seen.emplace_back(what, 0);
        return mixed(mixed(key, what), 0);
    }
};

struct Asked {
    std::string what;  // kernel, file, operand, space and kind
    bool is_shared, is_load;
    int vec, warp;
    int64_t at[WARP_LANES];  // in floats; NOBODY where a lane does not ask
};
constexpr int64_t NOBODY = -1;

struct Totals {
    int64_t accesses, bytes, sectors, lines, wavefronts, conflicts;
};

const Launch* counted_launch = nullptr;
std::vector<std::vector<Turn>> turns;                        // by rank and thread: the loops that it is in
std::vector<std::unordered_map<uint64_t, Asked>> under_way;  // by rank: accesses of a running block
std::map<std::string, Totals> totals;

std::vector<Turn>& own_turns() { return turns[here.rank * counted_launch->threads + here.thread]; }

uint64_t key_of(const Site& site) { return mixed(reinterpret_cast<uintptr_t>(site.file), site.line); }

int64_t distinct(const Asked& asked, int floats) {
    std::set<int64_t> found;
    for (int64_t at : asked.at) {
        if (at != NOBODY) found.insert(at / floats);
    }
    return found.size();
}

// In all pairs of lanes so far apart both ask for the same, or one does not ask.
bool shares(const Asked& asked, int apart) {
    for (int lane = 0; lane < WARP_LANES; ++lane) {
        const int64_t one = asked.at[lane], other = asked.at[lane ^ apart];
        if (one != other && one != NOBODY && other != NOBODY) return false;
    }
    return true;
}

// The most different words that lanes of one group, of so many neighbours, ask a bank for.
size_t most_words_of_a_bank(const Asked& asked, int lanes) {
    size_t most = 0;
    for (int first = 0; first < WARP_LANES; first += lanes) {
        std::set<int64_t> words[NUM_BANKS];
        for (int lane = first; lane < first + lanes; ++lane) {
            for (int word = 0; word < asked.vec && asked.at[lane] != NOBODY; ++word) {
                words[(asked.at[lane] + word) % NUM_BANKS].insert(asked.at[lane] + word);
            }
        }
        for (const auto& of_bank : words) most = std::max(most, of_bank.size());
    }
    return most;
}

// Groups of lanes are served one after the other; in each, the bank decides that is asked for most different words.
void add_wavefronts(const Asked& asked, Totals& sum) {
    int lanes = WARP_LANES / asked.vec;
    const bool may_double = asked.is_load && asked.vec > 1 && (shares(asked, 1) || shares(asked, 2));
    if (may_double && most_words_of_a_bank(asked, 2 * lanes) <= 1) lanes *= 2;
    for (int first = 0; first < WARP_LANES; first += lanes) {
        std::set<int64_t> words[NUM_BANKS];
        size_t most = 0;
        for (int lane = first; lane < first + lanes; ++lane) {
            for (int64_t word = asked.at[lane]; asked.at[lane] != NOBODY && word < asked.at[lane] + asked.vec; ++word) {
                words[word % NUM_BANKS].insert(word);
                most = std::max(most, words[word % NUM_BANKS].size());
            }
        }
        sum.wavefronts += most;
        sum.conflicts += most > 1 ? most - 1 : 0;
    }
}

void add(const Asked& asked) {
    Totals& sum = totals[asked.what];
    ++sum.accesses;
    sum.bytes += asked.vec * sizeof(float) * (WARP_LANES - std::count(asked.at, asked.at + WARP_LANES, NOBODY));
    if (asked.is_shared) {
        add_wavefronts(asked, sum);
    } else {
        sum.sectors += distinct(asked, SECTOR_FLOATS);
        sum.lines += distinct(asked, LINE_FLOATS);
    }
}

// An access as a line of the file that $AUTOTUNE_TRACE names: what, warp, vector, each lane's address.
void trace(const Asked& asked) {
    const char* path = getenv("AUTOTUNE_TRACE");
    if (path == nullptr) return;
    static FILE* file = fopen(path, "a");
    if (file == nullptr) fault("cannot write accesses to %s", path);
    fprintf(file, "%s\t%d\t%d", asked.what.c_str(), asked.warp, asked.vec);
    for (int64_t at : asked.at) fprintf(file, "\t%lld", static_cast<long long>(at));
    fprintf(file, "\n");
    fflush(file);
}

// The operand, and the address in floats from its begin.
std::pair<std::string, int64_t> operand_of(const float* address, bool is_shared, const char* file) {
    const bool is_pack = !strcmp(counted_launch->kernel, "sgemm_pack");
    if (is_shared) {
        const int64_t at = address - shared_base();
        const bool is_tile = !strcmp(file, "tile_copy.cuh") || !strcmp(file, "fragments.cuh");
        if (is_tile) return {at % stage_floats() < stage_a_floats() ? "A" : "B", at};
        return {is_pack ? counted_launch->regions[0].name : "sums", at};
    }
    for (const Region& region : counted_launch->regions) {
        if (address >= region.begin && address < region.end) {
            return {is_pack ? counted_launch->regions[0].name : region.name, address - region.begin};
        }
    }
    return {"nothing", 0};  // a fault, which who asked for it tells
}

}  // namespace

Iteration::Iteration(const char* file, int line) {
    std::vector<Turn>& own = own_turns();
    const uint64_t key = own.back().next(key_of({file, line}));
    own.push_back({key, {}});
}
Iteration::~Iteration() { own_turns().pop_back(); }

void count_access(const float* address, int vec, bool is_shared, const char* kind, const Site& site) {
    const char* slash = strrchr(site.file, '/');
    const char* file = slash ? slash + 1 : site.file;
    const auto [operand, at] = operand_of(address, is_shared, file);
    const std::string what = std::string(counted_launch->kernel) + "\t" + file + "\t" + operand + "\t" +
                             (is_shared ? "shared" : "global") + "\t" + kind;
    const int lane = here.thread % WARP_LANES;
    uint64_t key = own_turns().back().next(mixed(key_of(site), std::hash<std::string>()(what)));
    key = mixed(mixed(key, barrier_epoch()), here.thread / WARP_LANES);
    auto [entry, is_new] = under_way[here.rank].try_emplace(key);
    Asked& asked = entry->second;
    if (is_new) {
        asked = {what, is_shared, !strcmp(kind, "load"), vec, here.thread / WARP_LANES, {}};
        std::fill_n(asked.at, WARP_LANES, NOBODY);
    }
    if (asked.at[lane] != NOBODY || asked.what != what || asked.vec != vec) fault("two accesses are taken for one");
    asked.at[lane] = at;
}

void begin_launch_counts(const Launch& launch) {
    counted_launch = &launch;
    under_way.assign(launch.cluster, {});
}

void begin_block_counts() {
    turns.resize(static_cast<size_t>(counted_launch->cluster) * counted_launch->threads);
    for (int thread = 0; thread < counted_launch->threads; ++thread) {
        turns[here.rank * counted_launch->threads + thread].assign(1, {});
    }
}

void end_block_counts() {
    for (const auto& [key, asked] : under_way[here.rank]) {
        add(asked);
        trace(asked);
    }
    under_way[here.rank].clear();
}

// A line for each kind of access of the problem, to the file that $AUTOTUNE_COUNTS names.
void write_counts() {
    const char* path = getenv("AUTOTUNE_COUNTS");
    if (path == nullptr) return;
    FILE* file = fopen(path, "a");
    if (file == nullptr) fault("cannot write counts to %s", path);
    for (const auto& [what, sum] : totals) {
        const long long numbers[] = {sum.accesses, sum.bytes, sum.sectors, sum.lines, sum.wavefronts, sum.conflicts};
        fprintf(file, "%s\t%s", problem_name, what.c_str());
        for (long long number : numbers) fprintf(file, "\t%lld", number);
        fprintf(file, "\n");
    }
    fclose(file);
    totals.clear();
}

}  // namespace emulated
