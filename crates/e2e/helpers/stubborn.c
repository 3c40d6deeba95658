// Does not want to end: stubborn WAY. Says "before" when it is at it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONG = 60 };

static void busy(int number) {
    (void)number;
    for (;;) {}
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const char *way = words[1];
    // Outside a sandbox nobody else might end it.
    alarm(LONG);
    if (!strcmp(way, "deaf")) signal(SIGTERM, SIG_IGN);
    if (!strcmp(way, "handler")) signal(SIGTERM, busy);
    if (write(1, "before\n", 7) != 7) return 3;
    if (!strcmp(way, "stopped")) kill(getpid(), SIGSTOP);
    if (!strcmp(way, "fifo")) {
        if (mkfifo(words[2], 0600)) return 3;
        return open(words[2], O_RDONLY);
    }
    if (!strcmp(way, "vfork")) {
        signal(SIGTERM, SIG_IGN);
        pid_t child = vfork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) pause();
        }
    }
    if (!strcmp(way, "spinning")) busy(0);
    for (;;) pause();
}
