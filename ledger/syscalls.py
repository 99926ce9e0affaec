"""The system calls in which the processes of a training block, by machine and number.

From the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (arm64).
"""

from __future__ import annotations

NAMES: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap",
        16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 21: "access", 23: "select", 26: "msync",
        35: "nanosleep", 40: "sendfile", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg",
        47: "recvmsg", 61: "wait4", 65: "semop", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
        77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink", 89: "readlink", 162: "sync",
        202: "futex", 208: "io_getevents", 217: "getdents64", 220: "semtimedop", 230: "clock_nanosleep",
        232: "epoll_wait", 247: "waitid", 257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat",
        264: "renameat", 267: "readlinkat", 269: "faccessat", 270: "pselect6", 271: "ppoll", 277: "sync_file_range",
        281: "epoll_pwait", 285: "fallocate", 288: "accept4", 295: "preadv", 296: "pwritev", 299: "recvmmsg",
        306: "syncfs", 316: "renameat2", 326: "copy_file_range", 327: "preadv2", 328: "pwritev2", 332: "statx",
        426: "io_uring_enter", 437: "openat2", 439: "faccessat2",
    },
    "aarch64": {
        4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 34: "mkdirat", 35: "unlinkat",
        38: "renameat", 46: "ftruncate", 47: "fallocate", 48: "faccessat", 56: "openat", 57: "close", 61: "getdents64",
        63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 69: "preadv", 70: "pwritev",
        71: "sendfile", 72: "pselect6", 73: "ppoll", 78: "readlinkat", 79: "newfstatat", 80: "fstat", 81: "sync",
        82: "fsync", 83: "fdatasync", 84: "sync_file_range", 95: "waitid", 98: "futex", 101: "nanosleep",
        115: "clock_nanosleep", 192: "semtimedop", 193: "semop", 202: "accept", 203: "connect", 206: "sendto",
        207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 222: "mmap", 227: "msync", 242: "accept4", 243: "recvmmsg",
        260: "wait4", 267: "syncfs", 276: "renameat2", 285: "copy_file_range", 286: "preadv2", 287: "pwritev2",
        291: "statx", 426: "io_uring_enter", 437: "openat2", 439: "faccessat2",
    },
}  # fmt: skip
