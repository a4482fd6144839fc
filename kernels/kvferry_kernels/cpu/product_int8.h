/* Products of 8-bit integers, with sums in 32 bits, which no order changes, over groups of inputs that share a scale.
 *
 * Rows are signed, with a scale a group; weights are bytes w + 128, because instructions multiply unsigned by signed
 * numbers, with a scale an output. A tile has four inputs together, [size / 4, 32, 4], then its scales, float [32]. A
 * group's correction, -128 times the sum of the row's numbers, takes the 128 out again. A result is the sum over the
 * groups, in their order, of sum * row's scale; then times the output's scale, plus bias. */

#ifndef KVFERRY_PRODUCT_INT8_H
#define KVFERRY_PRODUCT_INT8_H

#include "product_types.h"

/* Some rows by two vectors of outputs, from output `first` on. For each four inputs `lines` cache lines, 1 or 2, of
 * what is ahead are fetched. */
INLINE void multiply_int8(const int rows, const struct product *job, size_t first, size_t row, struct ahead *ahead,
                          size_t lines, int out_bf16) {
    const size_t size = job->size, groups = num_groups(size, job->group);
    const char *weight = (const char *)job->weight + first / OUTPUTS * int8_tile_bytes(size) + first % OUTPUTS * 4;
    const int8_t *x = job->rows8.bytes + row * size;
    const float *scales = job->rows8.scales + row * groups;
    const int32_t *corrections = job->rows8.corrections + row * groups;
    const char *next = ahead->at;
    const size_t step = next < ahead->end ? lines * 64 : 0;
    vec total[ROWS][2] = {0};
    for (size_t left = size; left; scales++, corrections++) {
        ivec sum[ROWS][2];
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < 2; c++) sum[r][c] = corrections[(size_t)r * groups] - (ivec){0};
        const size_t count = at_most(left, job->group);
        left -= count;
        for (size_t four = 0; four < count; four += 4, x += 4, weight += OUTPUTS * 4, next += step) {
            __builtin_prefetch(next, 0, 2);
            __builtin_prefetch(next + 64, 0, 2);
            uvec w[2];
            UNROLL for (int c = 0; c < 2; c++) memcpy(&w[c], weight + (size_t)c * WIDTH * 4, sizeof *w);
            UNROLL for (int r = 0; r < rows; r++) {
                uint32_t bytes;
                memcpy(&bytes, x + (size_t)r * size, sizeof bytes);
                UNROLL for (int c = 0; c < 2; c++) sum[r][c] = add_four(sum[r][c], bytes, w[c]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int c = 0; c < 2; c++)
                total[r][c] += __builtin_convertvector(sum[r][c], vec) * scales[(size_t)r * groups];
    }
    __builtin_prefetch(next, 0, 2); /* the scales */
    __builtin_prefetch(next + 64, 0, 2);
    ahead->at = next;
    UNROLL for (int c = 0; c < 2; c++) {
        const size_t at = first + (size_t)c * WIDTH, end = job->outputs;
        if (at >= end) break;
        const vec scale = load(weight, (size_t)c * WIDTH, 0);
        const vec bias = job->bias ? load_upto(job->bias, at, end, out_bf16) : all(0.0f);
        UNROLL for (int r = 0; r < rows; r++) {
            char *out = (char *)job->out + (row + (size_t)r) * end * (out_bf16 ? 2 : 4);
            const vec value = total[r][c] * scale;
            store_upto(out, at, end, job->bias ? value + bias : value, out_bf16);
        }
    }
}

/* A function for each number of rows and each kind of result, see product.h. */
typedef void int8_multiplier(const struct product *job, size_t first, size_t row, struct ahead *ahead, size_t lines);

#define INT8_MULTIPLIER(name, rows, out_bf16) \
    static __attribute__((noinline)) void name(const struct product *job, size_t first, size_t row, \
                                               struct ahead *ahead, size_t lines) { \
        multiply_int8(rows, job, first, row, ahead, lines, out_bf16); \
    }
#define INT8_MULTIPLIERS(rows) \
    INT8_MULTIPLIER(int8_##rows##_to_bf16, rows, 1) \
    INT8_MULTIPLIER(int8_##rows##_to_float, rows, 0)

INT8_MULTIPLIERS(1)
INT8_MULTIPLIERS(2)
#if MANY_REGISTERS
INT8_MULTIPLIERS(3)
INT8_MULTIPLIERS(4)
INT8_MULTIPLIERS(5)
INT8_MULTIPLIERS(6)
#define INT8_TO(kind) {int8_1_##kind, int8_2_##kind, int8_3_##kind, int8_4_##kind, int8_5_##kind, int8_6_##kind}
#else
#define INT8_TO(kind) {int8_1_##kind, int8_2_##kind}
#endif

/* Rows up to `end` by outputs `first` to `last`, in passes of about as many rows each. */
static void multiply_int8_rows(const struct product *job, size_t first, size_t last, size_t row, size_t end,
                               struct ahead *ahead) {
    static int8_multiplier *const by_rows[2][ROWS] = {INT8_TO(to_bf16), INT8_TO(to_float)};
    const size_t rows = end - row, passes = (rows + ROWS - 1) / ROWS;
    for (size_t at = first; at < last; at += 2 * WIDTH)
        for (size_t pass = 0; pass < passes; pass++) {
            const size_t from = row + rows * pass / passes, stop = row + rows * (pass + 1) / passes;
            by_rows[job->kind == INT8_TO_FLOAT][stop - from - 1](job, at, from, ahead, passes == 1 ? 2 : 1);
        }
}

#endif
