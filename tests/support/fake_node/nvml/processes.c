/* Who uses a GPU: `processes pid:bytes[:instance:compute-instance] …`, and `graphics`, `mps` alike. */
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} Process;

/* The next of the list, or 0 at its end. A size of "na" is what a driver says that may not tell. */
static int next_process(const char **word, Process *process) {
    char size[32] = "";
    int used = 0;
    *process = (Process){0, ULLONG_MAX, UINT_MAX, UINT_MAX};
    if (sscanf(*word, " %u:%31[^: ]%n", &process->pid, size, &used) != 2)
        return 0;
    if (strcmp(size, "na"))
        process->memory = strtoull(size, NULL, 0);
    *word += used;
    if (sscanf(*word, ":%u:%u%n", &process->gpu_instance, &process->compute_instance, &used) == 2)
        *word += used;
    return 1;
}

static int processes(const Device *device, const char *key, unsigned *count, Process *out) {
    int gpu = device->gpu * (MAX_MIGS + 1);
    const char *word = script_text(gpu, key);
    if (!word)
        return NOT_SUPPORTED;
    long long code;
    if (*word == '!')
        return script_number(gpu, key, &code);
    unsigned instance = device->mig < 0 ? UINT_MAX : (unsigned)script_number_or(device->target, "instance", 0);
    unsigned known = 0, room = *count;
    for (Process process; next_process(&word, &process);) {
        if (instance != UINT_MAX && process.gpu_instance != instance)
            continue;
        if (known < room && out)
            out[known] = process;
        known++;
    }
    *count = known;
    return known > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(function, key)                                                                                       \
    API function(const void *handle, unsigned *count, Process *out) {                                                  \
        ENTER_ANY(handle);                                                                                             \
        return processes(device, key, count, out);                                                                     \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes")
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, "mps")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

typedef struct {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, memory, encoder, decoder;
} ProcessUtilization;

/* The last sample period's utilisation, shared equally by the processes. */
API nvmlDeviceGetProcessUtilization(const void *handle, ProcessUtilization *out, unsigned *count,
                                    unsigned long long last_seen) {
    ENTER_GPU(handle);
    if (script_number_or(device->target, "mig_mode", 0))
        return NOT_SUPPORTED;
    unsigned known = 0, room = *count;
    int code = processes(device, "processes", &known, NULL);
    if (code && code != INSUFFICIENT_SIZE)
        return code;
    micros period = script_number_or(device->target, "sample_period_us", 200000);
    micros at = script_now() / period * period;
    if (!known || (unsigned long long)at <= last_seen)
        return NOT_FOUND;
    *count = known;
    if (!out || known > room)
        return INSUFFICIENT_SIZE;
    double util = 0, memory = 0;
    script_mean(device->target, "util", at - period, at, &util);
    script_mean(device->target, "mem_util", at - period, at, &memory);
    const char *word = script_text(device->target, "processes");
    Process process;
    for (unsigned number = 0; next_process(&word, &process); number++)
        out[number] = (ProcessUtilization){process.pid, (unsigned long long)at, (unsigned)lround(util / known),
                                           (unsigned)lround(memory / known), 0, 0};
    return OK;
}
