// The loading warpgroups: A's tile copied as it is, B's tile split into its planes.
//
// A thread has the tiles of B that come next, AHEAD of them, in registers or on their way there: the latency of memory
// passes while earlier ones are stored. Each of its tasks is 4 x 4 elements:
//
//   B along n     columns 4 quad ... + 3 of four k side by side in a plane: a vector for each k, a piece for each column
//   B along k     one column: whole chunks, for which it reads four vectors along k
//
// Eight neighbouring lanes store chunks of different banks. Where B is along n they are four quads, so that they read 64
// bytes side by side, of two chunks; half of them store their columns in another order.
#pragma once

#include "tensor_config.cuh"
#include "tensor_primitives.cuh"
#include "tensor_split.cuh"
#include "tensor_stages.cuh"

// A, so many of its elements further on.
__device__ __forceinline__ const float* further(const float* a, long long elements) {
    return reinterpret_cast<const float*>(reinterpret_cast<const char*>(a) + elements * (4 / PER_WORD_A));
}

struct LoadA {
    const float* next;  // what the thread copies first of the next tile
    long long apart;    // bytes between rows that it copies
    long long along;    // elements from tile to tile
    int left_m;         // rows of A, and k, from there on
    int left_k;
    float* to;          // in a stage, from the first of its tiles on

    static constexpr int ACROSS = (IS_K_MAJOR_A ? BK : BM) / PER_WORD_A;  // words of a row of the tile
    static constexpr int ROWS = TILE_A / PITCH_A;
    static constexpr int ROWS_AT_ONCE = LOADING * VEC_A / ACROSS;

    __device__ __forceinline__ LoadA(const float* a, long long ld, int origin_m, int m, int k, float* tiles) {
        const int row = thread_index() / (ACROSS / VEC_A), column = thread_index() % (ACROSS / VEC_A) * VEC_A;
        const int element = column * PER_WORD_A;
        const int at_m = IS_K_MAJOR_A ? row : element, at_k = IS_K_MAJOR_A ? element : row;
        next = further(a, IS_K_MAJOR_A ? (origin_m + at_m) * ld + at_k : at_k * ld + origin_m + at_m);
        apart = ROWS_AT_ONCE * ld * (4 / PER_WORD_A);
        along = IS_K_MAJOR_A ? BK : BK * ld;
        left_m = m - origin_m - at_m;
        left_k = k - at_k;
        to = tiles + row * PITCH_A + column;
    }

    __device__ __forceinline__ void copy(int stage) {
#pragma unroll
        for (int i = 0; i < ROWS / ROWS_AT_ONCE; ++i) {
            const int at = i * ROWS_AT_ONCE;
            const bool is_valid = left_m > (IS_K_MAJOR_A ? at : 0) && left_k > (IS_K_MAJOR_A ? 0 : at);  // edge: m, k
            const GlobalAddress from = global_address(next) + (is_valid ? i * apart : 0);
            copy_async<VEC_A>(to + stage * TILE_A + at * PITCH_A, from, is_valid);
        }
        next = further(next, along);
        left_k -= BK;
    }
};

struct LoadB {
    const float* from;  // what the thread reads first of the next tile
    long long ld;
    int left_n;         // columns of B, and k, from there on
    int left_k;
    int column;         // of the thread's first task
    int share;          // B along n: which four k; along k: which half of the chunks
    int turned;         // B along n: which of two neighbouring columns is stored first
    Vec<CHUNK> next[AHEAD][TASKS][CHUNK];

    static constexpr int SHARES = IS_K_MAJOR_B ? 2 : CHUNKS;  // of k
    static constexpr int COLUMNS = IS_K_MAJOR_B ? 1 : CHUNK;  // of a task
    static constexpr int COLUMNS_AT_ONCE = LOADING / SHARES * COLUMNS;
    static constexpr int WORDS = IS_K_MAJOR_B ? CHUNK : CHUNK / PACKED;  // of a piece
    static constexpr int PIECES = CHUNK * CHUNK / PACKED / WORDS;        // of a task

    // Of the vectors that a task reads: the k of the first, and how far the others are from it.
    __device__ __forceinline__ static int first_k(int share) {
        return !IS_K_MAJOR_B ? k_at(CHUNK * share) : IS_K_MAJOR_A ? CHUNK * share : CHUNK * CHUNK * share;
    }
    __device__ __forceinline__ static constexpr int apart_k(int vector) {
        return !IS_K_MAJOR_B ? k_at(vector) : IS_K_MAJOR_A ? CHUNKS * vector : CHUNK * vector;
    }

