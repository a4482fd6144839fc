/* Scores and weighted sums of a tile of 64 tokens on the matrix unit, in bfloat16: see tiles.h and attention_tile.h.
 *
 * Up to 16 rows at a time. Registers 0 to 3 hold sums; 4 and 5 rows, of 32 numbers; 6 and 7 a block of K, or V of 32 tokens,
 * 16 rows of pairs. Where heads end in 16 numbers, 5 and 7 are half as large. A block of K has a pair of dimensions of
 * its 16 tokens in 64 bytes. Two blocks of V are lined up, a pair of tokens of 16 dimensions in 64 bytes: a product
 * takes the unit as long with 16 tokens as with 32. */

#ifndef KVFERRY_ATTENTION_AMX_H
#define KVFERRY_ATTENTION_AMX_H

#include "attention_tile.h"
#include "tiles.h"

#if HAS_TILES

#define ROW_OF_SCORES (TILE * 4)

/* Whether the numbers of a head fill whole registers; then all of them are used whole. */
INLINE int is_whole(size_t dim) { return dim * 2 % TILE_BYTES == 0; }

INLINE void shape_attention(struct rows *state, size_t rows, size_t dim) {
    if (state->shaped == rows) return;
    const uint8_t n = (uint8_t)rows, halves = is_whole(dim) ? 1 : 2;
    const uint16_t last = TILE_BYTES / halves;
    const struct tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, last, TILE_BYTES, TILE_BYTES},
        .rows = {n, n, n, n, n, n, TILE_ROWS, TILE_ROWS / halves}};
    set_shapes(&shapes);
    state->shaped = rows;
}

/* Scores of the shaped rows with one block. */
#define SCORE_BLOCK(sum, block) \
    do { \
        const char *k = tile->k.at[block]; \
        size_t at = 0; \
        ZERO_TILE(sum); \
        for (; at + TILE_BYTES <= row_bytes; at += TILE_BYTES) { \
            LOAD_TILE(4, q + at, row_bytes); \
            LOAD_TILE(6, k + at / 4 * TILE_BYTES, TILE_BYTES); \
            ADD_PAIRS(sum, 4, 6); \
        } \
        if (at < row_bytes) { \
            LOAD_TILE(5, q + at, row_bytes); \
            LOAD_TILE(7, k + at / 4 * TILE_BYTES, TILE_BYTES); \
            ADD_PAIRS(sum, 5, 7); \
        } \
        STORE_TILE(sum, scores + (block) * TILE_BYTES, ROW_OF_SCORES); \
    } while (0)

/* The same of rows of 64 numbers, which stay in registers 4 and 5. */
#define SCORE_BLOCK_OF_64(sum, block) \
    do { \
        const char *k = tile->k.at[block]; \
        ZERO_TILE(sum); \
        LOAD_TILE(6, k, TILE_BYTES); \
        ADD_PAIRS(sum, 4, 6); \
        LOAD_TILE(7, k + TILE_ROWS * TILE_BYTES, TILE_BYTES); \
        ADD_PAIRS(sum, 5, 7); \
        STORE_TILE(sum, scores + (block) * TILE_BYTES, ROW_OF_SCORES); \
    } while (0)

/* A quarter of each piece, of `bytes`: between products, so that reading and computing overlap. */
INLINE void fetch_quarter(const struct pieces *pieces, size_t bytes, size_t quarter) {
    for (size_t at = bytes / 4 * quarter; at < bytes / 4 * (quarter + 1); at += 64)
        UNROLL for (int b = 0; b < TILE_BLOCKS; b++) __builtin_prefetch(pieces->at[b] + at, 0, 2);
}

/* How many rows from `row` on are computed at once: parts of about the same size need no new shapes. */
INLINE size_t rows_at_once(size_t rows) {
    const size_t passes = (rows + TILE_ROWS - 1) / TILE_ROWS;
    return (rows + passes - 1) / passes;
}

#define SCORE_TILE(SCORE) \
    do { \
        SCORE(0, 0); \
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 0); \
        if (tile->num_blocks > 1) SCORE(1, 1); \
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 1); \
        if (tile->num_blocks > 2) SCORE(2, 2); \
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 2); \
        if (tile->num_blocks > 3) SCORE(3, 3); \
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 3); \
    } while (0)

