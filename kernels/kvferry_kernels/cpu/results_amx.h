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
};

/* What a panel's products are and what becomes of them: constants at every call. `tall`: rows beyond the 16th. */
struct way {
    int tall, bytes, out_bf16, gated;
};

INLINE const char *weights_at(const struct product *job, size_t output) {
    return (const char *)job->weight + output / OUTPUTS * tile_bytes(job);
}

static const float no_sums[OUTPUTS]; /* of the groups before the first */

/* Rows of an unfinished panel, one after the other. A copy of all that the loop over them needs, which stays in registers:
 * the unit's instructions count as touching memory, so that whatever is there is read again after each of them. */
struct writer {
    const char *sums, *more;    /* of the next row */
    const float *scales;        /* of the next row's last group of bytes */
    const int32_t *corrections; /* likewise */
    char *out;
    size_t left; /* rows */
    size_t groups, stride, first;
    vec outputs[2], others[2]; /* scales of outputs of bytes; others: of what the gates are for */
};

/* `groups` of a row's inputs, whose last one's sums are the panel's. */
INLINE struct writer start_writing(const struct product *job, const struct way way, const struct unfinished *done,
                                   size_t groups) {
    const struct panel *panel = &done->panel;
    const size_t number = way.out_bf16 ? 2 : 4, last_group = (panel->row + 1) * groups - 1;
    struct writer writer = {
        .sums = (const char *)done->sums, .more = (const char *)done->more,
        .out = (char *)job->out + (panel->row * job->outputs + panel->first) * number,
        .left = panel->rows, .groups = groups, .stride = job->outputs * number, .first = panel->first};
    if (!way.bytes || !panel->rows) return writer;
    writer.scales = job->rows8.scales + last_group;
    writer.corrections = job->rows8.corrections + last_group;
    UNROLL for (int c = 0; c < 2; c++) {
        const char *scales = weights_at(job, panel->first) + job->size * OUTPUTS;
        writer.outputs[c] = load(scales, (size_t)c * WIDTH, 0);
        scales = way.gated ? weights_at(job, job->outputs + panel->first) + job->size * OUTPUTS : scales;
        writer.others[c] = load(scales, (size_t)c * WIDTH, 0);
    }
    return writer;
}

/* Integers of one group of bytes, times the scale of their row, plus what the groups before are, added by one operation
 * with the product as in the other libraries. */
INLINE vec scaled(const void *sums, int32_t correction, float scale, const void *before) {
    const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(correction));
    return (vec)_mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale), _mm512_loadu_ps(before));
}

/* The next row's results, without bias: one vector of them. */
INLINE vec result_of(const struct way way, const struct writer *writer, const char *sums, int c, vec outputs) {
    const size_t at = (size_t)c * sizeof(vec);
    if (!way.bytes) return load(sums + at, 0, 0);
    const char *before = !way.gated && writer->groups > 1 ? writer->more + at : (const char *)no_sums;
    vec value = scaled(sums + at, *writer->corrections, *writer->scales, before) * outputs;
    __asm__("" : "+v"(value)); /* rounded before a bias is added, as in the other libraries */
    return value;
}

/* The same with its bias, rounded to bfloat16 as if it had been stored. */
INLINE vec rounded(const struct product *job, vec value, size_t at) {
    if (job->bias) value += load(job->bias, at, 1);
    return (vec)(widen((hvec)_mm512_cvtneps_pbh((__m512)value)) << 16);
}

/* Whole tiles only, and of bytes rows with one scale. */
INLINE void write_gated(const struct product *job, const struct way way, const struct writer *writer) {
    vec value[2];
    UNROLL for (int c = 0; c < 2; c++) {
        const size_t at = writer->first + (size_t)c * WIDTH;
        const vec x = rounded(job, result_of(way, writer, writer->sums, c, writer->outputs[c]), at);
        const vec y = rounded(job, result_of(way, writer, writer->more, c, writer->others[c]), job->outputs + at);
        value[c] = x * sigmoid_for_bf16(x) * y;
    }
    _mm512_storeu_si512(writer->out, (__m512i)_mm512_cvtne2ps_pbh((__m512)value[1], (__m512)value[0]));
}

