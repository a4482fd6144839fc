/* Tokens for rows of logits; each row is one thread's. The twin in sampling_reference.py defines what is right. */

/* Products aren't fused with sums: all libraries draw by the same bits. Before any function is read. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "sampling.h"

#include <stdlib.h>

/* How many bytes a thread works in. */
static size_t scratch_bytes(size_t size) {
    const size_t spans = (size + SPAN - 1) / SPAN, an_id = sizeof(uint64_t) + sizeof(float) + sizeof(uint32_t);
    return spans * (sizeof(uint64_t) + sizeof(float)) + 2 * (size + WIDTH) * an_id;
}

/* Cuts them up, the widest numbers first. */
static struct scratch cut_up(char *memory, size_t size) {
    const size_t spans = (size + SPAN - 1) / SPAN, ids = size + WIDTH;
    uint64_t *wide = (uint64_t *)memory;
    float *floats = (float *)(wide + spans + 2 * ids);
    uint32_t *whole = (uint32_t *)(floats + spans + 2 * ids);
    return (struct scratch){
        .sums = wide,
        .tops = floats,
        .list = {wide + spans, floats + spans, whole, 0},
        .rest = {wide + spans + ids, floats + spans + ids, whole + ids, 0},
    };
}

/* `logits` [num_rows, size], `more` [any, size] numbered after them; `masks` [any, words of 32 ids]. Returns 0, or 1
 * without memory. */
API int kvferry_choose_tokens(int64_t *tokens, const float *logits, const float *more, int64_t num_rows, int64_t size,
                              const uint32_t *masks, const struct choice *choices, int64_t count) {
    const size_t words = ((size_t)size + 31) / 32;
    int failed = 0;
#pragma omp parallel if (count > 1) reduction(| : failed)
    {
        char *memory = malloc(scratch_bytes((size_t)size));
        struct scratch scratch = cut_up(memory, (size_t)size);
        failed |= !memory;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++) {
            const struct choice *choice = choices + i;
            const float *from = choice->row < num_rows ? logits + choice->row * size
                                                       : more + (choice->row - num_rows) * size;
            const uint32_t *mask = choice->mask < 0 ? NULL : masks + (size_t)choice->mask * words;
            if (memory) tokens[i] = choose_token((struct row){from, mask, (size_t)size}, choice, &scratch);
        }
        free(memory);
    }
    return failed;
}
