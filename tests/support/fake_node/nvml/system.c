/* The library and its driver, and who is there. */
#include "fake.h"

#include <stdio.h>
#include <strings.h>

static const struct {
    int code;
    const char *text;
} ERRORS[] = {
    {OK, "Success"},
    {UNINITIALIZED, "Uninitialized"},
    {INVALID_ARGUMENT, "Invalid Argument"},
    {NOT_SUPPORTED, "Not Supported"},
    {4, "Insufficient Permissions"},
    {NOT_FOUND, "Not Found"},
    {INSUFFICIENT_SIZE, "Insufficient Size"},
    {DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {TIMEOUT, "Timeout"},
    {13, "Function Not Found"},
    {GPU_IS_LOST, "GPU is lost"},
    {16, "GPU requires restart"},
    {17, "Operating System error"},
    {18, "Driver/library version mismatch"},
    {MEMORY, "Insufficient Memory"},
    {VERSION_MISMATCH, "Argument version mismatch"},
};

const char *nvmlErrorString(int code) {
    for (size_t at = 0; at < sizeof ERRORS / sizeof *ERRORS; at++)
        if (ERRORS[at].code == code)
            return ERRORS[at].text;
    return "Unknown Error";
}

int copy_text(int target, const char *key, char *out, unsigned size) {
    const char *value = script_text(target, key);
    long long code;
    if (!value)
        return NOT_SUPPORTED;
    if (*value == '!')
        return script_number(target, key, &code);
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

API nvmlSystemGetDriverVersion(char *out, unsigned size) {
    ENTER_SYSTEM;
    return copy_text(NODE, "driver", out, size);
}

API nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    ENTER_SYSTEM;
    return copy_text(NODE, "nvml", out, size);
}

static int cuda_version(int *out) {
    long long value;
    int code = script_number(NODE, "cuda", &value);
    if (!code)
        *out = (int)value;
    return code;
}

API nvmlSystemGetCudaDriverVersion(int *out) {
    ENTER_SYSTEM;
    return cuda_version(out);
}

API nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER_SYSTEM;
    return cuda_version(out);
}

API nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    ENTER_SYSTEM;
    char key[32];
    snprintf(key, sizeof key, "process%u", pid);
    int code = copy_text(NODE, key, out, size);
    return code == NOT_SUPPORTED ? NOT_FOUND : code;
}

API nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER_SYSTEM;
    *out = (unsigned)fake_count();
    return OK;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, const Device **out) {
    HELD;
    /* A fault for one GPU means the GPU in the script, wherever it stands in the library's order. */
    const Device *device = fake_by_index(index);
    int fault = fake_enter(__func__, device, 0);
    if (fault)
        return fault;
    *out = device;
    return device ? OK : INVALID_ARGUMENT;
}

static const Device *find(const char *key, const char *wanted, int migs_too) {
    for (int at = 0; at < fake_count(); at++) {
        const Device *gpu = fake_by_index((unsigned)at);
        const char *value = script_text(gpu->target, key);
        if (value && !strcasecmp(value, wanted))
            return gpu;
        for (int mig = 0; migs_too && mig < script_migs(gpu->gpu); mig++) {
            value = script_text(fake_mig(gpu->gpu, mig)->target, key);
            if (value && !strcasecmp(value, wanted))
                return fake_mig(gpu->gpu, mig);
        }
    }
    return NULL;
}

static int found(const Device *device, const Device **out) {
    if (!device)
        return NOT_FOUND;
    *out = device;
    return fake_lost(device->gpu) ? GPU_IS_LOST : OK;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, const Device **out) {
    ENTER_SYSTEM;
    return found(find("uuid", uuid, 1), out);
}

API nvmlDeviceGetHandleBySerial(const char *serial, const Device **out) {
    ENTER_SYSTEM;
    return found(find("serial", serial, 0), out);
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, const Device **out) {
    ENTER_SYSTEM;
    return found(find("pci", bus_id, 0), out);
}