    __device__ __forceinline__ LoadB(const float* b, long long ld, int origin_n, int n, int k) : ld(ld) {
        const int thread = thread_index();
        if constexpr (IS_K_MAJOR_B) {
            share = thread % 2;
            column = thread / 2;
            turned = 0;
        } else {
            share = thread >> 2 & 1 ? 2 : 0;
            share += (thread >> 3 & 1) + (thread >> 4 & 1) * 4;
            column = (thread % 4 + thread / WARP * 4) * COLUMNS;
            turned = thread >> 1 & 1;
        }
        const int at_n = origin_n + column, at_k = first_k(share);
        from = b + (IS_K_MAJOR_B ? at_n * ld + at_k : at_k * ld + at_n);
        left_n = n - at_n;
        left_k = k - at_k;
    }

    // Begins to load the thread's part of the next tile.
    __device__ __forceinline__ void load(int number) {
#pragma unroll
        for (int task = 0; task < TASKS; ++task) {
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                const int at_n = task * COLUMNS_AT_ONCE, at_k = apart_k(i);
                const long long at = IS_K_MAJOR_B ? at_n * ld + at_k : at_k * ld + at_n;
                const int rows = IS_K_MAJOR_B ? left_n - at_n : left_k - at_k;  // edge: n, k
                const int count = IS_K_MAJOR_B ? left_k - at_k : left_n - at_n;
                next[number][task][i] = vector(from + at, rows > 0 ? count : 0);
            }
        }
        from += IS_K_MAJOR_B ? BK : BK * ld;
        left_k -= BK;
    }

    // Neighbours in memory, of which so many exist; 0 for the others.
    __device__ __forceinline__ static Vec<CHUNK> vector(const float* at, int count) {
        if constexpr (VEC_B == CHUNK) {
            return count > 0 ? load_operand<CHUNK>(global_address(at)) : Vec<CHUNK>{};  // whole, or none of it
        } else {
            Vec<CHUNK> x;
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) x.v[e] = e < count ? load_operand<1>(global_address(at + e)).v[0] : 0;
            return x;
        }
    }

    // Splits the tile that was loaded, and stores it in a stage.
    __device__ __forceinline__ void store(int number, float* planes) const {
#pragma unroll
        for (int task = 0; task < TASKS; ++task) {
            const Vec<CHUNK> (&x)[CHUNK] = next[number][task];
            const int first = column + task * COLUMNS_AT_ONCE;
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                Vec<WORDS> words[PARTS];
#pragma unroll
                for (int word = 0; word < WORDS; ++word) {
                    float neighbours[PACKED];
#pragma unroll
                    for (int i = 0; i < PACKED; ++i) neighbours[i] = element(x, piece, word * PACKED + i);
                    const Parts parts = packed(neighbours);
#pragma unroll
                    for (int part = 0; part < PARTS; ++part) words[part].v[word] = float_of(parts.bits[part]);
                }
                const int row = IS_K_MAJOR_B ? first : first + (piece ^ turned);
                const int at = IS_K_MAJOR_B ? (PIECES * share + piece) * WORDS : share * WORDS;
                const int to = row * ROW + (at / CHUNK ^ row / PACKED % (ROW / CHUNK)) * CHUNK + at % CHUNK;
#pragma unroll
                for (int part = 0; part < PARTS; ++part) store_shared<WORDS>(planes + part * PLANE + to, words[part]);
            }
        }
    }

    // Element `place` of a piece of what a task read.
    __device__ __forceinline__ float element(const Vec<CHUNK> (&x)[CHUNK], int piece, int place) const {
        if constexpr (!IS_K_MAJOR_B) return turned ? x[place].v[piece ^ 1] : x[place].v[piece];
        const int chunk = piece * PACKED + place % PACKED, at = place / PACKED;
        return IS_K_MAJOR_A ? x[at].v[chunk] : x[chunk].v[at];
    }
};

// Fills stages until there are no more tiles. All of them are free at first: A's copies to these are under way before B's
// first tile has arrived, so that a split of few tiles waits for memory once.
__device__ __forceinline__ void load_tiles(const Stages& stages, LoadA& load_a, LoadB& load_b, int num_tiles) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
        if (i < num_tiles) load_b.load(i);
    }
    for (int tile = 0; tile < STAGES && tile < num_tiles; ++tile) {
        load_a.copy(tile);
        stages.filled[tile].arrive_after_copies();
    }
    Turn turn;
    for (int first = 0; first < num_tiles; first += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int tile = first + i;
            if (tile >= num_tiles) return;
            if (tile >= STAGES) {
                stages.freed[turn.stage].wait(!turn.is_odd);  // WAR: the tile of STAGES before has been multiplied
                load_a.copy(turn.stage);
                stages.filled[turn.stage].arrive_after_copies();
            }
            load_b.store(i, stages.plane(turn.stage));
            if (tile + AHEAD < num_tiles) load_b.load(i);
            show_tensor_cores();
            stages.filled[turn.stage].arrive();
            turn.advance();
        }
    }
}
