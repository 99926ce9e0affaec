/* Mounts an export of an NFS 3 server through FUSE, for kernels that have no client of NFS.
 * It is version 3 because libnfs 4 cannot write with version 4.
 *
 *     study_nfs SERVER EXPORT MOUNT_POINT
 *
 * One request at a time: libnfs's calls block, and its context belongs to one thread. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <nfsc/libnfs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_OF(info) ((struct nfsfh *)(uintptr_t)(info)->fh)

static struct nfs_context *nfs;

static int nfs_getattr_(const char *path, struct stat *status, struct fuse_file_info *info)
{
    struct nfs_stat_64 found;
    int result = nfs_lstat64(nfs, path, &found);
    (void)info;
    if (result < 0)
        return result;
    memset(status, 0, sizeof(*status));
    status->st_ino = found.nfs_ino, status->st_mode = (mode_t)found.nfs_mode, status->st_nlink = found.nfs_nlink;
    status->st_uid = (uid_t)found.nfs_uid, status->st_gid = (gid_t)found.nfs_gid;
    status->st_size = (off_t)found.nfs_size, status->st_blocks = (blkcnt_t)((found.nfs_size + 511) / 512);
    status->st_atime = (time_t)found.nfs_atime, status->st_mtime = (time_t)found.nfs_mtime;
    status->st_ctime = (time_t)found.nfs_ctime;
    return 0;
}

static int nfs_readdir_(const char *path, void *to, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *info,
                        enum fuse_readdir_flags flags)
{
    struct nfsdir *directory;
    struct nfsdirent *entry;
    int result = nfs_opendir(nfs, path, &directory);
    (void)offset, (void)info, (void)flags;
    if (result < 0)
        return result;
    while ((entry = nfs_readdir(nfs, directory)))
        fill(to, entry->name, NULL, 0, 0);
    nfs_closedir(nfs, directory);
    return 0;
}

static int keep(int result, struct nfsfh *file, struct fuse_file_info *info)
{
    info->fh = (uintptr_t)file;
    return result < 0 ? result : 0;
}

static int nfs_open_(const char *path, struct fuse_file_info *info)
{
    struct nfsfh *file = NULL;
    int result = nfs_open(nfs, path, info->flags & (O_ACCMODE | O_TRUNC), &file);
    return keep(result, file, info);
}

static int nfs_create_(const char *path, mode_t mode, struct fuse_file_info *info)
{
    struct nfsfh *file = NULL;
    int result = nfs_open2(nfs, path, (info->flags & ~O_EXCL) | O_CREAT, (int)mode, &file);
    return keep(result, file, info);
}

static int nfs_read_(const char *path, char *to, size_t size, off_t offset, struct fuse_file_info *info)
{
    (void)path;
    return nfs_pread(nfs, FILE_OF(info), (uint64_t)offset, size, to);
}

static int nfs_write_(const char *path, const char *from, size_t size, off_t offset, struct fuse_file_info *info)
{
    (void)path;
    return nfs_pwrite(nfs, FILE_OF(info), (uint64_t)offset, size, (void *)from);
}

static int nfs_fsync_(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path, (void)data_only;
    return nfs_fsync(nfs, FILE_OF(info));
}

static int nfs_release_(const char *path, struct fuse_file_info *info)
{
    (void)path;
    return nfs_close(nfs, FILE_OF(info));
}

static int nfs_truncate_(const char *path, off_t size, struct fuse_file_info *info)
{
    (void)info;
    return nfs_truncate(nfs, path, (uint64_t)size);
}

static int nfs_unlink_(const char *path) { return nfs_unlink(nfs, path); }

static int nfs_rename_(const char *from, const char *to, unsigned flags)
{
    return flags ? -EINVAL : nfs_rename(nfs, from, to);
}

static const struct fuse_operations operations = {
    .getattr = nfs_getattr_, .readdir = nfs_readdir_, .open = nfs_open_, .create = nfs_create_, .read = nfs_read_,
    .write = nfs_write_, .fsync = nfs_fsync_, .release = nfs_release_, .truncate = nfs_truncate_,
    .unlink = nfs_unlink_, .rename = nfs_rename_,
};

int main(int count, char **words)
{
    char *options[] = {words[0], "-f", "-s", words[count - 1], NULL};
    if (count != 4)
        return 2;
    nfs = nfs_init_context();
    if (!nfs || nfs_mount(nfs, words[1], words[2])) {
        fprintf(stderr, "study_nfs: %s\n", nfs ? nfs_get_error(nfs) : "no memory");
        return 1;
    }
    return fuse_main(4, options, &operations, NULL);
}
