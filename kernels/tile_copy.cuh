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
// A thread goes through its pieces by adding the bytes between two of them to a pointer: two instructions that do not
// use the FMA pipe. A product of row and stride would; on an H200, where a tile takes 4 bytes at a time, a twentieth
// of the main loop's time went there (docs/decisions/0035).
//
// Edges. Along m and n, what lies beyond the matrix is not read: it comes as zeros, or as what the registers held. What
// is computed from it is never stored. A packed operand is padded to whole tiles. Along k, the *first* tile is the
// ragged one (k % BK deep, then zeros): all later tiles are full.
#pragma once

#include "config.cuh"
#include "primitives.cuh"

constexpr int MIN_ROW_SHARE = 8;  // 8 neighbouring vectors of 16 bytes fill a cache line

template <int ROWS, int COLS, int VEC, bool IS_K_MAJOR, bool HAS_EDGES, int SHARED_ROW, bool IS_ASYNC>
struct TileCopy {
    static constexpr int VECS = COLS / VEC;
    static constexpr int ROW_SHARE = THREADS / ROWS;  // threads that each row could have
    static constexpr bool IS_ONE_ROW =
        !IS_K_MAJOR && ROW_SHARE >= MIN_ROW_SHARE && THREADS % ROWS == 0 && VECS % ROW_SHARE == 0;
    static constexpr int ROW_THREADS = IS_ONE_ROW ? ROW_SHARE : VECS < THREADS ? VECS : THREADS;
    static constexpr int ROW_STEP = THREADS / ROW_THREADS;
    static constexpr int ROW_STEPS = (ROWS + ROW_STEP - 1) / ROW_STEP;
    static constexpr int COL_STEP = ROW_THREADS * VEC;
    static constexpr int COL_STEPS = (VECS + ROW_THREADS - 1) / ROW_THREADS;
    static constexpr int WORKERS = ROW_STEP * ROW_THREADS;
    static constexpr int PIECES = ROW_STEPS * COL_STEPS;  // vectors per thread
    static constexpr bool IS_EVEN = PIECES * THREADS == ROWS * VECS;

    GlobalAddress next;   // of this thread's next piece of the current tile
    Stride stride;        // bytes between rows
    long long row_step;   // bytes from a piece to the one below it
    long long tile_step;  // bytes from the last row of pieces of a tile to the first of the next
    int row;              // this thread's first row and column in the tile
    int col;
    int left;             // rows (K-major) or columns (not) of the matrix from there on
    Vec<VEC> registers[IS_ASYNC ? 1 : PIECES];  // (piece): on the way through registers

    // `matrix` as stored, `origin` the tile's first index along m or n, `extent` the matrix's extent there.
    __device__ __forceinline__ TileCopy(const float* matrix, long long ld, int origin, int extent, int k_begin) {
        stride = static_cast<Stride>(ld * sizeof(float));
        row = thread_index() / ROW_THREADS;
        col = thread_index() % ROW_THREADS * VEC;
        left = extent - origin - (IS_K_MAJOR ? row : col);
        const int first_row = (IS_K_MAJOR ? origin : k_begin) + row;
        const int first_col = (IS_K_MAJOR ? k_begin : origin) + col;
        next = global_address(matrix) + static_cast<long long>(first_row) * stride +
               static_cast<long long>(first_col) * static_cast<int>(sizeof(float));
        row_step = ld * (ROW_STEP * static_cast<int>(sizeof(float)));
        tile_step = bytes_along_k(BK) - (ROW_STEPS - 1) * row_step;
    }

    // Starts the copy of the very first tile: `depth` deep along k, then zeros.
    __device__ __forceinline__ void start_first(float* shared, int depth) {
        float* const to = own_place(shared);
        const GlobalAddress first = next;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (owns(piece)) {
                const int k = IS_K_MAJOR ? col_of(piece) : row_of(piece);
                const bool is_valid = k < depth && is_inside(piece);  // edge: k
                if constexpr (IS_ASYNC) {
                    copy_async<VEC>(to + step(piece), from(piece), is_valid);
                } else {
                    registers[piece] = is_valid ? load_operand<VEC>(from(piece)) : Vec<VEC>{};
                }
            }
            if (ends_row(piece)) next = after(next, row_step);
        }
        next = first + bytes_along_k(depth);
    }

    // Starts part `part` of `parts` of the copy of a full tile, where it is wanted (one part: always). Asynchronous
    // copies go straight to `shared`; others are loaded into `registers`, until `store`.
    __device__ __forceinline__ void start(float* shared, bool is_wanted, int part, int parts) {
        SharedAddress to = shared_address(own_place(shared));
        forget(to);  // else it is computed again for each copy
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (piece * parts / PIECES != part) continue;
            if (owns(piece) && (parts == 1 || is_wanted) && is_inside(piece)) {
                if constexpr (IS_ASYNC) {
                    copy_async<VEC>(to, step(piece), from(piece));
                } else {
                    registers[piece] = load_operand<VEC>(from(piece));
                }
            }
            if (ends_row(piece)) next = after(next, row_step);
        }
        if (part == parts - 1) next += tile_step;
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

    // Where a piece lies in global memory, once `next` has come to its row.
    __device__ __forceinline__ GlobalAddress from(int piece) const {
        return next + piece % COL_STEPS * COL_STEP * static_cast<int>(sizeof(float));
    }
    // The sum as such: the compiler would make it a product of the first piece's place, for it knows how far it is.
    __device__ __forceinline__ static GlobalAddress after(GlobalAddress place, long long bytes) {
        place += bytes;
        forget(place);
        return place;
    }
    __device__ __forceinline__ static constexpr bool ends_row(int piece) {
        return piece % COL_STEPS == COL_STEPS - 1 && piece < PIECES - 1;
    }

    __device__ __forceinline__ bool is_inside(int piece) const {
        if constexpr (!HAS_EDGES) return true;
        int more = left;
        forget(more);  // asked for each copy: to keep the answers would take a predicate each
        return (IS_K_MAJOR ? piece / COL_STEPS * ROW_STEP : piece % COL_STEPS * COL_STEP) < more;  // edge: m, n
    }

    __device__ __forceinline__ long long bytes_along_k(int depth) const {
        return IS_K_MAJOR ? depth * static_cast<long long>(sizeof(float)) : static_cast<long long>(depth) * stride;
    }
};

using CopyA = TileCopy<IS_K_MAJOR_A ? BM : BK, IS_K_MAJOR_A ? BK : BM, VEC_A, IS_K_MAJOR_A, HAS_EDGES_A, ROW_A,
                       COPY_A == COPY_ASYNC>;
using CopyB = TileCopy<IS_K_MAJOR_B ? BN : BK, IS_K_MAJOR_B ? BK : BN, VEC_B, IS_K_MAJOR_B, HAS_EDGES_B, ROW_B,
                       COPY_B == COPY_ASYNC>;
