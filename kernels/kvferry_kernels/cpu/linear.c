/* Matrix products of bfloat16 with packed weights: y = x W^T + b, rounded once, to bfloat16, or not at all. */

#include <omp.h>

#include "product.h"

#define PARALLEL_FROM 65536

API void kvferry_linear(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                        int64_t outputs, int64_t size, int out_bf16) {
    const struct product job = {out, x, weight, bias, (size_t)rows, (size_t)outputs, (size_t)size};
    const struct ahead nothing = {0};
    atomic_size_t counter = 0;
#pragma omp parallel if (outputs * size >= PARALLEL_FROM)
    {
#pragma omp single
        atomic_store(&counter, (size_t)omp_get_num_threads());
        if (out_bf16)
            multiply_shared(&job, (size_t)omp_get_thread_num(), &counter, nothing, 1);
        else
            multiply_shared(&job, (size_t)omp_get_thread_num(), &counter, nothing, 0);
    }
}
