/* Products on the matrix unit: see tiles.h for it, product.h for products in general.
 *
 * Up to 32 rows by 32 outputs at a time, 32 inputs in bfloat16 or 64 in bytes a step: registers 0 to 3 hold sums, 4 and 5
 * rows of x, 6 and 7 weights. Sums of bytes are exact; so results in 8-bit integers are those of product_int8.h, bit by bit. */

#ifndef KVFERRY_PRODUCT_AMX_H
#define KVFERRY_PRODUCT_AMX_H

#include "product_types.h"
#include "tiles.h"

#if HAS_TILES

#define ROWS_OF_TILES (2 * TILE_ROWS)
#define STEP_BYTES ((size_t)TILE_ROWS * OUTPUTS * 4) /* of weights, for 64 bytes of a row */

typedef float sums_of_tiles[ROWS_OF_TILES][OUTPUTS];

/* What one call computes: `rows` from `row` on by 32 outputs from `first` on. */
struct panel {
    size_t first, row, rows;
};

INLINE void shape_products(size_t rows) {
    const uint8_t upper = (uint8_t)at_most(rows, TILE_ROWS), lower = (uint8_t)(rows - upper);
    const struct tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES},
        .rows = {upper, upper, lower ? lower : 1, lower ? lower : 1, upper, lower ? lower : 1, TILE_ROWS, TILE_ROWS}};
    set_shapes(&shapes);
}

INLINE void zero_sums(int more) {
    ZERO_TILE(0);
    ZERO_TILE(1);
    if (more) {
        ZERO_TILE(2);
        ZERO_TILE(3);
    }
}

INLINE void store_sums(void *sums, int more) {
    char *at = sums;
    STORE_TILE(0, at, OUTPUTS * 4);
    STORE_TILE(1, at + TILE_BYTES, OUTPUTS * 4);
    if (more) {
        STORE_TILE(2, at + TILE_ROWS * OUTPUTS * 4, OUTPUTS * 4);
        STORE_TILE(3, at + TILE_ROWS * OUTPUTS * 4 + TILE_BYTES, OUTPUTS * 4);
    }
}

/* 64 bytes of each row by 32 outputs; `more`: rows beyond the 16th. */
INLINE void add_step(int more, int bytes, const char *x, size_t stride, const char *weight) {
    LOAD_TILE(4, x, stride);
    LOAD_TILE(6, weight, OUTPUTS * 4);
    LOAD_TILE(7, weight + TILE_BYTES, OUTPUTS * 4);
    if (bytes) {
        ADD_FOURS(0, 4, 6);
        ADD_FOURS(1, 4, 7);
    } else {
        ADD_PAIRS(0, 4, 6);
        ADD_PAIRS(1, 4, 7);
    }
    if (!more) return;
    LOAD_TILE(5, x + TILE_ROWS * stride, stride);
    if (bytes) {
        ADD_FOURS(2, 5, 6);
        ADD_FOURS(3, 5, 7);
    } else {
        ADD_PAIRS(2, 5, 6);
        ADD_PAIRS(3, 5, 7);
    }
}

/* The last `left` bytes of each row, fewer than 64: filled up with zeros, as are the weights. */
static __attribute__((noinline)) void add_rest(int more, int bytes, const char *x, size_t stride, size_t rows,
                                               const char *weight, size_t left) {
    _Alignas(64) char rest[ROWS_OF_TILES][TILE_BYTES] = {0}, packed[STEP_BYTES] = {0};
    for (size_t r = 0; r < rows; r++) memcpy(rest[r], x + r * stride, left);
    memcpy(packed, weight, left / 4 * OUTPUTS * 4);
    add_step(more, bytes, rest[0], TILE_BYTES, packed);
}

/* Some of the next weights; without a branch: nothing is fetched often instead. */
INLINE void fetch_lines(struct ahead *ahead, size_t lines) {
    const size_t step = ahead->at < ahead->end ? 64 : 0;
    for (size_t i = 0; i < lines; i++, ahead->at += step) __builtin_prefetch(ahead->at, 0, 2);
}

