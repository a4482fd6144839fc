/* Vectors of floats, as wide as the instruction set this file is compiled for has them.
 *
 * The sources of this folder are compiled once per instruction set, and the library that fits the machine is
 * chosen when it is loaded. All arithmetic is in float; bfloat16 is converted at loads and stores. */

#ifndef KVFERRY_VECTOR_H
#define KVFERRY_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define WIDTH 16
#define MANY_REGISTERS 1
#elif defined(__AVX2__)
#define WIDTH 8
#define MANY_REGISTERS 0
#else
#define WIDTH 4
#if defined(__aarch64__)
#define MANY_REGISTERS 1
#else
#define MANY_REGISTERS 0
#endif
#endif

/* Rows and columns (vectors) of a product computed at once: as many accumulators as the register file holds. */
#if MANY_REGISTERS
#define ROWS 6
#else
#define ROWS 2
#endif
#define COLUMNS 4

#define BLOCK 16 /* tokens in a block of the cache */
#define MAX_DIM 256 /* of a head: ops.py sends larger ones to the reference */

/* The same with half the columns: more rows, so that a weight is read less often. */
#if MANY_REGISTERS
#define NARROW_ROWS 12
#else
#define NARROW_ROWS ROWS
#endif

/* CALL(n) with a constant n for 1 to ROWS rows. */
#if MANY_REGISTERS
#define FOR_ROWS(n, CALL) \
    switch (n) { \
    case 1: CALL(1); break; \
    case 2: CALL(2); break; \
    case 3: CALL(3); break; \
    case 4: CALL(4); break; \
    case 5: CALL(5); break; \
    default: CALL(6); \
    }
#else
#define FOR_ROWS(n, CALL) \
    if ((n) == 1) { \
        CALL(1); \
    } else { \
        CALL(2); \
    }
#endif

#define INLINE static inline __attribute__((always_inline))
#define API __attribute__((visibility("default")))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t ivec __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t uvec __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t hvec __attribute__((vector_size(2 * WIDTH)));

/* 16 to 32 bits and back. Compilers make several instructions of the portable form where one would do. */
INLINE uvec widen(hvec x) {
#if defined(__AVX512F__)
    return (uvec)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__)
    return (uvec)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, uvec);
#endif
}

INLINE hvec narrow(uvec x) {
#if defined(__AVX512F__)
    return (hvec)_mm512_cvtepi32_epi16((__m512i)x);
#else
    return __builtin_convertvector(x, hvec);
#endif
}

INLINE vec all(float x) { return x - (vec){0}; }

INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }

INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); }

/* sum += x0 * w0 + x1 * w1 in every lane: one pair of bfloat16 numbers in x, and one per lane in w. */
INLINE vec add_pair(vec sum, uint32_t x, uvec w) {
#if defined(__AVX512BF16__)
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#else
    uvec pair = x - (uvec){0};
    sum += (vec)(pair << 16) * (vec)(w << 16);
    return sum + (vec)(pair & 0xffff0000u) * (vec)(w & 0xffff0000u);
#endif
}

INLINE size_t at_most(size_t x, size_t limit) { return x < limit ? x : limit; }

/* WIDTH numbers from element i on; bf16 is a constant 0 or 1 at every call. */
INLINE vec load(const void *from, size_t i, int bf16) {
    if (bf16) {
        hvec half;
        memcpy(&half, (const uint16_t *)from + i, sizeof half);
        return (vec)(widen(half) << 16);
    }
    vec whole;
    memcpy(&whole, (const float *)from + i, sizeof whole);
    return whole;
}

/* Rounds to nearest even; a NaN stays one. */
INLINE hvec to_bf16(vec x) {
#if defined(__AVX512BF16__)
    const int small = 0x20; /* of the classes: too small for a normal number, of which the instruction makes 0 */
    if (__builtin_expect(!_mm512_fpclass_ps_mask((__m512)x, small), 1)) return (hvec)_mm512_cvtneps_pbh((__m512)x);
#endif
    uvec bits = (uvec)x;
    uvec rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    ivec is_nan = x != x;
    uvec quiet = (bits >> 16) | 0x40;
    return narrow((quiet & (uvec)is_nan) | (rounded & ~(uvec)is_nan));
}

/* The same, but what is too small for a normal number may become 0: one instruction where there is one. */
INLINE hvec to_bf16_or_0(vec x) {
#if defined(__AVX512BF16__)
    return (hvec)_mm512_cvtneps_pbh((__m512)x);
#else
    return to_bf16(x);
#endif
}

INLINE void store(void *to, size_t i, vec x, int bf16) {
    if (bf16) {
        hvec half = to_bf16(x);
        memcpy((uint16_t *)to + i, &half, sizeof half);
    } else {
        memcpy((float *)to + i, &x, sizeof x);
    }
}

/* The first n < WIDTH numbers, then zeros: the rest of a row goes through the same vector code as its start. */
INLINE vec load_part(const void *from, size_t i, size_t n, int bf16) {
    float whole[WIDTH] = {0};
    uint16_t half[WIDTH] = {0};
    if (bf16) {
        memcpy(half, (const uint16_t *)from + i, n * sizeof *half);
        return load(half, 0, 1);
    }
    memcpy(whole, (const float *)from + i, n * sizeof *whole);
    return load(whole, 0, 0);
}

