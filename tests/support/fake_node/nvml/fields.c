/* NVLink, and the field values: most of them are numbers that other calls give too. */
#include "fake.h"

#include <stdio.h>

enum { PLAIN, LINK_OF_ID, LINK_OF_SCOPE, ALL_LINKS, EACH_LINK_OF_ID, EACH_LINK_OF_SCOPE };
enum { UINT = 1, ULL = 3 };

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union {
        unsigned as_uint;
        unsigned long long as_ull;
    } value;
} FieldValue;

/* The ids from `first` to `last`. LINK…: a counter, of which a link has its own or its share; EACH…: the same for all. */
static const struct {
    unsigned first, last;
    const char *key;
    int kind;
    unsigned link;
    unsigned type;
} FIELDS[] = {
    {1, 1, "ecc", PLAIN, 0, UINT},
    {2, 2, "ecc_pending", PLAIN, 0, UINT},
    {3, 3, "ecc_volatile_corrected", PLAIN, 0, ULL},
    {4, 4, "ecc_volatile_uncorrected", PLAIN, 0, ULL},
    {5, 5, "ecc_aggregate_corrected", PLAIN, 0, ULL},
    {6, 6, "ecc_aggregate_uncorrected", PLAIN, 0, ULL},
    {31, 31, "retired_pending", PLAIN, 0, UINT},
    {32, 37, "crc_flit", LINK_OF_ID, 0, ULL},
    {38, 38, "crc_flit", ALL_LINKS, 0, ULL},
    {39, 44, "crc_data", LINK_OF_ID, 0, ULL},
    {45, 45, "crc_data", ALL_LINKS, 0, ULL},
    {46, 51, "replay", LINK_OF_ID, 0, ULL},
    {52, 52, "replay", ALL_LINKS, 0, ULL},
    {53, 58, "recovery", LINK_OF_ID, 0, ULL},
    {59, 59, "recovery", ALL_LINKS, 0, ULL},
    {74, 74, "violation_power_ns", PLAIN, 0, ULL},
    {75, 75, "violation_thermal_ns", PLAIN, 0, ULL},
    {76, 76, "violation_sync_boost_ns", PLAIN, 0, ULL},
    {77, 77, "violation_board_limit_ns", PLAIN, 0, ULL},
    {78, 78, "violation_low_utilization_ns", PLAIN, 0, ULL},
    {79, 79, "violation_reliability_ns", PLAIN, 0, ULL},
    {80, 80, "violation_app_clocks_ns", PLAIN, 0, ULL},
    {81, 81, "violation_base_clocks_ns", PLAIN, 0, ULL},
    {82, 82, "temp_mem", PLAIN, 0, UINT},
    {83, 83, "energy_mj", PLAIN, 0, ULL},
    {84, 89, "mbps", EACH_LINK_OF_ID, 0, UINT},
    {90, 90, "nvlink_mbps", PLAIN, 0, UINT},
    {91, 91, "nvlinks", PLAIN, 0, UINT},
    {94, 94, "pcie_replays", PLAIN, 0, ULL},
    {95, 95, "pcie_replay_rollovers", PLAIN, 0, ULL},
    {96, 101, "crc_flit", LINK_OF_ID, 6, ULL},
    {102, 107, "crc_data", LINK_OF_ID, 6, ULL},
    {108, 113, "replay", LINK_OF_ID, 6, ULL},
    {114, 119, "recovery", LINK_OF_ID, 6, ULL},
    {132, 137, "mbps", EACH_LINK_OF_ID, 6, UINT},
    {138, 138, "data_tx_kib", LINK_OF_SCOPE, 0, ULL},
    {139, 139, "data_rx_kib", LINK_OF_SCOPE, 0, ULL},
    {140, 140, "raw_tx_kib", LINK_OF_SCOPE, 0, ULL},
    {141, 141, "raw_rx_kib", LINK_OF_SCOPE, 0, ULL},
    {142, 142, "remapped_corrected", PLAIN, 0, UINT},
    {143, 143, "remapped_uncorrected", PLAIN, 0, UINT},
    {144, 144, "remapped_pending", PLAIN, 0, UINT},
    {145, 145, "remapped_failed", PLAIN, 0, UINT},
    {148, 159, "ecc_data", LINK_OF_ID, 0, ULL},
    {160, 160, "ecc_data", ALL_LINKS, 0, ULL},
    {161, 161, "replay", LINK_OF_SCOPE, 0, ULL},
    {162, 162, "recovery", LINK_OF_SCOPE, 0, ULL},
    {163, 163, "crc_flit", LINK_OF_SCOPE, 0, ULL},
    {164, 164, "mbps", EACH_LINK_OF_SCOPE, 0, UINT},
    {165, 165, "up", EACH_LINK_OF_SCOPE, 0, UINT},
    {166, 166, "version", EACH_LINK_OF_SCOPE, 0, UINT},
    {185, 186, "power_mw", PLAIN, 0, UINT},
    {187, 187, "power_min_mw", PLAIN, 0, UINT},
    {188, 188, "power_max_mw", PLAIN, 0, UINT},
    {189, 189, "power_default_mw", PLAIN, 0, UINT},
    {190, 190, "power_limit_mw", PLAIN, 0, UINT},
    {191, 191, "energy_mj", PLAIN, 0, ULL},
    {192, 192, "power_limit_mw", PLAIN, 0, UINT},
    {197, 197, "pcie_tx_bytes", PLAIN, 0, ULL},
    {198, 198, "pcie_rx_bytes", PLAIN, 0, ULL},
    {201, 201, "xmit_packets", LINK_OF_SCOPE, 0, ULL},
    {202, 202, "xmit_bytes", LINK_OF_SCOPE, 0, ULL},
    {203, 203, "rcv_packets", LINK_OF_SCOPE, 0, ULL},
    {204, 204, "rcv_bytes", LINK_OF_SCOPE, 0, ULL},
    {230, 230, "recovery_action", PLAIN, 0, UINT},
    {269, 269, "violation_sw_thermal_ns", PLAIN, 0, ULL},
    {270, 270, "violation_hw_thermal_ns", PLAIN, 0, ULL},
    {271, 271, "violation_power_brake_ns", PLAIN, 0, ULL},
};

