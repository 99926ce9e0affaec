/* Answers ioctl(SIOCETHTOOL, SIOCGIFINDEX), netlink, adjtimex and clock_adjtime from a script, and passes everything else on.
 *
 * The script is the file that $FAKE_KERNEL names, read anew when it changes, one fact per line:
 *   driver <interface> <driver> <bus>
 *   stat <interface> <value> <name, to the end of the line>
 *   fail <interface> <drvinfo|count|strings|stats> <errno>
 *   timex <field> <value>, timex state <value>, timex errno <value>
 *   index <interface> <number>, as SIOCGIFINDEX answers
 *   netlink <datagram in hexadecimal>: each what a netlink socket receives next; netlink errno <value>
 * Interfaces that it does not name, netlink and the clock if it has no line for them, are the real kernel's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timex.h>
#include <unistd.h>

#define MOST_INTERFACES 64
#define MOST_STATS 4096
#define MOST_DATAGRAMS 16
#define DATAGRAM 4096

struct interface {
    char name[IFNAMSIZ], driver[32], bus[ETHTOOL_BUSINFO_LEN];
    int fail_drvinfo, fail_count, fail_strings, fail_stats, index;
    uint32_t stats;
    uint64_t values[MOST_STATS];
    char names[MOST_STATS][ETH_GSTRING_LEN];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat read_at;
static struct interface *interfaces[MOST_INTERFACES];
static struct timex scripted_timex;
static int has_timex, timex_state, timex_errno;
static struct { int length; unsigned char bytes[DATAGRAM]; } datagrams[MOST_DATAGRAMS];
static int datagram_count, netlink_errno, netlink_peer;

static struct interface *find(const char *name, int make)
{
    for (int i = 0; i < MOST_INTERFACES; i++) {
        if (!interfaces[i]) {
            if (!make)
                return NULL;
            interfaces[i] = calloc(1, sizeof(struct interface));
            snprintf(interfaces[i]->name, IFNAMSIZ, "%s", name);
            return interfaces[i];
        }
        if (!strncmp(interfaces[i]->name, name, IFNAMSIZ))
            return interfaces[i];
    }
    return NULL;
}

static void set_timex(const char *field, long long value)
{
    has_timex = 1;
    if (!strcmp(field, "state")) timex_state = value;
    else if (!strcmp(field, "errno")) timex_errno = value;
    else if (!strcmp(field, "offset")) scripted_timex.offset = value;
    else if (!strcmp(field, "freq")) scripted_timex.freq = value;
    else if (!strcmp(field, "maxerror")) scripted_timex.maxerror = value;
    else if (!strcmp(field, "esterror")) scripted_timex.esterror = value;
    else if (!strcmp(field, "status")) scripted_timex.status = value;
    else if (!strcmp(field, "tai")) scripted_timex.tai = value;
    else abort();
}

static void add_datagram(const char *digits)
{
    int length = 0, at = 0;
    if (datagram_count == MOST_DATAGRAMS)
        abort();
    while (length < DATAGRAM && sscanf(digits + 2 * length, "%2hhx%n", &datagrams[datagram_count].bytes[length], &at) == 1)
        length++;
    datagrams[datagram_count++].length = length;
}

static void take(char *line)
{
    char name[IFNAMSIZ], word[64], other[64];
    unsigned long long value;
    long long number;
    int at = 0;
    struct interface *one;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "driver %15s %31s %31s", name, word, other) == 3) {
        one = find(name, 1);
        strcpy(one->driver, word);
        strcpy(one->bus, other);
    } else if (sscanf(line, "stat %15s %llu %n", name, &value, &at) == 2 && at) {
        one = find(name, 1);
        if (one->stats == MOST_STATS)
            abort();
        strncpy(one->names[one->stats], line + at, ETH_GSTRING_LEN); /* 32 characters have no zero behind */
        one->values[one->stats++] = value;
    } else if (sscanf(line, "fail %15s %63s %lld", name, word, &number) == 3) {
        one = find(name, 1);
        if (!strcmp(word, "drvinfo")) one->fail_drvinfo = number;
        else if (!strcmp(word, "count")) one->fail_count = number;
        else if (!strcmp(word, "strings")) one->fail_strings = number;
        else if (!strcmp(word, "stats")) one->fail_stats = number;
        else abort();
    } else if (sscanf(line, "index %15s %lld", name, &number) == 2) {
        find(name, 1)->index = number;
    } else if (sscanf(line, "netlink errno %lld", &number) == 1) {
        netlink_errno = number;
    } else if (!strncmp(line, "netlink ", 8)) {
        add_datagram(line + 8);
    } else if (sscanf(line, "timex %63s %lld", word, &number) == 2) {
        set_timex(word, number);
    } else if (*line) {
        abort();
    }
}

/* With the lock held. */
static void look(void)
{
    const char *path = getenv("FAKE_KERNEL");
    struct stat now;
    static char line[2 * DATAGRAM + 64];
    FILE *file;
    if (!path || stat(path, &now))
        return;
    if (now.st_ino == read_at.st_ino && now.st_size == read_at.st_size &&
        now.st_mtim.tv_sec == read_at.st_mtim.tv_sec && now.st_mtim.tv_nsec == read_at.st_mtim.tv_nsec)
        return;
    file = fopen(path, "re");
    if (!file)
        return;
    for (int i = 0; i < MOST_INTERFACES; i++) {
        free(interfaces[i]);
        interfaces[i] = NULL;
    }
    memset(&scripted_timex, 0, sizeof scripted_timex);
    has_timex = timex_state = timex_errno = datagram_count = netlink_errno = 0;
    while (fgets(line, sizeof line, file))
        take(line);
    fclose(file);
    read_at = now;
}

