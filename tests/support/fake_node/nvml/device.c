/* What a GPU is and how it is: identity, memory, power, clocks, links, errors. */
#include "fake.h"

#include <stdio.h>

/* One number out of the script; absent there, it is not supported. */
#define SCALAR(function, type, key)                                                                                    \
    API function(const void *handle, type *out) {                                                                      \
        ENTER_GPU(handle);                                                                                             \
        long long value;                                                                                               \
        int code = script_number(device->target, key, &value);                                                         \
        if (!code)                                                                                                     \
            *out = (type)value;                                                                                        \
        return code;                                                                                                   \
    }
#define PAIR(function, type, first_key, second_key)                                                                    \
    API function(const void *handle, type *first, type *second) {                                                      \
        ENTER_GPU(handle);                                                                                             \
        long long one, two;                                                                                            \
        int code = script_number(device->target, first_key, &one);                                                     \
        if (!code)                                                                                                     \
            code = script_number(device->target, second_key, &two);                                                    \
        if (code)                                                                                                      \
            return code;                                                                                               \
        *first = (type)one;                                                                                            \
        *second = (type)two;                                                                                           \
        return OK;                                                                                                     \
    }
/* One number of several kinds, each under its own key. */
#define INDEXED(function, type, ...)                                                                                   \
    API function(const void *handle, unsigned kind, type *out) {                                                       \
        static const char *const KEYS[] = {__VA_ARGS__};                                                               \
        ENTER_GPU(handle);                                                                                             \
        if (kind >= sizeof KEYS / sizeof *KEYS || !KEYS[kind])                                                         \
            return INVALID_ARGUMENT;                                                                                   \
        long long value;                                                                                               \
        int code = script_number(device->target, KEYS[kind], &value);                                                  \
        if (!code)                                                                                                     \
            *out = (type)value;                                                                                        \
        return code;                                                                                                   \
    }
#define TEXT(function, key)                                                                                            \
    API function(const void *handle, char *out, unsigned size) {                                                       \
        ENTER_ANY(handle);                                                                                             \
        return copy_text(device->target, key, out, size);                                                              \
    }

TEXT(nvmlDeviceGetUUID, "uuid")
TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetVbiosVersion, "vbios")
TEXT(nvmlDeviceGetBoardPartNumber, "part")

