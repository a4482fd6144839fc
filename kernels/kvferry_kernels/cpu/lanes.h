/* Lanes of vectors that are told apart by bits, the first lane's lowest: those of a mask, or of a comparison. */

#ifndef KVFERRY_LANES_H
#define KVFERRY_LANES_H

#include "vector.h"

#define EVERY_LANE ((1u << WIDTH) - 1)

typedef uint64_t whalf __attribute__((vector_size(4 * WIDTH)));

/* WIDTH numbers of 64 bits. */
struct wide {
    whalf low, high;
};

INLINE struct wide load_wide(const uint64_t *from) {
    struct wide loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

INLINE uint64_t sum_of_wide(struct wide x) {
    const whalf both = x.low + x.high;
    uint64_t sum = 0;
    UNROLL for (int j = 0; j < WIDTH / 2; j++) sum += both[j];
    return sum;
}

/* a where it is more than b, else b, also where a is NaN. */
INLINE vec higher(vec a, vec b) {
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return larger(a, b);
#endif
}

/* Lanes in which a comparison held. */
INLINE uint32_t bits_of(ivec held) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)held);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)held);
#else
    uint32_t bits = 0;
    UNROLL for (int j = 0; j < WIDTH; j++) bits |= (held[j] & 1u) << j;
    return bits;
#endif
}

/* Lanes that aren't 0. */
INLINE uint32_t bits_of_wide(struct wide x) {
#if defined(__AVX512F__)
    return (uint32_t)_mm512_test_epi64_mask((__m512i)x.low, (__m512i)x.low) |
           (uint32_t)_mm512_test_epi64_mask((__m512i)x.high, (__m512i)x.high) << WIDTH / 2;
#else
    uint32_t bits = 0;
    UNROLL for (int j = 0; j < WIDTH / 2; j++)
        bits |= (uint32_t)(x.low[j] != 0) << j | (uint32_t)(x.high[j] != 0) << (j + WIDTH / 2);
    return bits;
#endif
}

/* x in these lanes, and another number in the others. */
INLINE vec only(uint32_t bits, vec x, float other) {
#if defined(__AVX512F__)
    return (vec)_mm512_mask_mov_ps(_mm512_set1_ps(other), (__mmask16)bits, (__m512)x);
#else
    uvec lane;
    UNROLL for (int j = 0; j < WIDTH; j++) lane[j] = 1u << j;
    return choose((((uvec){0} + bits) & lane) != 0, x, all(other));
#endif
}

/* x in these lanes, 0 in the others. */
INLINE struct wide only_wide(uint32_t bits, struct wide x) {
#if defined(__AVX512F__)
    return (struct wide){(whalf)_mm512_maskz_mov_epi64((__mmask8)bits, (__m512i)x.low),
                         (whalf)_mm512_maskz_mov_epi64((__mmask8)(bits >> 8), (__m512i)x.high)};
#else
    UNROLL for (int j = 0; j < WIDTH / 2; j++) {
        x.low[j] &= -(uint64_t)(bits >> j & 1);
        x.high[j] &= -(uint64_t)(bits >> (j + WIDTH / 2) & 1);
    }
    return x;
#endif
}

/* Writes these lanes one after another, and perhaps something behind them, as far as all lanes would reach. To memory
 * itself the instructions are many times slower. */
INLINE void pack(void *to, uint32_t bits, uvec x) {
#if defined(__AVX512F__)
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi32((__mmask16)bits, (__m512i)x));
#else
    uint32_t lane[WIDTH], *next = to;
    memcpy(lane, &x, sizeof x);
    for (; bits; bits &= bits - 1) *next++ = lane[__builtin_ctz(bits)];
#endif
}

INLINE void pack_wide(uint64_t *to, uint32_t bits, struct wide x) {
#if defined(__AVX512F__)
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64((__mmask8)bits, (__m512i)x.low));
    to += __builtin_popcount(bits & 0xff);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64((__mmask8)(bits >> 8), (__m512i)x.high));
#else
    uint64_t lane[WIDTH];
    memcpy(lane, &x, sizeof x);
    for (; bits; bits &= bits - 1) *to++ = lane[__builtin_ctz(bits)];
#endif
}

#endif
