// The way of one operand's tile from global memory to a stage of shared memory.
//
// As stored, the tile has ROWS rows, each COLS neighbouring floats; rows lie `stride` bytes apart. A K-major operand
// has its rows along m (or n) and its columns along k, any other the reverse. ROW_THREADS neighbouring threads take
// neighbouring vectors of a row, the next ones the next row; a thread's pieces lie ROW_STEP rows or COL_STEP columns
// apart. In shared memory the tile always lies by k, then m (or n), so a K-major one is transposed on its way.
//
// Worked example, A K-major, BM 64, BK 16, VEC 1, 128 threads: ROW_THREADS 16, ROW_STEP 8, ROW_STEPS 8. Thread 17
// copies column 1 (k = 1) of rows 1, 9, ..., 57 to shared floats 1 * ROW_A + {1, 9, ..., 57}:
//
//     global memory      k = 0        1        ...  15            shared memory     m = 0  1  2 ... 9 ... 63  PAD
//              m = 0     thread 0     thread 1      thread 15               k = 0       ▓  ▓  ▓     ▓     ▓
//                  1     thread 16   [thread 17]    thread 31                   1       ▓ [▓] ▓    [▓]    ▓
//                  ...                                                          ...
//                  9     thread 16   [thread 17]    thread 31                  15       ▓  ▓  ▓     ▓     ▓
//
// An operand that is not K-major keeps each thread in one row where the block has a few threads for every row
// (IS_ONE_ROW): its pieces then lie a constant apart, which is part of the instruction, and no address is computed
// in the main loop (TN 4096^3 on an H200: 2536 us with neighbouring vectors alone, 2468 us so;
// docs/decisions/0014).
//
// Edges. Along m and n, rows and columns beyond the matrix repeat its last one: what is computed from
// them is never stored, so the main loop needs no test. A packed operand is padded to whole tiles. Along
// k, the *first* tile is the ragged one (k % BK deep, then zeros): all later tiles are full and need no
// test either.
#pragma once

#include "config.cuh"
#include "primitives.cuh"

constexpr int MIN_ROW_SHARE = 8;  // 8 neighbouring vectors of 16 bytes fill a cache line

template <int ROWS, int COLS, int VEC, bool IS_K_MAJOR, bool IS_CLAMPED, int SHARED_ROW, bool IS_ASYNC>
struct TileCopy {
    static constexpr int VECS = COLS / VEC;
    static constexpr int ROW_SHARE = THREADS / ROWS;  // threads that each row could have
    static constexpr bool IS_ONE_ROW = !IS_K_MAJOR && !IS_CLAMPED && ROW_SHARE >= MIN_ROW_SHARE &&
                                       THREADS % ROWS == 0 && VECS % ROW_SHARE == 0;
    static constexpr int ROW_THREADS = IS_ONE_ROW ? ROW_SHARE : VECS < THREADS ? VECS : THREADS;
    static constexpr int ROW_STEP = THREADS / ROW_THREADS;
    static constexpr int ROW_STEPS = (ROWS + ROW_STEP - 1) / ROW_STEP;
    static constexpr int COL_STEP = ROW_THREADS * VEC;
    static constexpr int COL_STEPS = (VECS + ROW_THREADS - 1) / ROW_THREADS;
    static constexpr int WORKERS = ROW_STEP * ROW_THREADS;
    static constexpr int PIECES = ROW_STEPS * COL_STEPS;  // vectors per thread
    static constexpr bool IS_EVEN = PIECES * THREADS == ROWS * VECS;

    const char* source;  // this thread's first column of the current tile, in row 0 (IS_ONE_ROW: its own)
    Stride stride;       // bytes between rows
    int row;             // this thread's first row and column in the tile
    int col;
    int last;            // last row (K-major) or column (not) of the tile that lies in the matrix
    Vec<VEC> registers[IS_ASYNC ? 1 : PIECES];  // (piece): on the way through registers

    // `matrix` as stored, `origin` the tile's first index along m or n, `extent` the matrix's extent there.
    __device__ __forceinline__ TileCopy(const float* matrix, long long ld, int origin, int extent, int k_begin) {
        stride = static_cast<Stride>(ld * sizeof(float));
        row = thread_index() / ROW_THREADS;
        col = thread_index() % ROW_THREADS * VEC;
        last = extent - origin - (IS_K_MAJOR ? 1 : VEC);
        const int first_row = IS_K_MAJOR ? origin : k_begin;
        const int first_col = IS_K_MAJOR ? k_begin : origin;
        source = reinterpret_cast<const char*>(matrix) + static_cast<long long>(first_row) * stride +
                 static_cast<long long>(first_col + clamped(col)) * static_cast<int>(sizeof(float));
        if constexpr (IS_ONE_ROW) source += static_cast<long long>(row) * stride;
    }

    // Moves on to the tile that begins `depth` further along k.
    __device__ __forceinline__ void advance(int depth) {
        source += IS_K_MAJOR ? depth * static_cast<long long>(sizeof(float)) : static_cast<long long>(depth) * stride;
    }

