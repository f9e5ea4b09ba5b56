// The kernels of one file of kernels/, executed on the host thread by thread, which write down what their warps ask of
// memory. executed.py compiles it, with the macros of one instance.
//
// Lanes make an access of a warp together if they do so between the same barriers, at the same place of the source, in
// the same turn of all loops around it: that tells a lane that leaves out an access at an edge from one that is behind.
#include "primitives_host.hpp"


#ifdef PLAIN_FLOATS
#include "plain_floats.hpp"
#define float recorded::Float
#define shared_memory shared_floats
#endif
#define for(...) for (__VA_ARGS__) if (recorded::Turn recorded_turn(__FILE__, __LINE__); true)
#include KERNEL_FILE
#undef for
#undef float
#undef shared_memory

#ifdef REDUCTION_NONE
constexpr int A_OF_STAGE = STAGE_A, OF_STAGE = STAGE_FLOATS > 0 ? STAGE_FLOATS : 1;
#else  // reference.cu
constexpr int A_OF_STAGE = TILE * TILE, OF_STAGE = 2 * TILE * TILE;
#endif
#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace recorded {

using Key = unsigned long long;
constexpr int LANES = 32, LINE = 32;
constexpr int MOST_TURNS = 32, MOST_PLACES = 64;  // loops around one another; places of the source in a turn of one
constexpr long long NOBODY = -1;
enum Operand { A, B, C, WORKSPACE, SUMS, OPERANDS };

// An access of a warp, `times` over. `at`: in floats from the begin of the operand, or of shared memory.
struct Row {
    const char* file;
    int kind, is_shared, vec, warp, barriers, operand;
    long long times, at[LANES];
    Key key;
};

// Numbers by key, all forgotten at once; a number that is not there is -1.
struct Numbers {
    struct Entry {
        Key key;
        int age, number;
    }* entries = nullptr;
    int capacity = 0, used = 0, age = 1;

    void clear() { ++age, used = 0; }
    int& of(Key key) {
        if (2 * used >= capacity) grow();
        Entry& found = place(key);
        if (found.age != age) found = {key, age, -1}, ++used;
        return found.number;
    }

  private:
    Entry& place(Key key) const {
        unsigned at = static_cast<unsigned>(key ^ key >> 32) & (capacity - 1);
        while (entries[at].age == age && entries[at].key != key) at = (at + 1) & (capacity - 1);
        return entries[at];
    }
    void grow() {
        Entry* const before = entries;
        const int size = capacity;
        capacity = size ? 2 * size : 1024;
        entries = static_cast<Entry*>(__builtin_calloc(capacity, sizeof(Entry)));
        for (int i = 0; i < size; ++i) {
            if (before[i].age == age) place(before[i].key) = before[i];
        }
        __builtin_free(before);
    }
};

struct Rows {
    Row* rows = nullptr;
    int count = 0, capacity = 0;

    Row& add() {
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 256;
            rows = static_cast<Row*>(__builtin_realloc(rows, capacity * sizeof(Row)));
        }
        return rows[count++];
    }
};

Position here;
int barriers;
alignas(128) float shared[1 << 16];

const float* begins[SUMS];  // of A, B, C and the workspace, in rising order
int packed = -1;            // the operand that sgemm_pack copies, while it runs
bool is_merged;             // rows that count alike are one
Rows found, of_warp;
Numbers found_by_content, of_warp_by_key;
int expected;  // number of the row that a lane's next access belongs to, if it does as the lane before

// A turn of a loop under way: its key, 0 until an access asks for it, since few turns have any, and how often each place
// was met in it.
struct Frame {
    Key key, what;
    int turn, used;
    struct Place {
        Key what;
        int count;
    } places[MOST_PLACES];

    void begin(Key new_key, Key new_what = 0, int new_turn = 0) {
        key = new_key, what = new_what, turn = new_turn, used = 0;
    }
    int count(Key of) {
        for (int i = used - 1; i >= 0; --i) {
            if (places[i].what == of) return ++places[i].count;
        }
        if (used == MOST_PLACES) __builtin_trap();
        places[used++] = {of, 1};
        return 1;
    }
} frames[MOST_TURNS];
int depth;

