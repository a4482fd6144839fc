/* A row of numbers as 8-bit integers. Shapes stand in ops.py. */

#ifndef KVFERRY_QUANTIZE_H
#define KVFERRY_QUANTIZE_H

#include "integers.h"

/* Numbers of a row that share a scale: so few where some may be far larger than the others, else all of them, as far as
 * their products have sums in 32 bits. */
#define GROUP 128
#define WHOLE_ROW 32768

INLINE size_t num_groups(size_t size, size_t group) { return (size + group - 1) / group; }

/* Bytes of a quantized row: a multiple of four, as products take them. */
INLINE size_t quantized_size(size_t size) { return (size + 3) / 4 * 4; }

/* Rows of 8-bit integers, see ops.quantize_rows. */
struct quantized {
    int8_t *bytes;        /* [rows, quantized_size] */
    float *scales;        /* [rows, groups] */
    int32_t *corrections; /* [rows, groups] */
};

/* `count` numbers of a row of `size`, from number `at` on, which share a scale. Beyond the last stand zeros. */
INLINE void quantize_group(int8_t *out, float *scale, int32_t *correction, const void *x, size_t at, size_t count,
                           size_t size, int bf16) {
    ivec largest = {0}; /* of the bits without sign, which are in the order of the numbers; a NaN's are the largest */
    for (size_t i = at; i < at_most(at + count, size); i += WIDTH)
        largest = larger_integer(largest, (ivec)load_upto(x, i, size, bf16) & 0x7fffffff);
    const int32_t bits = largest_of(largest);
    float top;
    memcpy(&top, &bits, sizeof top);
    const vec inverse = all(top > 1e-30f ? 127.0f / top : 0.0f);
    ivec total = {0};
    for (size_t i = 0; i < count; i += WIDTH) {
        const ivec whole = to_integer((at + i < size ? load_upto(x, at + i, size, bf16) : all(0.0f)) * inverse);
        total += whole;
        store_bytes(out + i, count - i, whole);
    }
    *scale = top / 127.0f + (top - top); /* NaN, if a number is infinite too */
    *correction = -128 * total_of(total);
}

/* Groups of fewer numbers than a vector don't occur but at a row's end: `group` is a multiple of every WIDTH. */
INLINE void quantize_row(const struct quantized *out, size_t row, const void *x, size_t size, size_t group, int bf16) {
    const size_t whole = quantized_size(size), groups = num_groups(size, group);
    for (size_t i = 0; i < groups; i++) {
        const size_t at = i * group, to = row * groups + i;
        quantize_group(out->bytes + row * whole + at, out->scales + to, out->corrections + to, x, at,
                       at_most(group, whole - at), size, bf16);
    }
}

#endif
