/* Operations on one row: norm, activation, rotary embedding with the cache write. Shapes stand in ops.py. */

#ifndef KVFERRY_ROWS_H
#define KVFERRY_ROWS_H

#include <math.h>

#include "vector.h"

/* 1 / sqrt(mean(x^2) + eps) from the sum of squares. */
INLINE float inverse_rms(float squares, size_t size, float eps) {
    return 1.0f / sqrtf(squares / (float)size + eps);
}

INLINE void norm_row(void *out, const void *x, float *residual, const void *weight, size_t size, float eps, int bf16) {
    vec squares = {0};
    for (size_t i = 0; i < size; i += WIDTH) {
        vec value = load_upto(x, i, size, bf16);
        if (residual) {
            value += load_upto(residual, i, size, 0);
            store_upto(residual, i, size, value, 0);
        }
        squares += value * value;
    }
    float factor = inverse_rms(sum_of(squares), size, eps);
    for (size_t i = 0; i < size; i += WIDTH) {
        vec value = residual ? load_upto(residual, i, size, 0) : load_upto(x, i, size, bf16);
        store_upto(out, i, size, value * factor * load_upto(weight, i, size, bf16), bf16);
    }
}

INLINE void silu_row(void *out, const void *x, size_t size, int bf16) {
    const void *up = (const char *)x + size * (bf16 ? 2 : 4);
    for (size_t i = 0; i < size; i += WIDTH) {
        vec gate = load_upto(x, i, size, bf16);
        vec sigmoid = bf16 ? sigmoid_for_bf16(gate) : 1.0f / (1.0f + exp_of(-gate));
        vec value = gate * sigmoid * load_upto(up, i, size, bf16);
        store_upto(out, i, size, value, bf16);
    }
}

struct rope {
    void *q_out, *k_cache, *v_cache;
    const void *qkv, *q_norm, *k_norm;
    const int64_t *positions, *slots;
    const float *cos, *sin;
    size_t heads, kv_heads, dim;
    float eps;
};

/* Writes one head, perhaps normalized, with its pairs (i, i + dim / 2) rotated. */
INLINE void rotate_head(char *out, const char *head, const char *norm, const float *cos, const float *sin, size_t dim,
                        float eps, int bf16) {
    const size_t half = dim / 2, half_bytes = half * (bf16 ? 2 : 4);
    float factor = 1.0f;
    if (norm) {
        vec squares = {0};
        for (size_t i = 0; i < half; i += WIDTH) {
            vec a = load_upto(head, i, half, bf16), b = load_upto(head + half_bytes, i, half, bf16);
            squares += a * a;
            squares += b * b;
        }
        factor = inverse_rms(sum_of(squares), dim, eps);
    }
    for (size_t i = 0; i < half; i += WIDTH) {
        vec a = load_upto(head, i, half, bf16), b = load_upto(head + half_bytes, i, half, bf16);
        if (norm) {
            a = a * factor * load_upto(norm, i, half, bf16);
            b = b * factor * load_upto(norm + half_bytes, i, half, bf16);
        }
        vec c = load_upto(cos, i, half, 0), s = load_upto(sin, i, half, 0);
        store_upto(out, i, half, a * c - b * s, bf16);
        store_upto(out + half_bytes, i, half, b * c + a * s, bf16);
    }
}

/* A head's numbers become one column of its block of K, of pairs in bfloat16: see attention_tile.h. */
INLINE void write_key(char *block, const char *head, size_t offset, size_t dim, int bf16) {
    for (size_t i = 0; i < (bf16 ? dim / 2 : dim); i++) memcpy(block + (i * BLOCK + offset) * 4, head + i * 4, 4);
}

/* A head's numbers become one row of its block of V, in bfloat16 every other number of a row of pairs. */
INLINE void write_value(char *block, const char *head, size_t offset, size_t dim, int bf16) {
    if (!bf16) {
        memcpy(block + offset * dim * 4, head, dim * 4);
        return;
    }
    uint16_t *pairs = (uint16_t *)block + offset / 2 * dim * 2;
#if defined(__AVX512BW__) /* masked stores don't touch the neighbor, which another thread may be writing */
    const int odd = (int)(offset % 2);
    const __mmask32 mine = odd ? 0xaaaaaaaau : 0x55555555u;
    for (size_t i = 0; i < dim; i += WIDTH) {
        hvec half;
        memcpy(&half, head + 2 * i, sizeof half);
        _mm512_mask_storeu_epi16(pairs + 2 * i, mine, (__m512i)(widen(half) << (odd * 16)));
    }
#else
    for (size_t i = 0; i < dim; i++) memcpy(pairs + 2 * i + offset % 2, head + 2 * i, 2);
#endif
}

INLINE void rope_row(const struct rope *job, size_t row, int bf16) {
    const size_t dim = job->dim, head_bytes = dim * (bf16 ? 2 : 4);
    char rotated[MAX_DIM * 4];
    const float *cos = job->cos + (size_t)job->positions[row] * (dim / 2);
    const float *sin = job->sin + (size_t)job->positions[row] * (dim / 2);
    const char *from = (const char *)job->qkv + row * (job->heads + 2 * job->kv_heads) * head_bytes;
    char *q_out = (char *)job->q_out + row * job->heads * head_bytes;
    for (size_t h = 0; h < job->heads; h++, from += head_bytes, q_out += head_bytes)
        rotate_head(q_out, from, job->q_norm, cos, sin, dim, job->eps, bf16);
    const size_t block = (size_t)job->slots[row] / BLOCK, offset = (size_t)job->slots[row] % BLOCK;
    for (size_t h = 0; h < job->kv_heads; h++, from += head_bytes) {
        size_t at = (block * job->kv_heads + h) * BLOCK * head_bytes;
        rotate_head(rotated, from, job->k_norm, cos, sin, dim, job->eps, bf16);
        write_key((char *)job->k_cache + at, rotated, offset, dim, bf16);
        write_value((char *)job->v_cache + at, from + job->kv_heads * head_bytes, offset, dim, bf16);
    }
}

static int rope_in_range(const struct rope *job, size_t rows, size_t max_len, size_t num_blocks) {
    for (size_t row = 0; row < rows; row++)
        if (job->positions[row] < 0 || job->positions[row] >= (int64_t)max_len || job->slots[row] < 0 ||
            job->slots[row] >= (int64_t)num_blocks * BLOCK)
            return 0;
    return 1;
}

#endif
