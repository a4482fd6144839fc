/* Operations on independent rows: norm, activation, rotary embedding with the cache write.
 * Their twins in reference.py define what is right; shapes stand in ops.py. */

#include <math.h>

#include "vector.h"

/* Below this many numbers a parallel region costs more than it saves. */
#define PARALLEL_FROM 32768
#define MAX_HEAD_DIM 512
#define BLOCK 16

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

API void kvferry_rms_norm(void *out, const void *x, float *residual, const void *weight, int64_t rows, int64_t size,
                          float eps, int bf16) {
    size_t row_bytes = (size_t)size * (bf16 ? 2 : 4);
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < rows; row++) {
        size_t at = (size_t)row * row_bytes;
        float *sum = residual ? residual + row * size : NULL;
        if (bf16)
            norm_row((char *)out + at, (const char *)x + at, sum, weight, (size_t)size, eps, 1);
        else
            norm_row((char *)out + at, (const char *)x + at, sum, weight, (size_t)size, eps, 0);
    }
}

INLINE void silu_row(void *out, const void *x, size_t size, int bf16) {
    const void *up = (const char *)x + size * (bf16 ? 2 : 4);
    for (size_t i = 0; i < size; i += WIDTH) {
        vec gate = load_upto(x, i, size, bf16);
        vec value = gate / (1.0f + exp_of(-gate)) * load_upto(up, i, size, bf16);
        store_upto(out, i, size, value, bf16);
    }
}

API void kvferry_silu_and_mul(void *out, const void *x, int64_t rows, int64_t size, int bf16) {
    size_t row_bytes = (size_t)size * (bf16 ? 2 : 4);
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < rows; row++) {
        void *to = (char *)out + (size_t)row * row_bytes;
        const void *from = (const char *)x + 2 * (size_t)row * row_bytes;
        if (bf16)
            silu_row(to, from, (size_t)size, 1);
        else
            silu_row(to, from, (size_t)size, 0);
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

/* A head's numbers become one column of its block of K. */
INLINE void write_column(char *block, const char *head, size_t dim, int bf16) {
    for (size_t i = 0; i < dim; i++) {
        if (bf16)
            memcpy(block + i * BLOCK * 2, head + i * 2, 2);
        else
            memcpy(block + i * BLOCK * 4, head + i * 4, 4);
    }
}

INLINE void rope_row(const struct rope *job, size_t row, int bf16) {
    const size_t dim = job->dim, head_bytes = dim * (bf16 ? 2 : 4), column_bytes = bf16 ? 2 : 4;
    char rotated[MAX_HEAD_DIM * 4];
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
        write_column((char *)job->k_cache + at + offset * column_bytes, rotated, dim, bf16);
        memcpy((char *)job->v_cache + at + offset * head_bytes, from + job->kv_heads * head_bytes, head_bytes);
    }
}

/* Returns 0, or 1 if a position or slot lies outside its table (then nothing is written). */
API int kvferry_rope_and_cache(void *q_out, void *k_cache, void *v_cache, const void *qkv, const void *q_norm,
                               const void *k_norm, const int64_t *positions, const int64_t *slots, const float *cos,
                               const float *sin, int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim,
                               int64_t max_len, int64_t num_blocks, float eps, int bf16) {
    for (int64_t row = 0; row < rows; row++)
        if (positions[row] < 0 || positions[row] >= max_len || slots[row] < 0 || slots[row] >= num_blocks * BLOCK)
            return 1;
    struct rope job = {q_out, k_cache, v_cache, qkv,           q_norm,           k_norm,      positions,
                       slots, cos,     sin,     (size_t)heads, (size_t)kv_heads, (size_t)dim, eps};
    int64_t size = (heads + 2 * kv_heads) * dim;
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < rows; row++) {
        if (bf16)
            rope_row(&job, (size_t)row, 1);
        else
            rope_row(&job, (size_t)row, 0);
    }
    return 0;
}

/* Which of the libraries compiled from these sources this machine can run: 4 or 3 (x86-64 levels), 5 for level 4 with
 * bfloat16 products, or 0. */
API int kvferry_cpu_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    return v4 && __builtin_cpu_supports("avx512bf16") ? 5 : v4 ? 4 : v3 ? 3 : 0;
#else
    return 0;
#endif
}
