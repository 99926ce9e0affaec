/* How busy a GPU was: every answer is a mean of the same scripted level over the time that the call speaks of. */
#include "fake.h"

#include <math.h>

/* NVML looks at its counters six times a second. */
enum { WINDOW_US = 1000000 / 6 };

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef union {
    double as_double;
    unsigned as_uint;
    unsigned long long as_ull;
} Value;

typedef struct {
    unsigned long long timestamp;
    Value value;
} Sample;

/* A GPU in MIG mode has no utilisation of its own, nor has a MIG device: only GPM knows. */
static int in_mig_mode(const Device *device) {
    return script_number_or(device->target, "mig_mode", 0) != 0;
}

static int recent(const Device *device, const char *key, unsigned *out) {
    double mean;
    micros now = script_now();
    int code = in_mig_mode(device) ? NOT_SUPPORTED : script_mean(device->target, key, now - WINDOW_US, now, &mean);
    if (!code)
        *out = (unsigned)lround(mean);
    return code;
}

API nvmlDeviceGetUtilizationRates(const void *handle, Utilization *out) {
    ENTER_GPU(handle);
    int code = recent(device, "util", &out->gpu);
    return code ? code : recent(device, "mem_util", &out->memory);
}

#define ENGINE(function, key)                                                                                          \
    API function(const void *handle, unsigned *out, unsigned *period) {                                                \
        ENTER_GPU(handle);                                                                                             \
        *period = WINDOW_US;                                                                                           \
        return recent(device, key, out);                                                                               \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, "enc_util")
ENGINE(nvmlDeviceGetDecoderUtilization, "dec_util")
ENGINE(nvmlDeviceGetJpgUtilization, "jpg_util")
ENGINE(nvmlDeviceGetOfaUtilization, "ofa_util")

/* KB/s over the last 20 ms; the real call takes those 20 ms. */
API nvmlDeviceGetPcieThroughput(const void *handle, unsigned counter, unsigned *out) {
    ENTER_GPU(handle);
    if (counter > 1)
        return INVALID_ARGUMENT;
    double mean;
    micros now = script_now();
    int code = script_mean(device->target, counter ? "pcie_rx" : "pcie_tx", now - 20000, now, &mean);
    if (!code)
        *out = (unsigned)lround(mean * 1024);
    return code;
}

/* The buffer: one sample a period since the boot, of which the last `sample_buffer` are kept. */
API nvmlDeviceGetSamples(const void *handle, unsigned type, unsigned long long last_seen, unsigned *value_type,
                         unsigned *count, Sample *out) {
    static const char *const KEYS[] = {"power_mw", "util",      "mem_util", "enc_util", "dec_util",
                                       "clock_sm", "clock_mem", NULL,       "jpg_util", "ofa_util"};
    ENTER_GPU(handle);
    if (type >= sizeof KEYS / sizeof *KEYS)
        return INVALID_ARGUMENT;
    int utilisation = (type >= 1 && type <= 4) || type >= 8;
    if (!KEYS[type] || !script_has(device->target, KEYS[type]) || (utilisation && in_mig_mode(device)))
        return NOT_SUPPORTED;
    long long capacity = script_number_or(device->target, "sample_buffer", 120);
    *value_type = 1;
    if (!out) {
        *count = (unsigned)capacity;
        return OK;
    }
    micros period = script_number_or(device->target, "sample_period_us", 200000);
    micros newest = script_now() / period;
    micros boot = script_number_or(NODE, "boot", 0) * 1000000 / period;
    micros oldest = newest - capacity > boot ? newest - capacity : boot;
    micros after = (micros)(last_seen / (unsigned long long)period);
    micros at = after > oldest ? after : oldest;
    unsigned written = 0;
    while (++at <= newest && written < *count) {
        double mean;
        int code = script_mean(device->target, KEYS[type], (at - 1) * period, at * period, &mean);
        if (code)
            return code;
        out[written++] = (Sample){(unsigned long long)(at * period), {.as_ull = (unsigned)lround(mean)}};
    }
    *count = written;
    return written ? OK : NOT_FOUND;
}
