/* Norm, activation, quantization, rotary embedding with the cache write, the likeliest token as operations of their own.
 * Their twins in reference.py define what is right; shapes stand in ops.py. */

#include "quantize.h"
#include "rows.h"

/* Below this many numbers a parallel region costs more than it saves. */
#define PARALLEL_FROM 32768

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

API void kvferry_quantize(int8_t *bytes, float *scales, int32_t *corrections, const void *x, int64_t rows, int64_t size,
                          int64_t group, int bf16) {
    const struct quantized out = {bytes, scales, corrections};
    const size_t row_bytes = (size_t)size * (bf16 ? 2 : 4);
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < rows; row++) {
        const void *from = (const char *)x + (size_t)row * row_bytes;
        if (bf16)
            quantize_row(&out, (size_t)row, from, (size_t)size, (size_t)group, 1);
        else
            quantize_row(&out, (size_t)row, from, (size_t)size, (size_t)group, 0);
    }
}

/* Returns 0, or 1 if a position or slot lies outside its table (then nothing is written). */
API int kvferry_rope_and_cache(void *q_out, void *k_cache, void *v_cache, const void *qkv, const void *q_norm,
                               const void *k_norm, const int64_t *positions, const int64_t *slots, const float *cos,
                               const float *sin, int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim,
                               int64_t max_len, int64_t num_blocks, float eps, int bf16) {
    struct rope job = {q_out, k_cache, v_cache, qkv,           q_norm,           k_norm,      positions,
                       slots, cos,     sin,     (size_t)heads, (size_t)kv_heads, (size_t)dim, eps};
    const int64_t size = (heads + 2 * kv_heads) * dim;
    if (!rope_in_range(&job, (size_t)rows, (size_t)max_len, (size_t)num_blocks)) return 1;
#pragma omp parallel for schedule(static) if (rows > 1 && rows * size >= PARALLEL_FROM)
    for (int64_t row = 0; row < rows; row++) {
        if (bf16)
            rope_row(&job, (size_t)row, 1);
        else
            rope_row(&job, (size_t)row, 0);
    }
    return 0;
}
