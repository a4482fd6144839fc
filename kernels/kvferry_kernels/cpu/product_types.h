/* What a product is. */

#ifndef KVFERRY_PRODUCT_TYPES_H
#define KVFERRY_PRODUCT_TYPES_H

#include "quantize.h"
#include "tiles.h"

#define OUTPUTS 32 /* of a tile */

/* Rows of a task, enough to pay for reading a tile, few enough to share out evenly; outputs of a task of so many rows.
 * With fewer rows a task is one tile. */
#if HAS_TILES
#define ROWS_AT_ONCE 128
#define MANY_OUTPUTS 128
#else
#define ROWS_AT_ONCE 96
#define MANY_OUTPUTS 64
#endif

/* Numbers of x and weight, and of out. GATED: to bfloat16, each output times the silu of the one `outputs` before it,
 * for which weight and bias have twice as many outputs. */
enum product_kind { BF16_TO_BF16, BF16_TO_FLOAT, INT8_TO_BF16, INT8_TO_FLOAT, BF16_GATED, INT8_GATED };

struct product {
    enum product_kind kind;
    void *out; /* [rows, outputs] */
    const uint16_t *x; /* [rows, size], of bfloat16 */
    struct quantized rows8; /* [rows, size], of bytes */
    size_t group; /* of bytes: how many share a scale */
    const void *weight, *bias; /* bias: NULL if there is none, else bfloat16, or with bytes what out is */
    size_t rows, outputs, size; /* size: a multiple of 2, with bytes of 4 */
};

/* Bytes that will be wanted next, fetched bit by bit. */
struct ahead {
    const char *at, *end;
};

/* Of a tile of bytes: its weights, and behind them 32 scales of 4 bytes. */
INLINE size_t int8_tile_bytes(size_t size) { return (size + 4) * OUTPUTS; }

INLINE int is_int8(const struct product *job) {
    return job->kind == INT8_TO_BF16 || job->kind == INT8_TO_FLOAT || job->kind == INT8_GATED;
}

INLINE size_t tile_bytes(const struct product *job) {
    return is_int8(job) ? int8_tile_bytes(job->size) : job->size * OUTPUTS * 2;
}

#endif
