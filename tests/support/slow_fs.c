/* A file system that passes all on to a directory, and takes its time over it.
 *
 *     slow_fs DIRECTORY READ_MS DIRECT BYTES_PER_SECOND OPEN_MS PER_FILE MOUNT_POINT
 *
 * Each read that reaches it waits for so many milliseconds, as on storage far away, and each open, stat and listing for
 * OPEN_MS. With DIRECT 1 the kernel caches nothing
 * and asks for exactly what a process asks for; with 0 it goes through the page cache. With BYTES_PER_SECOND above 0 all
 * reads and writes together get no more than that, and a file that was written takes another READ_MS to close. With 0
 * there is no such limit, and writes go through at once. With PER_FILE 1 each open file has that rate, like a connection.
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static const char *below;
static int read_ms, direct, open_ms, per_file;
static double bytes_per_second;
#define LINES 1024
static double free_at[LINES]; /* when what was asked for before has passed, in seconds. Without PER_FILE only the first */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static int result(long done) { return done < 0 ? -errno : (int)done; }

static void wait_ms(int ms)
{
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&left, &left) && errno == EINTR)
        ;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void pass(size_t bytes, uint64_t file)
{
    double now = seconds(), until, *line = &free_at[per_file ? file % LINES : 0];
    if (bytes_per_second <= 0)
        return;
    pthread_mutex_lock(&turn);
    *line = until = (*line > now ? *line : now) + bytes / bytes_per_second;
    pthread_mutex_unlock(&turn);
    wait_ms((int)((until - now) * 1000 + 0.5));
}

static const char *place(char *buffer, const char *path)
{
    snprintf(buffer, PATH_MAX, "%s%s", below, path);
    return buffer;
}

static int slow_getattr(const char *path, struct stat *status, struct fuse_file_info *info)
{
    char real[PATH_MAX];
    (void)info;
    wait_ms(open_ms);
    return result(lstat(place(real, path), status));
}

static int slow_readdir(const char *path, void *to, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                        enum fuse_readdir_flags flags)
{
    char real[PATH_MAX];
    struct dirent *entry;
    DIR *directory = opendir(place(real, path));
    (void)offset, (void)info, (void)flags;
    wait_ms(open_ms);
    if (!directory)
        return -errno;
    while ((entry = readdir(directory)))
        fill(to, entry->d_name, NULL, 0, 0);
    closedir(directory);
    return 0;
}

static int opened(int file, struct fuse_file_info *info)
{
    info->fh = (uint64_t)file;
    info->direct_io = (unsigned)direct;
    return file < 0 ? -errno : 0;
}

static int slow_open(const char *path, struct fuse_file_info *info)
{
    char real[PATH_MAX];
    wait_ms(open_ms);
    return opened(open(place(real, path), info->flags & ~O_DIRECT), info);
}

static int slow_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
    char real[PATH_MAX];
    return opened(open(place(real, path), (info->flags & ~O_DIRECT) | O_CREAT, mode), info);
}

static int slow_read(const char *path, char *to, size_t size, off_t offset, struct fuse_file_info *info)
{
    long done;
    (void)path;
    wait_ms(read_ms);
    done = pread((int)info->fh, to, size, offset);
    pass(done > 0 ? (size_t)done : 0, info->fh);
    return result(done);
}

static int slow_write(const char *path, const char *from, size_t size, off_t offset, struct fuse_file_info *info)
{
    (void)path;
    pass(size, info->fh);
    return result(pwrite((int)info->fh, from, size, offset));
}

static int slow_flush(const char *path, struct fuse_file_info *info)
{
    (void)path;
    if (info->flags & O_ACCMODE && bytes_per_second > 0)
        wait_ms(read_ms);
    return 0;
}

static int slow_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
    char real[PATH_MAX];
    (void)info;
    return result(truncate(place(real, path), size));
}

static int slow_release(const char *path, struct fuse_file_info *info)
{
    (void)path;
    return result(close((int)info->fh));
}

static int slow_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path, (void)data_only;
    return result(fsync((int)info->fh));
}

static int slow_unlink(const char *path)
{
    char real[PATH_MAX];
    return result(unlink(place(real, path)));
}

static int slow_mkdir(const char *path, mode_t mode)
{
    char real[PATH_MAX];
    return result(mkdir(place(real, path), mode));
}

static int slow_rmdir(const char *path)
{
    char real[PATH_MAX];
    return result(rmdir(place(real, path)));
}

static int slow_rename(const char *from, const char *to, unsigned flags)
{
    char real[2][PATH_MAX];
    return flags ? -EINVAL : result(rename(place(real[0], from), place(real[1], to)));
}

static int slow_statfs(const char *path, struct statvfs *status)
{
    char real[PATH_MAX];
    return result(statvfs(place(real, path), status));
}

static const struct fuse_operations operations = {
    .getattr = slow_getattr, .readdir = slow_readdir, .open = slow_open, .read = slow_read, .release = slow_release,
    .create = slow_create, .write = slow_write, .flush = slow_flush, .fsync = slow_fsync, .truncate = slow_truncate,
    .unlink = slow_unlink, .mkdir = slow_mkdir, .rmdir = slow_rmdir, .rename = slow_rename, .statfs = slow_statfs,
};

int main(int count, char **words)
{
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 12)
    char *options[] = {words[0], "-f", "-omax_threads=64", words[count - 1], NULL}; /* later versions have 10 */
#else
    char *options[] = {words[0], "-f", words[count - 1], NULL};
#endif
    if (count != 8)
        return 2;
    below = words[1], read_ms = atoi(words[2]), direct = atoi(words[3]), bytes_per_second = atof(words[4]);
    open_ms = atoi(words[5]), per_file = atoi(words[6]);
    return fuse_main(sizeof(options) / sizeof(*options) - 1, options, &operations, NULL);
}
