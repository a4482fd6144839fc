/* Products of some rows with some outputs of a packed weight: y = x W^T + b, in bfloat16 or in 8-bit integers.
 *
 * Weights lie in tiles of 32 outputs, so that a tile is read as one stream. Those in bfloat16 have pairs of inputs
 * together, [tiles, size / 2, 32, 2]; product_int8.h has the others. Every number is summed over the inputs in one order, so
 * a row's result doesn't depend on the others.
 *
 * Few rows read more memory than they compute. The tile that a thread takes next is fetched while it computes the
 * present one, so that reading and computing overlap; without this, 16 rows wait for memory a third of their time. */

#ifndef KVFERRY_PRODUCT_H
#define KVFERRY_PRODUCT_H

#include <stdatomic.h>

#include "product_types.h"

#if HAS_TILES
#include "product_amx.h"
#else
#include "product_bf16.h"
#include "product_int8.h"
#endif

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

/* The weights of a task. With several parts of rows, of which the first reads them for all, each fetches its share of those
 * that come after. */
INLINE struct ahead weights_of(const struct product *job, const struct cut *cut, size_t task) {
    const char *const weight = job->weight;
    if (cut->parts == 1) {
        if (task >= cut->num_tasks) return (struct ahead){0};
        return (struct ahead){weight + task * tile_bytes(job), weight + (task + 1) * tile_bytes(job)};
    }
    const size_t bytes = cut->outputs / OUTPUTS * tile_bytes(job), share = bytes / cut->parts / 64 * 64;
    const size_t part = task % cut->parts, after = task / cut->parts + 1;
    if ((after + 1) * cut->outputs > job->outputs) return (struct ahead){0};
    return (struct ahead){weight + after * bytes + part * share, weight + after * bytes + (part + 1) * share};
}

static void multiply_task(const struct product *job, const struct cut *cut, size_t task, struct ahead ahead) {
    const size_t row = task % cut->parts * ROWS_AT_ONCE, end = at_most(row + ROWS_AT_ONCE, job->rows);
    const size_t packed = (job->outputs + OUTPUTS - 1) / OUTPUTS * OUTPUTS; /* there is no memory behind the last tile */
    const size_t first = task / cut->parts * cut->outputs, last = at_most(first + cut->outputs, packed);
#if HAS_TILES
    multiply_by_tiles(job, first, last, row, end, &ahead);
#else
    if (is_int8(job))
        multiply_int8_rows(job, first, last, row, end, &ahead);
    else
        multiply_bf16_rows(job, first, last, row, end, &ahead);
#endif
}

/* One thread's part of a product, whose tasks `counter` counts. `then` are bytes to be fetched beside the last task. */
INLINE void multiply_shared(const struct product *job, atomic_size_t *counter, struct ahead then) {
    const struct cut cut = cut_product(job);
    for (size_t task = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); task < cut.num_tasks;) {
        size_t next = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
        multiply_task(job, &cut, task, next < cut.num_tasks ? weights_of(job, &cut, next) : then);
        task = next;
    }
}

#endif
