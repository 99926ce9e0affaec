/* A GPU cut into instances. */
#include "fake.h"

API nvmlDeviceIsMigDeviceHandle(const void *handle, unsigned *out) {
    ENTER_ANY(handle);
    *out = device->mig >= 0;
    return OK;
}

API nvmlDeviceGetMaxMigDeviceCount(const void *handle, unsigned *out) {
    ENTER_GPU(handle);
    *out = script_number_or(device->target, "mig_mode", 0) ? (unsigned)script_number_or(device->target, "mig_max", 0) : 0;
    return OK;
}

/* The numbers may have gaps: a device that is gone leaves its number free. */
API nvmlDeviceGetMigDeviceHandleByIndex(const void *handle, unsigned number, const Device **out) {
    ENTER_GPU(handle);
    if (!script_has(device->target, "mig_mode"))
        return NOT_SUPPORTED;
    if (number >= MAX_MIGS || number >= (unsigned)script_number_or(device->target, "mig_max", 0))
        return INVALID_ARGUMENT;
    const Device *mig = fake_mig(device->gpu, (int)number);
    if (!script_number_or(device->target, "mig_mode", 0) || !script_has(mig->target, "uuid"))
        return NOT_FOUND;
    *out = mig;
    return OK;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const void *handle, const Device **out) {
    ENTER_ANY(handle);
    if (device->mig < 0)
        return INVALID_ARGUMENT;
    *out = fake_by_index((unsigned)fake_index(device->gpu));
    return OK;
}

static int of_instance(const Device *device, const char *key, unsigned *out) {
    long long value;
    if (device->mig < 0)
        return INVALID_ARGUMENT;
    int code = script_number(device->target, key, &value);
    if (!code)
        *out = (unsigned)value;
    return code;
}

API nvmlDeviceGetGpuInstanceId(const void *handle, unsigned *out) {
    ENTER_ANY(handle);
    return of_instance(device, "instance", out);
}

API nvmlDeviceGetComputeInstanceId(const void *handle, unsigned *out) {
    ENTER_ANY(handle);
    return of_instance(device, "compute_instance", out);
}

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, slices, compute_slices;
    unsigned long long memory_mb;
} Attributes;

API nvmlDeviceGetAttributes_v2(const void *handle, Attributes *out) {
    ENTER_ANY(handle);
    if (device->mig < 0)
        return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->copy_engines = 1;
    out->memory_mb = (unsigned long long)script_number_or(device->target, "memory_mb", 0);
    int code = of_instance(device, "multiprocessors", &out->multiprocessors);
    code = code ? code : of_instance(device, "slices", &out->slices);
    return code ? code : of_instance(device, "compute_slices", &out->compute_slices);
}
