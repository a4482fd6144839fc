/* Where threads meet between two phases.
 *
 * A phase takes some ten microseconds, so a thread that waits spins: sleeping and being woken takes longer, most of all
 * in a virtual machine. It spins without the pause instruction, which a hypervisor may take as a sign to give the core to
 * others: on one host each meeting then took 80 microseconds instead of 1. After SPINS looks the other thread is not
 * late but without a core; this one sleeps then until it is woken, so that whoever wants to run finds a core. */

#ifndef KVFERRY_MEETING_H
#define KVFERRY_MEETING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define SPINS 30000 /* some 30 microseconds */

struct meeting {
    _Alignas(64) atomic_size_t arrived;
    _Alignas(64) _Atomic uint32_t number;
    atomic_int num_asleep;
};

static inline void nap(long ns) {
    nanosleep(&(struct timespec){0, ns}, NULL);
}

#ifdef __linux__

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Until the meeting has another number; may return before. */
static inline void sleep_at(struct meeting *meeting, uint32_t number) {
    /* Before the kernel compares: whoever ends the meeting sees that one sleeps, or the kernel that it has ended. */
    atomic_fetch_add(&meeting->num_asleep, 1);
    syscall(SYS_futex, &meeting->number, FUTEX_WAIT_PRIVATE, number, NULL, NULL, 0);
    atomic_fetch_sub(&meeting->num_asleep, 1);
}

static inline void wake_all(struct meeting *meeting) {
    if (atomic_load(&meeting->num_asleep))
        syscall(SYS_futex, &meeting->number, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

#else

#define LOOK_NS 50000

static inline void sleep_at(struct meeting *meeting, uint32_t number) {
    (void)meeting, (void)number;
    nap(LOOK_NS);
}

static inline void wake_all(struct meeting *meeting) {
    (void)meeting;
}

#endif

/* `sleeps`: this thread left its core to another process, and doesn't spin. */
static inline void meet(struct meeting *meeting, size_t num_threads, int sleeps) {
    const uint32_t number = atomic_load_explicit(&meeting->number, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&meeting->arrived, 1, memory_order_acq_rel) + 1 == num_threads) {
        atomic_store_explicit(&meeting->arrived, 0, memory_order_relaxed);
        atomic_store(&meeting->number, number + 1);
        wake_all(meeting);
        return;
    }
    for (size_t looks = 0; atomic_load_explicit(&meeting->number, memory_order_acquire) == number; looks++)
        if (sleeps || looks >= SPINS) sleep_at(meeting, number);
}

#endif
