/* Causal attention over a paged cache, for decode and for chunked prefill alike.
 *
 * Each row (one query token, one query head) walks its context in tiles of 64 tokens with an online softmax
 * (Milakov and Gimelshein 2018, arXiv 1805.02867). Tiles start at multiples of 64 and a row's arithmetic has one
 * fixed order, so its result depends on nothing but its own context. Rows of one KV head go together, up to QUERY_ROWS,
 * so that K and V are loaded once for several of them: neighboring queries of a prompt, or sequences in decode whose
 * contexts begin with the same blocks. These walk what they share together, and then each the rest of its own. */

#ifndef KVFERRY_ATTENTION_H
#define KVFERRY_ATTENTION_H

#include <stdlib.h>

#include "attention_amx.h"
#include "attention_tile.h"

/* Rows of a task where the group of query heads is no larger. */
#if HAS_TILES
#define QUERY_ROWS 48
#else
#define QUERY_ROWS 32
#endif
#define TASKS_PER_THREAD 4 /* so that threads end at about the same time */

struct attention {
    void *out;
    const void *q, *k_cache, *v_cache;
    const int32_t *tables, *query_starts, *context_lens;
    size_t rows, num_seqs, table_width, heads, kv_heads, dim, num_blocks;
    float scale;
};

/* Sequences order[first] to order[first + count - 1], from their query number `query` on, `num_queries` of each;
 * their first `shared` tokens are the same blocks. */
struct part {
    int32_t first, count, query, num_queries, shared;
};

/* All that is to be computed for a batch, in every layer alike. */
struct agenda {
    struct part *parts;
    int32_t *order;
    size_t num_parts, num_tasks, heads_at_once;
};

