// Which tile of C a block computes: the order in which blocks walk over C decides what they share in L2.
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
    const int first = block / (GROUP * along) * GROUP;
    const int within = block % (GROUP * along);
    const int width = across - first < GROUP ? across - first : GROUP;
    const int at_across = first + (GROUP == 1 ? 0 : within % width);
    const int at_along = GROUP == 1 ? within : within / width;
    return RASTER == RASTER_N ? Tile{at_across, at_along} : Tile{at_along, at_across};
}
