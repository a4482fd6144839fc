/* What becomes of sums of the matrix unit: results of a product, written beside the products of the next panel. */

#ifndef KVFERRY_RESULTS_AMX_H
#define KVFERRY_RESULTS_AMX_H

#include "product_types.h"
#include "tiles.h"

#if HAS_TILES

#define ROWS_OF_TILES (2 * TILE_ROWS)

typedef float sums_of_tiles[ROWS_OF_TILES][OUTPUTS];

/* What one call computes: `rows` from `row` on by 32 outputs from `first` on. */
struct panel {
    size_t first, row, rows;
};

/* A panel whose results aren't written yet. They are beside the products of the next panel, a few rows a step: vectors and
 * the unit work side by side, but a processor doesn't look so far ahead that it would find that out by itself. */
struct unfinished {
    _Alignas(64) sums_of_tiles sums; /* or integers; with bytes those of the last group */
    _Alignas(64) sums_of_tiles more; /* of the groups before, scaled; or of what the gates are for */
    struct panel panel;
    size_t groups; /* of a row's inputs */
    size_t next; /* the first row that isn't written */
};

/* What a panel's products are and what becomes of them: constants at every call. `tall`: rows beyond the 16th. */
struct way {
    int tall, bytes, out_bf16, gated;
};

INLINE const char *weights_at(const struct product *job, size_t output) {
    return (const char *)job->weight + output / OUTPUTS * tile_bytes(job);
}

/* A row's sums of one group of bytes, times its scale; `at` is the group's place among all rows'. */
INLINE vec scaled(const struct product *job, size_t at, const void *sums) {
    ivec sum;
    memcpy(&sum, sums, sizeof sum);
    return __builtin_convertvector(sum + job->rows8.corrections[at], vec) * job->rows8.scales[at];
}

/* A row's results, without bias, from output `at` on: one vector. */
INLINE vec result_of(const struct product *job, const struct way way, const struct unfinished *done, const float *sums,
                     size_t r, size_t at) {
    if (!way.bytes) return load(sums, 0, 0);
    /* Added whatever the number of groups is: so that it is one operation with the product, as in the other libraries. */
    const vec before = !way.gated && done->groups > 1 ? load(done->more[r], at % OUTPUTS, 0) : all(0.0f);
    const vec value = scaled(job, (done->panel.row + r + 1) * done->groups - 1, sums) + before;
    return value * load(weights_at(job, at) + job->size * OUTPUTS, at % OUTPUTS, 0);
}

/* The same with its bias, rounded to bfloat16 as if it had been stored. */
INLINE vec rounded(const struct product *job, vec value, size_t at) {
    if (job->bias) value += load(job->bias, at, 1);
    return (vec)(widen((hvec)_mm512_cvtneps_pbh((__m512)value)) << 16);
}

/* Whole tiles only, and of bytes rows with one scale. */
INLINE void write_gated(const struct product *job, const struct way way, const struct unfinished *done, size_t r) {
    vec value[2];
    UNROLL for (int c = 0; c < 2; c++) {
        const size_t at = done->panel.first + (size_t)c * WIDTH, other = job->outputs + at;
        const vec x = rounded(job, result_of(job, way, done, done->sums[r] + c * WIDTH, r, at), at);
        const vec y = rounded(job, result_of(job, way, done, done->more[r] + c * WIDTH, r, other), other);
        value[c] = x * sigmoid_for_bf16(x) * y;
    }
    _mm512_storeu_si512((uint16_t *)job->out + (done->panel.row + r) * job->outputs + done->panel.first,
                        (__m512i)_mm512_cvtne2ps_pbh((__m512)value[1], (__m512)value[0]));
}

INLINE void write_plain(const struct product *job, const struct way way, const struct unfinished *done, size_t r) {
    const size_t end = job->outputs, bias_bf16 = !way.bytes || way.out_bf16;
    char *out = (char *)job->out + (done->panel.row + r) * end * (way.out_bf16 ? 2 : 4);
    vec value[2];
    UNROLL for (int c = 0; c < 2; c++)
        value[c] = result_of(job, way, done, done->sums[r] + c * WIDTH, r, done->panel.first + (size_t)c * WIDTH);
    if (!way.bytes && way.out_bf16 && !job->bias && done->panel.first + OUTPUTS <= end) {
        /* what is too small for a normal number becomes 0, as it does in the unit */
        _mm512_storeu_si512((uint16_t *)out + done->panel.first,
                            (__m512i)_mm512_cvtne2ps_pbh((__m512)value[1], (__m512)value[0]));
        return;
    }
    UNROLL for (int c = 0; c < 2; c++) {
        const size_t at = done->panel.first + (size_t)c * WIDTH;
        if (at >= end) return;
        if (job->bias) value[c] += bias_bf16 ? load_upto(job->bias, at, end, 1) : load_upto(job->bias, at, end, 0);
        store_upto(out, at, end, value[c], way.out_bf16);
    }
}

/* Where results will be written, to be in the nearest cache by then: loads wait for stores before them that wait. */
INLINE void fetch_results(const struct product *job, const struct way way, const struct panel *panel) {
    const size_t bytes = way.out_bf16 ? 2 : 4;
    const char *out = (const char *)job->out + (panel->row * job->outputs + panel->first) * bytes;
    for (size_t r = 0; r < panel->rows; r++) __builtin_prefetch(out + r * job->outputs * bytes, 1, 3);
}

/* Up to `count` rows more. */
INLINE void write_rows(const struct product *job, const struct way way, struct unfinished *done, size_t count) {
    const size_t end = at_most(done->next + count, done->panel.rows);
    for (; done->next < end; done->next++) {
        if (way.gated)
            write_gated(job, way, done, done->next);
        else
            write_plain(job, way, done, done->next);
    }
}

#endif

#endif