/* A row's 32 sums, rounded; what is too small for a normal number becomes 0, as it does in the unit. */
INLINE void write_whole_row(const struct product *job, size_t row, size_t first, const float *sums) {
    const __m512 low = (__m512)load(sums, 0, 0), high = (__m512)load(sums, WIDTH, 0);
    _mm512_storeu_si512((uint16_t *)job->out + row * job->outputs + first, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

INLINE void write_row(const struct product *job, size_t row, size_t first, int c, vec value, int has_bias, int bias_bf16,
                      int out_bf16) {
    const size_t at = first + (size_t)c * WIDTH, end = job->outputs;
    if (at >= end) return;
    if (has_bias) value += load_upto(job->bias, at, end, bias_bf16);
    store_upto((char *)job->out + row * end * (out_bf16 ? 2 : 4), at, end, value, out_bf16);
}

/* sums = x . weights of one tile of outputs. */
INLINE void sum_pairs(int more, const struct product *job, const struct panel *panel, const char *weight, void *sums,
                      struct ahead *ahead, size_t lines) {
    const size_t stride = job->size * 2, whole = stride / TILE_BYTES * TILE_BYTES;
    const char *x = (const char *)(job->x + panel->row * job->size);
    zero_sums(more);
    for (size_t at = 0; at < whole; at += TILE_BYTES, weight += STEP_BYTES) {
        fetch_lines(ahead, lines);
        add_step(more, 0, x + at, stride, weight);
    }
    if (whole < stride) add_rest(more, 0, x + whole, stride, panel->rows, weight, stride - whole);
    store_sums(sums, more);
}

INLINE void multiply_pairs(int more, const struct product *job, const struct panel *panel, struct ahead *ahead,
                           size_t lines, int out_bf16) {
    _Alignas(64) sums_of_tiles sums;
    const char *weight = (const char *)job->weight + panel->first / OUTPUTS * tile_bytes(job);
    sum_pairs(more, job, panel, weight, sums, ahead, lines);
    if (out_bf16 && !job->bias && panel->first + OUTPUTS <= job->outputs) {
        for (size_t r = 0; r < panel->rows; r++) write_whole_row(job, panel->row + r, panel->first, sums[r]);
        return;
    }
    for (size_t r = 0; r < panel->rows; r++)
        UNROLL for (int c = 0; c < 2; c++)
            write_row(job, panel->row + r, panel->first, c, load(sums[r], (size_t)c * WIDTH, 0), job->bias != NULL, 1,
                      out_bf16);
}

/* Sums with their bias, rounded to bfloat16 as if they had been stored. */
INLINE vec rounded_sums(const struct product *job, const float *sums, size_t output) {
    vec value = load(sums, 0, 0);
    if (job->bias) value += load(job->bias, output, 1);
    return (vec)(widen((hvec)_mm512_cvtneps_pbh((__m512)value)) << 16);
}

/* The gate's tile, then the other, whose weights are fetched beside the first. Whole tiles only. */
INLINE void multiply_gated(int more, const struct product *job, const struct panel *panel, struct ahead *ahead,
                           size_t lines) {
    _Alignas(64) sums_of_tiles gates, ups;
    const size_t bytes = tile_bytes(job);
    const char *gate = (const char *)job->weight + panel->first / OUTPUTS * bytes;
    const char *up = gate + job->outputs / OUTPUTS * bytes;
    struct ahead between = {up, up + bytes};
    sum_pairs(more, job, panel, gate, gates, &between, lines);
    sum_pairs(more, job, panel, up, ups, ahead, lines);
    for (size_t r = 0; r < panel->rows; r++) {
        vec value[2];
        UNROLL for (int c = 0; c < 2; c++) {
            const size_t at = panel->first + (size_t)c * WIDTH;
            const vec x = rounded_sums(job, gates[r] + c * WIDTH, at);
            value[c] = x * sigmoid_for_bf16(x) * rounded_sums(job, ups[r] + c * WIDTH, job->outputs + at);
        }
        _mm512_storeu_si512((uint16_t *)job->out + (panel->row + r) * job->outputs + panel->first,
                            (__m512i)_mm512_cvtne2ps_pbh((__m512)value[1], (__m512)value[0]));
    }
}

/* total[row] += (sums[row] + correction) * scale, of one group. */
INLINE void add_group(sums_of_tiles total, const int32_t (*sums)[OUTPUTS], const float *scales,
                      const int32_t *corrections, size_t groups, size_t rows) {
    for (size_t r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < 2; c++) {
            ivec sum;
            memcpy(&sum, sums[r] + c * WIDTH, sizeof sum);
            sum += corrections[r * groups];
            vec value = load(total[r], (size_t)c * WIDTH, 0);
            value += __builtin_convertvector(sum, vec) * scales[r * groups];
            store(total[r], (size_t)c * WIDTH, value, 0);
        }
}

INLINE void multiply_fours(int more, const struct product *job, const struct panel *panel, struct ahead *ahead,
                           size_t lines, int out_bf16) {
    const size_t size = job->size, groups = num_groups(size);
    const char *x = (const char *)job->rows8.bytes + panel->row * size;
    const char *weight = (const char *)job->weight + panel->first / OUTPUTS * int8_tile_bytes(size);
    const float *scales = job->rows8.scales + panel->row * groups;
    const int32_t *corrections = job->rows8.corrections + panel->row * groups;
    _Alignas(64) int32_t sums[2][ROWS_OF_TILES][OUTPUTS]; /* in turn, so that groups overlap */
    _Alignas(64) sums_of_tiles total;
    memset(total, 0, panel->rows * sizeof *total);
    for (size_t group = 0; group < groups; group++) {
        const size_t end = at_most((group + 1) * GROUP, size);
        zero_sums(more);
        for (size_t at = group * GROUP; at < end; at += TILE_BYTES, weight += STEP_BYTES) {
            fetch_lines(ahead, lines);
            if (at + TILE_BYTES <= size)
                add_step(more, 1, x + at, size, weight);
            else
                add_rest(more, 1, x + at, size, panel->rows, weight, size - at);
        }
        store_sums(sums[group % 2], more);
        add_group(total, sums[group % 2], scales + group, corrections + group, groups, panel->rows);
    }
    const char *tile = (const char *)job->weight + panel->first / OUTPUTS * int8_tile_bytes(size);
    for (size_t r = 0; r < panel->rows; r++)
        UNROLL for (int c = 0; c < 2; c++) {
            const vec scale = load(tile + size * OUTPUTS, (size_t)c * WIDTH, 0);
            write_row(job, panel->row + r, panel->first, c, load(total[r], (size_t)c * WIDTH, 0) * scale,
                      job->bias != NULL, out_bf16, out_bf16);
        }
}

/* A function for each kind and for up to 16 rows or more, see product.h. */
typedef void panel_multiplier(const struct product *job, const struct panel *panel, struct ahead *ahead, size_t lines);

#define PANEL(name, multiply, more, out_bf16) \
    static __attribute__((noinline)) void name(const struct product *job, const struct panel *panel, \
                                               struct ahead *ahead, size_t lines) { \
        multiply(more, job, panel, ahead, lines, out_bf16); \
    }
PANEL(pairs_to_bf16, multiply_pairs, 0, 1)
PANEL(pairs_to_float, multiply_pairs, 0, 0)
PANEL(fours_to_bf16, multiply_fours, 0, 1)
PANEL(fours_to_float, multiply_fours, 0, 0)
static __attribute__((noinline)) void gated(const struct product *job, const struct panel *panel, struct ahead *ahead,
                                            size_t lines) {
    multiply_gated(0, job, panel, ahead, lines);
}
static __attribute__((noinline)) void more_gated(const struct product *job, const struct panel *panel,
                                                 struct ahead *ahead, size_t lines) {
    multiply_gated(1, job, panel, ahead, lines);
}
PANEL(more_pairs_to_bf16, multiply_pairs, 1, 1)
PANEL(more_pairs_to_float, multiply_pairs, 1, 0)
PANEL(more_fours_to_bf16, multiply_fours, 1, 1)
PANEL(more_fours_to_float, multiply_fours, 1, 0)

/* By whether there are rows beyond the 16th, and by kind. */
static panel_multiplier *const panel_multipliers[2][5] = {
    {pairs_to_bf16, pairs_to_float, fours_to_bf16, fours_to_float, gated},
    {more_pairs_to_bf16, more_pairs_to_float, more_fours_to_bf16, more_fours_to_float, more_gated}};

/* Rows up to `end` by outputs up to `last`, in passes of about as many rows each; what is ahead is fetched in the
 * first of them. A pass takes all outputs, so that its rows stay in the nearest cache. */
static void multiply_by_tiles(const struct product *job, size_t first, size_t last, size_t row, size_t end,
                              struct ahead *ahead) {
    const size_t rows = end - row, passes = (rows + ROWS_OF_TILES - 1) / ROWS_OF_TILES;
    for (size_t pass = 0, shaped = 0; pass < passes; pass++) {
        const size_t from = row + rows * pass / passes;
        struct panel panel = {first, from, row + rows * (pass + 1) / passes - from};
        if (panel.rows != shaped) shape_products(shaped = panel.rows);
        const size_t lines = pass || ahead->at == ahead->end ? 0 : STEP_BYTES / 64;
        for (; panel.first < last; panel.first += OUTPUTS)
            panel_multipliers[panel.rows > TILE_ROWS][job->kind](job, &panel, ahead, lines);
    }
}

#endif

#endif
