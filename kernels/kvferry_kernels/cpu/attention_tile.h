/* One tile of 64 tokens of attention: scores, weights and weighted sums for some rows, with each row's running softmax.
 *
 * A row is one query token and one query head. Its arithmetic has one fixed order whatever other rows are computed
 * beside it: chains over the dimension for scores, over tokens for sums (the matrix unit has an order of its own).
 *
 * In float a block of K is [dim, 16] and one of V [16, dim]. In bfloat16 neighbors lie in pairs, [dim / 2, 16, 2] and
 * [8, dim, 2], which is what instructions for products of pairs take; query and weights are bfloat16 then too. */

#ifndef KVFERRY_ATTENTION_TILE_H
#define KVFERRY_ATTENTION_TILE_H

#include "vector.h"

#define TILE 64
#define TILE_BLOCKS (TILE / BLOCK)
#define MAX_ROWS 64 /* the largest group of query heads */

/* The running softmax of a task's rows. Arrays begin on cache lines: vectors and tiles are read from there. */
struct rows {
    _Alignas(64) float q[MAX_ROWS * MAX_DIM]; /* [rows, dim]; bfloat16 at the array's beginning where the cache is */
    _Alignas(64) float mix[MAX_ROWS * MAX_DIM]; /* [rows, dim], sum of weight * V */
    _Alignas(64) float weights[MAX_ROWS * TILE];
    _Alignas(64) uint16_t half_weights[MAX_ROWS * TILE];
    float top[MAX_ROWS], old_top[MAX_ROWS], total[MAX_ROWS], shrink[MAX_ROWS];
    size_t shaped; /* see attention_amx.h */
    int shrinks;   /* whether the shrink of any row isn't 1; likewise */
};

/* Four pieces of memory to be fetched in parts, so that all is on its way when a tile is done. Without this, decode
 * waits for memory two thirds of its time: each block's heads lie on pages of their own. */
struct pieces {
    const char *at[TILE_BLOCKS];
};

INLINE void fetch(const struct pieces *pieces, size_t part, size_t part_bytes) {
    UNROLL for (int b = 0; b < TILE_BLOCKS; b++)
        if (part_bytes >= 64 || part * part_bytes % 64 < part_bytes)
            __builtin_prefetch(pieces->at[b] + part * part_bytes, 0, 2);
}

/* The blocks of one tile. */
struct tile {
    struct pieces k, v; /* where each block's K and V of one head begin */
    size_t num_blocks;
};

/* sum[row][column] += q[row] . K for one dimension in float, or one pair of dimensions in bfloat16. */
INLINE void score_step(const int rows, const int columns, vec sum[ROWS][COLUMNS], const void *q, const char *const *k,
                       size_t d, size_t dim, int bf16) {
    vec key[COLUMNS];
    UNROLL for (int c = 0; c < columns; c++) memcpy(&key[c], k[c] + d * BLOCK * 4, sizeof *key);
    UNROLL for (int r = 0; r < rows; r++) {
        if (bf16) {
            uint32_t query;
            memcpy(&query, (const uint32_t *)q + (size_t)r * dim / 2 + d, sizeof query);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] = add_pair(sum[r][c], query, (uvec)key[c]);
        } else {
            vec query = all(((const float *)q)[(size_t)r * dim + d]);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] += query * key[c];
        }
    }
}

/* scores[row][column..] = q[row] . K, for rows of ROWS and columns of COLUMNS; one chain over dim for each number.
 * `next` is a tile to fetch meanwhile, or NULL. */
INLINE void score(const int rows, const int columns, const void *q, const struct tile *tile, const struct tile *next,
                  size_t column, size_t dim, float *scores, int bf16) {
    vec sum[ROWS][COLUMNS] = {0};
    const struct pieces ahead = next ? next->k : (struct pieces){0};
    const char *k[COLUMNS];
    UNROLL for (int c = 0; c < columns; c++) {
        size_t token = (column + (size_t)c) * WIDTH;
        k[c] = tile->k.at[token / BLOCK] + token % BLOCK * 4;
    }
    for (size_t d = 0; d < (bf16 ? dim / 2 : dim); d++) {
        if (next) fetch(&ahead, d, BLOCK * 4);
        score_step(rows, columns, sum, q, k, d, dim, bf16);
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++)
            store(scores + r * TILE, (column + (size_t)c) * WIDTH, sum[r][c], 0);
}

/* sum[row][column] += weight[row] * V for one token in float, or one pair of tokens in bfloat16. Of a pair that the
 * context ends in, `lone`, the second token counts nothing, whatever its memory holds. */
INLINE void mix_step(const int rows, const int columns, vec sum[ROWS][COLUMNS], const void *weights, const char *value_at,
                     size_t t, int lone, int bf16) {
    vec value[COLUMNS];
    UNROLL for (int c = 0; c < columns; c++) memcpy(&value[c], value_at + (size_t)c * sizeof *value, sizeof *value);
    if (lone)
        UNROLL for (int c = 0; c < columns; c++) value[c] = (vec)((uvec)value[c] & 0xffffu);
    UNROLL for (int r = 0; r < rows; r++) {
        if (bf16) {
            uint32_t pair;
            memcpy(&pair, (const uint32_t *)weights + (size_t)r * TILE / 2 + t, sizeof pair);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] = add_pair(sum[r][c], pair, (uvec)value[c]);
        } else {
            vec weight = all(((const float *)weights)[(size_t)r * TILE + t]);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] += weight * value[c];
        }
    }
}

