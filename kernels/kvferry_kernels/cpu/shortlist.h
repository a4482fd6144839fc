/* The ids of a row that may still be drawn, and those of them that stay if they are ranked.
 *
 * Ranked means by logit, highest first, equal ones by id. Nothing is sorted but the last few of what is divided. */

#ifndef KVFERRY_SHORTLIST_H
#define KVFERRY_SHORTLIST_H

#include "lanes.h"

#define FEW 16 /* that are sorted rather than divided once more */

/* In the order of their ids. Rooms are WIDTH longer than what is in them. */
struct shortlist {
    uint64_t *weights;
    float *logits;
    uint32_t *ids;
    size_t count;
};

/* WIDTH of them. */
struct lanes {
    struct wide weights;
    vec logits;
    uvec ids;
};

/* An id's rank. */
struct rank {
    float logit;
    uint32_t id;
};

INLINE struct lanes lanes_at(const struct shortlist *list, size_t i) {
    struct lanes lanes = {load_wide(list->weights + i), load(list->logits, i, 0), {0}};
    memcpy(&lanes.ids, list->ids + i, sizeof lanes.ids);
    return lanes;
}

/* Of the lanes from i on, those that there are. */
INLINE uint32_t lanes_before(size_t end, size_t i) {
    return end - i >= WIDTH ? EVERY_LANE : (1u << (end - i)) - 1;
}

INLINE void append(struct shortlist *list, uint32_t bits, struct lanes lanes) {
    pack_wide(list->weights + list->count, bits, lanes.weights);
    pack(list->logits + list->count, bits, (uvec)lanes.logits);
    pack(list->ids + list->count, bits, lanes.ids);
    list->count += (size_t)__builtin_popcount(bits);
}

/* Puts those at or above a logit, or those below it, on a list, which may be the same one. */
static void keep_side(struct shortlist *to, const struct shortlist *from, float logit, int above) {
    const size_t count = from->count;
    const uint32_t flip = above ? 0 : EVERY_LANE;
    to->count = 0;
    for (size_t i = 0; i < count; i += WIDTH) {
        const struct lanes lanes = lanes_at(from, i);
        append(to, (bits_of(lanes.logits >= logit) ^ flip) & lanes_before(count, i), lanes);
    }
}

/* Takes away what ranks behind `last`. */
static void cut(struct shortlist *list, struct rank last) {
    const size_t count = list->count;
    list->count = 0;
    for (size_t i = 0; i < count; i += WIDTH) {
        const struct lanes lanes = lanes_at(list, i);
        const uint32_t above = bits_of(lanes.logits > last.logit), equal = bits_of(lanes.logits == last.logit);
        append(list, (above | (equal & bits_of((ivec)(lanes.ids <= last.id)))) & lanes_before(count, i), lanes);
    }
}

/* Takes away what weighs less. */
static void keep_heavy(struct shortlist *list, uint64_t least) {
    const size_t count = list->count;
    list->count = 0;
    for (size_t i = 0; i < count; i += WIDTH) {
        const struct lanes lanes = lanes_at(list, i);
        const struct wide light = {lanes.weights.low < least, lanes.weights.high < least};
        append(list, ~bits_of_wide(light) & lanes_before(count, i), lanes);
    }
}

/* What those at or above a logit weigh; or their number. */
static uint64_t sum_above(const struct shortlist *list, float logit, int by_number) {
    struct wide sum = {{0}, {0}};
    uint64_t number = 0;
    for (size_t i = 0; i < list->count; i += WIDTH) {
        const uint32_t bits = bits_of(load(list->logits, i, 0) >= logit) & lanes_before(list->count, i);
        if (by_number) {
            number += (uint64_t)__builtin_popcount(bits);
            continue;
        }
        const struct wide weights = only_wide(bits, load_wide(list->weights + i));
        sum.low += weights.low;
        sum.high += weights.high;
    }
    return number + sum_of_wide(sum);
}

/* By logit, highest first; equal ones stay in order. */
static void sort_few(struct shortlist *list) {
    for (size_t i = 1; i < list->count; i++) {
        const float logit = list->logits[i];
        const uint32_t id = list->ids[i];
        const uint64_t weight = list->weights[i];
        size_t j = i;
        for (; j > 0 && list->logits[j - 1] < logit; j--) {
            list->logits[j] = list->logits[j - 1];
            list->ids[j] = list->ids[j - 1];
            list->weights[j] = list->weights[j - 1];
        }
        list->logits[j] = logit;
        list->ids[j] = id;
        list->weights[j] = weight;
    }
}

/* The lowest and the highest logit of a list that isn't empty. */
static void find_ends(const struct shortlist *list, float *low, float *high) {
    vec highest = all(-__builtin_inff()), lowest = -highest;
    for (size_t i = 0; i < list->count; i += WIDTH) {
        const uint32_t bits = lanes_before(list->count, i);
        const vec logits = load(list->logits, i, 0);
        highest = higher(only(bits, logits, -__builtin_inff()), highest);
        lowest = -higher(-only(bits, logits, __builtin_inff()), -lowest);
    }
    *high = max_of(highest);
    *low = -max_of(-lowest);
}

/* The last of the shortest beginning of the ranking that reaches `need`: of what ids weigh, or of their number. All of
 * the list must reach it; `rest` is used up. */
static struct rank last_within(const struct shortlist *list, struct shortlist *rest, uint64_t need, int by_number) {
    const struct shortlist *from = list;
    for (;;) {
        float low, high;
        find_ends(from, &low, &high);
        if (low == high || from->count <= FEW) break;
        float middle = low * 0.5f + high * 0.5f;
        if (!(middle > low)) middle = high;
        const uint64_t above = sum_above(from, middle, by_number);
        keep_side(rest, from, middle, above >= need);
        if (above < need) need -= above;
        from = rest;
    }
    if (from == list) keep_side(rest, list, -__builtin_inff(), 1);
    if (rest->count <= FEW) sort_few(rest);
    size_t i = 0;
    for (; i + 1 < rest->count; i++) {
        const uint64_t one = by_number ? 1 : rest->weights[i];
        if (one >= need) break;
        need -= one;
    }
    return (struct rank){rest->logits[i], rest->ids[i]};
}

static uint64_t total_weight(const struct shortlist *list) {
    uint64_t sum = 0;
    for (size_t i = 0; i < list->count; i++) sum += list->weights[i];
    return sum;
}

#endif
