/* What ids weigh when a token is drawn: the same bits from each library that is compiled of these sources.
 *
 * A weight is a whole number of units of 2^-UNIT_BITS, of which the likeliest id weighs ONE. So sums of weights are
 * exact, in whatever order, and nothing that is drawn depends on it. Its float is computed in single operations that
 * every machine rounds alike; sources that include this file are compiled without contraction (see sampling.c). */

#ifndef KVFERRY_WEIGHTS_H
#define KVFERRY_WEIGHTS_H

#include "lanes.h"

#define UNIT_BITS 44 /* the weights of 2^19 - 1 ids have a sum below 2^63 */
#define ONE ((uint64_t)1 << UNIT_BITS)
#define WEIGHTLESS (-46.0f) /* the power of 2 of what rounds to no unit, however the power is rounded */

typedef float fhalf __attribute__((vector_size(2 * WIDTH)));
typedef double dhalf __attribute__((vector_size(4 * WIDTH)));

/* A row of logits to choose from: of those whose bits are set in `mask`, or of all. */
struct row {
    const float *logits;
    const uint32_t *mask; /* or NULL */
    size_t size;
};

/* Where a row's powers of 2 come from: (logit - peak) * scale. */
struct slope {
    float peak, scale;
};

INLINE float power_of(struct slope slope, float logit) { return (logit - slope.peak) * slope.scale; }

INLINE vec powers_of(struct slope slope, vec logits) { return (logits - slope.peak) * slope.scale; }

/* Rounded to whole units: adding 384, whose last place is a unit, leaves them in the lowest bits. */
INLINE whalf units_of(fhalf x) {
#if defined(__AVX512F__)
    const dhalf shifted = (dhalf)_mm512_cvtps_pd((__m256)x) + 384.0;
#elif defined(__AVX2__)
    const dhalf shifted = (dhalf)_mm256_cvtps_pd((__m128)x) + 384.0;
#else
    const dhalf shifted = __builtin_convertvector(x, dhalf) + 384.0;
#endif
    return (whalf)shifted - (whalf)((dhalf){0} + 384.0);
}

/* 2^y in units, for y <= 0: of the float to 2^-23 of itself. ONE for 0; 0 for minus infinity.
 * y = n + r with n whole and |r| <= 1/2; 2^r by the polynomial nearest to it that is 1 at 0 (to 2^-28). */
INLINE struct wide weights_of(vec y) {
    const float to_integer = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    y = higher(y, all(WEIGHTLESS));
    vec n = y + to_integer;
    const ivec exponent = (ivec)n << 23; /* the shift leaves n alone of its 24 bits */
    n -= to_integer;
    const vec r = y - n;
    vec series = r * 1.55946778e-4f + 1.34066434e-3f;
    series = series * r + 9.61769279e-3f;
    series = series * r + 5.55031039e-2f;
    series = series * r + 2.40226522e-1f;
    series = series * r + 6.93147242e-1f;
    series = series * r + 1.0f;
    const ivec power = (ivec)series + exponent;
    struct {
        fhalf low, high;
    } parts;
    memcpy(&parts, &power, sizeof parts);
    return (struct wide){units_of(parts.low), units_of(parts.high)};
}

/* WIDTH logits from id i on, minus infinity beyond the end. */
INLINE vec all_logits(struct row row, size_t i) {
    if (i + WIDTH <= row.size) return load(row.logits, i, 0);
    vec part = all(-__builtin_inff());
    memcpy(&part, row.logits + i, (row.size - i) * sizeof(float));
    return part;
}

/* The same, and minus infinity for those that aren't allowed. */
INLINE vec allowed_logits(struct row row, size_t i) {
    const vec logits = all_logits(row, i);
    return row.mask ? only(row.mask[i / 32] >> (i % 32), logits, -__builtin_inff()) : logits;
}

#endif
