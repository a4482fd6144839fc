/* Causal attention over a paged cache, for decode and for chunked prefill alike.
 *
 * Each row (one query token, one query head) walks its context in tiles of 64 tokens with an online softmax
 * (Milakov and Gimelshein 2018, arXiv 1805.02867). Tiles start at multiples of 64 and a row's arithmetic has one
 * fixed order, so its result depends on nothing but its own context. Rows of one KV head, of up to QUERY_ROWS
 * rows of one sequence, go together so that K and V are loaded once for several of them. */

#include <omp.h>
#include <stdlib.h>

#include "attention_tile.h"

#define QUERY_ROWS 32 /* rows of a task where the group of query heads is no larger */
#define TASKS_PER_THREAD 4 /* so that threads end at about the same time */

struct job {
    void *out;
    const void *q, *k_cache, *v_cache;
    const int32_t *tables, *query_starts, *context_lens;
    size_t table_width, heads, kv_heads, dim, tile_queries;
    float scale;
};

/* One tile for the rows of queries `first` to `num_queries`; query i stands at position `position` + i. */
INLINE void walk_tile(struct rows *state, const struct tile *tile, const struct tile *next, size_t start, size_t first,
                      size_t num_queries, size_t position, size_t group, size_t dim, int bf16) {
    size_t whole = num_queries; /* the first query that sees all of the tile */
    score_rows(state, first * group, num_queries * group, tile, next, dim, bf16);
    for (size_t i = num_queries; i-- > first;) {
        size_t seen = at_most(position + i + 1 - start, TILE);
        for (size_t r = 0; r < group; r++) weigh_row(state, i * group + r, seen);
        if (seen == TILE)
            whole = i;
        else
            mix_rows(state, i * group, (i + 1) * group, tile, next, seen, dim, bf16);
    }
    mix_rows(state, whole * group, num_queries * group, tile, next, TILE, dim, bf16);
}

/* The tile of a KV head that begins at token `start`; places behind its last block repeat the first. */
INLINE struct tile find_tile(const struct job *job, const int32_t *table, size_t kv_head, size_t start, size_t context,
                             int bf16) {
    const size_t block_bytes = BLOCK * job->dim * (bf16 ? 2 : 4);
    struct tile tile = {.num_blocks = at_most((context - start + BLOCK - 1) / BLOCK, TILE_BLOCKS)};
    for (size_t b = 0; b < TILE_BLOCKS; b++) {
        size_t block = (size_t)table[start / BLOCK + (b < tile.num_blocks ? b : 0)];
        size_t at = (block * job->kv_heads + kv_head) * block_bytes;
        tile.k.at[b] = (const char *)job->k_cache + at;
        tile.v.at[b] = (const char *)job->v_cache + at;
    }
    return tile;
}

INLINE void begin(struct rows *state, const struct job *job, size_t from, size_t num_queries, size_t group, int bf16) {
    for (size_t i = 0; i < num_queries * group; i++) {
        size_t at = from + (i / group * job->heads + i % group) * job->dim;
        for (size_t d = 0; d < job->dim; d += WIDTH)
            store(state->q, i * job->dim + d, load(job->q, at + d, bf16) * job->scale, 0);
        memset(state->mix + i * job->dim, 0, job->dim * sizeof *state->mix);
        state->top[i] = -__builtin_inff();
        state->total[i] = 0;
    }
}

INLINE void finish(const struct rows *state, const struct job *job, size_t from, size_t num_queries, size_t group,
                   int bf16) {
    for (size_t i = 0; i < num_queries * group; i++) {
        size_t at = from + (i / group * job->heads + i % group) * job->dim;
        for (size_t d = 0; d < job->dim; d += WIDTH)
            store(job->out, at + d, load(state->mix, i * job->dim + d, 0) / state->total[i], bf16);
    }
}

