/* Opens two hundred descriptors that outlive an exec (a directory, a file, a pipe, a socket, a netlink
 * socket, a memfd, in turn), then becomes the program it is told. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    for (int i = 0; i < 200;) {
        int fds[2] = {-1, -1}, fd;
        switch (i % 6) {
        case 0: fd = open("/root", O_RDONLY | O_DIRECTORY); if (fd < 0) fd = open("/", O_RDONLY | O_DIRECTORY); break;
        case 1: fd = open("/etc/passwd", O_RDONLY); break;
        case 2: fd = pipe(fds) ? -1 : fds[0]; break;
        case 3: fd = socketpair(AF_UNIX, SOCK_STREAM, 0, fds) ? -1 : fds[0]; break;
        case 4: fd = socket(AF_NETLINK, SOCK_RAW, 0); break;
        default: fd = memfd_create("canary", 0);
        }
        if (fd < 0) {
            perror("open");
            return 1;
        }
        i += fds[0] < 0 ? 1 : 2;
    }
    execvp(argv[1], argv + 1);
    perror("exec");
    return 1;
}
