/* The matrix unit of x86-64 (AMX): eight registers of up to 16 rows of 64 bytes, and products of two of them.
 *
 * A product takes `x` in rows, 64 bytes of each, and weights 16 rows of 16 outputs, with what goes together in 4 bytes:
 * pairs of bfloat16, or four bytes. These are the orders that packed weights and blocks of the cache have anyway.
 * A row of a result depends on no other row. Register numbers are part of the instructions, hence macros; every one of
 * them counts as touching memory, so that a compiler keeps them in order with stores. */

#ifndef KVFERRY_TILES_H
#define KVFERRY_TILES_H

#include "vector.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

#if HAS_TILES

#define TILE_ROWS 16
#define TILE_BYTES 64 /* of a row */

/* Shapes of the registers: palette 1 of the architecture's manual. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

INLINE void set_shapes(const struct tile_shapes *shapes) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*shapes) : "memory");
}

/* Threads give the unit back before they run other code: its state is large, and other libraries shape it anew. */
INLINE void leave_tiles(void) { __asm__ volatile("tilerelease" ::: "memory"); }

#define ZERO_TILE(tile) __asm__ volatile("tilezero %%tmm" #tile ::: "memory")
#define LOAD_TILE(tile, at, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"((const void *)(at)), "r"((size_t)(stride)) : "memory")
/* The same for what comes by once: it doesn't take the place of others in the nearest cache. */
#define PASS_TILE(tile, at, stride) \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"((const void *)(at)), "r"((size_t)(stride)) : "memory")
#define STORE_TILE(tile, at, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"((void *)(at)), "r"((size_t)(stride)) : "memory")
/* sum += x . weights, of pairs of bfloat16 in float */
#define ADD_PAIRS(sum, x, weights) \
    __asm__ volatile("tdpbf16ps %%tmm" #weights ", %%tmm" #x ", %%tmm" #sum ::: "memory")
/* sum += x . weights, of four signed by four unsigned bytes in 32 bits */
#define ADD_FOURS(sum, x, weights) \
    __asm__ volatile("tdpbsud %%tmm" #weights ", %%tmm" #x ", %%tmm" #sum ::: "memory")

#else

INLINE void leave_tiles(void) {}

#endif

#endif
