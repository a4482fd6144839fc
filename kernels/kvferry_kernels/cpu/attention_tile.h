/* One tile of 64 tokens of attention: scores, weights and weighted sums for some rows, with each row's running softmax.
 *
 * A row is one query token and one query head. Its arithmetic has one fixed order whatever other rows are computed
 * beside it: chains over the dimension for scores, over tokens for sums. */

#ifndef KVFERRY_ATTENTION_TILE_H
#define KVFERRY_ATTENTION_TILE_H

#include "vector.h"

#define BLOCK 16
#define TILE 64
#define TILE_BLOCKS (TILE / BLOCK)
#define MAX_ROWS 64 /* the largest group of query heads */
#define MAX_DIM 256

/* The running softmax of a task's rows. */
struct rows {
    float q[MAX_ROWS * MAX_DIM];   /* [rows, dim], scaled */
    float mix[MAX_ROWS * MAX_DIM]; /* [rows, dim], sum of weight * V */
    float weights[MAX_ROWS * TILE];
    float top[MAX_ROWS], total[MAX_ROWS], shrink[MAX_ROWS];
};

/* Four pieces of memory to be fetched in TILE parts, so that all is on its way after TILE calls of `fetch`. Without
 * this, decode waits for memory two thirds of its time: each block's heads lie on pages of their own. */
struct pieces {
    const char *at[TILE_BLOCKS];
};

INLINE void fetch(const struct pieces *pieces, size_t part, size_t part_bytes) {
    UNROLL for (int b = 0; b < TILE_BLOCKS; b++)
        if (part_bytes >= 64 || part * part_bytes % 64 < part_bytes)
            __builtin_prefetch(pieces->at[b] + part * part_bytes);
}

/* The blocks of one tile. */
struct tile {
    struct pieces k, v; /* where each block's K and V of one head begin */
    size_t num_blocks;
};

/* scores[row][column..] = q[row] . K, for rows of ROWS and columns of COLUMNS; one chain over dim for each number.
 * `next` is a tile to fetch meanwhile, or NULL. */
INLINE void score(const int rows, const int columns, const float *q, const struct tile *tile, const struct tile *next,
                  size_t column, size_t dim, float *scores, int bf16) {
    vec sum[ROWS][COLUMNS] = {0};
    const struct pieces ahead = next ? next->k : (struct pieces){0};
    const char *k[COLUMNS];
    UNROLL for (int c = 0; c < columns; c++) {
        size_t token = (column + (size_t)c) * WIDTH;
        k[c] = tile->k.at[token / BLOCK] + token % BLOCK * (bf16 ? 2 : 4);
    }
    for (size_t d = 0; d < dim; d++) {
        vec key[COLUMNS];
        UNROLL for (int c = 0; c < columns; c++) key[c] = load(k[c], d * BLOCK, bf16);
        if (next) fetch(&ahead, d, BLOCK * (bf16 ? 2 : 4));
        UNROLL for (int r = 0; r < rows; r++) {
            vec query = all(q[(size_t)r * dim + d]);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] += query * key[c];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++)
            store(scores + r * TILE, (column + (size_t)c) * WIDTH, sum[r][c], 0);
}

/* mix[row] = mix[row] * shrink[row] + weights[row] . V over the tile's first tokens, for COLUMNS vectors of dim. */
INLINE void mix(const int rows, const int columns, struct rows *state, size_t row, const struct tile *tile,
                const struct tile *next, size_t num_tokens, size_t start, size_t dim, int bf16) {
    const struct pieces ahead = next ? next->v : (struct pieces){0};
    vec sum[ROWS][COLUMNS];
    const float *weights = state->weights + row * TILE;
    float *to = state->mix + row * dim + start;
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++)
            sum[r][c] = load(to, (size_t)r * dim + (size_t)c * WIDTH, 0) * state->shrink[row + (size_t)r];
    for (size_t t = 0; t < num_tokens; t++) {
        vec value[COLUMNS];
        UNROLL for (int c = 0; c < columns; c++)
            value[c] = load(tile->v.at[t / BLOCK], t % BLOCK * dim + start + (size_t)c * WIDTH, bf16);
        if (next) fetch(&ahead, t, dim / 4 * (bf16 ? 2 : 4));
        UNROLL for (int r = 0; r < rows; r++) {
            vec weight = all(weights[(size_t)r * TILE + t]);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] += weight * value[c];
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < columns; c++) store(to, (size_t)r * dim + (size_t)c * WIDTH, sum[r][c], 0);
}

INLINE size_t at_most(size_t x, size_t limit) { return x < limit ? x : limit; }

INLINE void score_rows(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                       size_t dim, int bf16) {
    const size_t columns = tile->num_blocks * BLOCK / WIDTH;
    for (size_t row = first; row < end; row += ROWS) {
        const float *q = state->q + row * dim;
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

/* Scores become weights: those of the first num_tokens; the rest of the tile, whatever it holds, counts nothing. */
INLINE void weigh_row(struct rows *state, size_t row, size_t num_tokens) {
    float *scores = state->weights + row * TILE;
    for (size_t t = num_tokens; t < TILE; t++) scores[t] = -__builtin_inff();
    vec most = load(scores, 0, 0), sum = {0};
    for (size_t t = WIDTH; t < TILE; t += WIDTH) most = larger(load(scores, t, 0), most);
    float top = max_of(larger(most, all(state->top[row])));
    for (size_t t = 0; t < TILE; t += WIDTH) {
        vec weight = exp_of(load(scores, t, 0) - top);
        store(scores, t, weight, 0);
        sum += weight;
    }
    float shrink = exp_of(all(state->top[row] - top))[0];
    state->total[row] = state->total[row] * shrink + sum_of(sum);
    state->shrink[row] = shrink;
    state->top[row] = top;
}

#endif
