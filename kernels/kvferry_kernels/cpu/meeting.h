/* Where threads meet between two phases.
 *
 * A phase takes some ten microseconds, so a thread that waits spins: sleeping and being woken takes longer, most of all
 * in a virtual machine. It spins without the pause instruction, which a hypervisor may take as a sign to give the core to
 * others: on one host each meeting then took 80 microseconds instead of 1. After SPINS looks the other thread is not
 * late but without a core; from then on this one gives way to whoever wants to run here, and at last sleeps. */

#ifndef KVFERRY_MEETING_H
#define KVFERRY_MEETING_H

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

#define SPINS 30000 /* some 30 microseconds */
#define YIELDS 2000
#define SLEEP_NS 50000

struct meeting {
    _Alignas(64) atomic_size_t arrived;
    _Alignas(64) atomic_size_t number;
};

/* `sleeps`: this thread left its core to another process, and doesn't spin. */
static inline void meet(struct meeting *meeting, size_t num_threads, int sleeps) {
    const size_t number = atomic_load_explicit(&meeting->number, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&meeting->arrived, 1, memory_order_acq_rel) + 1 == num_threads) {
        atomic_store_explicit(&meeting->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&meeting->number, number + 1, memory_order_release);
        return;
    }
    for (size_t looks = 0; atomic_load_explicit(&meeting->number, memory_order_acquire) == number; looks++) {
        if (!sleeps && looks < SPINS) continue;
        if (!sleeps && looks < SPINS + YIELDS)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, SLEEP_NS}, NULL);
    }
}

#endif