Key mixed(Key key, Key value) { return (key ^ value) * 0x9e3779b97f4a7c15ull + (key >> 29); }
Key named(const char* file) { return mixed(1, reinterpret_cast<Key>(file)); }
Key key_of(Frame& frame) {
    if (!frame.key) frame.key = mixed(mixed(key_of((&frame)[-1]), frame.what), frame.turn);
    return frame.key;
}

Turn::Turn(const char* file, int line) {
    const Key what = mixed(named(file), line);
    const int turn = frames[depth].count(what);
    if (++depth == MOST_TURNS) __builtin_trap();
    frames[depth].begin(0, what, turn);
}
Turn::~Turn() { --depth; }

void ask(long long at, int operand, int vec, bool is_shared, Kind kind, Site site) {
    const Key kinds = ((site.line * Key{3} + kind) * 2 + is_shared) * OPERANDS + operand;
    const Key what = mixed(named(site.file), kinds);
    Frame& turn = frames[depth];
    const Key key = mixed(mixed(mixed(key_of(turn), what), turn.count(what)), barriers);
    if (expected >= of_warp.count || of_warp.rows[expected].key != key) {
        int& number = of_warp_by_key.of(key);
        if (number < 0) {
            number = of_warp.count;
            Row& row = of_warp.add();
            row = {site.file, kind, is_shared, vec, here.thread / LANES, barriers, operand, 0, {}, key};
            for (long long& lane : row.at) lane = NOBODY;
        }
        expected = number;
    }
    of_warp.rows[expected++].at[here.thread % LANES] = at;
}

bool is_operand(const void* at) { return at >= begins[A] && at < begins[WORKSPACE]; }

void global(const void* at, int vec, Kind kind, Site site) {
    int operand = WORKSPACE;
    while (operand > A && at < begins[operand]) --operand;
    ask(static_cast<const float*>(at) - begins[operand], packed < 0 ? operand : packed, vec, false, kind, site);
}

void in_shared(const void* at, int vec, Kind kind, Site site) {
    const long long offset = static_cast<const float*>(at) - shared;
    ask(offset, packed < 0 ? SUMS : packed, vec, true, kind, site);
}

bool ends_with(const char* text, const char* end) {
    const long long from = __builtin_strlen(text) - __builtin_strlen(end);
    return from >= 0 && !__builtin_strcmp(text + from, end);
}

// What lies in the stages is of A or B; it can be told by those that hold either.
void name_stage(Row& row) {
    if (!row.is_shared || packed >= 0) return;
    static constexpr const char* HOLDERS[] = {"tile_copy.cuh", "fragments.cuh", "reference.cu"};
    for (const char* file : HOLDERS) {
        if (!ends_with(row.file, file)) continue;
        for (long long at : row.at) {
            if (at != NOBODY) row.operand = at % OF_STAGE < A_OF_STAGE ? A : B;
        }
    }
}

// Counts depend on where lanes ask from the begin of a line on.
void merge(const Row& row) {
    Row alike = row;
    alike.warp = alike.barriers = 0;
    long long first = -1;
    for (long long at : row.at) first = at != NOBODY && (first < 0 || at < first) ? at : first;
    for (long long& at : alike.at) at -= at != NOBODY ? first / LINE * LINE : 0;
    Key key = mixed(named(row.file), ((row.kind * 2 + row.is_shared) * 8 + row.vec) * 8 + row.operand);
    for (long long at : alike.at) key = mixed(key, at);
    int& number = found_by_content.of(key);
    if (number < 0) {
        number = found.count;
        found.add() = alike;
        return;
    }
    found.rows[number].times += row.times;
}

void end_warp(const long long* times) {
    for (int i = 0; i < of_warp.count; ++i) {
        Row& row = of_warp.rows[i];
        name_stage(row);
        row.times = times[row.operand];
        if (!row.times) continue;
        if (is_merged) {
            merge(row);
        } else {
            found.add() = row;
        }
    }
    of_warp.count = 0;
    of_warp_by_key.clear();
}

template <int... AT> struct Places {};
template <int N, int... AT> struct FirstPlaces : FirstPlaces<N - 1, N - 1, AT...> {};
template <int... AT> struct FirstPlaces<0, AT...> {
    using Type = Places<AT...>;
};
template <class... Types, int... AT> void call(void (*kernel)(Types...), void** arguments, Places<AT...>) {
    kernel(*static_cast<Types*>(arguments[AT])...);
}