/* Some queries of one sequence, from its query number `query` on, over KV heads `head` to `end_head`. */
INLINE void attend(const struct job *job, size_t seq, size_t query, size_t head, size_t end_head, int bf16) {
    const size_t group = job->heads / job->kv_heads;
    const size_t rows_end = (size_t)job->query_starts[seq + 1], row = (size_t)job->query_starts[seq] + query;
    const size_t num_queries = at_most(rows_end - row, job->tile_queries);
    const size_t position = (size_t)job->context_lens[seq] - (rows_end - row);
    const size_t context = position + num_queries;
    const int32_t *table = job->tables + seq * job->table_width;
    struct rows state;
    struct tile tile = find_tile(job, table, head, 0, context, bf16);
    for (; head < end_head; head++) {
        const size_t from = (row * job->heads + head * group) * job->dim;
        begin(&state, job, from, num_queries, group, bf16);
        for (size_t start = 0; start < context; start += TILE) {
            struct tile next = tile;
            if (start + TILE < context)
                next = find_tile(job, table, head, start + TILE, context, bf16);
            else if (head + 1 < end_head)
                next = find_tile(job, table, head + 1, 0, context, bf16);
            size_t first = start > position ? start - position : 0;
            walk_tile(&state, &tile, &next, start, first, num_queries, position, group, job->dim, bf16);
            tile = next;
        }
        finish(&state, job, from, num_queries, group, bf16);
    }
}

static void attend_bf16(const struct job *job, size_t seq, size_t query, size_t head, size_t end_head) {
    attend(job, seq, query, head, end_head, 1);
}

static void attend_float(const struct job *job, size_t seq, size_t query, size_t head, size_t end_head) {
    attend(job, seq, query, head, end_head, 0);
}

static int in_range(const struct job *job, int64_t num_rows, int64_t num_seqs, int64_t num_blocks) {
    if (job->query_starts[0] != 0 || job->query_starts[num_seqs] != num_rows) return 0;
    for (int64_t seq = 0; seq < num_seqs; seq++) {
        int64_t queries = (int64_t)job->query_starts[seq + 1] - job->query_starts[seq];
        int64_t len = job->context_lens[seq], used = (len + BLOCK - 1) / BLOCK;
        if (queries < 0 || len < queries || used > (int64_t)job->table_width) return 0;
        for (int64_t b = 0; b < used; b++) {
            int32_t block = job->tables[(size_t)seq * job->table_width + (size_t)b];
            if (block < 0 || block >= num_blocks) return 0;
        }
    }
    return 1;
}

/* Returns 0; 1 if a length or block lies outside its table; 2 if there is no memory. Then nothing is written. */
API int kvferry_paged_attention(void *out, const void *q, const void *k_cache, const void *v_cache,
                                const int32_t *tables, const int32_t *query_starts, const int32_t *context_lens,
                                int64_t rows, int64_t num_seqs, int64_t table_width, int64_t heads, int64_t kv_heads,
                                int64_t dim, int64_t num_blocks, float scale, int bf16) {
    const size_t group = (size_t)(heads / kv_heads), fit = QUERY_ROWS / group;
    struct job job = {out,          q,    k_cache, v_cache, tables, query_starts, context_lens, (size_t)table_width,
                      (size_t)heads, (size_t)kv_heads, (size_t)dim, fit ? fit : 1, scale};
    if (!in_range(&job, rows, num_seqs, num_blocks)) return 1;
    int64_t *firsts = malloc(((size_t)num_seqs + 1) * sizeof *firsts); /* each sequence's first query tile */
    if (!firsts) return 2;
    firsts[0] = 0;
    for (int64_t seq = 0; seq < num_seqs; seq++) {
        int64_t queries = (int64_t)query_starts[seq + 1] - query_starts[seq], many = (int64_t)job.tile_queries;
        firsts[seq + 1] = firsts[seq] + (queries + many - 1) / many;
    }
    /* All heads of few queries go together, since a block's heads lie side by side; but no thread goes without work. */
    const int64_t num_tiles = firsts[num_seqs];
    const int64_t heads_at_once = num_tiles < TASKS_PER_THREAD * omp_get_max_threads() ? 1 : kv_heads;
    const int64_t parts = kv_heads / heads_at_once, num_tasks = num_tiles * parts;
#pragma omp parallel for schedule(dynamic) if (num_tasks > 1)
    for (int64_t task = num_tasks - 1; task >= 0; task--) { /* from the end: late tiles of a prompt take longest */
        int64_t tile = task / parts, low = 0, high = num_seqs;
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            if (firsts[middle] <= tile)
                low = middle;
            else
                high = middle;
        }
        size_t query = (size_t)(tile - firsts[low]) * job.tile_queries;
        size_t head = (size_t)(task % parts * heads_at_once), end_head = head + (size_t)heads_at_once;
        (bf16 ? attend_bf16 : attend_float)(&job, (size_t)low, query, head, end_head);
    }
    free(firsts);
    return 0;
}
