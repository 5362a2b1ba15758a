/* Faults for a server process, switched on and off while it runs.
 *
 * Loaded before the C library. The file named by QUIRE_FAULTS is mapped; `tests/faulty_server.py` writes into it:
 *
 *   0  write   errno of every positional write, 0 = none
 *   4  sync    errno of every fdatasync, 0 = none
 *   8  hang    fdatasync waits while this is not 0
 *   12 hung    how many calls wait, written here
 *   16 clock   nanoseconds added to the wall clock
 *   24 read    errno of every positional read, 0 = none
 *   28 room    thousandths of every file system that are available, 0 = as it is
 *
 * Only calls that the extension makes for the journal are replaced: Python writes its own files otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct faults {
    _Atomic int32_t write;
    _Atomic int32_t sync;
    _Atomic int32_t hang;
    _Atomic int32_t hung;
    _Atomic int64_t clock;
    _Atomic int32_t read;
    _Atomic int32_t room;
};

static struct faults none;
static struct faults *faults = &none;

__attribute__((constructor)) static void map_faults(void) {
    const char *path = getenv("QUIRE_FAULTS");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return;
    void *map = mmap(NULL, sizeof(struct faults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) faults = map;
}

ssize_t pread64(int file, void *bytes, size_t size, off64_t offset) {
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (!next) next = (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    int error = atomic_load(&faults->read);
    if (error) {
        errno = error;
        return -1;
    }
    return next(file, bytes, size, offset);
}

ssize_t pread(int file, void *bytes, size_t size, off_t offset) {
    return pread64(file, bytes, size, offset);
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t offset) {
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (!next) next = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    int error = atomic_load(&faults->write);
    if (error) {
        errno = error;
        return -1;
    }
    return next(file, bytes, size, offset);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
    static ssize_t (*next)(int, const struct iovec *, int, off64_t);
    if (!next) next = (ssize_t (*)(int, const struct iovec *, int, off64_t))dlsym(RTLD_NEXT, "pwritev64");
    int error = atomic_load(&faults->write);
    if (error) {
        errno = error;
        return -1;
    }
    return next(file, parts, count, offset);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(file, parts, count, offset);
}

int fdatasync(int file) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (atomic_load(&faults->hang)) {
        atomic_fetch_add(&faults->hung, 1);
        while (atomic_load(&faults->hang)) usleep(1000);
        atomic_fetch_sub(&faults->hung, 1);
    }
    int error = atomic_load(&faults->sync);
    if (error) {
        errno = error;
        return -1;
    }
    return next(file);
}

int statvfs64(const char *path, struct statvfs64 *found) {
    static int (*next)(const char *, struct statvfs64 *);
    if (!next) next = (int (*)(const char *, struct statvfs64 *))dlsym(RTLD_NEXT, "statvfs64");
    int result = next(path, found);
    int room = atomic_load(&faults->room);
    if (result == 0 && room) found->f_bavail = found->f_blocks / 1000 * room;
    return result;
}

/* The same function on a machine with 64 bits. */
int statvfs(const char *path, struct statvfs *found) {
    return statvfs64(path, (struct statvfs64 *)found);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    int64_t shift = atomic_load(&faults->clock);
    if (result == 0 && clock == CLOCK_REALTIME && shift) {
        int64_t nanoseconds = time->tv_sec * 1000000000LL + time->tv_nsec + shift;
        time->tv_sec = nanoseconds / 1000000000LL;
        time->tv_nsec = nanoseconds % 1000000000LL;
    }
    return result;
}
