/* Vectors of 32-bit integers: what quantizing rows and multiplying bytes needs. */

#ifndef KVFERRY_INTEGERS_H
#define KVFERRY_INTEGERS_H

#include "vector.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

/* sum += the products of four signed bytes of x with four unsigned ones of w in each lane. */
INLINE ivec add_four(ivec sum, uint32_t x, uvec w) {
#if defined(__AVX512VNNI__)
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32((int)x));
#else
    const int32_t x0 = (int8_t)x, x1 = (int8_t)(x >> 8), x2 = (int8_t)(x >> 16), x3 = (int8_t)(x >> 24);
#if defined(__AVX512BW__)
    const __m512i low = _mm512_set1_epi32(0x00ff00ff);
    __m512i even = _mm512_madd_epi16(_mm512_and_si512((__m512i)w, low), _mm512_set1_epi32((x0 & 0xffff) | x2 * 65536));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16((__m512i)w, 8), _mm512_set1_epi32((x1 & 0xffff) | x3 * 65536));
    return sum + (ivec)even + (ivec)odd;
#elif defined(__AVX2__)
    const __m256i low = _mm256_set1_epi32(0x00ff00ff);
    __m256i even = _mm256_madd_epi16(_mm256_and_si256((__m256i)w, low), _mm256_set1_epi32((x0 & 0xffff) | x2 * 65536));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16((__m256i)w, 8), _mm256_set1_epi32((x1 & 0xffff) | x3 * 65536));
    return sum + (ivec)even + (ivec)odd;
#else
    sum += (ivec)(w & 255) * x0 + (ivec)(w >> 8 & 255) * x1;
    return sum + (ivec)(w >> 16 & 255) * x2 + (ivec)(w >> 24) * x3;
#endif
#endif
}

/* The nearest whole number, of two equally near ones the even one; below 2^22. */
INLINE ivec to_integer(vec x) {
#if defined(__AVX512F__)
    return (ivec)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
    return (ivec)_mm256_cvtps_epi32((__m256)x);
#elif defined(__aarch64__)
    return (ivec)vcvtnq_s32_f32((float32x4_t)x);
#else
    return (ivec)(x + 12582912.0f) - (ivec)all(12582912.0f);
#endif
}

INLINE ivec larger_integer(ivec a, ivec b) {
#if defined(__AVX512F__)
    return (ivec)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (ivec)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    ivec first = a > b;
    return (a & first) | (b & ~first);
#endif
}

INLINE int32_t largest_of(ivec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)x);
#else
    int32_t largest = x[0];
    UNROLL for (int j = 1; j < WIDTH; j++) largest = largest > x[j] ? largest : x[j];
    return largest;
#endif
}

INLINE int32_t total_of(ivec x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)x);
#else
    int32_t total = 0;
    UNROLL for (int j = 0; j < WIDTH; j++) total += x[j];
    return total;
#endif
}

/* The low byte of every number. */
INLINE void store_bytes(int8_t *to, size_t count, ivec x) {
#if defined(__AVX512F__)
    if (count >= WIDTH) {
        _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8((__m512i)x));
        return;
    }
#endif
    int8_t lane[WIDTH];
    UNROLL for (int j = 0; j < WIDTH; j++) lane[j] = (int8_t)x[j];
    memcpy(to, lane, at_most(count, WIDTH));
}

#endif
