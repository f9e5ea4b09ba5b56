// How an operand lies that scaled_pack.cuh has packed, by BK of k: for the kernels that read it.
//
// An operand is packed in blocks of BLOCK rows (m of A, n of B) by BK of k, each as a stage has it. A number takes two
// halves, in planes beside each other: eight rows of 128 bytes of the high parts, the same eight of the low ones, and so
// on. Rows are swizzled, as tensor cores read them: 16 bytes at a time, eight rows in all banks. Behind all blocks lies
// for each row and BK of k what its numbers were divided by, or 0 where the block is as it was: floats by k, then row.
#pragma once

constexpr int BLOCK = 64;
constexpr int SWIZZLED_ROWS = 8, CHUNK = 4;             // words of four bytes
constexpr int ROW = BK / 2;                             // words: of a row of a part
constexpr int PART = SWIZZLED_ROWS * ROW;               // words: from the high parts of eight rows to their low ones
constexpr int BLOCK_WORDS = BLOCK * BK;                 // of both parts, or of floats
constexpr int EXACT_ROW = BLOCK;                        // floats of such a block that are of one k
constexpr float LOW_SCALE = 0x1p12f;                    // of low parts: these are then no larger than the number was
