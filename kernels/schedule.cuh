// The order in which blocks take the tiles of C, and where the products of a batch lie.
#pragma once

// A batch: elements from an operand of one product to that of the next, 0 where all products share it. Read by kernels
// for batches alone.
struct Batch {
    long long stride_a;
    long long stride_b;
    long long stride_c;
    int products;
};

// Divides by what the host knows before the launch: a product and a shift, which a uniform register can hold, where a
// division takes registers of every thread (T. Granlund and P. Montgomery, "Division by Invariant Integers using
// Multiplication", 1994). For 0 <= n < 2^31; launch.divisor finds the multiplier.
struct Divisor {
    unsigned divisor;
    unsigned multiplier;
    unsigned shift;

    __device__ __forceinline__ int quotient(int n) const {
        return static_cast<int>(static_cast<unsigned long long>(static_cast<unsigned>(n)) * multiplier >> shift);
    }
};

// How blocks walk over C, which decides what they share in L2: those that run at the same time should need few rows of
// A and few columns of B. They walk along one side of C, m or n, and a group of tiles across before the next step
// along; the last group may be narrower. Groups of one along n are the plain row-major order. Example, along n, groups
// of 2, 4 x 3 tiles, by the number of the tile:
//
//    0  2  4
//    1  3  5
//    6  8 10
//    7  9 11
struct Schedule {
    Divisor product;     // tiles of one product
    Divisor group;       // tiles of one group
    Divisor width;       // tiles across of a group
    Divisor last_width;  // of the last one, where that is narrower
    int num_full;        // groups of full width
    int is_along_m;
};

struct TileCoord {
    int m;  // in tiles
    int n;
};

__device__ __forceinline__ TileCoord tile_coord(int tile, const Schedule& schedule) {
    const int group = schedule.group.quotient(tile), within = tile - group * schedule.group.divisor;
    const Divisor width = group < schedule.num_full ? schedule.width : schedule.last_width;
    const int at_along = width.quotient(within);
    const int at_across = group * schedule.width.divisor + (within - at_along * width.divisor);
    return schedule.is_along_m ? TileCoord{at_along, at_across} : TileCoord{at_across, at_along};
}