static int fail(int code)
{
    errno = code;
    return -1;
}

static int ethtool(struct interface *one, void *data)
{
    struct ethtool_drvinfo *info = data;
    struct ethtool_sset_info *set = data;
    struct ethtool_gstrings *strings = data;
    struct ethtool_stats *stats = data;
    switch (*(uint32_t *)data) {
    case ETHTOOL_GDRVINFO:
        if (one->fail_drvinfo)
            return fail(one->fail_drvinfo);
        memset(info, 0, sizeof *info);
        info->cmd = ETHTOOL_GDRVINFO;
        strcpy(info->driver, one->driver);
        strcpy(info->bus_info, one->bus);
        info->n_stats = one->stats;
        return 0;
    case ETHTOOL_GSSET_INFO:
        if (one->fail_count)
            return fail(one->fail_count);
        if (set->sset_mask != 1ULL << ETH_SS_STATS)
            return fail(EINVAL);
        if (one->stats)
            set->data[0] = one->stats;
        else
            set->sset_mask = 0; /* as the kernel says none */
        return 0;
    case ETHTOOL_GSTRINGS:
        if (one->fail_strings)
            return fail(one->fail_strings);
        strings->len = one->stats; /* whatever there was room for */
        memcpy(strings->data, one->names, one->stats * ETH_GSTRING_LEN);
        return 0;
    case ETHTOOL_GSTATS:
        if (one->fail_stats)
            return fail(one->fail_stats);
        stats->n_stats = one->stats;
        memcpy(stats->data, one->values, one->stats * sizeof(uint64_t));
        return 0;
    default:
        return fail(EOPNOTSUPP);
    }
}

int ioctl(int fd, unsigned long request, ...)
{
    static int (*real)(int, unsigned long, ...);
    va_list rest;
    void *argument;
    va_start(rest, request);
    argument = va_arg(rest, void *);
    va_end(rest);
    if (request == SIOCETHTOOL) {
        struct ifreq *asked = argument;
        struct interface *one;
        int result = 0;
        pthread_mutex_lock(&lock);
        look();
        one = find(asked->ifr_name, 0);
        if (one && !one->driver[0])
            one = NULL; /* the script has its number alone */
        if (one)
            result = ethtool(one, asked->ifr_data);
        pthread_mutex_unlock(&lock);
        if (one)
            return result;
    }
    if (request == SIOCGIFINDEX) {
        struct ifreq *asked = argument;
        struct interface *one;
        int index;
        pthread_mutex_lock(&lock);
        look();
        one = find(asked->ifr_name, 0);
        index = one ? one->index : 0;
        pthread_mutex_unlock(&lock);
        if (index) {
            asked->ifr_ifindex = index;
            return 0;
        }
    }
    if (!real)
        real = dlsym(RTLD_NEXT, "ioctl");
    return real(fd, request, argument);
}

/* Asking only: what sets the clock is the real kernel's. */
static int answer(struct timex *asked, int *result)
{
    int answered;
    if (asked->modes)
        return 0;
    pthread_mutex_lock(&lock);
    look();
    answered = has_timex;
    if (answered && timex_errno)
        *result = fail(timex_errno);
    else if (answered) {
        *asked = scripted_timex;
        *result = timex_state;
    }
    pthread_mutex_unlock(&lock);
    return answered;
}

int adjtimex(struct timex *asked)
{
    static int (*real)(struct timex *);
    int result;
    if (answer(asked, &result))
        return result;
    if (!real)
        real = dlsym(RTLD_NEXT, "adjtimex");
    return real(asked);
}

int clock_adjtime(clockid_t clock, struct timex *asked)
{
    static int (*real)(clockid_t, struct timex *);
    int result;
    if (clock == CLOCK_REALTIME && answer(asked, &result))
        return result;
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_adjtime");
    return real(clock, asked);
}

/* A socket in which the answers lie already, whatever is asked. */
int socket(int domain, int type, int protocol)
{
    static int (*real)(int, int, int);
    int scripted = 0, pair[2], result = -1;
    if (domain == AF_NETLINK && protocol == NETLINK_ROUTE) {
        pthread_mutex_lock(&lock);
        look();
        scripted = datagram_count || netlink_errno;
        if (netlink_errno) {
            errno = netlink_errno;
        } else if (scripted && !socketpair(AF_UNIX, SOCK_SEQPACKET | (type & SOCK_CLOEXEC), 0, pair)) {
            for (int i = 0; i < datagram_count; i++)
                if (write(pair[1], datagrams[i].bytes, datagrams[i].length) < 0)
                    abort();
            if (netlink_peer)
                close(netlink_peer);
            netlink_peer = pair[1]; /* open until the next one: without it nothing could be asked */
            result = pair[0];
        }
        pthread_mutex_unlock(&lock);
        if (scripted)
            return result;
    }
    if (!real)
        real = dlsym(RTLD_NEXT, "socket");
    return real(domain, type, protocol);
}
