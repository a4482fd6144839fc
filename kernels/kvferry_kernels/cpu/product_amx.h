/* Products on the matrix unit: see tiles.h for it, product.h for products in general.
 *
 * Up to 32 rows by 32 outputs at a time, 32 inputs in bfloat16 or 64 in bytes a step: registers 0 to 3 hold sums, 4 and 5
 * rows of x, 6 and 7 weights. Sums of bytes are exact; so results in 8-bit integers are those of product_int8.h, bit by bit. */

#ifndef KVFERRY_PRODUCT_AMX_H
#define KVFERRY_PRODUCT_AMX_H

#include "results_amx.h"

#if HAS_TILES

#define STEP_BYTES ((size_t)TILE_ROWS * OUTPUTS * 4) /* of weights, for 64 bytes of a row */

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
    PASS_TILE(6, weight, OUTPUTS * 4);
    PASS_TILE(7, weight + TILE_BYTES, OUTPUTS * 4);
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

/* 64 bytes of each row from byte `at` on, or what is left of it. */
INLINE void add_bytes(const struct product *job, const struct way way, const struct panel *panel, const char *weight,
                      size_t at) {
    const size_t stride = way.bytes ? job->size : job->size * 2;
    const char *x = (way.bytes ? (const char *)job->rows8.bytes : (const char *)job->x) + panel->row * stride + at;
    if (at + TILE_BYTES <= stride)
        add_step(way.tall, way.bytes, x, stride, weight);
    else
        add_rest(way.tall, way.bytes, x, stride, panel->rows, weight, stride - at);
}

/* Sums = x . weights of one tile of outputs; meanwhile `each` rows a step are written. */
INLINE void sum_tile(const struct product *job, const struct way way, const struct panel *panel, const char *weight,
                     void *sums, struct writer *writer, size_t each, struct ahead *ahead, size_t lines) {
    const size_t end = way.bytes ? job->size : job->size * 2;
    zero_sums(way.tall);
    for (size_t at = 0; at < end; at += TILE_BYTES, weight += STEP_BYTES) {
        fetch_lines(ahead, lines);
        add_bytes(job, way, panel, weight, at);
        write_rows(job, way, writer, each);
    }
    store_sums(sums, way.tall);
}

/* One panel's sums, and meanwhile the results of the one before. */
INLINE void multiply_panel(const struct product *job, const struct way way, const struct panel *panel,
                           const struct unfinished *before, struct unfinished *now, struct ahead *ahead, size_t lines) {
    const size_t row_bytes = way.bytes ? job->size : job->size * 2;
    const size_t steps = (row_bytes + TILE_BYTES - 1) / TILE_BYTES * (way.gated ? 2 : 1);
    const char *weight = weights_at(job, panel->first);
    const size_t each = (ROWS_OF_TILES + steps - 1) / steps;
    struct writer writer = start_writing(job, way, before, 1);
    now->panel = *panel;
    fetch_results(job, way, panel);
    if (way.gated) {
        const char *up = weights_at(job, job->outputs + panel->first);
        struct ahead between = {up, up + tile_bytes(job)};
        sum_tile(job, way, panel, weight, now->sums, &writer, each, &between, lines);
        sum_tile(job, way, panel, up, now->more, &writer, each, ahead, lines);
    } else {
        sum_tile(job, way, panel, weight, now->sums, &writer, each, ahead, lines);
    }
    write_rows(job, way, &writer, ROWS_OF_TILES);
}

INLINE void write_panel(const struct product *job, const struct way way, const struct unfinished *done) {
    struct writer writer = start_writing(job, way, done, 1);
    write_rows(job, way, &writer, ROWS_OF_TILES);
}

/* Sums of bytes with several scales a row: a group of inputs after the other, in each for all tiles of outputs, so that
 * the group's bytes stay in the nearest cache. What becomes of a group's sums, to be added to those of the groups before
 * or to be written after the last, is done beside the products of the next tile. */
INLINE void multiply_groups(const struct product *job, const struct way way, const struct panel *panel, size_t last,
                            struct ahead *ahead, size_t lines) {
    const size_t groups = num_groups(job->size, job->group), tiles = (last - panel->first + OUTPUTS - 1) / OUTPUTS;
    const size_t each = (ROWS_OF_TILES * TILE_BYTES + job->group - 1) / job->group;
    struct unfinished done[MANY_OUTPUTS / OUTPUTS];
    _Alignas(64) int32_t sums[ROWS_OF_TILES][OUTPUTS];
    struct adder adder = {.rows = 0};
    struct writer writer = {.left = 0};
    for (size_t group = 0; group < groups; group++)
        for (size_t tile = 0; tile < tiles; tile++) {
            const size_t first = panel->first + tile * OUTPUTS, end = at_most((group + 1) * job->group, job->size);
            const char *weight = weights_at(job, first) + group * job->group * OUTPUTS;
            size_t row = 0;
            zero_sums(way.tall);
            for (size_t at = group * job->group; at < end; at += TILE_BYTES, weight += STEP_BYTES, row += each) {
                fetch_lines(ahead, lines);
                add_bytes(job, way, panel, weight, at);
                add_rows(&adder, row, row + each);
                write_rows(job, way, &writer, each);
            }
            add_rows(&adder, row, ROWS_OF_TILES);
            write_rows(job, way, &writer, ROWS_OF_TILES);
            adder.rows = 0;
            if (group + 1 < groups) {
                store_sums(sums, way.tall);
                adder = start_adding(job, panel, group, groups, sums, done[tile].more);
            } else {
                store_sums(done[tile].sums, way.tall);
                done[tile].panel = (struct panel){first, panel->row, panel->rows};
                writer = start_writing(job, way, &done[tile], groups);
            }
        }
    write_rows(job, way, &writer, ROWS_OF_TILES);
}

