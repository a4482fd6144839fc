/* Products of some rows with some outputs of a packed bfloat16 weight: y = x W^T + b.
 *
 * Weights lie in tiles of 32 outputs with pairs of inputs together, [tiles, size / 2, 32, 2], so that a tile is read as
 * one stream. Every number is one chain over the pairs of inputs, so a row's result doesn't depend on the others.
 *
 * Few rows read more memory than they compute. The tile that a thread takes next is fetched while it computes the
 * present one, so that reading and computing overlap; without this, 16 rows wait for memory a third of their time. */

#ifndef KVFERRY_PRODUCT_H
#define KVFERRY_PRODUCT_H

#include <stdatomic.h>

#include "vector.h"

#define OUTPUTS 32 /* of a tile */
#define ROWS_AT_ONCE 96 /* rows of a task: enough to pay for reading a tile, few enough to share out evenly */
#define MANY_OUTPUTS 64 /* of a task of so many rows; with fewer rows a task is one tile */

struct product {
    void *out; /* [rows, outputs] in bfloat16 or float */
    const uint16_t *x, *weight, *bias;
    size_t rows, outputs, size;
};

/* Bytes that will be wanted next, fetched bit by bit. */
struct ahead {
    const char *at, *end;
};

/* Some rows by `columns` vectors of outputs, from output `first` on. For each pair of inputs `lines` cache lines of what
 * is ahead are fetched. */
INLINE void multiply(const int rows, const int columns, const int lines, const struct product *job, size_t first,
                     size_t row, struct ahead *ahead, int out_bf16) {
    const size_t size = job->size;
    const uint16_t *weight = job->weight + first / OUTPUTS * OUTPUTS * size + first % OUTPUTS * 2;
    const uint16_t *x = job->x + row * size;
    const char *next = ahead->at;
    const size_t step = next < ahead->end ? (size_t)lines * 64 : 0; /* without a branch: nothing is fetched twice instead */
    vec sum[ROWS][COLUMNS] = {0};
    for (size_t pair = 0; pair < size / 2; pair++, x += 2, weight += OUTPUTS * 2, next += step) {
        UNROLL for (int i = 0; i < lines; i++) __builtin_prefetch(next + i * 64, 0, 2);
        uvec w[COLUMNS];
        UNROLL for (int c = 0; c < columns; c++) { /* a tile's vectors lie together, those of the next one behind it */
            const size_t tile = (size_t)c * WIDTH / OUTPUTS, inside = (size_t)c * WIDTH % OUTPUTS;
            memcpy(&w[c], weight + tile * OUTPUTS * size + inside * 2, sizeof *w);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            uint32_t both;
            memcpy(&both, x + (size_t)r * size, sizeof both);
            UNROLL for (int c = 0; c < columns; c++) sum[r][c] = add_pair(sum[r][c], both, w[c]);
        }
    }
    ahead->at = next;
    UNROLL for (int c = 0; c < columns; c++) {
        const size_t at = first + (size_t)c * WIDTH, end = job->outputs;
        if (at >= end) break;
        vec bias = job->bias ? load_upto(job->bias, at, end, 1) : all(0.0f);
        UNROLL for (int r = 0; r < rows; r++) {
            char *out = (char *)job->out + (row + (size_t)r) * end * (out_bf16 ? 2 : 4);
            store_upto(out, at, end, job->bias ? sum[r][c] + bias : sum[r][c], out_bf16);
        }
    }
}

/* Rows up to `end` by `columns` vectors of outputs. */
INLINE void multiply_rows(const int columns, const int fetch, const struct product *job, size_t first, size_t row,
                          size_t end, struct ahead *ahead, int out_bf16) {
    for (; row < end; row += ROWS) {
#define CALL(n) multiply(n, columns, fetch ? (n < ROWS ? 2 : 1) : 0, job, first, row, ahead, out_bf16)
        FOR_ROWS(at_most(end - row, ROWS), CALL)
#undef CALL
    }
}

/* How a product is cut into tasks: `outputs` wide, `parts` of rows. */
struct cut {
    size_t outputs, parts, num_tasks;
};

INLINE struct cut cut_product(const struct product *job) {
    struct cut cut = {.outputs = job->rows > ROWS_AT_ONCE ? MANY_OUTPUTS : OUTPUTS};
    cut.parts = (job->rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
    cut.num_tasks = (job->outputs + cut.outputs - 1) / cut.outputs * cut.parts;
    return cut;
}

/* The weights of a task; none where many rows give time enough to read them. */
INLINE struct ahead weights_of(const struct product *job, const struct cut *cut, size_t task) {
    if (cut->parts != 1 || task >= cut->num_tasks) return (struct ahead){0};
    const char *at = (const char *)(job->weight + task * OUTPUTS * job->size);
    return (struct ahead){at, at + OUTPUTS * job->size * 2};
}

INLINE void multiply_task(const struct product *job, const struct cut *cut, size_t task, struct ahead ahead,
                          int out_bf16) {
    const size_t row = task % cut->parts * ROWS_AT_ONCE, end = at_most(row + ROWS_AT_ONCE, job->rows);
    const size_t first = task / cut->parts * cut->outputs, last = first + cut->outputs;
    size_t at = first;
    for (; at + COLUMNS * WIDTH <= last; at += COLUMNS * WIDTH)
        multiply_rows(COLUMNS, 0, job, at, row, end, &ahead, out_bf16);
    for (; at < last; at += 2 * WIDTH) multiply_rows(2, 1, job, at, row, end, &ahead, out_bf16);
}

/* Functions of their own: inlined into a large one their loops would run out of registers. */
static __attribute__((noinline)) void task_to_bf16(const struct product *job, const struct cut *cut, size_t task,
                                                   struct ahead ahead) {
    multiply_task(job, cut, task, ahead, 1);
}

static __attribute__((noinline, unused)) void task_to_float(const struct product *job, const struct cut *cut, size_t task,
                                                            struct ahead ahead) {
    multiply_task(job, cut, task, ahead, 0);
}

/* One thread's part of a product. `counter` holds the number of threads at first: thread t begins with task t. `then`
 * are bytes to be fetched beside the last task. */
INLINE void multiply_shared(const struct product *job, size_t thread, atomic_size_t *counter, struct ahead then,
                            int out_bf16) {
    const struct cut cut = cut_product(job);
    for (size_t task = thread; task < cut.num_tasks;) {
        size_t next = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
        const struct ahead ahead = next < cut.num_tasks ? weights_of(job, &cut, next) : then;
        (out_bf16 ? task_to_bf16 : task_to_float)(job, &cut, task, ahead);
        task = next;
    }
}

#endif