INLINE void score_by_tiles(struct rows *state, size_t first, size_t end, const struct tile *tile,
                           const struct tile *next, size_t dim) {
    const size_t row_bytes = dim * 2, most = rows_at_once(end - first);
    for (size_t row = first; row < end; row += most, next = NULL) {
        const char *q = (const char *)state->q + row * row_bytes;
        char *scores = (char *)(state->weights + row * TILE);
        shape_attention(state, at_most(end - row, most), dim);
        if (row_bytes == 2 * TILE_BYTES) {
            LOAD_TILE(4, q, 2 * TILE_BYTES);
            LOAD_TILE(5, q + TILE_BYTES, 2 * TILE_BYTES);
            SCORE_TILE(SCORE_BLOCK_OF_64);
        } else {
            SCORE_TILE(SCORE_BLOCK);
        }
    }
}

#define FOUR 4 /* rows whose softmax is computed together: what one has a single number of fills a quarter of a vector */

/* Sums, or maxima, over the lanes of four vectors, in the order of vector.h's: halves are folded onto each other. */
#define FOLD_FOUR(op, x) \
    ({ \
        const __m512 first = op(_mm512_shuffle_f32x4(x[0], x[1], 0x44), _mm512_shuffle_f32x4(x[0], x[1], 0xee)); \
        const __m512 second = op(_mm512_shuffle_f32x4(x[2], x[3], 0x44), _mm512_shuffle_f32x4(x[2], x[3], 0xee)); \
        const __m512 four = op(_mm512_shuffle_f32x4(first, second, 0x88), _mm512_shuffle_f32x4(first, second, 0xdd)); \
        const __m512 two = op(four, _mm512_permute_ps(four, 0x4e)); \
        op(two, _mm512_permute_ps(two, 0xb1)); \
    })

/* Numbers of up to four rows from memory and back. */
INLINE __m512 load_four(const float *from, __mmask8 rows) {
    const __m512i quarters = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(quarters, _mm512_zextps128_ps512(_mm_maskz_loadu_ps(rows, from)));
}

INLINE void store_four(float *to, __mmask8 rows, __m512 four) {
    const __m512i firsts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    _mm_mask_storeu_ps(to, rows, _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, four)));
}

/* One vector of a row's scores. `seen` has a bit for each token that it sees, or is NULL if it sees all. */
INLINE __m512 score_of(const struct rows *state, size_t row, int c, const uint64_t *seen) {
    const float *from = state->weights + row * TILE + c * WIDTH;
    if (!seen) return _mm512_loadu_ps(from);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-__builtin_inff()), (__mmask16)(seen[row] >> (c * WIDTH)), from);
}

#define LAX 8.0f /* powers of two */

/* The running softmax is in powers of two, below a top that a score may surpass by LAX before it is raised: so what was
 * summed up seldom has to shrink. */
INLINE void raise_tops(struct rows *state, size_t row, int count, const uint64_t *seen, float scale) {
    const __mmask8 rows = (__mmask8)((1u << count) - 1);
    __m512 most[FOUR];
    UNROLL for (int i = 0; i < FOUR; i++) {
        most[i] = _mm512_setzero_ps();
        if (i >= count) continue;
        most[i] = score_of(state, row + (size_t)i, 0, seen);
        UNROLL for (int c = 1; c < TILE / WIDTH; c++)
            most[i] = _mm512_max_ps(score_of(state, row + (size_t)i, c, seen), most[i]);
    }
    const __m512 before = load_four(state->top + row, rows);
    const __m512 peak = _mm512_mul_ps(FOLD_FOUR(_mm512_max_ps, most), _mm512_set1_ps(scale * 1.44269504f));
    const __mmask16 higher = _mm512_cmp_ps_mask(peak, _mm512_add_ps(before, _mm512_set1_ps(LAX)), _CMP_GT_OQ);
    const __m512 top = _mm512_mask_mov_ps(before, higher, peak);
    store_four(state->top + row, rows, top);
    store_four(state->shrink + row, rows, exp2_for_bf16(_mm512_sub_ps(before, top)));
    state->shrinks |= higher != 0;
}