/* A function for each way, see product.h; without a panel it only writes what isn't written. */
typedef void panel_multiplier(const struct product *job, const struct panel *panel, const struct unfinished *before,
                              struct unfinished *now, struct ahead *ahead, size_t lines);

#define PANEL(name, ...) \
    static __attribute__((noinline)) void name(const struct product *job, const struct panel *panel, \
                                               const struct unfinished *before, struct unfinished *now, \
                                               struct ahead *ahead, size_t lines) { \
        const struct way way = {__VA_ARGS__}; \
        if (panel) \
            multiply_panel(job, way, panel, before, now, ahead, lines); \
        else \
            write_panel(job, way, before); \
    }
PANEL(pairs_to_bf16, 0, 0, 1, 0)
PANEL(pairs_to_float, 0, 0, 0, 0)
PANEL(fours_to_bf16, 0, 1, 1, 0)
PANEL(fours_to_float, 0, 1, 0, 0)
PANEL(pairs_gated, 0, 0, 1, 1)
PANEL(fours_gated, 0, 1, 1, 1)
PANEL(more_pairs_to_bf16, 1, 0, 1, 0)
PANEL(more_pairs_to_float, 1, 0, 0, 0)
PANEL(more_fours_to_bf16, 1, 1, 1, 0)
PANEL(more_fours_to_float, 1, 1, 0, 0)
PANEL(more_pairs_gated, 1, 0, 1, 1)
PANEL(more_fours_gated, 1, 1, 1, 1)

/* By whether there are rows beyond the 16th, and by kind. */
static panel_multiplier *const panel_multipliers[2][6] = {
    {pairs_to_bf16, pairs_to_float, fours_to_bf16, fours_to_float, pairs_gated, fours_gated},
    {more_pairs_to_bf16, more_pairs_to_float, more_fours_to_bf16, more_fours_to_float, more_pairs_gated,
     more_fours_gated}};

typedef void group_multiplier(const struct product *job, const struct panel *panel, size_t last, struct ahead *ahead,
                              size_t lines);

#define GROUPS(name, ...) \
    static __attribute__((noinline)) void name(const struct product *job, const struct panel *panel, size_t last, \
                                               struct ahead *ahead, size_t lines) { \
        const struct way way = {__VA_ARGS__}; \
        multiply_groups(job, way, panel, last, ahead, lines); \
    }
GROUPS(groups_to_bf16, 0, 1, 1, 0)
GROUPS(groups_to_float, 0, 1, 0, 0)
GROUPS(more_groups_to_bf16, 1, 1, 1, 0)
GROUPS(more_groups_to_float, 1, 1, 0, 0)

/* By whether there are rows beyond the 16th, and by whether results are floats. */
static group_multiplier *const group_multipliers[2][2] = {{groups_to_bf16, groups_to_float},
                                                          {more_groups_to_bf16, more_groups_to_float}};

/* Rows up to `end` by outputs up to `last`, in passes of about as many rows each; what is ahead is fetched in the
 * first of them. A pass takes all outputs, so that its rows stay in the nearest cache. */
static void multiply_by_tiles(const struct product *job, size_t first, size_t last, size_t row, size_t end,
                              struct ahead *ahead) {
    const size_t rows = end - row, passes = (rows + ROWS_OF_TILES - 1) / ROWS_OF_TILES;
    const int grouped = is_int8(job) && job->group < job->size;
    struct unfinished panels[2];
    size_t count = 0;
    panels[1].panel = (struct panel){0};
    for (size_t pass = 0, shaped = 0; pass < passes; pass++) {
        const size_t from = row + rows * pass / passes;
        struct panel panel = {first, from, row + rows * (pass + 1) / passes - from};
        const int tall = panel.rows > TILE_ROWS;
        if (panel.rows != shaped) shape_products(shaped = panel.rows);
        const size_t lines = pass || ahead->at == ahead->end ? 0 : STEP_BYTES / 64 / passes;
        if (grouped) group_multipliers[tall][job->kind == INT8_TO_FLOAT](job, &panel, last, ahead, lines);
        for (; !grouped && panel.first < last; panel.first += OUTPUTS, count++)
            panel_multipliers[tall][job->kind](job, &panel, &panels[(count + 1) % 2], &panels[count % 2], ahead, lines);
    }
    if (count) panel_multipliers[0][job->kind](job, NULL, &panels[(count + 1) % 2], NULL, ahead, 0);
}

#endif

#endif
