/* Scores and weighted sums of a tile of 64 tokens on the matrix unit, in bfloat16: see tiles.h and attention_tile.h.
 *
 * Up to 16 rows at a time. Registers 0 to 3 hold sums; 4 and 5 rows, of 32 and of 16 numbers; 6 and 7 a block of K or V, 16
 * and 8 rows of pairs. A block of K has a pair of dimensions of its 16 tokens in 64 bytes, one of V a pair of tokens
 * of 16 dimensions. */

#ifndef KVFERRY_ATTENTION_AMX_H
#define KVFERRY_ATTENTION_AMX_H

#include "attention_tile.h"
#include "tiles.h"

#if HAS_TILES

#define HALF_BYTES (TILE_BYTES / 2)
#define ROW_OF_SCORES (TILE * 4)

INLINE void shape_attention(struct rows *state, size_t rows) {
    if (state->shaped == rows) return;
    const uint8_t n = (uint8_t)rows;
    const struct tile_shapes shapes = {
        .palette = 1,
        .row_bytes = {TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, TILE_BYTES, HALF_BYTES, TILE_BYTES, TILE_BYTES},
        .rows = {n, n, n, n, n, n, TILE_ROWS, TILE_ROWS / 2}};
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

INLINE void score_by_tiles(struct rows *state, size_t first, size_t end, const struct tile *tile,
                           const struct tile *next, size_t dim) {
    const size_t row_bytes = dim * 2, most = rows_at_once(end - first);
    for (size_t row = first; row < end; row += most, next = NULL) {
        const char *q = (const char *)state->q + row * row_bytes;
        char *scores = (char *)(state->weights + row * TILE);
        shape_attention(state, at_most(end - row, most));
        SCORE_BLOCK(0, 0);
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 0);
        if (tile->num_blocks > 1) SCORE_BLOCK(1, 1);
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 1);
        if (tile->num_blocks > 2) SCORE_BLOCK(2, 2);
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 2);
        if (tile->num_blocks > 3) SCORE_BLOCK(3, 3);
        if (next) fetch_quarter(&next->k, BLOCK * row_bytes, 3);
    }
}

/* Scores of a row become weights: the first `num_tokens`, the others 0. The running softmax is in powers of two. The
 * total is of the weights as they are used, rounded, so that they sum to 1. */
INLINE void soften_row(struct rows *state, size_t row, size_t num_tokens, float scale) {
    const uint64_t seen = num_tokens < TILE ? ((uint64_t)1 << num_tokens) - 1 : ~(uint64_t)0;
    const float *from = state->weights + row * TILE;
    const float least = state->top[row], to_power = scale * 1.44269504f;
    uint16_t *to = state->half_weights + row * TILE;
    __m512 score[TILE / WIDTH];
    UNROLL for (int c = 0; c < TILE / WIDTH; c++)
        score[c] = _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), (__mmask16)(seen >> (c * WIDTH)),
                                      (__m512)load(from, (size_t)c * WIDTH, 0));
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(score[0], score[1]),
                                                          _mm512_max_ps(score[2], score[3]))) * to_power;
    const float top = most > least ? most : least;
    const __m512 below = _mm512_set1_ps(-top), by = _mm512_set1_ps(to_power), lowest = _mm512_set1_ps(-126.0f);
    vec sum = {0};
    UNROLL for (int c = 0; c < TILE / WIDTH; c += 2) {
        __m512 weight[2];
        UNROLL for (int i = 0; i < 2; i++) {
            const __m512 power = _mm512_fmadd_ps(score[c + i], by, below);
            weight[i] = exp2_for_bf16(power, _mm512_cmp_ps_mask(power, lowest, _CMP_NLT_UQ)); /* a NaN stays one */
        }
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(weight[1], weight[0]);
        _mm512_storeu_si512(to + c * WIDTH, both);
        /* the odd ones where they are, the even ones moved up: the sum is in a fixed order all the same */
        sum += (vec)_mm512_slli_epi32(both, 16);
        sum += (vec)_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u));
    }
    const __m512 old = _mm512_set1_ps(least - top);
    const float shrink = _mm512_cvtss_f32(exp2_for_bf16(old, _mm512_cmp_ps_mask(old, lowest, _CMP_NLT_UQ)));
    state->top[row] = top;
    state->total[row] = state->total[row] * shrink + sum_of(sum);
    state->shrink[row] = shrink;
}

