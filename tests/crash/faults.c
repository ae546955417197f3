/* Calls that change files below one folder fail as a full or broken disk makes them fail.

   Preloaded (LD_PRELOAD). Nothing fails before faults_arm(); from there on calls are counted, and
   the one numbered `at` fails with `error`, and with `lasting` every one after it. With `torn`, a
   write puts half of its bytes on the disk and tells so, as write(2) may: alone (only writes are
   counted then), or before all that comes after it fails. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long at, calls;
static int error_given, is_lasting, is_torn;
static char failed[64];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void faults_arm(const char *below, long number, int error, int lasting, int torn) {
    snprintf(folder, sizeof folder, "%s/", below);
    at = number, error_given = error, is_lasting = lasting, is_torn = torn;
    calls = 0, failed[0] = 0;
}

void faults_disarm(void) { at = 0; }

/* Calls below the folder since it was armed. */
long faults_calls(void) { return calls; }

/* The first call that failed, and the end of its file's name; empty where none did. */
const char *faults_failed(void) { return failed; }

static int below(const char *path) {
    return folder[0] && path && !strncmp(path, folder, strlen(folder));
}

static const char *path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

/* 0: go on; 1: fail; 2: write half. */
static int verdict(const char *call, const char *path, int writes) {
    if (!below(path) || (is_torn && !is_lasting && !writes)) return 0;
    long number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (!at || number < at || (number > at && !is_lasting)) return 0;
    if (!failed[0]) {
        const char *end = strrchr(path, '.');
        snprintf(failed, sizeof failed, "%s %.40s", call, end ? end : "");
    }
    if (number == at && writes && is_torn) return 2;
    errno = error_given;
    return 1;
}

static int on_file(const char *call, int descriptor, int writes) {
    if (!folder[0]) return 0;
    char path[PATH_MAX];
    int saved = errno, found = verdict(call, path_of(descriptor, path), writes);
    if (found != 1) errno = saved;
    return found;
}

#define HALF(found, n) ((found) == 2 && (n) > 1 ? (n) / 2 : (n))

ssize_t write(int descriptor, const void *data, size_t n) {
    int found = on_file("write", descriptor, 1);
    return found == 1 ? -1 : REAL(write)(descriptor, data, HALF(found, n));
}

ssize_t pwrite(int descriptor, const void *data, size_t n, off_t offset) {
    int found = on_file("pwrite", descriptor, 1);
    return found == 1 ? -1 : REAL(pwrite)(descriptor, data, HALF(found, n), offset);
}

ssize_t pwrite64(int descriptor, const void *data, size_t n, off64_t offset) {
    int found = on_file("pwrite", descriptor, 1);
    return found == 1 ? -1 : REAL(pwrite64)(descriptor, data, HALF(found, n), offset);
}

int ftruncate(int descriptor, off_t length) {
    return on_file("ftruncate", descriptor, 0) ? -1 : REAL(ftruncate)(descriptor, length);
}

int ftruncate64(int descriptor, off64_t length) {
    return on_file("ftruncate", descriptor, 0) ? -1 : REAL(ftruncate64)(descriptor, length);
}

int fsync(int descriptor) {
    return on_file("fsync", descriptor, 0) ? -1 : REAL(fsync)(descriptor);
}

int fdatasync(int descriptor) {
    return on_file("fdatasync", descriptor, 0) ? -1 : REAL(fdatasync)(descriptor);
}

int rename(const char *from, const char *to) {
    return verdict("rename", to, 0) ? -1 : REAL(rename)(from, to);
}

int link(const char *from, const char *to) {
    return verdict("link", to, 0) ? -1 : REAL(link)(from, to);
}

int mkdir(const char *path, mode_t mode) {
    int saved = errno, there = !access(path, F_OK);
    errno = saved;
    return !there && verdict("mkdir", path, 0) ? -1 : REAL(mkdir)(path, mode);
}

/* Only where it would make a file: opening one that is there takes no room. */
static int creating(const char *path, int flags) {
    int saved = errno;
    if (!folder[0] || !(flags & O_CREAT) || !below(path) || !access(path, F_OK)) {
        errno = saved;
        return 0;
    }
    errno = saved;
    return verdict("open", path, 0);
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return creating(path, flags) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = mode_of(flags, rest);
    va_end(rest);
    return creating(path, flags) ? -1 : REAL(open64)(path, flags, mode);
}
