/* The inside of a libnvidia-ml.so.1 that answers from a script. See ../nvml.py for the language of the script.
 *
 * Layouts and constants are those of NVIDIA's public nvml.h, as nvidia-ml-py declares them. */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    MEMORY = 20,
    VERSION_MISMATCH = 25,
};

enum { MAX_GPUS = 64, MAX_MIGS = 8, MAX_FUNCTION = 80 };
enum { NODE = -1, EVERY_GPU = -2 }; /* targets that are no slot */

/* A GPU's place in the script, or a MIG device's: what a handle points to. */
typedef struct {
    int target; /* gpu * (MAX_MIGS + 1), + 1 + number for a MIG device */
    int gpu;
    int mig; /* -1: the GPU itself */
} Device;

typedef long long micros;

/* script.c: the script and its values */
void script_refresh(void);
const char *script_text(int target, const char *key);
int script_number(int target, const char *key, long long *value);
long long script_number_or(int target, const char *key, long long otherwise);
int script_fault(const char *function, int gpu);
int script_hangs(const char *function, int gpu);
int script_missing(void); /* no script could be read: there is no driver */
int script_gpus(void);
int script_migs(int gpu);
typedef struct {
    unsigned long long number, type, data;
    int gpu;
    unsigned gpu_instance, compute_instance;
} Event;
const Event *script_event_after(unsigned long long number);
unsigned long long script_last_event(void);
micros script_now(void);
int script_has(int target, const char *key);
/* The mean of a level over a time, in its own unit; 0 or an error. */
int script_mean(int target, const char *key, micros from, micros to, double *mean);

/* state.c: what every function does first */
typedef int Guard;
Guard fake_lock(void);
void fake_unlock(Guard *guard);
int fake_enter(const char *function, const void *handle, int mig_too);
void fake_pause(void);
const Device *fake_device(const void *handle);
int fake_index(int gpu);
int fake_count(void);
const Device *fake_by_index(unsigned index);
const Device *fake_mig(int gpu, int mig);
int fake_lost(int gpu);
extern int fake_initialised, fake_generation; /* how often, and the how-manieth time */

int copy_text(int target, const char *key, char *out, unsigned size);

#define API int
#define HELD Guard guard __attribute__((cleanup(fake_unlock))) = fake_lock();
/* For functions of the library, of a GPU, and of a GPU or a MIG device. */
#define ENTER(handle, mig_too)                                                                                         \
    HELD;                                                                                                              \
    {                                                                                                                  \
        int fault = fake_enter(__func__, handle, mig_too);                                                             \
        if (fault)                                                                                                     \
            return fault;                                                                                              \
    }
#define ENTER_SYSTEM ENTER(NULL, 0)
#define ENTER_GPU(handle)                                                                                              \
    ENTER(handle, 0);                                                                                                  \
    const Device *device = fake_device(handle);                                                                        \
    if (!device)                                                                                                       \
        return INVALID_ARGUMENT;
#define ENTER_ANY(handle)                                                                                              \
    ENTER(handle, 1);                                                                                                  \
    const Device *device = fake_device(handle);                                                                        \
    if (!device)                                                                                                       \
        return INVALID_ARGUMENT;
