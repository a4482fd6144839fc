/* Matrix products of bfloat16 with packed weights: y = x W^T + b, rounded once, to bfloat16, or not at all.
 *
 * Weights lie in tiles of 64 outputs with pairs of inputs together, [tiles, size / 2, 64, 2], so that a tile is read as
 * one stream. Every number is one chain over the pairs of inputs, so a row's result doesn't depend on the others. */

#include "vector.h"

#define TILE 64
#define ROWS_AT_ONCE 96 /* rows of a task: enough to pay for reading a tile, few enough to share out evenly */
#define PARALLEL_FROM 65536

struct product {
    void *out;
    const uint16_t *x, *weight, *bias;
    size_t outputs, size;
};

/* sum += x0 * w0 + x1 * w1 in every lane, for one pair of inputs in x and one per lane in w. */
INLINE vec add_pair(vec sum, uint32_t x, uvec w) {
#if defined(__AVX512BF16__)
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#else
    uvec pair = x - (uvec){0};
    sum += (vec)(pair << 16) * (vec)(w << 16);
    return sum + (vec)(pair & 0xffff0000u) * (vec)(w & 0xffff0000u);
#endif
}

/* Some rows by COLUMNS vectors of one tile's outputs, from vector `column` on. */
INLINE void multiply(const int rows, const struct product *job, size_t tile, size_t column, size_t row, int out_bf16) {
    const uint16_t *weight = job->weight + (tile * job->size * TILE) + column * WIDTH * 2;
    const uint16_t *x = job->x + row * job->size;
    vec sum[ROWS][COLUMNS] = {0};
    for (size_t pair = 0; pair < job->size / 2; pair++) {
        uvec w[COLUMNS];
        UNROLL for (int c = 0; c < COLUMNS; c++) memcpy(&w[c], weight + (pair * TILE + (size_t)c * WIDTH) * 2, sizeof *w);
        UNROLL for (int r = 0; r < rows; r++) {
            uint32_t both;
            memcpy(&both, x + (size_t)r * job->size + 2 * pair, sizeof both);
            UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = add_pair(sum[r][c], both, w[c]);
        }
    }
    UNROLL for (int c = 0; c < COLUMNS; c++) {
        const size_t at = tile * TILE + (column + (size_t)c) * WIDTH, end = job->outputs;
        if (at >= end) break;
        vec bias = job->bias ? load_upto(job->bias, at, end, 1) : all(0.0f);
        UNROLL for (int r = 0; r < rows; r++) {
            char *out = (char *)job->out + (row + (size_t)r) * end * (out_bf16 ? 2 : 4);
            store_upto(out, at, end, job->bias ? sum[r][c] + bias : sum[r][c], out_bf16);
        }
    }
}

INLINE void multiply_rows(const struct product *job, size_t tile, size_t row, size_t end, int out_bf16) {
    for (; row < end; row += ROWS)
        for (size_t column = 0; column < TILE / WIDTH; column += COLUMNS) {
#define CALL(n) multiply(n, job, tile, column, row, out_bf16)
            FOR_ROWS(end - row < ROWS ? end - row : ROWS, CALL)
#undef CALL
        }
}

API void kvferry_linear(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                        int64_t outputs, int64_t size, int out_bf16) {
    const struct product job = {out, x, weight, bias, (size_t)outputs, (size_t)size};
    const int64_t tiles = (outputs + TILE - 1) / TILE, parts = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
#pragma omp parallel for schedule(dynamic) if (outputs * size >= PARALLEL_FROM)
    for (int64_t task = 0; task < tiles * parts; task++) {
        const size_t tile = (size_t)(task / parts), row = (size_t)(task % parts * ROWS_AT_ONCE);
        const size_t end = (int64_t)row + ROWS_AT_ONCE < rows ? row + ROWS_AT_ONCE : (size_t)rows;
        if (out_bf16)
            multiply_rows(&job, tile, row, end, 1);
        else
            multiply_rows(&job, tile, row, end, 0);
    }
}
