/* Decoder layers of the Llama family in bfloat16, their products perhaps in 8-bit integers; several in one call.
 *
 * One parallel region goes through all phases of all layers: products, rotary embedding with the cache write,
 * attention, norms and activation. Threads meet between phases, share each phase's tasks by a counter, and beside the
 * last task of a product fetch the weights of the next. Each number is computed by the same code as the single
 * operations use, so that results are bit-equal to theirs, but for numbers too small to be normal. */

#include <omp.h>

#include "attention.h"
#include "meeting.h"
#include "product.h"
#include "rows.h"

#define PHASES 9 /* of a layer */
#define LONGEST_WAIT_NS 500000000 /* longer than a decode step takes */
#define NAP_NS 300000 /* a nap's end takes a core from whoever claimed it for a moment */
#define ROWS_OF_A_TASK BLOCK /* of norms, activation and rotary embedding: two threads seldom write into one block */

/* A model's sizes, and where positions are looked up. */
struct decoder {
    int64_t hidden, heads, kv_heads, dim, inner, max_len, num_blocks;
    const float *cos, *sin;
    float eps, scale;
    int is_int8; /* whether the matrices are packed as 8-bit integers */
};

/* Packed weights and biases or NULL; norms; this layer's blocks. */
struct layer {
    const uint16_t *input_norm;
    const void *qkv;
    const uint16_t *qkv_bias, *q_norm, *k_norm;
    const void *output;
    const uint16_t *output_bias, *mlp_norm;
    const void *gate_up;
    const uint16_t *gate_up_bias;
    const void *down;
    const uint16_t *down_bias;
    uint16_t *k_cache, *v_cache;
};

/* A batch and its numbers between phases. `hidden` holds the normalized input of the first layer, and in the end what
 * the last layer adds to `residual`. With 8-bit integers `rows8` is the next product's input, at first `hidden`. */
struct step {
    int64_t rows, num_seqs, table_width;
    const int64_t *positions, *slots;
    const int32_t *tables, *query_starts, *context_lens;
    float *residual; /* [rows, hidden] */
    uint16_t *hidden, *qkv, *query, *mixed, *gate_up, *active;
    struct quantized rows8;
};

struct work {
    const struct decoder *model;
    const struct layer *layer, *next; /* next: NULL after the model's last layer */
    const struct step *step;
    const struct agenda *agenda;
    struct meeting *meeting;
    size_t thread, num_threads;
    int is_out; /* this thread left its core to others in the phase that ends */
    int waits_no_more; /* a claim of all cores lasted too long to be a step's */
};

/* Cores that other processes claim just now, of `cores`: `count` numbers, `stride` apart. */
static struct {
    const int64_t *at;
    int64_t count, stride, cores;
} claims;

/* From now on this process leaves claimed cores to others, between two phases. */
API void kvferry_leave_claimed_cores(const int64_t *at, int64_t count, int64_t stride, int64_t cores) {
    claims.at = at;
    claims.count = count;
    claims.stride = stride;
    claims.cores = cores;
}

INLINE int64_t num_claimed(void) {
    int64_t claimed = 0;
    for (int64_t i = 0; i < claims.count; i++)
        claimed += __atomic_load_n(claims.at + i * claims.stride, __ATOMIC_RELAXED);
    return claimed;
}

INLINE int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

/* While all cores of the host are claimed nobody goes on: the first thread sleeps here, and the others meet it after. */
INLINE void wait_for_a_core(struct work *work) {
    if (work->waits_no_more || num_claimed() < claims.cores) return;
    const int64_t begun = now_ns();
    while (!work->waits_no_more && num_claimed() >= claims.cores) {
        nap(NAP_NS);
        work->waits_no_more = now_ns() - begun >= LONGEST_WAIT_NS;
    }
}

/* Threads meet between two phases. One whose core is claimed has no part in the next phase; the first always has. */
INLINE void next_phase(struct work *work) {
    if (work->thread == 0 && claims.count) wait_for_a_core(work);
    meet(work->meeting, work->num_threads, work->is_out);
    work->is_out = work->thread > 0 && (int64_t)work->thread >= (int64_t)work->num_threads - num_claimed();
}

/* The first task of a product that may well be this thread's. */
INLINE struct ahead first_weights(const struct work *work, const struct product *product) {
    const struct cut cut = cut_product(product);
    return weights_of(product, &cut, work->thread);
}