/* Scores become weights. The total is of the weights as they are used, rounded, so that they sum to 1. */
INLINE void weigh_four(struct rows *state, size_t row, int count, const uint64_t *seen, float scale) {
    const __mmask8 rows = (__mmask8)((1u << count) - 1);
    const __m512 by = _mm512_set1_ps(scale * 1.44269504f);
    const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 sum[FOUR] = {0};
    UNROLL for (int i = 0; i < FOUR; i++) {
        if (i >= count) continue;
        const __m512 top = _mm512_set1_ps(state->top[row + (size_t)i]);
        uint16_t *to = state->half_weights + (row + (size_t)i) * TILE;
        UNROLL for (int c = 0; c < TILE / WIDTH; c += 2) {
            const __m512 one = _mm512_fmsub_ps(score_of(state, row + (size_t)i, c, seen), by, top);
            const __m512 other = _mm512_fmsub_ps(score_of(state, row + (size_t)i, c + 1, seen), by, top);
            const __m512bh both = _mm512_cvtne2ps_pbh(exp2_for_bf16(other), exp2_for_bf16(one));
            _mm512_storeu_si512(to + c * WIDTH, (__m512i)both);
            sum[i] = _mm512_dpbf16_ps(sum[i], both, ones);
        }
    }
    const __m512 total = load_four(state->total + row, rows), shrink = load_four(state->shrink + row, rows);
    store_four(state->total + row, rows, _mm512_fmadd_ps(total, shrink, FOLD_FOUR(_mm512_add_ps, sum)));
}

/* All rows from `first` to `end`; in two passes, so that a processor can work on several of them at a time. */
INLINE void soften(struct rows *state, size_t first, size_t end, const uint64_t *seen, float scale) {
    size_t row = first;
    state->shrinks = 0;
    for (; row + FOUR <= end; row += FOUR) raise_tops(state, row, FOUR, seen, scale);
    if (row < end) raise_tops(state, row, (int)(end - row), seen, scale);
    for (row = first; row + FOUR <= end; row += FOUR) weigh_four(state, row, FOUR, seen, scale);
    if (row < end) weigh_four(state, row, (int)(end - row), seen, scale);
}

/* `group` rows for each query, of which the first sees `num_tokens` and each after it one more. */
INLINE void soften_rows(struct rows *state, size_t row, size_t end, size_t group, size_t num_tokens, float scale) {
    uint64_t seen[MAX_ROWS];
    if (num_tokens >= TILE) {
        soften(state, row, end, NULL, scale);
        return;
    }
    for (size_t r = row, of_query = 0; r < end; r++) {
        seen[r] = num_tokens < TILE ? ((uint64_t)1 << num_tokens) - 1 : ~(uint64_t)0;
        if (++of_query < group) continue;
        of_query = 0;
        num_tokens++;
    }
    soften(state, row, end, seen, scale);
}

INLINE void shrink_rows(struct rows *state, size_t row, size_t end, size_t dim) {
    for (; state->shrinks && row < end; row++) {
        float *to = state->mix + row * dim;
        if (state->shrink[row] != 1.0f)
            for (size_t d = 0; d < dim; d += WIDTH) store(to, d, load(to, d, 0) * state->shrink[row], 0);
    }
}

/* V of the tile's first tokens, [pairs, dim, 2], one after another; where its memory may hold anything, zeros. Up to a whole
 * number of registers. */
INLINE void line_up(char *values, const struct tile *tile, size_t num_tokens, size_t dim) {
    const size_t row_bytes = dim * 4, pairs = num_tokens / 2;
    const size_t all = (num_tokens + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS) * TILE_ROWS;
    for (size_t pair = 0; pair < all; pair++, values += row_bytes) {
        const char *from = tile->v.at[pair / (BLOCK / 2)] + pair % (BLOCK / 2) * row_bytes;
        if (pair < pairs)
            for (size_t i = 0; i < row_bytes; i += TILE_BYTES)
                _mm512_store_si512(values + i, _mm512_loadu_si512(from + i));
        else
            for (size_t i = 0; i < row_bytes; i += TILE_BYTES)
                _mm512_store_si512(values + i, pair == pairs && num_tokens % 2
                                                   ? _mm512_maskz_loadu_epi16(0x55555555u, from + i)
                                                   : _mm512_setzero_si512());
    }
}

