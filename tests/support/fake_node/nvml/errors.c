/* What went wrong on a GPU: memory errors, remapped rows, retired pages. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>

static int ecc(const Device *device, unsigned type, unsigned counter, const char *place, unsigned long long *out) {
    if (type > 1 || counter > 1)
        return INVALID_ARGUMENT;
    char key[64];
    snprintf(key, sizeof key, "ecc_%s_%s%s", counter ? "aggregate" : "volatile", type ? "uncorrected" : "corrected",
             place);
    long long value;
    int code = script_number(device->target, key, &value);
    if (!code)
        *out = (unsigned long long)value;
    return code;
}

API nvmlDeviceGetTotalEccErrors(const void *handle, unsigned type, unsigned counter, unsigned long long *out) {
    ENTER_GPU(handle);
    return ecc(device, type, counter, "", out);
}

API nvmlDeviceGetMemoryErrorCounter(const void *handle, unsigned type, unsigned counter, unsigned location,
                                    unsigned long long *out) {
    static const char *const PLACES[] = {"_l1",      "_l2",          "_dram", "_register",
                                         "_texture", "_texture_shm", "_cbu",  "_sram"};
    ENTER_ANY(handle);
    if (location >= sizeof PLACES / sizeof *PLACES)
        return INVALID_ARGUMENT;
    return ecc(device, type, counter, PLACES[location], out);
}

typedef struct {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected;
    unsigned long long volatile_parity, volatile_secded, volatile_corrected;
    unsigned long long buckets[5];
    unsigned threshold_exceeded;
} SramStatus;

API nvmlDeviceGetSramEccErrorStatus(const void *handle, SramStatus *out) {
    ENTER_GPU(handle);
    if (out->version != (sizeof *out | 1u << 24))
        return VERSION_MISMATCH;
    unsigned version = out->version;
    memset(out, 0, sizeof *out);
    out->version = version;
    int code = ecc(device, 1, 1, "_sram", &out->aggregate_parity);
    code = code ? code : ecc(device, 0, 1, "_sram", &out->aggregate_corrected);
    code = code ? code : ecc(device, 1, 0, "_sram", &out->volatile_parity);
    code = code ? code : ecc(device, 0, 0, "_sram", &out->volatile_corrected);
    out->threshold_exceeded = (unsigned)script_number_or(device->target, "sram_threshold_exceeded", 0);
    return code;
}

API nvmlDeviceGetRemappedRows(const void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    static const char *const KEYS[] = {"remapped_corrected", "remapped_uncorrected", "remapped_pending",
                                       "remapped_failed"};
    ENTER_GPU(handle);
    unsigned *const outs[] = {corrected, uncorrected, pending, failed};
    for (int at = 0; at < 4; at++) {
        long long value;
        int code = script_number(device->target, KEYS[at], &value);
        if (code)
            return code;
        *outs[at] = (unsigned)value;
    }
    return OK;
}

API nvmlDeviceGetRowRemapperHistogram(const void *handle, unsigned out[5]) {
    static const char *const KEYS[] = {"rows_max", "rows_high", "rows_partial", "rows_low", "rows_none"};
    ENTER_GPU(handle);
    for (int at = 0; at < 5; at++) {
        long long value;
        int code = script_number(device->target, KEYS[at], &value);
        if (code)
            return code;
        out[at] = (unsigned)value;
    }
    return OK;
}

/* `retired0 address address …` of the pages with many single-bit errors, `retired1` of those with double-bit errors. */
static int retired(const Device *device, unsigned cause, unsigned *count, unsigned long long *addresses,
                   unsigned long long *times) {
    const char *word = cause < 2 ? script_text(device->target, cause ? "retired1" : "retired0") : NULL;
    if (!word)
        return cause < 2 ? NOT_SUPPORTED : INVALID_ARGUMENT;
    unsigned known = 0, room = *count;
    for (char *end; *word; word = end) {
        unsigned long long address = strtoull(word, &end, 0);
        if (end == word)
            break;
        if (addresses && known < room) {
            addresses[known] = address;
            if (times)
                times[known] = (unsigned long long)script_now();
        }
        known++;
    }
    *count = known;
    return known > room ? INSUFFICIENT_SIZE : OK;
}

API nvmlDeviceGetRetiredPages(const void *handle, unsigned cause, unsigned *count, unsigned long long *addresses) {
    ENTER_GPU(handle);
    return retired(device, cause, count, addresses, NULL);
}

API nvmlDeviceGetRetiredPages_v2(const void *handle, unsigned cause, unsigned *count, unsigned long long *addresses,
                                 unsigned long long *times) {
    ENTER_GPU(handle);
    return retired(device, cause, count, addresses, times);
}
