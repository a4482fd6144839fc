/* A token for one row of logits: what one thread does. What is chosen is told in sampling.py.
 *
 * A row is read once for the highest logit of each span of ids, and once more for what spans weigh, or for the
 * shortlist of ids that a filter may keep. Spans that hold nothing of weight are passed over. */

#ifndef KVFERRY_SAMPLING_H
#define KVFERRY_SAMPLING_H

#include <math.h>

#include "shortlist.h"
#include "weights.h"

#define SPAN 256 /* ids; whole words of a mask, and whole vectors */
#define NONE_LEFT (-1)
#define NOT_FINITE (-2)
#define STEEPEST 1e30f /* no difference times it is a NaN; nor times FLATTEST */
#define FLATTEST 1.2e-38f
#define SLACK 0.01f /* by which a bound on powers of 2 is below what it stands for */
#define FIRST_GUESS 2048.0 /* what top_p cuts off weighs so many times an id that it keeps, at most, where answers are text */
#define SURE_UNITS 128.0 /* half a unit of so many is less than SLACK */

/* What a row's request asks for; see sampling.py. */
struct choice {
    int64_t row, mask, top_k;
    double temperature, top_p, min_p, number;
};

/* What a thread works with; rooms for `size` ids, and for the spans of them. */
struct scratch {
    float *tops; /* the highest allowed logit of each span */
    uint64_t *sums; /* what each span weighs */
    struct shortlist list, rest;
};

static int any_allowed(struct row row, size_t first, size_t end) {
    uint32_t any = 0;
    for (size_t i = first; i < end; i += 32) any |= row.mask[i / 32];
    return any != 0;
}

/* The highest allowed logit of each span and of all; NaN if one of the row, allowed or not, is NaN or infinity. */
static float scan(struct row row, float *tops) {
    ivec odd = {0};
    vec highest = all(-__builtin_inff());
    float peak = -__builtin_inff();
    for (size_t first = 0; first < row.size; first += SPAN) {
        const size_t end = at_most(first + SPAN, row.size);
        vec top = all(-__builtin_inff());
        for (size_t i = first; i < end; i += WIDTH) {
            const vec logits = all_logits(row, i);
            odd |= logits != logits;
            top = higher(logits, top);
        }
        highest = higher(top, highest);
        if (row.mask) {
            top = all(-__builtin_inff());
            if (any_allowed(row, first, end))
                for (size_t i = first; i < end; i += WIDTH) top = higher(allowed_logits(row, i), top);
        }
        const float span_top = tops[first / SPAN] = max_of(top);
        peak = span_top > peak ? span_top : peak;
    }
    int has_nan = 0;
    UNROLL for (int j = 0; j < WIDTH; j++) has_nan |= odd[j];
    return has_nan || !isfinite(max_of(highest)) ? __builtin_nanf("") : peak;
}

static int64_t first_of(struct row row, const float *tops, float peak) {
    size_t i = 0;
    while (tops[i / SPAN] != peak) i += SPAN;
    while (row.logits[i] != peak || (row.mask && !(row.mask[i / 32] >> (i % 32) & 1))) i++;
    return (int64_t)i;
}

/* What each span weighs; returns what all do. */
static uint64_t weigh(struct row row, struct slope slope, const float *tops, uint64_t *sums) {
    uint64_t total = 0;
    for (size_t first = 0; first < row.size; first += SPAN) {
        const size_t end = at_most(first + SPAN, row.size);
        struct wide sum = {{0}, {0}};
        if (power_of(slope, tops[first / SPAN]) > WEIGHTLESS)
            for (size_t i = first; i < end; i += WIDTH) {
                const struct wide weights = weights_of(powers_of(slope, allowed_logits(row, i)));
                sum.low += weights.low;
                sum.high += weights.high;
            }
        total += sums[first / SPAN] = sum_of_wide(sum);
    }
    return total;
}

/* The first id whose running sum reaches `need`. */
static int64_t draw_from_all(struct row row, struct slope slope, const uint64_t *sums, uint64_t need) {
    size_t i = 0;
    for (; sums[i / SPAN] < need; i += SPAN) need -= sums[i / SPAN];
    for (;; i += WIDTH) {
        const struct wide weights = weights_of(powers_of(slope, allowed_logits(row, i)));
        const uint64_t sum = sum_of_wide(weights);
        if (sum < need) {
            need -= sum;
            continue;
        }
        uint64_t each[WIDTH];
        memcpy(each, &weights, sizeof each);
        size_t j = 0;
        for (; each[j] < need; j++) need -= each[j];
        return (int64_t)(i + j);
    }
}

static int64_t draw_from_list(const struct shortlist *list, uint64_t need) {
    size_t i = 0;
    for (; list->weights[i] < need; i++) need -= list->weights[i];
    return list->ids[i];
}

