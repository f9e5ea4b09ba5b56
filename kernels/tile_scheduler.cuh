// Which tile of C a block computes, of which product, and which split of its k.
//
//   grid x   the tiles of C, in the order of tile_coord, of one product after the other; with last_wave several
//            blocks for each of the last tiles
//   grid y   the splits of k: two_pass, last_block, cluster, chunks
#pragma once

#include "config.cuh"
#include "primitives.cuh"
#include "schedule.cuh"

// The work of a block: a tile of one of all products, and which of the `splits` of its k.
//
// Tiles fill the GPU in waves. The last wave often leaves most of it idle (4097^3 in tiles of 128 x 256: 561 blocks
// for 132 SMs, the last 33 alone for as long as all waves before took each). With last_wave only the tiles of that
// wave are split; the grid tells how many: whole + split_tiles * splits blocks. For 2 whole tiles, 2 that are
// split, and 3 splits:
//
//   block   0  1 | 2  3  4  5  6  7
//   tile    0  1 | 2  2  2  3  3  3
//   split   0  0 | 0  1  2  0  1  2
struct WorkTile {
    int tile;
    int split = 0;
    int splits = 1;
    int whole = 0;        // tiles that are not split
    int split_tiles = 0;  // tiles that are

    __device__ __forceinline__ WorkTile(int tiles, int asked) : tile(block_index_x()) {
        if constexpr (REDUCTION == REDUCTION_LAST_WAVE) {
            split_tiles = (grid_x() - tiles) / (asked - 1);
            whole = tiles - split_tiles;
            if (tile < whole) return;
            split = (tile - whole) % asked;
            tile = whole + (tile - whole) / asked;
            splits = asked;
        } else if constexpr (REDUCTION != REDUCTION_NONE) {
            split = block_index_y();
            splits = REDUCTION == REDUCTION_CLUSTER ? CLUSTER : asked;
            split_tiles = tiles;
        }
    }
};
