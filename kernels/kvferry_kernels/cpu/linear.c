/* Matrix products with packed weights: y = x W^T + b, rounded once, to bfloat16, or not at all. */

#include "product.h"

#define PARALLEL_FROM 65536

static void run(const struct product *job) {
    const struct ahead nothing = {0};
    atomic_size_t counter = 0;
#pragma omp parallel if (job->outputs * job->size >= PARALLEL_FROM)
    {
        multiply_shared(job, &counter, nothing);
        leave_tiles();
    }
}

API void kvferry_linear(void *out, const uint16_t *x, const uint16_t *weight, const uint16_t *bias, int64_t rows,
                        int64_t outputs, int64_t size, int out_bf16) {
    run(&(struct product){.kind = out_bf16 ? BF16_TO_BF16 : BF16_TO_FLOAT, .out = out, .x = x, .weight = weight,
                          .bias = bias, .rows = (size_t)rows, .outputs = (size_t)outputs, .size = (size_t)size});
}

/* The rows are as kvferry_quantize makes them. */
API void kvferry_linear_int8(void *out, int8_t *bytes, float *scales, int32_t *corrections, const uint8_t *weight,
                             const void *bias, int64_t rows, int64_t outputs, int64_t size, int64_t group,
                             int out_bf16) {
    run(&(struct product){.kind = out_bf16 ? INT8_TO_BF16 : INT8_TO_FLOAT, .out = out,
                          .rows8 = {bytes, scales, corrections}, .group = (size_t)group, .weight = weight,
                          .bias = bias, .rows = (size_t)rows, .outputs = (size_t)outputs, .size = (size_t)size});
}