static int links_of(const Device *device, unsigned *links) {
    long long value;
    int code = script_number(device->target, "nvlinks", &value);
    *links = code ? 0 : (unsigned)value;
    return code;
}

/* `nvlink3_<key>`, else that of all (`nvlink_<key>`), shared out if it is a counter. */
static int of_link(const Device *device, unsigned link, const char *key, int shared, long long *out) {
    unsigned links;
    char name[48];
    int code = links_of(device, &links);
    if (code)
        return code;
    if (link >= links)
        return INVALID_ARGUMENT;
    snprintf(name, sizeof name, "nvlink%u_%s", link, key);
    if (script_has(device->target, name))
        return script_number(device->target, name, out);
    snprintf(name, sizeof name, "nvlink_%s", key);
    code = script_number(device->target, name, out);
    if (!code && shared)
        *out /= links;
    return code;
}

static int of_all_links(const Device *device, const char *key, long long *out) {
    unsigned links;
    int code = links_of(device, &links);
    long long sum = 0, value;
    for (unsigned link = 0; !code && link < links; link++, sum += value)
        code = of_link(device, link, key, 1, &value);
    *out = sum;
    return code;
}

static int tabled(const Device *device, unsigned id, unsigned scope, long long *out, unsigned *type) {
    for (size_t at = 0; at < sizeof FIELDS / sizeof *FIELDS; at++) {
        if (id < FIELDS[at].first || id > FIELDS[at].last)
            continue;
        const char *key = FIELDS[at].key;
        *type = FIELDS[at].type;
        switch (FIELDS[at].kind) {
        case LINK_OF_ID:
            return of_link(device, id - FIELDS[at].first + FIELDS[at].link, key, 1, out);
        case EACH_LINK_OF_ID:
            return of_link(device, id - FIELDS[at].first + FIELDS[at].link, key, 0, out);
        case EACH_LINK_OF_SCOPE:
            return of_link(device, scope, key, 0, out);
        case LINK_OF_SCOPE:
            return scope == UINT_MAX ? of_all_links(device, key, out) : of_link(device, scope, key, 1, out);
        case ALL_LINKS:
            return of_all_links(device, key, out);
        default:
            return script_number(device->target, key, out);
        }
    }
    return NOT_SUPPORTED;
}

/* `field<id>@<scope>` and `field<id>` of the script come before the table. */
static int field(const Device *device, unsigned id, unsigned scope, long long *out, unsigned *type) {
    char key[40];
    *type = ULL;
    snprintf(key, sizeof key, "field%u@%u", id, scope);
    if (script_has(device->target, key))
        return script_number(device->target, key, out);
    snprintf(key, sizeof key, "field%u", id);
    if (script_has(device->target, key))
        return script_number(device->target, key, out);
    return tabled(device, id, scope, out, type);
}

API nvmlDeviceGetFieldValues(const void *handle, int count, FieldValue *values) {
    ENTER_GPU(handle);
    if (count <= 0 || !values)
        return INVALID_ARGUMENT;
    for (int at = 0; at < count; at++) {
        FieldValue *value = &values[at];
        long long number = 0;
        value->code = field(device, value->id, value->scope, &number, &value->type);
        value->timestamp = script_now();
        value->latency = 12;
        value->value.as_ull = 0;
        if (!value->code && value->type == UINT)
            value->value.as_uint = (unsigned)number;
        else if (!value->code)
            value->value.as_ull = (unsigned long long)number;
    }
    return OK;
}

static int link_uint(const Device *device, unsigned link, const char *key, unsigned *out) {
    long long value;
    int code = of_link(device, link, key, 0, &value);
    if (!code)
        *out = (unsigned)value;
    return code;
}

API nvmlDeviceGetNvLinkState(const void *handle, unsigned link, unsigned *out) {
    ENTER_GPU(handle);
    return link_uint(device, link, "up", out);
}

API nvmlDeviceGetNvLinkVersion(const void *handle, unsigned link, unsigned *out) {
    ENTER_GPU(handle);
    return link_uint(device, link, "version", out);
}

API nvmlDeviceGetNvLinkErrorCounter(const void *handle, unsigned link, unsigned counter, unsigned long long *out) {
    static const char *const KEYS[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
    ENTER_GPU(handle);
    if (counter >= sizeof KEYS / sizeof *KEYS)
        return INVALID_ARGUMENT;
    long long value;
    int code = of_link(device, link, KEYS[counter], 1, &value);
    if (!code)
        *out = (unsigned long long)value;
    return code;
}

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique, state, health;
} FabricInfoV2;

API nvmlDeviceGetGpuFabricInfoV(const void *handle, FabricInfoV2 *out) {
    ENTER_GPU(handle);
    if (out->version >> 24 < 2 || out->version >> 24 > 3)
        return VERSION_MISMATCH;
    long long state;
    int code = script_number(device->target, "fabric_state", &state);
    if (code)
        return code;
    memset(out->cluster, 0xFA, sizeof out->cluster);
    out->state = (unsigned)state;
    out->status = (int)script_number_or(device->target, "fabric_status", 0);
    out->clique = (unsigned)script_number_or(device->target, "fabric_clique", 0);
    out->health = (unsigned)script_number_or(device->target, "fabric_health", 0);
    return OK;
}