INLINE struct product product_of(const struct work *work, void *out, const uint16_t *x, const void *weight,
                                 const uint16_t *bias, size_t outputs, size_t size) {
    const struct step *s = work->step;
    return (struct product){work->model->is_int8 ? INT8_TO_BF16 : BF16_TO_BF16, out, x, s->rows8, WHOLE_ROW, weight,
                            bias, (size_t)s->rows, outputs, size};
}

INLINE struct product qkv_product(const struct work *work, const struct layer *layer) {
    const struct decoder *m = work->model;
    return product_of(work, work->step->qkv, work->step->hidden, layer->qkv, layer->qkv_bias,
                      (size_t)((m->heads + 2 * m->kv_heads) * m->dim), (size_t)m->hidden);
}

INLINE struct product output_product(const struct work *work) {
    return product_of(work, work->step->hidden, work->step->mixed, work->layer->output, work->layer->output_bias,
                      (size_t)work->model->hidden, (size_t)(work->model->heads * work->model->dim));
}

/* Whether the product of gate and up does the activation too. */
INLINE int is_gated(const struct decoder *m) {
    return HAS_TILES && (size_t)m->inner % OUTPUTS == 0 && (!m->is_int8 || m->hidden <= WHOLE_ROW);
}

INLINE struct product gate_up_product(const struct work *work) {
    const struct decoder *m = work->model;
    const struct step *s = work->step;
    struct product product = product_of(work, s->gate_up, s->hidden, work->layer->gate_up, work->layer->gate_up_bias,
                                        (size_t)m->inner * 2, (size_t)m->hidden);
    if (is_gated(m)) {
        product.kind = m->is_int8 ? INT8_GATED : BF16_GATED;
        product.out = s->active;
        product.outputs = (size_t)m->inner;
    }
    return product;
}

INLINE struct product down_product(const struct work *work) {
    struct product product = product_of(work, work->step->hidden, work->step->active, work->layer->down,
                                        work->layer->down_bias, (size_t)work->model->hidden, (size_t)work->model->inner);
    product.group = GROUP; /* an activation's largest numbers are far larger than the others */
    return product;
}

INLINE struct attention attention_of(const struct decoder *m, const struct layer *layer, const struct step *s) {
    return (struct attention){s->mixed, s->query, layer->k_cache, layer->v_cache, s->tables, s->query_starts,
                              s->context_lens, (size_t)s->rows, (size_t)s->num_seqs, (size_t)s->table_width,
                              (size_t)m->heads, (size_t)m->kv_heads, (size_t)m->dim, (size_t)m->num_blocks, m->scale};
}

INLINE struct rope rope_of(const struct decoder *m, const struct layer *layer, const struct step *s) {
    return (struct rope){s->query, layer->k_cache, layer->v_cache, s->qkv, layer->q_norm, layer->k_norm, s->positions,
                         s->slots, m->cos, m->sin, (size_t)m->heads, (size_t)m->kv_heads, (size_t)m->dim, m->eps};
}

enum row_kind { ROPE, QUANTIZE, NORM, ACTIVATE };

INLINE void one_row(const struct work *work, enum row_kind kind, const uint16_t *norm, const struct rope *rope,
                    size_t row) {
    const struct decoder *m = work->model;
    const struct step *s = work->step;
    const size_t hidden = (size_t)m->hidden, inner = (size_t)m->inner, queries = (size_t)(m->heads * m->dim);
    uint16_t *x = s->hidden + row * hidden, *active = s->active + row * inner;
    if (kind == ROPE) rope_row(rope, row, 1);
    if (kind == QUANTIZE) quantize_row(&s->rows8, row, s->mixed + row * queries, queries, WHOLE_ROW, 1);
    if (kind == NORM) {
        norm_row(x, x, s->residual + row * hidden, norm, hidden, m->eps, 1);
        if (m->is_int8) quantize_row(&s->rows8, row, x, hidden, WHOLE_ROW, 1);
    }
    if (kind == ACTIVATE) {
        if (!is_gated(m)) silu_row(active, s->gate_up + row * 2 * inner, inner, 1);
        if (m->is_int8) quantize_row(&s->rows8, row, active, inner, GROUP, 1);
    }
}

