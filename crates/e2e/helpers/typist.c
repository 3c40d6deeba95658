/* Tries to type into a terminal by every door: the injecting calls on the standard descriptors, the
 * controlling terminal and the console. Says what each answered, and how many characters arrived. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

int main(void) {
    const char *doors[] = {"0", "1", "2", "/dev/tty", "/dev/console", "/dev/tty0", "/dev/pts/ptmx"};
    struct termios mode;
    tcgetattr(0, &mode);
    cfmakeraw(&mode);
    mode.c_cc[VMIN] = 0;
    mode.c_cc[VTIME] = 3;
    mode.c_oflag |= OPOST;
    tcsetattr(0, TCSANOW, &mode);
    for (int i = 0; i < 7; i++) {
        int fd = i < 3 ? i : open(doors[i], O_RDWR | O_NOCTTY);
        if (fd < 0) {
            printf("%s absent\n", doors[i]);
            continue;
        }
        char letter = 'X', paste[2] = {3, 0};
        int discipline = 0;
        struct { const char *name; unsigned long call; void *with; } calls[] = {
            {"TIOCSTI", TIOCSTI, &letter}, {"TIOCLINUX", TIOCLINUX, paste},
            {"TIOCCONS", TIOCCONS, 0}, {"TIOCSETD", TIOCSETD, &discipline}, {"TIOCSCTTY", TIOCSCTTY, (void *)1},
        };
        for (int j = 0; j < 5; j++) {
            int answer = ioctl(fd, calls[j].call, calls[j].with);
            printf("%s %s %d\n", doors[i], calls[j].name, answer < 0 ? errno : 0);
        }
        if (i > 2)
            close(fd);
    }
    int typed = 0;
    char letter;
    while (read(0, &letter, 1) == 1)
        typed += letter == 'X';
    printf("typed %d.\n", typed);
    return 0;
}
