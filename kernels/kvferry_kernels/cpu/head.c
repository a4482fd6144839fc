/* The last product, to logits, from bfloat16 to float: the result isn't rounded to bfloat16, which would make close
 * logits equal. Weights lie in tiles of 64 outputs, pairs of inputs together: [tiles, size / 2, 64, 2]. */

#include "vector.h"

#define TILE 64

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

INLINE void multiply(const int rows, float *out, size_t stride, size_t outputs, const uint16_t *x,
                     const uint16_t *weight, size_t size, size_t column) {
    vec sum[ROWS][COLUMNS] = {0};
    for (size_t pair = 0; pair < size / 2; pair++) {
        uvec w[COLUMNS];
        UNROLL for (int c = 0; c < COLUMNS; c++)
            memcpy(&w[c], weight + (pair * TILE + (column + (size_t)c) * WIDTH) * 2, sizeof *w);
        UNROLL for (int r = 0; r < rows; r++) {
            uint32_t both;
            memcpy(&both, x + (size_t)r * size + 2 * pair, sizeof both);
            UNROLL for (int c = 0; c < COLUMNS; c++) sum[r][c] = add_pair(sum[r][c], both, w[c]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            size_t at = (column + (size_t)c) * WIDTH;
            if (at < outputs) store_upto(out + (size_t)r * stride, at, outputs, sum[r][c], 0);
        }
}

API void kvferry_head(float *out, const uint16_t *x, const uint16_t *weight, int64_t rows, int64_t outputs,
                      int64_t size) {
    const int64_t tiles = (outputs + TILE - 1) / TILE;
#pragma omp parallel for schedule(static) if (rows > 0 && tiles > 1)
    for (int64_t tile = 0; tile < tiles; tile++) {
        const uint16_t *w = weight + (size_t)(tile * TILE * size);
        size_t left = (size_t)(outputs - tile * TILE), here = left < TILE ? left : TILE;
        for (int64_t row = 0; row < rows; row += ROWS) {
            float *to = out + row * outputs + tile * TILE;
            const uint16_t *from = x + row * size;
            const int64_t some = rows - row < ROWS ? rows - row : ROWS;
            for (size_t c = 0; c < TILE / WIDTH; c += COLUMNS) switch (some) {
#define CASE(n) \
    case n: multiply(n, to, (size_t)outputs, here, from, w, (size_t)size, c); break;
                    CASE(1)
                    CASE(2)
#if MANY_REGISTERS
                    CASE(3)
                    CASE(4)
                    CASE(5)
                    CASE(6)
#endif
                }
        }
    }
}
