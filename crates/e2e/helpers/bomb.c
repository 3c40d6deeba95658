// Makes tasks until it has CAP of them or is refused: bomb forks|daemons|threads CAP. Says how many it
// made, and holds them for five seconds.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HELD = 5 };

static void *idle(void *unused) {
    sleep(HELD);
    return unused;
}

static int one(const char *kind) {
    if (!strcmp(kind, "threads")) {
        pthread_attr_t attr;
        pthread_t thread;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, 32 << 10);
        return pthread_create(&thread, &attr, idle, 0);
    }
    int report[2];
    char word = 0;
    if (pipe(report)) return 1;
    pid_t child = fork();
    if (child < 0) {
        close(report[0]);
        close(report[1]);
        return 1;
    }
    if (child == 0) {
        alarm(HELD + 1);
        if (!strcmp(kind, "daemons")) {
            setsid();
            pid_t own = fork();
            if (own < 0) _exit(1);
            if (own > 0) _exit(0);
            alarm(HELD + 1);
            prctl(PR_SET_NAME, "kworker/0:1");
        }
        signal(SIGTERM, SIG_IGN);
        if (write(report[1], "y", 1) != 1) _exit(1);
        close(report[0]);
        close(report[1]);
        sleep(HELD);
        _exit(0);
    }
    close(report[1]);
    long got = read(report[0], &word, 1);
    close(report[0]);
    if (!strcmp(kind, "daemons")) waitpid(child, 0, 0);
    return got != 1;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    long made = 0, cap = atol(words[2]);
    while (made < cap && one(words[1]) == 0) made++;
    printf("made %ld\n", made);
    fflush(stdout);
    signal(SIGTERM, SIG_IGN);
    sleep(HELD);
    return made < cap;
}