/* Puts ids of weight whose power of 2 is above `bound` on the list. */
static void gather(struct row row, struct slope slope, const float *tops, float bound, struct shortlist *list) {
    uvec ids;
    UNROLL for (int j = 0; j < WIDTH; j++) ids[j] = (uint32_t)j;
    list->count = 0;
    for (size_t first = 0; first < row.size; first += SPAN) {
        if (!(power_of(slope, tops[first / SPAN]) > bound)) continue;
        const size_t end = at_most(first + SPAN, row.size);
        for (size_t i = first; i < end; i += WIDTH) {
            const vec logits = allowed_logits(row, i), powers = powers_of(slope, logits);
            const uint32_t bits = bits_of(powers > bound);
            if (!bits) continue;
            const struct lanes lanes = {weights_of(powers), logits, ids + (uint32_t)i};
            append(list, bits & bits_of_wide(lanes.weights), lanes);
        }
    }
}

/* As many units as `share` of a sum asks for: one at least, and no more than all. */
static uint64_t units_needed(double share, uint64_t sum) {
    const double need = ceil(share * (double)sum);
    return need < 1.0 ? 1 : need >= (double)sum ? sum : (uint64_t)need;
}

/* A power of 2 below the one of the k-th highest logit: k spans have one as high. */
static float bound_of_top_k(struct slope slope, size_t k, size_t spans, struct scratch *scratch) {
    struct shortlist *tops = &scratch->list;
    tops->count = 0;
    for (size_t i = 0; i < spans; i++) {
        tops->logits[tops->count] = scratch->tops[i];
        tops->ids[tops->count] = (uint32_t)i;
        tops->count += power_of(slope, scratch->tops[i]) > WEIGHTLESS;
    }
    if (k > tops->count) return WEIGHTLESS;
    return power_of(slope, last_within(tops, &scratch->rest, k, 1).logit) - SLACK;
}

/* A power of 2 below those of ids of so many units. */
static float bound_of_weight(double units) {
    return units < SURE_UNITS ? WEIGHTLESS : (float)log2(units) - UNIT_BITS - SLACK;
}

/* Puts the ids that top_p keeps on the list, of all of the row. The first guess of how light they are is mostly right:
 * those on the list then reach what is needed. Else it holds all but those so light that together they weigh less than
 * half of what is cut off. */
static void keep_top_p(struct row row, struct slope slope, double top_p, struct scratch *scratch) {
    const uint64_t total = weigh(row, slope, scratch->tops, scratch->sums), need = units_needed(top_p, total);
    const double cut_off = (1.0 - top_p) * (double)total;
    gather(row, slope, scratch->tops, bound_of_weight(cut_off / FIRST_GUESS), &scratch->list);
    if (total_weight(&scratch->list) < need)
        gather(row, slope, scratch->tops, bound_of_weight(cut_off / (2.0 * (double)row.size)), &scratch->list);
    cut(&scratch->list, last_within(&scratch->list, &scratch->rest, need, 0));
}

/* Puts the ids that top_k keeps on the list, at most `k`, and perhaps not those of powers of 2 below `bound`. */
static void keep_top_k(struct row row, struct slope slope, size_t k, float bound, struct scratch *scratch) {
    const size_t spans = (row.size + SPAN - 1) / SPAN;
    bound = fmaxf(bound, bound_of_top_k(slope, k, spans, scratch));
    gather(row, slope, scratch->tops, bound, &scratch->list);
    if (scratch->list.count > k) cut(&scratch->list, last_within(&scratch->list, &scratch->rest, k, 1));
}

/* Puts the ids that the filters keep on the list. */
static void filter(struct row row, struct slope slope, const struct choice *choice, struct scratch *scratch) {
    struct shortlist *list = &scratch->list;
    const int has_top_p = choice->top_p < 1.0;
    const float bound = has_top_p ? WEIGHTLESS : bound_of_weight(choice->min_p * (double)ONE);
    if (choice->top_k > 0) {
        keep_top_k(row, slope, (size_t)choice->top_k, bound, scratch);
        if (has_top_p)
            cut(list, last_within(list, &scratch->rest, units_needed(choice->top_p, total_weight(list)), 0));
    } else if (has_top_p) {
        keep_top_p(row, slope, choice->top_p, scratch);
    } else {
        gather(row, slope, scratch->tops, bound, list);
    }
    if (choice->min_p > 0.0) keep_heavy(list, units_needed(choice->min_p, ONE));
}

static int64_t choose_token(struct row row, const struct choice *choice, struct scratch *scratch) {
    const float peak = scan(row, scratch->tops);
    if (peak != peak) return NOT_FINITE;
    if (peak == -__builtin_inff()) return NONE_LEFT;
    if (!(choice->temperature > 0.0) || choice->top_k == 1) return first_of(row, scratch->tops, peak);
    const double scale = 1.4426950408889634 / choice->temperature;
    const struct slope slope = {peak, (float)fmin(fmax(scale, FLATTEST), STEEPEST)};
    if (choice->top_k <= 0 && choice->top_p >= 1.0 && choice->min_p <= 0.0) {
        const uint64_t total = weigh(row, slope, scratch->tops, scratch->sums);
        return draw_from_all(row, slope, scratch->sums, units_needed(choice->number, total));
    }
    filter(row, slope, choice, scratch);
    return draw_from_list(&scratch->list, units_needed(choice->number, total_weight(&scratch->list)));
}

#endif
