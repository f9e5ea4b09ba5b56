// The way of one operand's tile from global to shared memory.
//
// As stored, the tile has ROWS rows, each COLS neighbouring floats; rows lie `stride` bytes apart.
// A turned operand has its rows along m (or n) and its columns along k; the other one the reverse.
// Threads take neighbouring vectors of a row, then the next rows: vector v of the tile belongs to
// thread v % (ROW_STEP * VECS). Worked example, A turned, BM 64, BK 16, VEC 1, 128 threads:
// VECS = 16, ROW_STEP = 8, ROW_STEPS = 8; thread 17 copies column 1 (k = 1) of rows 1, 9, ..., 57 to
// shared floats 1 * ROW_A + {1, 9, ..., 57}.
//
// Edges. Along m and n, rows and columns beyond the matrix repeat its last one: what is computed from
// them is never stored, so the main loop needs no test. Along k, the *first* tile is the ragged one
// (k % BK deep, zeros behind): all later tiles are full and need no test either.
#pragma once

#include "config.cuh"
#include "primitives.cuh"

template <int ROWS, int COLS, int VEC, bool IS_TURNED, int SHARED_ROW, bool IS_ASYNC> struct TileCopy {
    static constexpr int VECS = COLS / VEC;
    static constexpr int ROW_STEP = VECS < THREADS ? THREADS / VECS : 1;
    static constexpr int ROW_STEPS = (ROWS + ROW_STEP - 1) / ROW_STEP;
    static constexpr int COL_STEPS = VECS < THREADS ? 1 : (VECS + THREADS - 1) / THREADS;
    static constexpr int WORKERS = VECS < THREADS ? ROW_STEP * VECS : THREADS;
    static constexpr bool IS_EVEN = WORKERS == THREADS && ROWS % ROW_STEP == 0 && VECS % (COL_STEPS * WORKERS / ROW_STEP) == 0;
    static constexpr int PIECES = ROW_STEPS * COL_STEPS;

    const char* source;  // row 0 of the current tile, at this thread's first column
    Stride stride;       // bytes between rows
    int row;             // this thread's first row and column in the tile
    int col;
    int last_row;        // last row (turned) or column (not) of the tile that lies in the matrix
    float staged[IS_ASYNC ? 1 : PIECES * VEC];  // (piece, element): on the way through registers

    // `matrix` as stored, `origin` the tile's first index along m or n, `extent` the matrix's extent there.
    __device__ __forceinline__ TileCopy(const float* matrix, long long ld, int origin, int extent, int k_begin) {
        stride = static_cast<Stride>(ld * sizeof(float));
        row = thread_index() / VECS;
        col = (VECS < THREADS ? thread_index() % VECS : thread_index()) * VEC;
        if constexpr (VECS >= THREADS) row = 0;
        last_row = extent - origin - (IS_TURNED ? 1 : VEC);
        const int first_row = IS_TURNED ? origin : k_begin;
        const int first_col = IS_TURNED ? k_begin : origin;
        source = reinterpret_cast<const char*>(matrix) + static_cast<long long>(first_row) * stride +
                 static_cast<long long>(first_col) * static_cast<int>(sizeof(float));
    }

    // Moves on to the tile that begins `depth` further along k.
    __device__ __forceinline__ void advance(int depth) {
        source += IS_TURNED ? depth * static_cast<long long>(sizeof(float)) : static_cast<long long>(depth) * stride;
    }

    // Copies the whole tile, or, where IS_FIRST, the part that is `depth` deep along k and zeros behind it.
    // Asynchronous copies go straight to `shared`; others are held in `staged` until `store`.
    template <bool IS_FIRST> __device__ __forceinline__ void fetch(float* shared, int depth) {
#pragma unroll
        for (int r = 0; r < ROW_STEPS; ++r) {
#pragma unroll
            for (int c = 0; c < COL_STEPS; ++c) {
                if (!owns(r, c)) continue;
                const int at_row = row + r * ROW_STEP;
                const int at_col = col + c * THREADS * VEC;
                const bool is_valid = !IS_FIRST || (IS_TURNED ? at_col : at_row) < depth;  // edge: k
                fetch_piece<IS_FIRST>(shared + place(at_row, at_col), address(at_row, at_col), is_valid,
                                      staged + (IS_ASYNC ? 0 : (r * COL_STEPS + c) * VEC));
            }
        }
    }

    // Writes what `fetch` holds in registers to shared memory, turning it where needed.
    __device__ __forceinline__ void store(float* shared) {
        if constexpr (!IS_ASYNC) {
#pragma unroll
            for (int r = 0; r < ROW_STEPS; ++r) {
#pragma unroll
                for (int c = 0; c < COL_STEPS; ++c) {
                    if (!owns(r, c)) continue;
                    float* to = shared + place(row + r * ROW_STEP, col + c * THREADS * VEC);
                    const float* from = staged + (r * COL_STEPS + c) * VEC;
                    if constexpr (IS_TURNED) {
#pragma unroll
                        for (int e = 0; e < VEC; ++e) to[e * SHARED_ROW] = from[e];
                    } else {
                        Vec<VEC> piece;
#pragma unroll
                        for (int e = 0; e < VEC; ++e) piece.v[e] = from[e];
                        store_shared<VEC>(to, piece);
                    }
                }
            }
        }
    }

  private:
    // Whether piece (r, c) is this thread's: always, unless the threads do not divide the tile evenly.
    __device__ __forceinline__ bool owns(int r, int c) const {
        if constexpr (IS_EVEN) return true;
        return thread_index() < WORKERS && row + r * ROW_STEP < ROWS && col + c * THREADS * VEC < COLS;
    }

    __device__ __forceinline__ static int place(int at_row, int at_col) {
        return IS_TURNED ? at_col * SHARED_ROW + at_row : at_row * SHARED_ROW + at_col;
    }

    __device__ __forceinline__ const float* address(int at_row, int at_col) const {
        if constexpr (IS_PREDICATED) {
            int& along_c = IS_TURNED ? at_row : at_col;
            along_c = along_c < last_row ? along_c : last_row;  // edge: m, n
        }
        return reinterpret_cast<const float*>(source + static_cast<long long>(at_row) * stride +
                                              at_col * static_cast<int>(sizeof(float)));
    }

    template <bool IS_FIRST>
    __device__ __forceinline__ static void fetch_piece(float* to, const float* from, bool is_valid, float* held) {
        if constexpr (IS_ASYNC && IS_FIRST) {
            copy_async<VEC>(to, from, is_valid);
        } else if constexpr (IS_ASYNC) {
            copy_async<VEC>(to, from);
        } else {
            Vec<VEC> piece = {};
            if (is_valid) piece = load_global<VEC>(from);
#pragma unroll
            for (int e = 0; e < VEC; ++e) held[e] = piece.v[e];
        }
    }
};

using CopyA = TileCopy<IS_TURNED_A ? BM : BK, IS_TURNED_A ? BK : BM, VEC_A, IS_TURNED_A, ROW_A, COPY_A == COPY_ASYNC>;
using CopyB = TileCopy<IS_TURNED_B ? BN : BK, IS_TURNED_B ? BK : BN, VEC_B, IS_TURNED_B, ROW_B, COPY_B == COPY_ASYNC>;
