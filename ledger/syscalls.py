"""The system calls in which the processes of a training block, by machine and number.

From the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (arm64).
"""

from __future__ import annotations

NAMES: dict[str, dict[int, str]] = {
    "x86_64": {
        0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 9: "mmap",
        16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 23: "select", 35: "nanosleep",
        42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4",
        65: "semop", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync", 202: "futex", 208: "io_getevents",
        217: "getdents64", 220: "semtimedop", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
        262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 295: "preadv",
        299: "recvmmsg", 327: "preadv2", 332: "statx", 426: "io_uring_enter",
    },
    "aarch64": {
        4: "io_getevents", 22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 57: "close",
        61: "getdents64", 63: "read", 64: "write", 65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64",
        69: "preadv", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 80: "fstat", 82: "fsync", 83: "fdatasync",
        95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 192: "semtimedop", 193: "semop",
        202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 222: "mmap",
        242: "accept4", 243: "recvmmsg", 260: "wait4", 286: "preadv2", 291: "statx", 426: "io_uring_enter",
    },
}  # fmt: skip