/* The tile of a KV head that begins at token `start`; places behind its last block repeat the first. */
INLINE struct tile find_tile(const struct attention *job, const int32_t *table, size_t kv_head, size_t start,
                             size_t context, int bf16) {
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

INLINE void score_tile(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                       size_t dim, int bf16) {
#if HAS_TILES
    if (bf16) {
        score_by_tiles(state, first, end, tile, next, dim);
        return;
    }
#endif
    score_rows(state, first, end, tile, next, dim, bf16);
}

/* Scores of the rows from `row` to `end` become weights: `group` for each query, of which the first sees `num_tokens` and
 * each after it one more. */
INLINE void soften_tile(struct rows *state, size_t row, size_t end, size_t group, size_t num_tokens, float scale,
                        int bf16) {
#if HAS_TILES
    if (bf16) {
        soften_rows(state, row, end, group, num_tokens, scale);
        return;
    }
#endif
    /* In two passes over the rows, so that a processor can work on several of them at a time. */
    for (size_t r = row; r < end; r++) raise_top(state, r, at_most(num_tokens + (r - row) / group, TILE), scale);
    for (size_t r = row; r < end; r++) weigh_row(state, r, scale, bf16);
}

INLINE void mix_tile(struct rows *state, size_t first, size_t end, const struct tile *tile, const struct tile *next,
                     size_t num_tokens, size_t dim, int bf16) {
#if HAS_TILES
    if (bf16) {
        mix_by_tiles(state, first, end, tile, next, num_tokens, dim);
        return;
    }
#endif
    mix_rows(state, first, end, tile, next, num_tokens, dim, bf16);
}

/* Whether all rows are best mixed together, those that see fewer than `num_tokens` with zeros as weights of the rest. */
INLINE int mixes_unseen(const struct tile *tile, size_t num_tokens, size_t dim, int bf16) {
#if HAS_TILES
    return bf16 && is_finite(tile, num_tokens, dim);
#else
    (void)tile, (void)num_tokens, (void)dim, (void)bf16;
    return 0;
#endif
}

/* One tile for the rows of queries `first` to `num_queries`, which stand at position `position` + i; `row` is the first
 * row of query 0. */
INLINE void walk_tile(const struct attention *job, struct rows *state, size_t row, const struct tile *tile,
                      const struct tile *next, size_t start, size_t first, size_t num_queries, size_t position,
                      int bf16) {
    const size_t group = job->heads / job->kv_heads, end = row + num_queries * group;
    score_tile(state, row + first * group, end, tile, next, job->dim, bf16);
    soften_tile(state, row + first * group, end, group, position + first + 1 - start, job->scale, bf16);
    const size_t seen = at_most(position + num_queries - start, TILE); /* by the last query */
    size_t whole = first; /* the first query that sees as much */
    while (position + whole + 1 - start < seen && !mixes_unseen(tile, seen, job->dim, bf16)) {
        mix_tile(state, row + whole * group, row + (whole + 1) * group, tile, next, position + whole + 1 - start,
                 job->dim, bf16);
        whole++;
    }
    mix_tile(state, row + whole * group, end, tile, next, seen, job->dim, bf16);
}

/* Queries at `position` and after it, from token `start` to `end` of their sequence. `after` is the tile that will be
 * wanted next, or NULL. */
INLINE void walk(const struct attention *job, struct rows *state, size_t row, const int32_t *table, size_t kv_head,
                 size_t start, size_t end, size_t num_queries, size_t position, const struct tile *after, int bf16) {
    if (start >= end) return;
    struct tile tile = find_tile(job, table, kv_head, start, end, bf16);
    for (; start < end; start += TILE) {
        struct tile next = tile;
        const int more = start + TILE < end;
        if (more) next = find_tile(job, table, kv_head, start + TILE, end, bf16);
        const size_t first = start > position ? start - position : 0;
        walk_tile(job, state, row, &tile, more ? &next : after, start, first, num_queries, position, bf16);
        tile = next;
    }
}

/* The group of one query: its numbers come in, or its result goes out. `from` counts numbers in q and out. */
INLINE void begin(struct rows *state, const struct attention *job, size_t row, size_t from, int bf16) {
    const size_t group = job->heads / job->kv_heads, size = group * job->dim;
    if (bf16)
        memcpy((uint16_t *)state->q + row * job->dim, (const uint16_t *)job->q + from, size * 2);
    else
        memcpy(state->q + row * job->dim, (const float *)job->q + from, size * 4);
    memset(state->mix + row * job->dim, 0, size * sizeof *state->mix);
    for (size_t r = row; r < row + group; r++) {
        state->top[r] = -__builtin_inff();
        state->total[r] = 0;
    }
}

INLINE void finish(const struct rows *state, const struct attention *job, size_t row, size_t from, int bf16) {
    for (size_t r = 0; r < job->heads / job->kv_heads; r++) {
        const float total = state->total[row + r], inverse = 1.0f / total; /* a division takes as long as ten products */
        for (size_t d = 0; d < job->dim; d += WIDTH) {
            const vec mix = load(state->mix, (row + r) * job->dim + d, 0);
            store(job->out, from + r * job->dim + d, bf16 ? mix * inverse : mix / total, bf16);
        }
    }
}

/* The first tile of a part's own that comes after its sequence `i`: the next sequence's, or the next head's first. */
INLINE struct tile tile_after(const struct attention *job, const struct agenda *agenda, const struct part *part,
                              size_t i, size_t kv_head, int bf16) {
    const int more = i + 1 < (size_t)part->count;
    const size_t seq = (size_t)agenda->order[(size_t)part->first + (more ? i + 1 : 0)];
    const size_t head = more || kv_head + 1 == job->kv_heads ? kv_head : kv_head + 1;
    return find_tile(job, job->tables + seq * job->table_width, head, more ? (size_t)part->shared : 0,
                     (size_t)job->context_lens[seq], bf16);
}

/* One part over one KV head. */
INLINE void attend(const struct attention *job, const struct agenda *agenda, const struct part *part, size_t kv_head,
                   int bf16) {
    const size_t group = job->heads / job->kv_heads, each = (size_t)part->num_queries;
    struct rows state;
    state.shaped = 0;
    for (size_t i = 0; i < (size_t)part->count; i++) {
        const size_t seq = (size_t)agenda->order[(size_t)part->first + i];
        const size_t query = (size_t)job->query_starts[seq] + (size_t)part->query;
        for (size_t j = 0; j < each; j++)
            begin(&state, job, (i * each + j) * group, ((query + j) * job->heads + kv_head * group) * job->dim, bf16);
    }
    const int32_t *table = job->tables + (size_t)agenda->order[part->first] * job->table_width;
    const size_t shared = (size_t)part->shared;
    walk(job, &state, 0, table, kv_head, 0, shared, (size_t)part->count * each, shared, NULL, bf16);
    for (size_t i = 0; i < (size_t)part->count; i++) {
        const size_t seq = (size_t)agenda->order[(size_t)part->first + i];
        const size_t query = (size_t)job->query_starts[seq] + (size_t)part->query, row = i * each * group;
        const size_t left = (size_t)job->query_starts[seq + 1] - query;
        const size_t position = (size_t)job->context_lens[seq] - left;
        const struct tile after = tile_after(job, agenda, part, i, kv_head, bf16);
        table = job->tables + seq * job->table_width;
        walk(job, &state, row, table, kv_head, shared, position + each, each, position, &after, bf16);
        for (size_t j = 0; j < each; j++)
            finish(&state, job, row + j * group, ((query + j) * job->heads + kv_head * group) * job->dim, bf16);
    }
}

static __attribute__((noinline)) void attend_bf16(const struct attention *job, const struct agenda *agenda, const struct part *part, size_t head) {
    attend(job, agenda, part, head, 1);
}

static __attribute__((noinline)) void attend_float(const struct attention *job, const struct agenda *agenda, const struct part *part, size_t head) {
    attend(job, agenda, part, head, 0);
}

INLINE void attend_task(const struct attention *job, const struct agenda *agenda, size_t task, int bf16) {
    const size_t at_once = agenda->heads_at_once, per_part = job->kv_heads / at_once;
    const struct part *part = &agenda->parts[agenda->num_parts - 1 - task / per_part]; /* late, long ones first */
    for (size_t head = task % per_part * at_once; head < (task % per_part + 1) * at_once; head++)
        (bf16 ? attend_bf16 : attend_float)(job, agenda, part, head);
}

static int attention_in_range(const struct attention *job) {
    if (job->query_starts[0] != 0 || (size_t)job->query_starts[job->num_seqs] != job->rows) return 0;
    for (size_t seq = 0; seq < job->num_seqs; seq++) {
        int64_t queries = (int64_t)job->query_starts[seq + 1] - job->query_starts[seq];
        int64_t len = job->context_lens[seq], used = (len + BLOCK - 1) / BLOCK;
        if (queries < 0 || len < queries || used > (int64_t)job->table_width) return 0;
        for (int64_t b = 0; b < used; b++) {
            int32_t block = job->tables[seq * job->table_width + (size_t)b];
            if (block < 0 || (size_t)block >= job->num_blocks) return 0;
        }
    }
    return 1;
}

/* Tokens in whole tiles that two sequences share, each without its last token. */
static int32_t shared_tokens(const struct attention *job, int32_t one, int32_t other) {
    const int32_t *a = job->tables + (size_t)one * job->table_width, *b = job->tables + (size_t)other * job->table_width;
    const int32_t end = (job->context_lens[one] < job->context_lens[other] ? job->context_lens[one]
                                                                          : job->context_lens[other]) - 1;
    int32_t block = 0;
    while ((block + 1) * BLOCK <= end && a[block] == b[block]) block++;
    return block / TILE_BLOCKS * TILE;
}

static size_t num_queries_of(const struct attention *job, size_t seq) {
    return (size_t)(job->query_starts[seq + 1] - job->query_starts[seq]);
}

/* Sequences in decode whose first blocks are the same stand together in `order`, `count` of them. */
static void sort_by_blocks(const struct attention *job, int32_t *order, size_t count) {
    for (size_t i = 1; i < count; i++) { /* by insertion: few, and mostly in order from the step before */
        const int32_t seq = order[i], first = job->tables[(size_t)seq * job->table_width];
        size_t j = i;
        for (; j && job->tables[(size_t)order[j - 1] * job->table_width] > first; j--) order[j] = order[j - 1];
        order[j] = seq;
    }
}

/* In how many groups `count` sequences that share tokens go: no more than `most` in one, and few heads evenly among threads. */
static size_t num_groups_of(size_t count, size_t most, size_t kv_heads, size_t num_threads) {
    size_t groups = (count + most - 1) / most;
    while (groups < count && groups * kv_heads % num_threads && groups * kv_heads < TASKS_PER_THREAD * num_threads)
        groups++;
    return groups;
}

/* Decoding sequences in groups of those that share tokens, as equal in size as can be. */
static void plan_decode(const struct attention *job, struct agenda *agenda, size_t count, size_t most,
                        size_t num_threads) {
    for (size_t i = 0; i < count;) {
        int32_t shared = 0;
        size_t end = i + 1;
        for (; end < count; end++) {
            int32_t common = shared_tokens(job, agenda->order[i], agenda->order[end]);
            if (common == 0 || common < shared / 2) break;
            shared = shared == 0 || common < shared ? common : shared;
        }
        const size_t groups = num_groups_of(end - i, most, job->kv_heads, num_threads);
        for (size_t g = 0; g < groups; g++) {
            size_t from = i + (end - i) * g / groups, to = i + (end - i) * (g + 1) / groups;
            agenda->parts[agenda->num_parts++] = (struct part){(int32_t)from, (int32_t)(to - from), 0, 1,
                                                               to - from > 1 ? shared : 0};
        }
        i = end;
    }
}

/* Plans a batch. Returns 0; 1 if a length or block lies outside its table; 2 if there is no memory. */
static int plan_attention(const struct attention *job, struct agenda *agenda, size_t num_threads) {
    if (!attention_in_range(job)) return 1;
    const size_t group = job->heads / job->kv_heads, fit = QUERY_ROWS / group, most = fit ? fit : 1;
    const size_t room = job->rows / most + 2 * job->num_seqs + 1;
    *agenda = (struct agenda){.parts = malloc(room * sizeof *agenda->parts),
                              .order = malloc((job->num_seqs + 1) * sizeof *agenda->order)};
    if (!agenda->parts || !agenda->order) return 2;
    size_t count = 0, place = 0;
    for (size_t seq = 0; seq < job->num_seqs; seq++)
        if (num_queries_of(job, seq) == 1) agenda->order[count++] = (int32_t)seq;
    place = count;
    for (size_t seq = 0; seq < job->num_seqs; seq++)
        if (num_queries_of(job, seq) > 1) agenda->order[place++] = (int32_t)seq;
    sort_by_blocks(job, agenda->order, count);
    plan_decode(job, agenda, count, most, num_threads);
    for (size_t i = count; i < place; i++) {
        const size_t queries = num_queries_of(job, (size_t)agenda->order[i]);
        for (size_t query = 0; query < queries; query += most)
            agenda->parts[agenda->num_parts++] =
                (struct part){(int32_t)i, 1, (int32_t)query, (int32_t)at_most(queries - query, most), 0};
    }
    /* All heads of few queries go together, since a block's heads lie side by side; but no thread goes without work. */
    agenda->heads_at_once = agenda->num_parts < TASKS_PER_THREAD * num_threads ? 1 : job->kv_heads;
    agenda->num_tasks = agenda->num_parts * (job->kv_heads / agenda->heads_at_once);
    return 0;
}

static void drop_agenda(struct agenda *agenda) {
    free(agenda->parts);
    free(agenda->order);
}

#endif