/* mix[row] = mix[row] * shrink[row] + weights[row] . V over the tile's first tokens, for COLUMNS vectors of dim. */
INLINE void mix(const int rows, const int columns, struct rows *state, size_t row, const struct tile *tile,
                const struct tile *next, size_t num_tokens, size_t start, size_t dim, int bf16) {
    const struct pieces ahead = next ? next->v : (struct pieces){0};
    const size_t together = bf16 ? 2 : 1, in_block = BLOCK / together, stride = dim * 4;
    const void *weights = bf16 ? (const void *)(state->half_weights + row * TILE) : state->weights + row * TILE;
    float *to = state->mix + row * dim + start;
    vec sum[ROWS][COLUMNS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++)
            sum[r][c] = load(to, (size_t)r * dim + (size_t)c * WIDTH, 0) * state->shrink[row + (size_t)r];
    size_t t = 0;
    for (; t < num_tokens / together; t++) {
        if (next) fetch(&ahead, t, dim * together / 4 * (bf16 ? 2 : 4));
        mix_step(rows, columns, sum, weights, tile->v.at[t / in_block] + t % in_block * stride + start * 4, t, 0, bf16);
    }
    if (bf16 && num_tokens % 2)
        mix_step(rows, columns, sum, weights, tile->v.at[t / in_block] + t % in_block * stride + start * 4, t, 1, bf16);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++) store(to, (size_t)r * dim + (size_t)c * WIDTH, sum[r][c], 0);
}

INLINE void score_rows(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                       size_t dim, int bf16) {
    const size_t columns = tile->num_blocks * BLOCK / WIDTH;
    for (size_t row = first; row < end; row += ROWS) {
        const char *q = (const char *)state->q + row * dim * (bf16 ? 2 : 4);
        float *scores = state->weights + row * TILE;
        size_t c = 0;
        for (; c + COLUMNS <= columns; c += COLUMNS) {
#define CALL(n) score(n, COLUMNS, q, tile, next, c, dim, scores, bf16)
            FOR_ROWS(at_most(end - row, ROWS), CALL)
#undef CALL
            next = NULL;
        }
        for (; c < columns; c++) {
#define CALL(n) score(n, 1, q, tile, next, c, dim, scores, bf16)
            FOR_ROWS(at_most(end - row, ROWS), CALL)
#undef CALL
            next = NULL;
        }
    }
}

INLINE void mix_rows(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                     size_t num_tokens, size_t dim, int bf16) {
    for (size_t row = first; row < end; row += ROWS) {
        size_t d = 0;
        for (; d + COLUMNS * WIDTH <= dim; d += COLUMNS * WIDTH) {
#define CALL(n) mix(n, COLUMNS, state, row, tile, next, num_tokens, d, dim, bf16)
            FOR_ROWS(at_most(end - row, ROWS), CALL)
#undef CALL
            next = NULL;
        }
        for (; d < dim; d += WIDTH) {
#define CALL(n) mix(n, 1, state, row, tile, next, num_tokens, d, dim, bf16)
            FOR_ROWS(at_most(end - row, ROWS), CALL)
#undef CALL
            next = NULL;
        }
    }
}

/* The largest score of a row so far, with this tile's first num_tokens; the rest of the tile, whatever it holds, counts
 * nothing. Apart from weigh_row, so that a processor can work on several rows at a time. */
INLINE void raise_top(struct rows *state, size_t row, size_t num_tokens, float scale) {
    float *scores = state->weights + row * TILE;
    for (size_t t = num_tokens; t < TILE; t++) scores[t] = -__builtin_inff();
    vec most = load(scores, 0, 0);
    UNROLL for (size_t t = WIDTH; t < TILE; t += WIDTH) most = larger(load(scores, t, 0), most);
    state->old_top[row] = state->top[row];
    state->top[row] = max_of(larger(most * scale, all(state->top[row])));
}

/* Scores become weights. The total is of the weights as they are used, rounded in bfloat16, so that they sum to 1. */
INLINE void weigh_row(struct rows *state, size_t row, float scale, int bf16) {
    float *scores = state->weights + row * TILE;
    const float top = state->top[row];
    vec sum = {0};
    UNROLL for (size_t t = 0; t < TILE; t += WIDTH) {
        vec weight = exp_below_0(load(scores, t, 0) * scale - top);
        if (bf16) {
            const hvec half = to_bf16_or_0(weight);
            memcpy(state->half_weights + row * TILE + t, &half, sizeof half);
            weight = (vec)(widen(half) << 16);
        } else {
            store(scores, t, weight, 0);
        }
        sum += weight;
    }
    const float shrink = exp_below_0(all(state->old_top[row] - top))[0];
    state->total[row] = state->total[row] * shrink + sum_of(sum);
    state->shrink[row] = shrink;
}

#endif
