/* The script: lines of `key value`, read again whenever the file has changed. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

enum { BUCKETS = 4096, MAX_LINES = 16384, MAX_FAULTS = 512, MAX_EVENTS = 4096 };

typedef struct {
    int target;
    unsigned hash;
    const char *key, *value;
    int next;
} Line;

typedef struct {
    char function[MAX_FUNCTION];
    int code; /* 0: hangs */
    int gpu;  /* -1: all */
} Fault;

static char *text;
static Line lines[MAX_LINES];
static int line_count, buckets[BUCKETS];
static Fault faults[MAX_FAULTS];
static int fault_count;
static Event events[MAX_EVENTS];
static int event_count;
static int gpus, migs[MAX_GPUS];
static struct stat seen;
static char path[4096];
static int frozen;
static micros epoch;

static unsigned hash_of(int target, const char *key) {
    unsigned hash = 2166136261u ^ (unsigned)(target * 16777619);
    for (; *key; key++)
        hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash;
}

static const char *find(int target, const char *key) {
    unsigned hash = hash_of(target, key);
    for (int at = buckets[hash % BUCKETS]; at; at = lines[at].next)
        if (lines[at].hash == hash && lines[at].target == target && !strcmp(lines[at].key, key))
            return lines[at].value;
    return NULL;
}

static void put(int target, const char *key, const char *value) {
    if (line_count + 1 >= MAX_LINES)
        return;
    Line *line = &lines[++line_count];
    *line = (Line){target, hash_of(target, key), key, value, 0};
    line->next = buckets[line->hash % BUCKETS];
    buckets[line->hash % BUCKETS] = line_count;
}

static void put_fault(char *rest, int hang) {
    Fault fault = {.gpu = -1};
    int got = hang ? sscanf(rest, "%79s %d", fault.function, &fault.gpu)
                   : sscanf(rest, "%79s %d %d", fault.function, &fault.code, &fault.gpu);
    if (got >= (hang ? 1 : 2) && fault_count < MAX_FAULTS)
        faults[fault_count++] = fault;
}

static void put_event(char *rest) {
    Event event = {.gpu_instance = UINT_MAX, .compute_instance = UINT_MAX};
    if (sscanf(rest, "%llu %d %llu %llu %u %u", &event.number, &event.gpu, &event.type, &event.data,
               &event.gpu_instance, &event.compute_instance) >= 4 &&
        event_count < MAX_EVENTS)
        events[event_count++] = event;
}

/* `gpu3.mig1.uuid`, `gpu3.uuid`, `gpu.uuid` (every GPU's, if it has none of its own), `driver`. */
static void put_line(char *key, char *value) {
    int target = NODE;
    if (!strncmp(key, "gpu", 3) && (key[3] == '.' || (key[3] >= '0' && key[3] <= '9'))) {
        char *at = key + 3;
        target = EVERY_GPU;
        if (*at != '.') {
            int gpu = (int)strtol(at, &at, 10);
            if (gpu >= MAX_GPUS)
                return;
            if (gpu >= gpus)
                gpus = gpu + 1;
            target = gpu * (MAX_MIGS + 1);
            if (!strncmp(at, ".mig", 4) && at[4] >= '0' && at[4] <= '9') {
                int mig = (int)strtol(at + 4, &at, 10);
                if (mig >= MAX_MIGS)
                    return;
                if (mig >= migs[gpu])
                    migs[gpu] = mig + 1;
                target += 1 + mig;
            }
        }
        key = at + 1;
    }
    put(target, key, value);
}

static void parse(void) {
    line_count = fault_count = event_count = gpus = 0;
    memset(buckets, 0, sizeof buckets);
    memset(migs, 0, sizeof migs);
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (*line == '#')
            continue;
        char *value = strchr(line, ' ');
        if (!value)
            continue;
        *value++ = 0;
        if (!strcmp(line, "fail"))
            put_fault(value, 0);
        else if (!strcmp(line, "hang"))
            put_fault(value, 1);
        else if (!strcmp(line, "event"))
            put_event(value);
        else
            put_line(line, value);
    }
    const char *value = find(NODE, "epoch");
    epoch = value ? (micros)(strtold(value, NULL) * 1e6L + 0.5L) : 0;
}

