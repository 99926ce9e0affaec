/* Initialisation, handles, and what every function does first: faults, hangs, lost GPUs, the list of calls. */
#include "fake.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int fake_initialised, fake_generation;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Device devices[MAX_GPUS * (MAX_MIGS + 1)];
static int order[MAX_GPUS], count; /* the GPUs as the library found them when it was initialised */
static int calls = -1;

Guard fake_lock(void) {
    pthread_mutex_lock(&mutex);
    return 0;
}

void fake_unlock(Guard *guard) {
    (void)guard;
    pthread_mutex_unlock(&mutex);
}

/* A file to which the name of each function that is called is appended; NULL: none. */
void fake_nvml_log(const char *path) {
    if (calls >= 0)
        close(calls);
    calls = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
}

/* As if the process had just started: for tests that drive several nodes in one process. */
void fake_nvml_reset(void) {
    HELD;
    fake_initialised = 0;
    count = 0;
}

__attribute__((constructor)) static void start(void) {
    for (int target = 0; target < MAX_GPUS * (MAX_MIGS + 1); target++)
        devices[target] = (Device){target, target / (MAX_MIGS + 1), target % (MAX_MIGS + 1) - 1};
    fake_nvml_log(getenv("FAKE_NVML_CALLS"));
}

/* Lets the others have the library for a moment. */
void fake_pause(void) {
    pthread_mutex_unlock(&mutex);
    nanosleep(&(struct timespec){0, 3000000}, NULL);
    pthread_mutex_lock(&mutex);
    script_refresh();
}

const Device *fake_device(const void *handle) {
    const Device *device = handle;
    if (device < devices || device >= devices + MAX_GPUS * (MAX_MIGS + 1))
        return NULL;
    return device;
}

int fake_index(int gpu) {
    for (int at = 0; at < count; at++)
        if (order[at] == gpu)
            return at;
    return -1;
}

int fake_count(void) {
    return count;
}

const Device *fake_by_index(unsigned index) {
    return index < (unsigned)count ? &devices[order[index] * (MAX_MIGS + 1)] : NULL;
}

const Device *fake_mig(int gpu, int mig) {
    return &devices[gpu * (MAX_MIGS + 1) + 1 + mig];
}

static int present(int gpu) {
    int target = gpu * (MAX_MIGS + 1);
    return script_has(target, "uuid") && !script_number_or(target, "removed", 0);
}

int fake_lost(int gpu) {
    return !present(gpu) || script_number_or(gpu * (MAX_MIGS + 1), "lost", 0);
}

static void note(const char *function, int gpu) {
    char line[MAX_FUNCTION + 16];
    int size = snprintf(line, sizeof line, "%s %d\n", function, gpu);
    if (calls >= 0 && write(calls, line, (size_t)size) < 0)
        abort();
}

int fake_enter(const char *function, const void *handle, int mig_too) {
    const Device *device = handle ? fake_device(handle) : NULL;
    int gpu = device ? device->gpu : -1;
    script_refresh();
    note(function, gpu);
    while (script_hangs(function, gpu))
        fake_pause();
    int fault = script_fault(function, gpu);
    if (fault)
        return fault;
    if (!fake_initialised)
        return UNINITIALIZED;
    if (!handle)
        return OK;
    if (!device || fake_index(gpu) < 0)
        return INVALID_ARGUMENT;
    if (fake_lost(gpu))
        return GPU_IS_LOST;
    if (device->mig < 0)
        return OK;
    if (!mig_too)
        return NOT_SUPPORTED;
    return script_has(device->target, "uuid") ? OK : NOT_FOUND;
}

static int initialise(const char *function) {
    script_refresh();
    note(function, -1);
    while (script_hangs(function, -1))
        fake_pause();
    int fault = script_fault(function, -1);
    if (fault)
        return fault;
    if (script_missing())
        return DRIVER_NOT_LOADED;
    if (fake_initialised++)
        return OK;
    fake_generation++;
    count = 0;
    for (int gpu = 0; gpu < script_gpus(); gpu++)
        if (present(gpu))
            order[count++] = gpu;
    return OK;
}

API nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    HELD;
    return initialise(__func__);
}

API nvmlInit_v2(void) {
    HELD;
    return initialise(__func__);
}

API nvmlShutdown(void) {
    ENTER_SYSTEM;
    fake_initialised--;
    return OK;
}