SCALAR(nvmlDeviceGetMinorNumber, unsigned, "minor")
SCALAR(nvmlDeviceGetModuleId, unsigned, "module")
SCALAR(nvmlDeviceGetBrand, unsigned, "brand")
SCALAR(nvmlDeviceGetArchitecture, unsigned, "architecture")
SCALAR(nvmlDeviceGetNumaNodeId, int, "numa_node")
SCALAR(nvmlDeviceGetNumGpuCores, unsigned, "cores")
SCALAR(nvmlDeviceGetMemoryBusWidth, unsigned, "memory_bus_bits")
SCALAR(nvmlDeviceGetPersistenceMode, unsigned, "persistence")
SCALAR(nvmlDeviceGetComputeMode, unsigned, "compute_mode")
SCALAR(nvmlDeviceGetPerformanceState, unsigned, "pstate")
SCALAR(nvmlDeviceGetPowerState, unsigned, "pstate")
SCALAR(nvmlDeviceGetPowerUsage, unsigned, "power_mw")
SCALAR(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy_mj")
SCALAR(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit_mw")
SCALAR(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, "power_default_mw")
SCALAR(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_enforced_mw")
SCALAR(nvmlDeviceGetFanSpeed, unsigned, "fan_percent")
SCALAR(nvmlDeviceGetNumFans, unsigned, "fans")
SCALAR(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays")
SCALAR(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_gen")
SCALAR(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_gen_max")
SCALAR(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
SCALAR(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max")
SCALAR(nvmlDeviceGetPcieSpeed, unsigned, "pcie_speed_mbps")
SCALAR(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "clocks_event_reasons")
SCALAR(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "clocks_event_reasons")
SCALAR(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, "clocks_event_reasons_supported")
SCALAR(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, "clocks_event_reasons_supported")
SCALAR(nvmlDeviceGetSupportedEventTypes, unsigned long long, "event_types")
SCALAR(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending")

PAIR(nvmlDeviceGetEccMode, unsigned, "ecc", "ecc_pending")
PAIR(nvmlDeviceGetMigMode, unsigned, "mig_mode", "mig_mode_pending")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned, "power_min_mw", "power_max_mw")
PAIR(nvmlDeviceGetCudaComputeCapability, int, "compute_major", "compute_minor")

INDEXED(nvmlDeviceGetTemperature, unsigned, "temp")
INDEXED(nvmlDeviceGetTemperatureThreshold, unsigned, "temp_shutdown", "temp_slowdown", "temp_mem_max", "temp_gpu_max")
INDEXED(nvmlDeviceGetClockInfo, unsigned, "clock_graphics", "clock_sm", "clock_mem", "clock_video")
INDEXED(nvmlDeviceGetMaxClockInfo, unsigned, "max_clock_graphics", "max_clock_sm", "max_clock_mem", "max_clock_video")
INDEXED(nvmlDeviceGetApplicationsClock, unsigned, "app_clock_graphics", "app_clock_sm", "app_clock_mem")

typedef struct {
    unsigned version, sensor;
    int temperature;
} TemperatureV1;

API nvmlDeviceGetTemperatureV(const void *handle, TemperatureV1 *out) {
    ENTER_GPU(handle);
    if (out->version != 0x100000C)
        return VERSION_MISMATCH;
    if (out->sensor)
        return INVALID_ARGUMENT;
    long long value;
    int code = script_number(device->target, "temp", &value);
    if (!code)
        out->temperature = (int)value;
    return code;
}

API nvmlDeviceGetIndex(const void *handle, unsigned *out) {
    ENTER_ANY(handle);
    *out = (unsigned)(device->mig < 0 ? fake_index(device->gpu) : device->mig);
    return OK;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} PciInfo;

API nvmlDeviceGetPciInfo_v3(const void *handle, PciInfo *out) {
    ENTER_GPU(handle);
    memset(out, 0, sizeof *out);
    int code = copy_text(device->target, "pci", out->bus_id, sizeof out->bus_id);
    if (code)
        return code;
    if (sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return 999;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
             out->device & 0xff);
    out->id = (unsigned)script_number_or(device->target, "pci_id", 0x233010DE);
    out->subsystem = (unsigned)script_number_or(device->target, "pci_subsystem", 0x16C110DE);
    return OK;
}

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

/* The old call counts what the driver reserves as used, the new one does not. */
static int memory(const Device *device, long long *total, long long *reserved, long long *used) {
    *reserved = script_number_or(device->target, "memory_reserved", 0);
    int code = script_number(device->target, "memory_total", total);
    return code ? code : script_number(device->target, "memory_used", used);
}

API nvmlDeviceGetMemoryInfo(const void *handle, Memory *out) {
    ENTER_ANY(handle);
    long long total, reserved, used;
    int code = memory(device, &total, &reserved, &used);
    if (!code)
        *out = (Memory){(unsigned long long)total, (unsigned long long)(total - reserved - used),
                        (unsigned long long)(reserved + used)};
    return code;
}

API nvmlDeviceGetMemoryInfo_v2(const void *handle, MemoryV2 *out) {
    ENTER_ANY(handle);
    if (out->version != (sizeof *out | 2u << 24))
        return VERSION_MISMATCH;
    long long total, reserved, used;
    int code = memory(device, &total, &reserved, &used);
    if (!code)
        *out = (MemoryV2){out->version, (unsigned long long)total, (unsigned long long)reserved,
                          (unsigned long long)(total - reserved - used), (unsigned long long)used};
    return code;
}

API nvmlDeviceGetBAR1MemoryInfo(const void *handle, Memory *out) {
    ENTER_ANY(handle);
    long long total, used;
    int code = script_number(device->target, "bar1_total", &total);
    if (!code)
        code = script_number(device->target, "bar1_used", &used);
    if (!code)
        *out = (Memory){(unsigned long long)total, (unsigned long long)(total - used), (unsigned long long)used};
    return code;
}

typedef struct {
    unsigned long long reference, violation;
} ViolationTime;

API nvmlDeviceGetViolationStatus(const void *handle, unsigned policy, ViolationTime *out) {
    static const char *const POLICIES[] = {"power", "thermal",   "sync_boost", "board_limit", "low_utilization",
                                           "reliability", NULL, NULL, NULL, NULL, "app_clocks", "base_clocks"};
    ENTER_GPU(handle);
    if (policy >= sizeof POLICIES / sizeof *POLICIES || !POLICIES[policy])
        return INVALID_ARGUMENT;
    char key[40];
    snprintf(key, sizeof key, "violation_%s_ns", POLICIES[policy]);
    long long value;
    int code = script_number(device->target, key, &value);
    if (!code)
        *out = (ViolationTime){(unsigned long long)script_now(), (unsigned long long)value};
    return code;
}