/* One thread's part of an operation on all rows. `norm` is the weight of a norm. */
INLINE void each_row(const struct work *work, enum row_kind kind, const uint16_t *norm, atomic_size_t *counter) {
    const size_t rows = (size_t)work->step->rows;
    const size_t even = (rows + work->num_threads - 1) / work->num_threads;
    const size_t many = even < ROWS_OF_A_TASK ? even : ROWS_OF_A_TASK;
    const struct rope rope = rope_of(work->model, work->layer, work->step);
    for (size_t task; !work->is_out && (task = atomic_fetch_add(counter, 1)) * many < rows;)
        for (size_t row = task * many; row < at_most((task + 1) * many, rows); row++)
            one_row(work, kind, norm, &rope, row);
}

INLINE void multiply_all(const struct work *work, const struct product *product, atomic_size_t *counter,
                         struct ahead then) {
    if (!work->is_out) multiply_shared(product, counter, then);
}

INLINE void attend_all(const struct work *work, atomic_size_t *counter) {
    const struct attention job = attention_of(work->model, work->layer, work->step);
    for (size_t task; !work->is_out && (task = atomic_fetch_add(counter, 1)) < work->agenda->num_tasks;)
        attend_task(&job, work->agenda, task, 1);
}

/* One layer, from the normalized input to what it adds to the residual; then the next layer's norm. */
INLINE void run_layer(struct work *work, atomic_size_t *counters) {
    const struct ahead nothing = {0};
    const struct product qkv = qkv_product(work, work->layer), output = output_product(work);
    const struct product gate_up = gate_up_product(work), down = down_product(work);
    multiply_all(work, &qkv, &counters[0], nothing);
    next_phase(work);
    each_row(work, ROPE, NULL, &counters[1]);
    next_phase(work);
    attend_all(work, &counters[2]);
    next_phase(work);
    if (work->model->is_int8) {
        each_row(work, QUANTIZE, NULL, &counters[8]);
        next_phase(work);
    }
    multiply_all(work, &output, &counters[3], first_weights(work, &gate_up));
    next_phase(work);
    each_row(work, NORM, work->layer->mlp_norm, &counters[4]);
    next_phase(work);
    multiply_all(work, &gate_up, &counters[5], first_weights(work, &down));
    next_phase(work);
    if (!is_gated(work->model) || work->model->is_int8) {
        each_row(work, ACTIVATE, NULL, &counters[6]);
        next_phase(work);
    }
    struct ahead after = nothing;
    if (work->next) {
        const struct product next = qkv_product(work, work->next);
        after = first_weights(work, &next);
    }
    multiply_all(work, &down, &counters[7], after);
    next_phase(work);
    if (!work->next) return;
    atomic_size_t *last = &counters[PHASES];
    each_row(work, NORM, work->next->input_norm, last);
    next_phase(work);
}

/* Layers `first` to `end` of `num_layers`. Returns 0; 1 if a position, slot, length or block lies outside its table;
 * 2 if there is no memory. Then nothing is written. */
API int kvferry_decoder_layers(const struct decoder *model, const struct layer *layers, int64_t first, int64_t end,
                               int64_t num_layers, const struct step *step) {
    const struct attention attention = attention_of(model, layers, step);
    const struct rope rope = rope_of(model, layers, step);
    if (!rope_in_range(&rope, (size_t)step->rows, (size_t)model->max_len, (size_t)model->num_blocks)) return 1;
    struct agenda agenda = {0};
    int failed = plan_attention(&attention, &agenda, (size_t)omp_get_max_threads());
    const size_t num_counters = (size_t)(end - first) * (PHASES + 1);
    atomic_size_t *counters = failed ? NULL : malloc(num_counters * sizeof *counters);
    if (!failed && !counters) failed = 2;
    struct meeting meeting = {0};
    if (!failed) {
#pragma omp parallel
        {
            struct work work = {.model = model, .step = step, .agenda = &agenda, .meeting = &meeting,
                                .thread = (size_t)omp_get_thread_num(), .num_threads = (size_t)omp_get_num_threads()};
#pragma omp for
            for (size_t i = 0; i < num_counters; i++) atomic_init(&counters[i], 0);
            for (int64_t i = first; i < end; i++) {
                work.layer = &layers[i];
                work.next = i + 1 < num_layers ? &layers[i + 1] : NULL;
                run_layer(&work, counters + (i - first) * (PHASES + 1));
            }
            leave_tiles();
        }
    }
    free(counters);
    drop_agenda(&agenda);
    return failed;
}
