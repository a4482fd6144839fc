/* Which of the libraries compiled from these sources this machine can run. */

#include "vector.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h of Linux 5.16 */
#define XFEATURE_XTILEDATA 18

/* Whether there is a matrix unit for bfloat16 and bytes, and the kernel lets this process use it from now on: the
 * state that it saves for each thread grows by 8 KiB. */
static int may_use_tiles(void) {
    unsigned eax, ebx, ecx, edx;
    const unsigned needed = 1u << 22 | 1u << 24 | 1u << 25; /* AMX-BF16, AMX-TILE, AMX-INT8 */
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & needed) != needed) return 0;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
static int may_use_tiles(void) { return 0; }
#endif

/* 3 or 4 (x86-64 levels), 5 for level 4 with products of bfloat16 and of bytes, 6 with a matrix unit too; or 0. */
API int kvferry_cpu_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    int products = v4 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    return products ? 5 + may_use_tiles() : v4 ? 4 : v3 ? 3 : 0;
#else
    return 0;
#endif
}