    // Starts the copy of the very first tile: `depth` deep along k, then zeros.
    __device__ __forceinline__ void start_first(float* shared, int depth) {
        float* const to = own_place(shared);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (!owns(piece)) continue;
            const bool is_valid = (IS_K_MAJOR ? col_of(piece) : row_of(piece)) < depth;  // edge: k
            if constexpr (IS_ASYNC) {
                copy_async<VEC>(to + step(piece), address(piece), is_valid);
            } else {
                load(piece, is_valid);
            }
        }
    }

    // Starts part `part` of `parts` of the copy of a full tile, where it is wanted. Asynchronous copies go straight to
    // `shared` (zeros, where not wanted); others are loaded into `registers`, until `store`.
    __device__ __forceinline__ void start(float* shared, bool is_wanted, int part, int parts) {
        float* const to = own_place(shared);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (piece * parts / PIECES != part || !owns(piece)) continue;
            if constexpr (!IS_ASYNC) {
                load(piece, is_wanted);
            } else if (parts == 1) {
                copy_async<VEC>(to + step(piece), address(piece));
            } else {
                copy_async<VEC>(to + step(piece), address(piece), is_wanted);
            }
        }
    }

    // Stores what was loaded into registers to shared memory, transposed where the operand is K-major.
    __device__ __forceinline__ void store(float* shared) {
        if constexpr (IS_ASYNC) return;
        float* const to = own_place(shared);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (!owns(piece)) continue;
            if constexpr (IS_K_MAJOR) {
#pragma unroll
                for (int e = 0; e < VEC; ++e)
                    store_shared<1>(to + step(piece) + e * SHARED_ROW, {registers[piece].v[e]});
            } else {
                store_shared<VEC>(to + step(piece), registers[piece]);
            }
        }
    }

  private:
    __device__ __forceinline__ int row_of(int piece) const { return row + piece / COL_STEPS * ROW_STEP; }
    __device__ __forceinline__ int col_of(int piece) const { return col + piece % COL_STEPS * COL_STEP; }

    // Whether a piece is this thread's: always, unless the threads do not divide the tile evenly.
    __device__ __forceinline__ bool owns(int piece) const {
        if constexpr (IS_EVEN) return true;
        return thread_index() < WORKERS && row_of(piece) < ROWS && col_of(piece) < COLS;
    }

    // Where this thread's first element goes in a shared tile, and how far from there each piece: a constant, so
    // that it becomes part of the instruction.
    __device__ __forceinline__ float* own_place(float* shared) const {
        int first = IS_K_MAJOR ? col * SHARED_ROW + row : row * SHARED_ROW + col;
        forget(first);
        return shared + first;
    }
    __device__ __forceinline__ static constexpr int step(int piece) {
        const int rows = piece / COL_STEPS * ROW_STEP, cols = piece % COL_STEPS * COL_STEP;
        return IS_K_MAJOR ? cols * SHARED_ROW + rows : rows * SHARED_ROW + cols;
    }

    // Where a piece lies in global memory. It is computed for each copy, in two instructions: to keep all of them
    // would take two registers each.
    __device__ __forceinline__ const float* address(int piece) const {
        int at_row = row, from_col = piece % COL_STEPS * COL_STEP;
        if constexpr (IS_CLAMPED && !IS_K_MAJOR && COL_STEPS > 1)
            from_col = col_of(piece) < last ? from_col : last - clamped(col);  // edge: m, n
        const char* from = source + from_col * static_cast<int>(sizeof(float));
        if constexpr (IS_ONE_ROW) return reinterpret_cast<const float*>(from);
        forget(at_row);
        at_row += piece / COL_STEPS * ROW_STEP;
        if constexpr (IS_CLAMPED && IS_K_MAJOR) at_row = at_row < last ? at_row : last;  // edge: m, n
        return reinterpret_cast<const float*>(from + static_cast<long long>(at_row) * stride);
    }

    // A column of the tile, or the last one that lies in the matrix.
    __device__ __forceinline__ int clamped(int column) const {
        if constexpr (!IS_CLAMPED || IS_K_MAJOR) return column;
        return column < last ? column : last;  // edge: m, n
    }

    __device__ __forceinline__ void load(int piece, bool is_wanted) {
        registers[IS_ASYNC ? 0 : piece] = is_wanted ? load_global<VEC>(address(piece)) : Vec<VEC>{};
    }
};

using CopyA = TileCopy<IS_K_MAJOR_A ? BM : BK, IS_K_MAJOR_A ? BK : BM, VEC_A, IS_K_MAJOR_A, IS_CLAMPED_A, ROW_A,
                       COPY_A == COPY_ASYNC>;
using CopyB = TileCopy<IS_K_MAJOR_B ? BN : BK, IS_K_MAJOR_B ? BK : BN, VEC_B, IS_K_MAJOR_B, IS_CLAMPED_B, ROW_B,
                       COPY_B == COPY_ASYNC>;