#define MIX_VALUES(sum, at) \
    do { \
        LOAD_TILE(6, at, dim * 4); \
        ADD_PAIRS(sum, 4, 6); \
    } while (0)

/* mix[row] += weights[row] . V for the shaped rows, 16 dimensions a register. */
INLINE void mix_by_registers(const char *weights, char *mix, const char *values, size_t halves, size_t dim) {
    size_t d = 0;
    for (; d + 4 * TILE_ROWS <= dim; d += 4 * TILE_ROWS) {
        LOAD_TILE(0, mix + d * 4, dim * 4);
        LOAD_TILE(1, mix + d * 4 + TILE_BYTES, dim * 4);
        LOAD_TILE(2, mix + d * 4 + 2 * TILE_BYTES, dim * 4);
        LOAD_TILE(3, mix + d * 4 + 3 * TILE_BYTES, dim * 4);
        for (size_t h = 0; h < halves; h++) {
            const char *v = values + h * TILE_ROWS * dim * 4 + d * 4;
            LOAD_TILE(4, weights + h * TILE_BYTES, TILE * 2);
            MIX_VALUES(0, v);
            MIX_VALUES(1, v + TILE_BYTES);
            MIX_VALUES(2, v + 2 * TILE_BYTES);
            MIX_VALUES(3, v + 3 * TILE_BYTES);
        }
        STORE_TILE(0, mix + d * 4, dim * 4);
        STORE_TILE(1, mix + d * 4 + TILE_BYTES, dim * 4);
        STORE_TILE(2, mix + d * 4 + 2 * TILE_BYTES, dim * 4);
        STORE_TILE(3, mix + d * 4 + 3 * TILE_BYTES, dim * 4);
    }
    for (; d < dim; d += TILE_ROWS) {
        LOAD_TILE(0, mix + d * 4, dim * 4);
        for (size_t h = 0; h < halves; h++) {
            LOAD_TILE(4, weights + h * TILE_BYTES, TILE * 2);
            MIX_VALUES(0, values + h * TILE_ROWS * dim * 4 + d * 4);
        }
        STORE_TILE(0, mix + d * 4, dim * 4);
    }
}

/* mix[row] = mix[row] * shrink[row] + weights[row] . V over the tile's first tokens. */
INLINE void mix_by_tiles(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                         size_t num_tokens, size_t dim) {
    _Alignas(64) char values[TILE / 2 * MAX_DIM * 4];
    const size_t halves = (num_tokens + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS), most = rows_at_once(end - first);
    if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 0);
    line_up(values, tile, num_tokens, dim);
    if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 1);
    shrink_rows(state, first, end, dim);
    for (size_t row = first; row < end; row += most, next = NULL) {
        shape_attention(state, at_most(end - row, most), dim);
        if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 2);
        mix_by_registers((const char *)(state->half_weights + row * TILE), (char *)(state->mix + row * dim), values,
                         halves, dim);
        if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 3);
    }
}

/* Whether V of the tile's first tokens is finite: then 0 times it is 0, and rows that see fewer of them can be computed
 * together with those that see all. */
INLINE int is_finite(const struct tile *tile, size_t num_tokens, size_t dim) {
    uint16_t odd = 0;
    for (size_t b = 0; b * BLOCK < num_tokens; b++) {
        const uint16_t *v = (const uint16_t *)tile->v.at[b];
        const size_t count = at_most(num_tokens - b * BLOCK, BLOCK) / 2 * 2 * dim;
        for (size_t i = 0; i < count; i++) odd |= (v[i] & 0x7f80) == 0x7f80;
    }
    if (num_tokens % 2) {
        const uint16_t *v = (const uint16_t *)tile->v.at[num_tokens / BLOCK] + num_tokens % BLOCK / 2 * 2 * dim;
        for (size_t d = 0; d < dim; d++) odd |= (v[2 * d] & 0x7f80) == 0x7f80;
    }
    return !odd;
}

#endif

#endif
