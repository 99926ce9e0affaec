/* Events: those that the script gained after a GPU was registered, each given once to each set. */
#include "fake.h"

#include <time.h>

/* More sets than this at a time are a leak: the creation fails. */
enum { MAX_SETS = 256 };

typedef struct {
    int alive, generation;
    unsigned long long types[MAX_GPUS], seen[MAX_GPUS];
} EventSet;

typedef struct {
    const Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

static EventSet sets[MAX_SETS];

static int valid(const EventSet *set) {
    return set >= sets && set < sets + MAX_SETS && set->alive && set->generation == fake_generation;
}

API nvmlEventSetCreate(EventSet **out) {
    ENTER_SYSTEM;
    for (EventSet *set = sets; set < sets + MAX_SETS; set++)
        if (!set->alive || set->generation != fake_generation) {
            memset(set, 0, sizeof *set);
            set->alive = 1;
            set->generation = fake_generation;
            *out = set;
            return OK;
        }
    return MEMORY;
}

API nvmlEventSetFree(EventSet *set) {
    ENTER_SYSTEM;
    if (!valid(set))
        return INVALID_ARGUMENT;
    set->alive = 0;
    return OK;
}

API nvmlDeviceRegisterEvents(const void *handle, unsigned long long types, EventSet *set) {
    ENTER_GPU(handle);
    if (!valid(set))
        return INVALID_ARGUMENT;
    if (types & ~(unsigned long long)script_number_or(device->target, "event_types", 0))
        return NOT_SUPPORTED;
    if (!set->types[device->gpu])
        set->seen[device->gpu] = script_last_event();
    set->types[device->gpu] |= types;
    return OK;
}

static int take(EventSet *set, EventData *out) {
    unsigned long long number = 0;
    for (const Event *event; (event = script_event_after(number)); number = event->number) {
        if (event->gpu < 0 || event->gpu >= MAX_GPUS || event->number <= set->seen[event->gpu] ||
            !(set->types[event->gpu] & event->type))
            continue;
        set->seen[event->gpu] = event->number;
        *out = (EventData){fake_by_index((unsigned)fake_index(event->gpu)), event->type, event->data,
                           event->gpu_instance, event->compute_instance};
        return 1;
    }
    return 0;
}

static long long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Once its events are told, a lost GPU costs the whole set, as nvml.h says of this call. */
API nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned timeout_ms) {
    ENTER_SYSTEM;
    long long deadline = milliseconds() + timeout_ms;
    while (fake_initialised && valid(set)) {
        if (take(set, out))
            return OK;
        for (int gpu = 0; gpu < MAX_GPUS; gpu++)
            if (set->types[gpu] && fake_lost(gpu))
                return GPU_IS_LOST;
        if (milliseconds() >= deadline)
            return TIMEOUT;
        fake_pause();
    }
    return fake_initialised ? INVALID_ARGUMENT : UNINITIALIZED;
}