/* Another script, as an environment variable names it at first; NULL: none, and no GPU. */
void fake_nvml_use(const char *script, int once) {
    HELD;
    snprintf(path, sizeof path, "%s", script ? script : "");
    memset(&seen, 0, sizeof seen);
    free(text);
    text = calloc(1, 1);
    parse();
    frozen = 0;
    script_refresh();
    frozen = once;
}

__attribute__((constructor)) static void start(void) {
    fake_nvml_use(getenv("FAKE_NVML"), getenv("FAKE_NVML_FROZEN") != NULL);
}

void script_refresh(void) {
    struct stat now;
    if (frozen || !*path || stat(path, &now))
        return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    seen = now;
    free(text);
    text = calloc(1, (size_t)now.st_size + 1);
    size_t size = fread(text, 1, (size_t)now.st_size, file);
    text[size] = 0;
    fclose(file);
    parse();
}

/* A MIG device has its own values only, a GPU also those of every GPU. "-" takes one of those away again. */
const char *script_text(int target, const char *key) {
    const char *value = find(target, key);
    if (!value && target >= 0 && target % (MAX_MIGS + 1) == 0)
        value = find(EVERY_GPU, key);
    return value && strcmp(value, "-") ? value : NULL;
}

int script_has(int target, const char *key) {
    return script_text(target, key) != NULL;
}

/* A number; `<base>+<rate>`, what it was at the epoch and what comes to it each second; a level, as it is now; or
 * `!<code>`, an error. */
int script_number(int target, const char *key, long long *value) {
    const char *word = script_text(target, key);
    if (!word)
        return NOT_SUPPORTED;
    if (*word == '!')
        return atoi(word + 1);
    char *end;
    *value = strtoll(word, &end, 0);
    if (*end == '+')
        *value += (long long)(strtold(end + 1, NULL) * (long double)(script_now() - epoch) / 1e6L);
    if (*end != ' ' && *end != ':')
        return OK;
    micros now = script_now();
    double level = 0;
    int code = script_mean(target, key, now, now, &level);
    *value = (long long)level;
    return code;
}

long long script_number_or(int target, const char *key, long long otherwise) {
    long long value;
    return script_number(target, key, &value) ? otherwise : value;
}

static int applies(const Fault *fault, const char *function, int gpu) {
    return (fault->gpu < 0 || fault->gpu == gpu) && (!strcmp(fault->function, function) || !strcmp(fault->function, "*"));
}

int script_fault(const char *function, int gpu) {
    for (int at = 0; at < fault_count; at++)
        if (faults[at].code && applies(&faults[at], function, gpu))
            return faults[at].code;
    return OK;
}

int script_hangs(const char *function, int gpu) {
    for (int at = 0; at < fault_count; at++)
        if (!faults[at].code && applies(&faults[at], function, gpu))
            return 1;
    return 0;
}

int script_missing(void) {
    return !seen.st_ino;
}

int script_gpus(void) {
    return gpus;
}

int script_migs(int gpu) {
    return migs[gpu];
}

const Event *script_event_after(unsigned long long number) {
    for (int at = 0; at < event_count; at++)
        if (events[at].number > number)
            return &events[at];
    return NULL;
}

unsigned long long script_last_event(void) {
    return event_count ? events[event_count - 1].number : 0;
}

micros script_now(void) {
    const char *clock = find(NODE, "clock");
    if (clock)
        return (micros)(strtold(clock, NULL) * 1e6L + 0.5L);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* `<level> <time>:<level> …`: a level, and from each time on another. */
int script_mean(int target, const char *key, micros from, micros to, double *mean) {
    const char *word = script_text(target, key);
    if (!word)
        return NOT_SUPPORTED;
    if (*word == '!')
        return atoi(word + 1);
    long double sum = 0;
    double level = 0;
    micros at = from;
    while (*word) {
        char *end;
        long double number = strtold(word, &end);
        if (end == word)
            break;
        if (*end == ':') {
            micros since = (micros)(number * 1e6L + 0.5L);
            if (since > to)
                break;
            if (since > at) {
                sum += level * (long double)(since - at);
                at = since;
            }
            level = strtod(end + 1, &end);
        } else {
            level = (double)number;
        }
        for (word = end; *word == ' '; word++)
            ;
    }
    sum += level * (long double)(to - at);
    *mean = to > from ? (double)(sum / (long double)(to - from)) : level;
    return OK;
}
