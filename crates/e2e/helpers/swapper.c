// Exchanges pairs of names for SECONDS: swapper SECONDS LEFT RIGHT [LEFT RIGHT]... Says "up" after the first round.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int count, char **words) {
    if (count < 4 || count % 2) return 2;
    time_t end = time(0) + atol(words[1]);
    for (long round = 0; time(0) < end; round++) {
        for (int at = 2; at + 1 < count; at += 2)
            if (renameat2(AT_FDCWD, words[at], AT_FDCWD, words[at + 1], RENAME_EXCHANGE)) {
                perror("renameat2");
                return 3;
            }
        if (round == 0) {
            puts("up");
            fflush(stdout);
        }
    }
    return 0;
}
