// Which tile of C a block computes, and which part of its k: the order in which blocks walk over C decides
// what they share in L2.
#pragma once

#include "config.cuh"
#include "primitives.cuh"

struct Tile {
    int m;  // in tiles
    int n;
};

// Blocks run along one side of C, GROUP tiles across before the next step along; the last group may be
// narrower. GROUP 1 along n is the plain row-major order. Example, along n, GROUP 2, 4 x 3 tiles:
// (0,0) (1,0) (0,1) (1,1) (0,2) (1,2) | (2,0) (3,0) ...
__device__ __forceinline__ Tile tile_of(int block, int tiles_m, int tiles_n) {
    const int along = RASTER == RASTER_N ? tiles_n : tiles_m;
    const int across = RASTER == RASTER_N ? tiles_m : tiles_n;
    const int group = across < GROUP ? across : GROUP;  // so that a group never exceeds the grid, nor int
    const int first = block / (group * along) * group;
    const int within = block % (group * along);
    const int width = across - first < group ? across - first : group;
    const int at_across = first + (GROUP == 1 ? 0 : within % width);
    const int at_along = GROUP == 1 ? within : within / width;
    return RASTER == RASTER_N ? Tile{at_across, at_along} : Tile{at_along, at_across};
}

// A block's share of the work: a tile, and which of `splits` parts of its k.
//
// Whole tiles fill the GPU in waves; the last wave often leaves most of it idle (4097^3 in tiles of
// 128 x 256: 561 blocks for 132 SMs, the last 33 alone for as long as all waves before took each). With
// last_wave only those tiles are split: first come `whole` blocks with a tile each, then `splits` blocks
// for each other tile. The grid tells how many: whole + split_tiles * splits blocks.
struct Share {
    int tile;
    int split = 0;
    int splits = 1;
    int whole = 0;        // tiles that are not split
    int split_tiles = 0;  // tiles that are

    __device__ __forceinline__ Share(int tiles, int asked) : tile(block_index_x()) {
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
