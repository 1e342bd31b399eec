/* A clock that is an hour ahead, for the process that preloads this: what it reads, and until when it waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define AHEAD 3600
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Boost waits by the monotonic clock, which counts from the machine's start and is as it was. */
static struct timespec true_time(const struct timespec *at) {
    struct timespec found = *at;
    if (found.tv_sec > 1000000000)
        found.tv_sec -= AHEAD;
    return found;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = REAL(clock_gettime)(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        at->tv_sec += AHEAD;
    return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
    int failed = REAL(gettimeofday)(at, zone);
    if (!failed)
        at->tv_sec += AHEAD;
    return failed;
}

time_t time(time_t *at) {
    time_t now = REAL(time)(0) + AHEAD;
    if (at)
        *at = now;
    return now;
}

int pthread_cond_timedwait(pthread_cond_t *event, pthread_mutex_t *lock, const struct timespec *until) {
    /* On x86-64 the name alone means an older one, whose `event` is another structure. */
    __typeof__(&pthread_cond_timedwait) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec at = true_time(until);
    return (real ? real : REAL(pthread_cond_timedwait))(event, lock, &at);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    struct timespec at = true_time(until);
    return REAL(sem_timedwait)(semaphore, &at);
}

/* The wait of C++'s futures calls the kernel by itself. */
long syscall(long number, ...) {
    long a[6];
    struct timespec at;
    va_list words;
    va_start(words, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(words, long);
    va_end(words);
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) && a[3]) {
        at = true_time((const struct timespec *)a[3]);
        a[3] = (long)&at;
    }
    return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
