/* Paged attention as an operation of its own: see attention.h. */

#include <omp.h>

#include "attention.h"

/* Returns 0; 1 if a length or block lies outside its table; 2 if there is no memory. Then nothing is written. */
API int kvferry_paged_attention(void *out, const void *q, const void *k_cache, const void *v_cache,
                                const int32_t *tables, const int32_t *query_starts, const int32_t *context_lens,
                                int64_t rows, int64_t num_seqs, int64_t table_width, int64_t heads, int64_t kv_heads,
                                int64_t dim, int64_t num_blocks, float scale, int bf16) {
    const struct attention job = {out, q, k_cache, v_cache, tables, query_starts, context_lens, (size_t)rows,
                                  (size_t)num_seqs, (size_t)table_width, (size_t)heads, (size_t)kv_heads, (size_t)dim,
                                  (size_t)num_blocks, scale};
    struct agenda agenda = {0};
    int failed = plan_attention(&job, &agenda, (size_t)omp_get_max_threads());
    if (!failed) {
#pragma omp parallel if (agenda.num_tasks > 1)
        {
#pragma omp for schedule(dynamic)
            for (size_t task = 0; task < agenda.num_tasks; task++) attend_task(&job, &agenda, task, bf16);
            leave_tiles();
        }
    }
    drop_agenda(&agenda);
    return failed;
}
