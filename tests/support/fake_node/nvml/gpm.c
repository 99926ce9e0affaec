/* GPM: means between two samples. A sample here is no more than its time; the metrics come from the scripted levels. */
#include "fake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* More samples than this at a time are a leak: the allocation fails. */
enum { MAX_SAMPLES = 4096, MAGIC = 0x6770 };

typedef struct {
    int magic, taken, target, gpu;
    micros at;
} GpmSample;

typedef struct {
    unsigned id;
    int code;
    double value;
    const char *short_name, *long_name, *unit;
} Metric;

typedef struct {
    unsigned version, count;
    const GpmSample *first, *second;
    Metric metrics[];
} MetricsGet;

typedef struct {
    unsigned version, supported;
} Support;

static const char *const KEYS[] = {NULL,   "util", "sm",   "occupancy", "integer", "tensor", "dfma",
                                   "hmma", "dmma", "imma", "dram",      "fp64",    "fp32",   "fp16"};

static int live;

static int supported(const Device *device) {
    return script_number_or(device->target, "gpm", script_number_or(device->target, "architecture", 0) >= 9) != 0;
}

API nvmlGpmQueryDeviceSupport(const void *handle, Support *out) {
    ENTER_ANY(handle);
    if (out->version != 1)
        return VERSION_MISMATCH;
    out->supported = (unsigned)supported(fake_by_index((unsigned)fake_index(device->gpu)));
    return OK;
}

API nvmlGpmQueryIfStreamingEnabled(const void *handle, unsigned *out) {
    ENTER_GPU(handle);
    *out = 0;
    return supported(device) ? OK : NOT_SUPPORTED;
}

API nvmlGpmSampleAlloc(GpmSample **out) {
    ENTER_SYSTEM;
    if (live >= MAX_SAMPLES || !(*out = calloc(1, sizeof **out)))
        return MEMORY;
    live++;
    (*out)->magic = MAGIC;
    return OK;
}

API nvmlGpmSampleFree(GpmSample *sample) {
    ENTER_SYSTEM;
    if (!sample || sample->magic != MAGIC)
        return INVALID_ARGUMENT;
    sample->magic = 0;
    live--;
    free(sample);
    return OK;
}

static int take(const Device *device, int gpu_target, GpmSample *sample) {
    if (!sample || sample->magic != MAGIC)
        return INVALID_ARGUMENT;
    if (!script_number_or(gpu_target, "gpm", script_number_or(gpu_target, "architecture", 0) >= 9))
        return NOT_SUPPORTED;
    *sample = (GpmSample){MAGIC, 1, device->target, device->gpu, script_now()};
    return OK;
}

API nvmlGpmSampleGet(const void *handle, GpmSample *sample) {
    ENTER_GPU(handle);
    return take(device, device->target, sample);
}

API nvmlGpmMigSampleGet(const void *handle, unsigned instance, GpmSample *sample) {
    ENTER_GPU(handle);
    for (int number = 0; number < script_migs(device->gpu); number++) {
        const Device *mig = fake_mig(device->gpu, number);
        if (script_has(mig->target, "uuid") && script_number_or(mig->target, "instance", -1) == (long long)instance)
            return take(mig, device->target, sample);
    }
    return NOT_FOUND;
}

/* `gpm<id>` where the script has it; else the level behind it, of which each NVLink carries its share. */
static int metric(const GpmSample *first, const GpmSample *second, unsigned id, double *out) {
    char own[16];
    const char *key = id < sizeof KEYS / sizeof *KEYS ? KEYS[id] : NULL;
    double share = 1;
    snprintf(own, sizeof own, "gpm%u", id);
    if (script_has(second->target, own))
        key = own;
    else if (id == 20 || id == 21)
        key = id == 20 ? "pcie_tx" : "pcie_rx";
    else if (id == 60 || id == 61)
        key = id == 60 ? "nvlink_rx" : "nvlink_tx";
    else if (id >= 62 && id <= 97) {
        long long links = script_number_or(second->target, "nvlinks", 0);
        key = (id - 62) / 2 < (unsigned)links ? (id % 2 ? "nvlink_tx" : "nvlink_rx") : NULL;
        share = links ? 1. / (double)links : 0;
    }
    if (!key)
        return NOT_SUPPORTED;
    int code = script_mean(second->target, key, first->at < second->at ? first->at : second->at,
                           first->at < second->at ? second->at : first->at, out);
    /* No time between them: a mean over nothing. */
    *out = first->at == second->at ? NAN : *out * share;
    return code;
}

API nvmlGpmMetricsGet(MetricsGet *get) {
    ENTER_SYSTEM;
    if (get->version != 1)
        return VERSION_MISMATCH;
    const GpmSample *first = get->first, *second = get->second;
    if (!first || !second || first->magic != MAGIC || second->magic != MAGIC || !first->taken || !second->taken ||
        first->target != second->target)
        return INVALID_ARGUMENT;
    for (unsigned at = 0; at < get->count; at++) {
        Metric *out = &get->metrics[at];
        out->code = metric(first, second, out->id, &out->value);
        out->short_name = out->long_name = out->id < sizeof KEYS / sizeof *KEYS ? KEYS[out->id] : NULL;
        out->unit = out->id < 20 ? "%" : "MiB/s";
    }
    return OK;
}