INLINE void shrink_rows(struct rows *state, size_t row, size_t end, size_t dim) {
    for (; row < end; row++) {
        float *to = state->mix + row * dim;
        if (state->shrink[row] != 1.0f)
            for (size_t d = 0; d < dim; d += WIDTH) store(to, d, load(to, d, 0) * state->shrink[row], 0);
    }
}

/* Block `b` of V; of the block that the context ends in a copy, with zeros where its memory may hold anything. */
INLINE const char *values_of(const struct tile *tile, size_t b, size_t num_tokens, size_t dim, char *copy) {
    const size_t tokens = num_tokens - b * BLOCK, row_bytes = dim * 4;
    if (tokens >= BLOCK) return tile->v.at[b];
    memset(copy, 0, BLOCK / 2 * row_bytes);
    memcpy(copy, tile->v.at[b], tokens / 2 * row_bytes);
    if (tokens % 2) {
        const uint32_t *from = (const uint32_t *)(tile->v.at[b] + tokens / 2 * row_bytes);
        uint32_t *to = (uint32_t *)(copy + tokens / 2 * row_bytes);
        for (size_t d = 0; d < dim; d++) to[d] = from[d] & 0xffffu;
    }
    return copy;
}

#define MIX_BLOCK(sum, value) \
    do { \
        LOAD_TILE(7, value, dim * 4); \
        ADD_PAIRS(sum, 5, 7); \
    } while (0)

/* mix[row] = mix[row] * shrink[row] + weights[row] . V over the tile's first tokens. */
INLINE void mix_by_tiles(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                         size_t num_tokens, size_t dim) {
    _Alignas(64) char copy[BLOCK / 2 * MAX_DIM * 4];
    const size_t blocks = (num_tokens + BLOCK - 1) / BLOCK, most = rows_at_once(end - first);
    const char *v[TILE_BLOCKS];
    for (size_t b = 0; b < blocks; b++) v[b] = values_of(tile, b, num_tokens, dim, copy);
    if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 0);
    shrink_rows(state, first, end, dim);
    for (size_t row = first; row < end; row += most, next = NULL) {
        const char *weights = (const char *)(state->half_weights + row * TILE);
        char *mix = (char *)(state->mix + row * dim);
        size_t d = 0;
        shape_attention(state, at_most(end - row, most));
        if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 1);
        for (; d + 4 * TILE_ROWS <= dim; d += 4 * TILE_ROWS) {
            LOAD_TILE(0, mix + d * 4, dim * 4);
            LOAD_TILE(1, mix + d * 4 + TILE_BYTES, dim * 4);
            LOAD_TILE(2, mix + d * 4 + 2 * TILE_BYTES, dim * 4);
            LOAD_TILE(3, mix + d * 4 + 3 * TILE_BYTES, dim * 4);
            for (size_t b = 0; b < blocks; b++) {
                LOAD_TILE(5, weights + b * HALF_BYTES, TILE * 2);
                MIX_BLOCK(0, v[b] + d * 4);
                MIX_BLOCK(1, v[b] + d * 4 + TILE_BYTES);
                MIX_BLOCK(2, v[b] + d * 4 + 2 * TILE_BYTES);
                MIX_BLOCK(3, v[b] + d * 4 + 3 * TILE_BYTES);
            }
            STORE_TILE(0, mix + d * 4, dim * 4);
            STORE_TILE(1, mix + d * 4 + TILE_BYTES, dim * 4);
            STORE_TILE(2, mix + d * 4 + 2 * TILE_BYTES, dim * 4);
            STORE_TILE(3, mix + d * 4 + 3 * TILE_BYTES, dim * 4);
        }
        for (; d < dim; d += TILE_ROWS) {
            LOAD_TILE(0, mix + d * 4, dim * 4);
            for (size_t b = 0; b < blocks; b++) {
                LOAD_TILE(5, weights + b * HALF_BYTES, TILE * 2);
                MIX_BLOCK(0, v[b] + d * 4);
            }
            STORE_TILE(0, mix + d * 4, dim * 4);
        }
        if (next) fetch_quarter(&next->v, BLOCK * dim * 2, 2);
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