INLINE void store_part(void *to, size_t i, size_t n, vec x, int bf16) {
    if (bf16) {
        hvec half = to_bf16(x);
        memcpy((uint16_t *)to + i, &half, n * sizeof(uint16_t));
    } else {
        memcpy((float *)to + i, &x, n * sizeof(float));
    }
}

INLINE vec load_upto(const void *from, size_t i, size_t end, int bf16) {
    return i + WIDTH <= end ? load(from, i, bf16) : load_part(from, i, end - i, bf16);
}

INLINE void store_upto(void *to, size_t i, size_t end, vec x, int bf16) {
    if (i + WIDTH <= end)
        store(to, i, x, bf16);
    else
        store_part(to, i, end - i, x, bf16);
}

/* Sums and maxima of one vector in one fixed order: halves are folded onto each other. */
INLINE float sum_of(vec x) {
#if defined(__AVX512F__)
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return four[0] + four[1];
#endif
    float lane[WIDTH];
    memcpy(lane, &x, sizeof x);
    UNROLL for (int width = WIDTH / 2; width; width /= 2)
        UNROLL for (int j = 0; j < width; j++) lane[j] += lane[j + width];
    return lane[0];
}

INLINE float max_of(vec x) {
#if defined(__AVX512F__)
    if (!_mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q)) return _mm512_reduce_max_ps((__m512)x);
#endif
    float lane[WIDTH];
    memcpy(lane, &x, sizeof x);
    UNROLL for (int width = WIDTH / 2; width; width /= 2)
        UNROLL for (int j = 0; j < width; j++)
            lane[j] = lane[j] > lane[j + width] || lane[j] != lane[j] ? lane[j] : lane[j + width];
    return lane[0];
}

/* e^x within 2 units in the last place; 0 below -87.3 (so for -inf), inf above 88.7, NaN for NaN.
 * x = n ln 2 + r with n whole and |r| <= ln 2 / 2; e^r by its Taylor series to r^7 (remainder below 2^-28). */
INLINE vec exp_of(vec x) {
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    ivec too_low = x < all(-87.3f), too_high = x > all(88.7f);
    vec safe = choose(too_low | too_high, all(0.0f), x);
    vec n = safe * 1.44269504f + to_integer;
    ivec exponent = (ivec)n - (ivec)all(to_integer);
    n -= to_integer;
    vec r = safe - n * 0.693145752f; /* ln 2 in two parts, the first with 12 zero bits at its end */
    r -= n * 1.42860677e-6f;
    vec series = r * (1.0f / 5040) + (1.0f / 720);
    series = series * r + (1.0f / 120);
    series = series * r + (1.0f / 24);
    series = series * r + (1.0f / 6);
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    /* 2^n in two factors: n can be 128, which one float has no power for. */
    ivec half = exponent >> 1;
    vec power = (vec)((half + 127) << 23);
    vec rest = (vec)((exponent - half + 127) << 23);
    vec result = series * power * rest;
    return choose(too_low, all(0.0f), choose(too_high, all(__builtin_inff()), result));
}

/* e^x for x <= 0, within 3 units in the last place; 0 below -87.3 (so for -inf). Cheaper than exp_of: no overflow. */
INLINE vec exp_below_0(vec x) {
    const float to_integer = 12582912.0f;
    ivec too_low = x < all(-87.3f);
    vec n = x * 1.44269504f + to_integer;
    vec power = (vec)(((ivec)n << 23) + (ivec)all(1.0f)); /* the shift leaves n alone of its 24 bits */
    n -= to_integer;
    vec r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    vec series = r * (1.0f / 720) + (1.0f / 120);
    series = series * r + (1.0f / 24);
    series = series * r + (1.0f / 6);
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    return (vec)((ivec)(series * power) & ~too_low);
}

#if defined(__AVX512F__)
/* 2^x to 2^-18 of itself, for numbers that are rounded to bfloat16 afterwards; 0 below -126, NaN for NaN.
 * x = n + r with n whole and 0 <= r < 1; 2^r by the polynomial nearest to it that is 1 at 0. */
INLINE __m512 exp2_for_bf16(__m512 x) {
    const __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ); /* what is less takes 80 cycles */
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 series = _mm512_fmadd_ps(r, _mm512_set1_ps(0.013426684f), _mm512_set1_ps(0.052242473f));
    series = _mm512_fmadd_ps(series, r, _mm512_set1_ps(0.2412802f));
    series = _mm512_fmadd_ps(series, r, _mm512_set1_ps(0.69304484f));
    series = _mm512_fmadd_ps(series, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(kept, series, x); /* takes n of x by itself */
}
#endif

/* 1 / (1 + e^-x) to 2^-17 of itself where it is above 2^-126, for numbers that are rounded to bfloat16 afterwards. */
INLINE vec sigmoid_for_bf16(vec x) {
#if defined(__AVX512F__)
    const __m512 least = _mm512_set1_ps(-126.0f), most = _mm512_set1_ps(126.0f); /* in these places a NaN stays one */
    const __m512 power = _mm512_max_ps(least, _mm512_min_ps(most, (__m512)(x * -1.44269504f)));
    return 1.0f / (1.0f + (vec)exp2_for_bf16(power));
#else
    return 1.0f / (1.0f + exp_of(-x));
#endif
}

#endif
