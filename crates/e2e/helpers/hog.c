// Takes memory from one pool of the kernel: hog POOL MIB. Says "through" when it has it all.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB (1L << 20)

static char block[MIB];

static int failed(const char *what) {
    perror(what);
    return 3;
}

static int fill(int file, long mib) {
    if (file < 0) return failed("open");
    for (long i = 0; i < mib; i++)
        if (write(file, block, MIB) != MIB) return failed("write");
    return 0;
}

static __attribute__((noinline)) void deep(long levels) {
    volatile char frame[64 << 10];
    for (size_t at = 0; at < sizeof frame; at += 1024) frame[at] = (char)levels;
    if (levels > 0) deep(levels - 1);
    frame[0] = 2;
}

static void *stack(void *levels) {
    deep((long)levels);
    return 0;
}

static void *idle(void *unused) {
    volatile char frame[64 << 10];
    for (size_t at = 0; at < sizeof frame; at += 1024) frame[at] = 1;
    pause();
    return unused;
}

static int on_stack(long mib) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)((mib + 64) * MIB));
    if ((errno = pthread_create(&thread, &attr, stack, (void *)(mib * 16)))) return failed("thread");
    pthread_join(thread, 0);
    return 0;
}

static int threads(long mib) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 128 << 10);
    for (long i = 0; i < mib * 16; i++)
        if ((errno = pthread_create(&thread, &attr, idle, 0))) return failed("thread");
    usleep(300000);
    return 0;
}

// Bytes that nobody reads, in pipes or in sockets.
static int unread(int sockets, long mib) {
    for (long held = 0; held < mib * MIB;) {
        int pair[2], large = 64 << 20;
        if (sockets) {
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) return failed("pair");
            setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &large, sizeof large);
        } else {
            if (pipe2(pair, O_NONBLOCK)) return failed("pipe");
            fcntl(pair[1], F_SETPIPE_SZ, 1 << 20);
        }
        long wrote;
        while ((wrote = write(pair[1], block, 64 << 10)) > 0) held += wrote;
    }
    return 0;
}

static int sysv(long mib) {
    for (long i = 0; i < mib; i++) {
        int id = shmget(IPC_PRIVATE, MIB, 0600);
        char *place = id < 0 ? (char *)-1 : shmat(id, 0, 0);
        if (place == (char *)-1) return failed("shm");
        // Gone with us, also where there is no sandbox around.
        shmctl(id, IPC_RMID, 0);
        memset(place, 1, MIB);
    }
    return 0;
}

static int anonymous(long mib, int locked) {
    for (long i = 0; i < mib; i++) {
        char *place = mmap(0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) return failed("mmap");
        if (locked && mlock(place, MIB)) return failed("mlock");
        memset(place, 1, MIB);
    }
    return 0;
}

// Half in each of the two file systems that are held in memory, the rest as anonymous memory.
static int tmpfs(long mib) {
    int status = fill(open("/tmp/hog", O_CREAT | O_RDWR, 0600), mib / 4);
    if (!status) status = fill(open("/dev/shm/hog", O_CREAT | O_RDWR, 0600), mib / 4);
    return status ? status : anonymous(mib / 2, 0);
}

// Writes a file and reads it again: its pages may be given back, so it must get through.
static int cache(long mib) {
    int file = open("/workspace/cache", O_CREAT | O_RDWR, 0600);
    int status = fill(file, mib);
    for (int round = 0; !status && round < 2; round++) {
        lseek(file, 0, SEEK_SET);
        while (read(file, block, MIB) > 0) {}
    }
    return status;
}

int main(int count, char **words) {
    if (count != 3) return 2;
    const char *pool = words[1];
    long mib = atol(words[2]);
    int status = 2;
    memset(block, 1, sizeof block);
    if (!strcmp(pool, "anonymous")) status = anonymous(mib, 0);
    if (!strcmp(pool, "locked")) status = anonymous(mib, 1);
    if (!strcmp(pool, "memfd")) status = fill(memfd_create("hog", 0), mib);
    if (!strcmp(pool, "tmpfs")) status = tmpfs(mib);
    if (!strcmp(pool, "sysv")) status = sysv(mib);
    if (!strcmp(pool, "pipes")) status = unread(0, mib);
    if (!strcmp(pool, "sockets")) status = unread(1, mib);
    if (!strcmp(pool, "stack")) status = on_stack(mib);
    if (!strcmp(pool, "threads")) status = threads(mib);
    if (!strcmp(pool, "cache")) status = cache(mib);
    if (!status) puts("through");
    return status;
}
