/* Products of bfloat16 with vector instructions, in pairs of inputs: see product.h. */

#ifndef KVFERRY_PRODUCT_BF16_H
#define KVFERRY_PRODUCT_BF16_H

#include "product_types.h"

/* Some rows by `columns` vectors of outputs, from output `first` on; `fetch`: beside each pair of inputs the next
 * `lines` cache lines of what is ahead. */
INLINE void multiply(const int rows, const int columns, const int fetch, const struct product *job, size_t first,
                     size_t row, struct ahead *ahead, size_t lines, int out_bf16) {
    const size_t size = job->size;
    const uint16_t *weight = (const uint16_t *)job->weight + first / OUTPUTS * OUTPUTS * size + first % OUTPUTS * 2;
    const uint16_t *x = job->x + row * size;
    const char *next = ahead->at;
    const size_t step = next < ahead->end ? lines * 64 : 0; /* without a branch: nothing is fetched twice instead */
    vec sum[NARROW_ROWS][COLUMNS] = {0};
    for (size_t pair = 0; pair < size / 2; pair++, x += 2, weight += OUTPUTS * 2) {
        uvec w[COLUMNS];
        UNROLL for (int c = 0; c < columns; c++) { /* a tile's vectors lie together, those of the next one behind it */
            const size_t tile = (size_t)c * WIDTH / OUTPUTS, inside = (size_t)c * WIDTH % OUTPUTS;
            memcpy(&w[c], weight + tile * OUTPUTS * size + inside * 2, sizeof *w);
        }
        if (fetch) {
            __builtin_prefetch(next, 0, 2);
            __builtin_prefetch(next + 64, 0, 2);
            next += step;
        }
        UNROLL for (int r = 0; r < rows; r++) {
            uint32_t both;
            memcpy(&both, x + (size_t)r * size, sizeof both);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] = add_pair(sum[r][c], both, w[c]);
        }
    }
    ahead->at = next;
    UNROLL for (int c = 0; c < columns; c++) {
        const size_t at = first + (size_t)c * WIDTH, end = job->outputs;
        if (at >= end) break;
        vec bias = job->bias ? load_upto(job->bias, at, end, 1) : all(0.0f);
        UNROLL for (int r = 0; r < rows; r++) {
            char *out = (char *)job->out + (row + (size_t)r) * end * (out_bf16 ? 2 : 4);
            store_upto(out, at, end, job->bias ? sum[r][c] + bias : sum[r][c], out_bf16);
        }
    }
}

/* A function for each number of rows and each kind of result: inlined into a large one their loops would run out of
 * registers. */
typedef void multiplier(const struct product *job, size_t first, size_t row, struct ahead *ahead, size_t lines);

#define MULTIPLIER(name, rows, columns, fetch, out_bf16) \
    static __attribute__((noinline)) void name(const struct product *job, size_t first, size_t row, \
                                               struct ahead *ahead, size_t lines) { \
        multiply(rows, columns, fetch, job, first, row, ahead, lines, out_bf16); \
    }
#define MULTIPLIERS(name, rows, columns, fetch) \
    MULTIPLIER(name##_float, rows, columns, fetch, 0) \
    MULTIPLIER(name##_bf16, rows, columns, fetch, 1)

MULTIPLIERS(narrow_1, 1, 2, 1)
MULTIPLIERS(narrow_2, 2, 2, 1)
MULTIPLIERS(wide_1, 1, COLUMNS, 0)
MULTIPLIERS(wide_2, 2, COLUMNS, 0)
#if MANY_REGISTERS
MULTIPLIERS(narrow_3, 3, 2, 1)
MULTIPLIERS(narrow_4, 4, 2, 1)
MULTIPLIERS(narrow_5, 5, 2, 1)
MULTIPLIERS(narrow_6, 6, 2, 1)
MULTIPLIERS(narrow_7, 7, 2, 1)
MULTIPLIERS(narrow_8, 8, 2, 1)
MULTIPLIERS(narrow_9, 9, 2, 1)
MULTIPLIERS(narrow_10, 10, 2, 1)
MULTIPLIERS(narrow_11, 11, 2, 1)
MULTIPLIERS(narrow_12, 12, 2, 1)
MULTIPLIERS(wide_3, 3, COLUMNS, 0)
MULTIPLIERS(wide_4, 4, COLUMNS, 0)
MULTIPLIERS(wide_5, 5, COLUMNS, 0)
MULTIPLIERS(wide_6, 6, COLUMNS, 0)
#define NARROW(kind) \
    {narrow_1_##kind, narrow_2_##kind, narrow_3_##kind, narrow_4_##kind,  narrow_5_##kind,  narrow_6_##kind, \
     narrow_7_##kind, narrow_8_##kind, narrow_9_##kind, narrow_10_##kind, narrow_11_##kind, narrow_12_##kind}
#define WIDE(kind) {wide_1_##kind, wide_2_##kind, wide_3_##kind, wide_4_##kind, wide_5_##kind, wide_6_##kind}
#else
#define NARROW(kind) {narrow_1_##kind, narrow_2_##kind}
#define WIDE(kind) {wide_1_##kind, wide_2_##kind}
#endif

/* By kind of result, then by rows less one. */
static multiplier *const few_rows[2][NARROW_ROWS] = {NARROW(float), NARROW(bf16)};
static multiplier *const many_rows[2][ROWS] = {WIDE(float), WIDE(bf16)};

/* Rows up to `end` by COLUMNS vectors of outputs: many rows, which compute longer than they read. */
static void multiply_wide(const struct product *job, size_t first, size_t row, size_t end, int out_bf16) {
    struct ahead nothing = {0};
    for (; row < end; row += ROWS) many_rows[out_bf16][at_most(end - row, ROWS) - 1](job, first, row, &nothing, 0);
}

/* Rows up to `end` by two vectors of outputs, in passes of about as many rows each; all of what is ahead is fetched
 * in the first of them, or the first two. */
static void multiply_narrow(const struct product *job, size_t first, size_t row, size_t end, struct ahead *ahead,
                            int out_bf16) {
    const size_t rows = end - row, passes = (rows + NARROW_ROWS - 1) / NARROW_ROWS;
    for (size_t pass = 0; pass < passes; pass++) {
        const size_t at = row + rows * pass / passes, stop = row + rows * (pass + 1) / passes;
        few_rows[out_bf16][stop - at - 1](job, first, at, ahead, passes == 1 ? 2 : 1);
    }
}

/* Rows up to `end` by outputs `first` to `last`. What is ahead is only given with few rows. */
static void multiply_bf16_rows(const struct product *job, size_t first, size_t last, size_t row, size_t end,
                               struct ahead *ahead) {
    const int out_bf16 = job->kind == BF16_TO_BF16;
    size_t at = first;
    if (last - first > OUTPUTS)
        for (; at + COLUMNS * WIDTH <= last; at += COLUMNS * WIDTH) multiply_wide(job, at, row, end, out_bf16);
    for (; at < last; at += 2 * WIDTH) multiply_narrow(job, at, row, end, ahead, out_bf16);
}

#endif