// A block, thread by thread. `arguments`: their addresses, as cuLaunchKernel takes them.
template <class... Types>
void run(void (*kernel)(Types...), void** arguments, int threads, const Position& block, const long long* times) {
    here = block;
    for (here.thread = 0; here.thread < threads; ++here.thread) {
        barriers = depth = expected = 0;
        frames[0].begin(1);
        call(kernel, arguments, typename FirstPlaces<sizeof...(Types)>::Type{});
        if (here.thread % LANES == LANES - 1) end_warp(times);
    }
}

}  // namespace recorded

using recorded::Position;

// Forgets what was recorded.
EXPORTED void begin(const float* const* begins, int merged) {
    for (int operand = 0; operand < recorded::SUMS; ++operand) recorded::begins[operand] = begins[operand];
    recorded::is_merged = merged;
    recorded::found.count = 0;
    recorded::found_by_content.clear();
}
EXPORTED const recorded::Row* rows(int* count) {
    *count = recorded::found.count;
    return recorded::found.rows;
}

// A block of a kernel; `times`: how often its accesses count, by operand. `packed`: what sgemm_pack copies, or -1.
EXPORTED void record(const char* name, int packed, void** arguments, int threads, const Position* block,
                     const long long* times) {
    recorded::packed = packed;
#ifdef REDUCTION_NONE
    if (!__builtin_strcmp(name, "sgemm")) recorded::run(sgemm, arguments, threads, *block, times);
#if PACK_A || PACK_B
    if (!__builtin_strcmp(name, "sgemm_pack")) recorded::run(sgemm_pack, arguments, threads, *block, times);
#endif
#if REDUCTION == REDUCTION_TWO_PASS || REDUCTION == REDUCTION_CHUNKS
    if (!__builtin_strcmp(name, "sgemm_reduce")) recorded::run(sgemm_reduce, arguments, threads, *block, times);
#endif
#else
    if (!__builtin_strcmp(name, "sgemm_naive")) recorded::run(sgemm_naive, arguments, threads, *block, times);
    if (!__builtin_strcmp(name, "sgemm_coalesced")) recorded::run(sgemm_coalesced, arguments, threads, *block, times);
    if (!__builtin_strcmp(name, "sgemm_shared")) recorded::run(sgemm_shared, arguments, threads, *block, times);
#endif
}

// What a block computes, by its number: blocks of a cluster follow one another, others do along x.
struct Block {
    int x, y, product, row, column, split, splits, tile;  // row, column: of tiles; tile: among those that are split
};

#ifdef REDUCTION_NONE
EXPORTED void walk(int tiles_m, int tiles_n, int products, int splits, const Schedule* schedule, int width, int height,
                   Block* blocks) {
    const int tiles = tiles_m * tiles_n;
    for (int i = 0; i < width * height; ++i) {
        const int x = CLUSTER > 1 ? i / height : i % width, y = CLUSTER > 1 ? i % height : i / width;
        recorded::here = {0, x, y, width, 0, height};
        const WorkTile work(tiles * products, splits);
        const int product = work.tile / tiles;
        const TileCoord at = tile_coord(work.tile - product * tiles, *schedule);
        blocks[i] = {x, y, product, at.m, at.n, work.split, work.splits, work.tile - work.whole};
    }
}

// Of each thread: its slice, the rows of its elements in the block's tile, and their columns.
EXPORTED void thread_tiles(int* numbers) {
    for (int thread = 0; thread < THREADS; ++thread) {
        recorded::here.thread = thread;
        const ThreadTile tile;
        *numbers++ = tile.slice;
        for (int i = 0; i < TM; ++i) *numbers++ = tile.row(i);
        for (int j = 0; j < TN; ++j) *numbers++ = tile.column(j);
    }
}

// Pieces of a thread, and threads side by side in a row, of the copies of A and of B.
EXPORTED void copies(int* numbers) {
    const int all[] = {CopyA::PIECES, CopyA::ROW_THREADS, CopyB::PIECES, CopyB::ROW_THREADS};
    for (int number : all) *numbers++ = number;
}
#else
EXPORTED void walk(int, int n, int, int, const void*, int width, int, Block* blocks) {
    for (int x = 0; x < width; ++x) {
        recorded::here = {0, x, 0, width, 0};
        const Origin origin(n);
        blocks[x] = {x, 0, 0, origin.row / TILE, origin.column / TILE, 0, 1, x};
    }
}
#endif
