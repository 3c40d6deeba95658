/* Looks for other processes and for what they share, and attacks what it finds. As `victim` it is what
 * is looked for: it holds a shared segment, a shared file, a queue, an abstract socket and a secret in
 * its memory, and says `hit N` for every signal. As `prowl` it says what exists, what it may signal,
 * read or write, and which shared things it reaches; with `all` it then signals everything, for which
 * it must be in a pid namespace of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define KEY 0x1ea5e001
#define NAME "/leasehold-probe"
static char secret[] = "secret-of-the-victim";

static struct sockaddr_un address = {AF_UNIX, "\0leasehold-probe"};
#define LENGTH (sizeof(sa_family_t) + 16)

static void hit(int number) {
    char text[32];
    int length = snprintf(text, sizeof text, "hit %d\n", number);
    if (write(1, text, length) < 0)
        _exit(3);
}

static int victim(void) {
    for (int number = 1; number < 32; number++)
        if (number != SIGKILL && number != SIGSTOP && number != SIGCHLD)
            signal(number, hit);
    int segment = shmget(KEY, 4096, IPC_CREAT | 0666);
    int file = shm_open(NAME, O_CREAT | O_RDWR, 0666);
    int queue = msgget(KEY, IPC_CREAT | 0666);
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 16};
    int posix = mq_open(NAME, O_CREAT | O_RDWR, 0666, &attr);
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    int bound = bind(sock, (struct sockaddr *)&address, LENGTH) || listen(sock, 8);
    printf("victim %d %d %d %d %d %s\n", segment >= 0, file >= 0, queue >= 0, posix >= 0, !bound, secret);
    fflush(stdout);
    for (;;)
        pause();
}

static void shared(void) {
    printf("segment %s\n", shmget(KEY, 0, 0) >= 0 ? "reached" : "none");
    printf("file %s\n", shm_open(NAME, O_RDWR, 0) >= 0 ? "reached" : "none");
    printf("queue %s\n", msgget(KEY, 0) >= 0 ? "reached" : "none");
    printf("posix %s\n", mq_open(NAME, O_RDWR) != (mqd_t)-1 ? "reached" : "none");
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);
    printf("socket %s\n", connect(sock, (struct sockaddr *)&address, LENGTH) ? "none" : "reached");
}

static void attack(int pid) {
    char path[64], taken[64] = {0};
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    struct iovec to = {taken, sizeof secret}, from = {secret, sizeof secret};
    if (kill(pid, 0) == 0)
        printf("may %d\n", pid);
    else if (errno == EPERM)
        printf("exists %d\n", pid);
    else
        return;
    if (syscall(SYS_process_vm_readv, pid, &to, 1, &from, 1, 0) > 0)
        printf("read %d %s\n", pid, taken);
    for (int i = 0; i < 2; i++) {
        int fd = open(path, i ? O_RDWR : O_RDONLY);
        if (fd >= 0 && pread(fd, taken, sizeof secret, (off_t)(long)secret) > 0)
            printf("mem %d\n", pid);
        if (fd >= 0)
            close(fd);
    }
    if (ptrace(PTRACE_ATTACH, pid, 0, 0) == 0) {
        printf("traced %d\n", pid);
        waitpid(pid, 0, __WALL);
        ptrace(PTRACE_DETACH, pid, 0, 0);
    }
    int handle = syscall(SYS_pidfd_open, pid, 0);
    if (handle >= 0) {
        printf("handle %d\n", pid);
        if (syscall(SYS_pidfd_getfd, handle, 1, 0) >= 0)
            printf("stolen %d\n", pid);
        close(handle);
    }
    kill(pid, SIGUSR1);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "victim"))
        return victim();
    printf("self %d parent %d\n", getpid(), getppid());
    for (int pid = 1; pid <= 65536; pid++)
        if (pid != getpid())
            attack(pid);
    shared();
    fflush(stdout);
    if (argc > 2 && !strcmp(argv[2], "all") && getpid() < 200) {
        for (int number = 1; number < 32; number++)
            signal(number, SIG_IGN);
        for (int turn = 0; turn < 2; turn++) {
            for (int number = 1; number < 32; number++)
                if ((number == SIGKILL || number == SIGSTOP) == turn && number != SIGCHLD) {
                    kill(-1, number);
                    kill(1, number);
                }
            usleep(100000);
        }
        printf("struck all\n");
    }
    return 0;
}