INLINE void write_plain(const struct product *job, const struct way way, const struct writer *writer) {
    const size_t bias_bf16 = !way.bytes || way.out_bf16;
    vec value[2];
    UNROLL for (int c = 0; c < 2; c++) value[c] = result_of(way, writer, writer->sums, c, writer->outputs[c]);
    if (way.out_bf16 && !job->bias && writer->first + OUTPUTS <= job->outputs) {
        /* what is too small for a normal number becomes 0, as it does in the unit */
        _mm512_storeu_si512(writer->out, (__m512i)_mm512_cvtne2ps_pbh((__m512)value[1], (__m512)value[0]));
        return;
    }
    const size_t end = job->outputs - writer->first;
    UNROLL for (int c = 0; c < 2; c++) {
        const size_t i = (size_t)c * WIDTH, at = writer->first + i;
        if (i >= end) return;
        if (job->bias)
            value[c] += bias_bf16 ? load_upto(job->bias, at, job->outputs, 1) : load_upto(job->bias, at, job->outputs, 0);
        store_upto(writer->out, i, end, value[c], way.out_bf16);
    }
}

/* Up to `count` rows more. */
INLINE void write_rows(const struct product *job, const struct way way, struct writer *writer, size_t count) {
    for (size_t n = at_most(count, writer->left); n; n--) {
        if (way.gated)
            write_gated(job, way, writer);
        else
            write_plain(job, way, writer);
        writer->sums += sizeof(float[OUTPUTS]);
        writer->more += sizeof(float[OUTPUTS]);
        writer->out += writer->stride;
        writer->scales += writer->groups;
        writer->corrections += writer->groups;
        writer->left--;
    }
}

/* Sums of one group of bytes, to be scaled and added to those of the groups before, beside the next group's products. */
struct adder {
    const int32_t (*sums)[OUTPUTS];
    float (*total)[OUTPUTS];
    const float *before; /* the first row of the groups before, and how far on the next is */
    size_t stride;
    const float *scales;
    const int32_t *corrections;
    size_t rows, groups;
};

INLINE struct adder start_adding(const struct product *job, const struct panel *panel, size_t group, size_t groups,
                                 const int32_t (*sums)[OUTPUTS], sums_of_tiles total) {
    const size_t at = panel->row * groups + group;
    return (struct adder){sums, total, group ? total[0] : no_sums, group ? OUTPUTS : 0, job->rows8.scales + at,
                          job->rows8.corrections + at, panel->rows, groups};
}

/* Rows `first` to `end`, as far as there are. */
INLINE void add_rows(const struct adder *adder, size_t first, size_t end) {
    end = at_most(end, adder->rows);
    for (size_t r = first; r < end; r++) {
        const int32_t *sums = adder->sums[r], correction = adder->corrections[r * adder->groups];
        const float *before = adder->before + r * adder->stride, scale = adder->scales[r * adder->groups];
        const vec low = scaled(sums, correction, scale, before);
        const vec high = scaled(sums + WIDTH, correction, scale, before + WIDTH);
        store(adder->total[r], 0, low, 0);
        store(adder->total[r], WIDTH, high, 0);
    }
}

/* Where results will be written, to be in the nearest cache by then: loads wait for stores before them that wait. */
INLINE void fetch_results(const struct product *job, const struct way way, const struct panel *panel) {
    const size_t bytes = way.out_bf16 ? 2 : 4;
    const char *out = (const char *)job->out + (panel->row * job->outputs + panel->first) * bytes;
    for (size_t r = 0; r < panel->rows; r++) __builtin_prefetch(out + r * job->outputs * bytes, 1, 3);
}

#endif

#endif
