// Uses all the processor it can get: spinner SECONDS THREADS. First says which privileges over the scheduler it
// was given: "nice", "fifo", "deadline", "affinity".
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static void *spin(void *unused) {
    volatile uint64_t at = 0;
    for (;;) at++;
    return unused;
}

static void nothing(int number) { (void)number; }

int main(int count, char **words) {
    if (count != 3) return 2;
    cpu_set_t before, all, after;
    sched_getaffinity(0, sizeof before, &before);
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, sizeof all, &all) == 0) {
        sched_getaffinity(0, sizeof after, &after);
        if (CPU_COUNT(&after) > CPU_COUNT(&before)) puts("affinity");
    }
    if (setpriority(PRIO_PROCESS, 0, -20) == 0) puts("nice");
    struct sched_param fifo = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &fifo) == 0) {
        puts("fifo");
        fifo.sched_priority = 0;
        sched_setscheduler(0, SCHED_OTHER, &fifo);
    }
    struct attr deadline = {.size = sizeof deadline, .policy = SCHED_DEADLINE,
                            .runtime = 900000, .deadline = 1000000, .period = 1000000};
    if (syscall(SYS_sched_setattr, 0, &deadline, 0) == 0) {
        puts("deadline");
        fifo.sched_priority = 0;
        sched_setscheduler(0, SCHED_OTHER, &fifo);
    }
    puts("up");
    fflush(stdout);
    signal(SIGALRM, nothing);
    struct itimerval storm = {{0, 1}, {0, 1}};
    if (atoi(words[2]) > 1) setitimer(ITIMER_REAL, &storm, 0);
    for (int i = 1; i < atoi(words[2]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, spin, 0)) return 3;
    }
    struct timeval begun, now;
    gettimeofday(&begun, 0);
    do gettimeofday(&now, 0);
    while (now.tv_sec - begun.tv_sec < atol(words[1]));
    return 0;
}
