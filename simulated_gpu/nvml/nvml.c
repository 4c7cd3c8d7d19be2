/* libnvidia-ml.so.1 over a simulated node's hardware file.
 *
 * docs/simulated-gpu.md defines the file and the physics; this is a second implementation of both, operation by
 * operation, so that every process sees the same milliwatts. Build with -ffp-contract=off: a fused multiply-add would
 * round differently from the Python side.
 *
 * FLYBALL_SIMULATED_GPUS names the file; setters need FLYBALL_SIMULATED_PRIVILEGED=1, as hardware needs CAP_SYS_ADMIN.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};
typedef int nvmlReturn_t;

enum {
    LOST = 1, RESET = 2, SETTERS_LIE = 4, SETTERS_FAIL = 8, FORBIDDEN = 16, HANG = 32, IMPLAUSIBLE_POWER = 64,
    NOT_PERSISTENT = 128, COARSE = 256, MIG = 512
};
enum { SETTER_ERROR_SHIFT = 16, SETTER_ERROR_BITS = 1023 };
enum { REASON_IDLE = 1, REASON_APPLICATIONS_CLOCKS = 2, REASON_POWER_CAP = 4 };
enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEM = 2, CLOCK_VIDEO = 3 };
enum { FIELD_TOTAL_ENERGY = 83, FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186 };
enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };
#define IMPLAUSIBLE_MILLIWATTS 3700000u
#define MEMORY_MEGAHERTZ 1215u
#define TEMPERATURE_V1 0x100000Cu

struct header {
    char magic[8];
    uint32_t version, device_count;
    uint64_t driver_load;
    char boot_id[40];
    uint32_t setter_latency_us, settle_ms, counter_ms;
    char rest[256 - 76];
};

struct state {
    uint32_t requested_limit_mw, enforced_limit_mw, locked_min_mhz, locked_max_mhz;
    double activity;
    uint32_t sm_clock_mhz, power_mw;
    uint64_t updated_ns;
    double energy_mj;
    uint64_t pending_limit_at_ns, energy_base;
    uint32_t pending_enforced_limit_mw, pending_sm_clock_mhz, pending_power_mw, out_of_band_cap_mw;
};

/* The true energy when the counter moved last. No part of what a torn write is undone to: what has passed stays true. */
struct tick {
    uint64_t at_ns;
    double energy_mj;
};

struct record {
    _Atomic uint32_t seq;
    volatile uint32_t flags;
    char uuid[48], product[64];
    uint32_t min_limit_mw, max_limit_mw, default_limit_mw, idle_mw;
    uint32_t clock_min_mhz, clock_max_mhz, clock_step_mhz, knee_mhz;
    double voltage_slope, watts_per_mhz;
    struct state state;
    struct tick tick;
    char gap[384 - 264];
    struct state undo;
    volatile uint32_t xid;     /* the last Xid error that the driver has reported */
    _Atomic uint32_t xids;     /* how many: written after it */
    char rest[512 - 472];
};

_Static_assert(sizeof(struct header) == 256, "header");
_Static_assert(sizeof(struct state) == 80, "state");
_Static_assert(sizeof(struct record) == 512, "record");
_Static_assert(offsetof(struct record, state) == 168, "state offset");
_Static_assert(offsetof(struct record, tick) == 248, "tick offset");
_Static_assert(offsetof(struct record, undo) == 384, "undo offset");
_Static_assert(offsetof(struct record, xids) == 468, "xids offset");

typedef struct record *nvmlDevice_t;

static pthread_mutex_t library_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;
static int users, file = -1;
static struct header *node;
static struct record *records;
static size_t mapped_bytes;

/* ---- the file: time, seqlock, record locks ------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void integrate(struct state *s, struct tick *t, uint64_t to_ns) {
    if (node->counter_ms) {
        uint64_t at = to_ns - to_ns % (node->counter_ms * 1000000ull);
        if (at >= s->updated_ns && at != t->at_ns) {
            t->energy_mj = s->energy_mj + s->power_mw * ((double)(at - s->updated_ns) / 1000000000.0);
            t->at_ns = at;
        }
    }
    if (to_ns > s->updated_ns) {
        s->energy_mj += s->power_mw * ((double)(to_ns - s->updated_ns) / 1000000000.0);
        s->updated_ns = to_ns;
    }
}

static void settle(struct state *s, struct tick *t, uint64_t now) {
    if (s->pending_limit_at_ns != 0 && now >= s->pending_limit_at_ns) {
        integrate(s, t, s->pending_limit_at_ns);
        s->enforced_limit_mw = s->pending_enforced_limit_mw;
        s->sm_clock_mhz = s->pending_sm_clock_mhz;
        s->power_mw = s->pending_power_mw;
        s->pending_limit_at_ns = 0;
    }
    integrate(s, t, now);
}

static void lock_record(struct record *r, short type) {
    struct flock request = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (char *)r - (char *)node, .l_len = sizeof *r
    };
    while (fcntl(file, F_OFD_SETLKW, &request) == -1 && errno == EINTR) {
    }
}

/* Under the lock: undo what a writer that died in its write left half done. */
static void recover(struct record *r) {
    if (atomic_load(&r->seq) & 1) {
        memcpy(&r->state, &r->undo, sizeof r->state);
        atomic_fetch_add(&r->seq, 1);
    }
}

static struct state read_with_tick(struct record *r, struct tick *tick) {
    struct state copy;
    for (int spins = 0; spins < 100000; spins++) {
        uint64_t now = now_ns();
        uint32_t before = atomic_load(&r->seq);
        memcpy(&copy, &r->state, sizeof copy);
        memcpy(tick, &r->tick, sizeof *tick);
        atomic_thread_fence(memory_order_acquire);
        if (!(before & 1) && atomic_load(&r->seq) == before) {
            settle(&copy, tick, now);
            return copy;
        }
    }
    pthread_mutex_lock(&write_lock);
    lock_record(r, F_WRLCK);
    recover(r);
    memcpy(&copy, &r->state, sizeof copy);
    memcpy(tick, &r->tick, sizeof *tick);
    uint64_t now = now_ns(); /* under the lock: the next writer's time is later, so no later read sees less energy */
    lock_record(r, F_UNLCK);
    pthread_mutex_unlock(&write_lock);
    settle(&copy, tick, now);
    return copy;
}

static struct state read_state(struct record *r) {
    struct tick tick;
    return read_with_tick(r, &tick);
}

/* ---- the physics --------------------------------------------------------------------------------------------- */

static uint32_t power_mw(const struct record *r, uint32_t clock, double activity) {
    uint32_t above = clock > r->knee_mhz ? clock - r->knee_mhz : 0;
    double voltage = 1.0 + r->voltage_slope * above / r->clock_max_mhz;
    double dynamic = activity * (r->watts_per_mhz * 1000.0) * (voltage * voltage) * clock;
    return (uint32_t)(r->idle_mw * voltage + dynamic + 0.5);
}

static void operating_point(const struct record *r, uint32_t limit, const struct state *s, uint32_t *clock,
                            uint32_t *power) {
    uint32_t wanted = s->locked_max_mhz ? s->locked_max_mhz : r->clock_max_mhz;
    if (s->activity == 0.0) {
        uint32_t rest = s->locked_min_mhz > r->clock_min_mhz ? s->locked_min_mhz : r->clock_min_mhz;
        if (rest < wanted) wanted = rest;
    }
    uint32_t f = r->clock_min_mhz;
    if (wanted > r->clock_max_mhz) wanted = r->clock_max_mhz;
    if (wanted > f) f += (wanted - f) / r->clock_step_mhz * r->clock_step_mhz;
    while (f > r->clock_min_mhz && power_mw(r, f, s->activity) > limit) f -= r->clock_step_mhz;
    *clock = f;
    *power = power_mw(r, f, s->activity);
}

static void repoint(const struct record *r, struct state *s) {
    operating_point(r, s->enforced_limit_mw, s, &s->sm_clock_mhz, &s->power_mw);
    if (s->pending_limit_at_ns) {
        operating_point(r, s->pending_enforced_limit_mw, s, &s->pending_sm_clock_mhz, &s->pending_power_mw);
    } else {
        s->pending_enforced_limit_mw = s->pending_sm_clock_mhz = s->pending_power_mw = 0;
    }
}

static void request_limit(const struct record *r, struct state *s, uint64_t now, uint32_t limit) {
    s->requested_limit_mw = limit;
    uint32_t target = s->out_of_band_cap_mw && s->out_of_band_cap_mw < limit ? s->out_of_band_cap_mw : limit;
    if (node->settle_ms && target != s->enforced_limit_mw) {
        s->pending_limit_at_ns = now + (uint64_t)node->settle_ms * 1000000ull;
        s->pending_enforced_limit_mw = target;
    } else {
        s->pending_limit_at_ns = 0;
        s->enforced_limit_mw = target;
    }
    repoint(r, s);
}

static void request_lock(const struct record *r, struct state *s, uint32_t low, uint32_t high) {
    s->locked_min_mhz = low;
    s->locked_max_mhz = high;
    repoint(r, s);
}

/* One complete change of a record: either a limit (clocks 0) or a clock range. */
static void change(struct record *r, int is_limit, uint32_t a, uint32_t b) {
    if (node->setter_latency_us) usleep(node->setter_latency_us);
    pthread_mutex_lock(&write_lock);
    lock_record(r, F_WRLCK);
    recover(r);
    struct state s = r->state;
    memcpy(&r->undo, &s, sizeof s);
    atomic_fetch_add(&r->seq, 1);
    uint64_t now = now_ns(); /* only now: see docs/simulated-gpu.md, "Writing", 3 */
    settle(&s, &r->tick, now);
    if (is_limit) request_limit(r, &s, now, a);
    else request_lock(r, &s, a, b);
    memcpy(&r->state, &s, sizeof s);
    atomic_fetch_add(&r->seq, 1);
    lock_record(r, F_UNLCK);
    pthread_mutex_unlock(&write_lock);
}

/* ---- library ------------------------------------------------------------------------------------------------- */

static nvmlReturn_t open_node(void) {
    const char *path = getenv("FLYBALL_SIMULATED_GPUS");
    struct stat info;
    if (!path || (file = open(path, O_RDWR | O_CLOEXEC)) < 0) return DRIVER_NOT_LOADED;
    if (fstat(file, &info) == 0 && (size_t)info.st_size >= sizeof(struct header)) {
        mapped_bytes = (size_t)info.st_size;
        node = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (node != MAP_FAILED) {
            int ours = memcmp(node->magic, "FLYGPU01", 8) == 0 && node->version == 1 &&
                       mapped_bytes == sizeof *node + node->device_count * sizeof *records;
            if (ours) {
                records = (struct record *)(node + 1);
                return SUCCESS;
            }
            munmap(node, mapped_bytes);
        }
    }
    close(file);
    file = -1;
    node = NULL;
    return LIB_RM_VERSION_MISMATCH;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    nvmlReturn_t result = SUCCESS;
    pthread_mutex_lock(&library_lock);
    if (users == 0) result = open_node();
    if (result == SUCCESS) users++;
    pthread_mutex_unlock(&library_lock);
    return result;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&library_lock);
    nvmlReturn_t result = users ? SUCCESS : UNINITIALIZED;
    if (users && --users == 0) {
        /* Without persistence mode the driver lets go of an idle GPU, and forgets its limit. */
        for (uint32_t i = 0; i < node->device_count; i++) {
            struct record *r = records + i;
            if (r->flags & NOT_PERSISTENT && read_state(r).activity == 0.0) change(r, 1, r->default_limit_mw, 0);
        }
        munmap(node, mapped_bytes);
        close(file);
        file = -1;
        node = NULL;
        records = NULL;
    }
    pthread_mutex_unlock(&library_lock);
    return result;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case TIMEOUT: return "Timeout";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static nvmlReturn_t say(char *into, unsigned int length, const char *text) {
    if (!into) return INVALID_ARGUMENT;
    if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    return node ? say(version, length, "580.00.00-simulated") : UNINITIALIZED;
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    return say(version, length, "13.580.00-simulated");
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version) return INVALID_ARGUMENT;
    *version = 13000;
    return SUCCESS;
}

/* ---- devices ------------------------------------------------------------------------------------------------- */

static nvmlReturn_t usable(nvmlDevice_t d) {
    if (!node) return UNINITIALIZED;
    if (d < records || d >= records + node->device_count) return INVALID_ARGUMENT;
    while (d->flags & HANG) usleep(10000);
    if (d->flags & LOST) return GPU_IS_LOST;
    if (d->flags & RESET) return RESET_REQUIRED;
    return SUCCESS;
}

static nvmlReturn_t settable(nvmlDevice_t d) {
    nvmlReturn_t result = usable(d);
    if (result != SUCCESS) return result;
    const char *privileged = getenv("FLYBALL_SIMULATED_PRIVILEGED");
    if (!privileged || strcmp(privileged, "1") != 0 || d->flags & FORBIDDEN) return NO_PERMISSION;
    if (!(d->flags & SETTERS_FAIL)) return SUCCESS;
    nvmlReturn_t code = (nvmlReturn_t)(d->flags >> SETTER_ERROR_SHIFT & SETTER_ERROR_BITS);
    return code ? code : UNKNOWN;
}

#define USE(d, pointer)                                      \
    do {                                                     \
        nvmlReturn_t unusable = usable(d);                   \
        if (unusable != SUCCESS) return unusable;            \
        if (!(pointer)) return INVALID_ARGUMENT;             \
    } while (0)

/* Whether a container that was given some GPUs by UUID has this one; no other is there for it. */
static int visible(const struct record *r) {
    const char *given = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!given || strcmp(given, "all") == 0) return 1;
    for (size_t length; *given; given += length + (given[length] == ',')) {
        length = strcspn(given, ",");
        if (strlen(r->uuid) == length && strncmp(r->uuid, given, length) == 0) return 1;
    }
    return 0;
}

static unsigned int visible_before(const struct record *end) {
    unsigned int count = 0;
    for (const struct record *r = records; r < end; r++) count += (unsigned int)visible(r);
    return count;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!node) return UNINITIALIZED;
    if (!count) return INVALID_ARGUMENT;
    *count = visible_before(records + node->device_count);
    return SUCCESS;
}

static nvmlReturn_t handle_of(struct record *r, nvmlDevice_t *d) {
    if (r->flags & LOST) return GPU_IS_LOST;
    *d = r;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *d) {
    if (!node) return UNINITIALIZED;
    if (!d) return INVALID_ARGUMENT;
    for (uint32_t i = 0; i < node->device_count; i++) {
        if (visible(records + i) && index-- == 0) return handle_of(records + i, d);
    }
    return INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
    if (!node) return UNINITIALIZED;
    if (!uuid || !d) return INVALID_ARGUMENT;
    for (uint32_t i = 0; i < node->device_count; i++) {
        struct record *r = records + i;
        if (strncmp(r->uuid, uuid, sizeof r->uuid) == 0 && visible(r)) return handle_of(r, d);
    }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *index) {
    USE(d, index);
    *index = visible_before(d);
    return SUCCESS;
}

/* The number of its device file, whichever GPUs are shown here. */
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *minor) {
    USE(d, minor);
    *minor = (unsigned int)(d - records);
    return SUCCESS;
}

/* A partitioned GPU shows one MIG device, whose handle is one of these and takes no other call than for its UUID. */
static char mig_devices[256];

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length) {
    ptrdiff_t mig = (char *)d - mig_devices;
    if (node && mig >= 0 && mig < (ptrdiff_t)node->device_count && mig < (ptrdiff_t)sizeof mig_devices) {
        char name[sizeof records->uuid];
        if (!uuid) return INVALID_ARGUMENT;
        memcpy(name, records[mig].uuid, sizeof name);
        memcpy(name, "MIG", 3);
        return say(uuid, length, name);
    }
    USE(d, uuid);
    return say(uuid, length, d->uuid);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length) {
    USE(d, name);
    char spaced[sizeof d->product];
    memcpy(spaced, d->product, sizeof spaced);
    for (char *c = spaced; *c; c++) {
        if (*c == '-' && strncmp(d->product, "NVIDIA-", 7) == 0 && c - spaced == 6) *c = ' ';
    }
    return say(name, length, spaced);
}

/* ---- power --------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t d, unsigned int *limit) {
    USE(d, limit);
    *limit = read_state(d).requested_limit_mw;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned int *limit) {
    USE(d, limit);
    *limit = read_state(d).enforced_limit_mw;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t d, unsigned int *low, unsigned int *high) {
    USE(d, low && high);
    *low = d->min_limit_mw;
    *high = d->max_limit_mw;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t d, unsigned int *limit) {
    USE(d, limit);
    *limit = d->default_limit_mw;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t d, unsigned int limit) {
    nvmlReturn_t result = settable(d);
    if (result != SUCCESS) return result;
    if (limit < d->min_limit_mw || limit > d->max_limit_mw) return INVALID_ARGUMENT;
    if (d->flags & COARSE) limit = (limit + 999) / 1000 * 1000;
    if (!(d->flags & SETTERS_LIE)) change(d, 1, limit, 0);
    return SUCCESS;
}

static unsigned int sensor_mw(nvmlDevice_t d) {
    return d->flags & IMPLAUSIBLE_POWER ? IMPLAUSIBLE_MILLIWATTS : read_state(d).power_mw;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *power) {
    USE(d, power);
    *power = sensor_mw(d);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, unsigned long long *energy) {
    USE(d, energy);
    struct tick tick;
    struct state s = read_with_tick(d, &tick);
    *energy = (unsigned long long)(node->counter_ms && tick.at_ns ? tick.energy_mj : s.energy_mj) - s.energy_base;
    return SUCCESS;
}

struct field_value {
    unsigned int field, scope;
    long long timestamp, latency_us;
    unsigned int type;
    nvmlReturn_t result;
    union {
        double d;
        unsigned int ui;
        unsigned long long ull;
    } value;
};

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, struct field_value *values) {
    USE(d, values);
    for (int i = 0; i < count; i++) {
        struct field_value *v = values + i;
        v->timestamp = (long long)(now_ns() / 1000);
        v->latency_us = 0;
        v->result = SUCCESS;
        memset(&v->value, 0, sizeof v->value);
        if (v->field == FIELD_POWER_AVERAGE || v->field == FIELD_POWER_INSTANT) {
            v->type = VALUE_UNSIGNED_INT;
            v->value.ui = sensor_mw(d);
        } else if (v->field == FIELD_TOTAL_ENERGY) {
            v->type = VALUE_UNSIGNED_LONG_LONG;
            v->result = nvmlDeviceGetTotalEnergyConsumption(d, &v->value.ull);
        } else {
            v->result = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

/* ---- clocks -------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t d, unsigned int low, unsigned int high) {
    nvmlReturn_t result = settable(d);
    if (result != SUCCESS) return result;
    if (low == 0 || low > high || low > d->clock_max_mhz || high < d->clock_min_mhz) return INVALID_ARGUMENT;
    if (!(d->flags & SETTERS_LIE)) change(d, 0, low, high);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t d) {
    nvmlReturn_t result = settable(d);
    if (result == SUCCESS && !(d->flags & SETTERS_LIE)) change(d, 0, 0, 0);
    return result;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, int *mode) {
    USE(d, mode);
    *mode = d->flags & NOT_PERSISTENT ? 0 : 1;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t d, int mode) {
    nvmlReturn_t result = settable(d);
    if (result != SUCCESS || d->flags & SETTERS_LIE) return result;
    d->flags = mode ? d->flags & ~(uint32_t)NOT_PERSISTENT : d->flags | NOT_PERSISTENT;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending) {
    USE(d, current && pending);
    *current = *pending = d->flags & MIG ? 1 : 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *count) {
    USE(d, count);
    *count = 7;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int index, nvmlDevice_t *device) {
    USE(d, device);
    if (index != 0 || !(d->flags & MIG) || d - records >= (ptrdiff_t)sizeof mig_devices) return NOT_FOUND;
    *device = (nvmlDevice_t)(mig_devices + (d - records));
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t d, unsigned int *count, unsigned int *clocks) {
    USE(d, count);
    unsigned int room = *count;
    *count = 1;
    if (!clocks || room < 1) return INSUFFICIENT_SIZE;
    clocks[0] = MEMORY_MEGAHERTZ;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t d, unsigned int memory, unsigned int *count,
                                                  unsigned int *clocks) {
    USE(d, count);
    if (memory != MEMORY_MEGAHERTZ) return NOT_FOUND;
    unsigned int room = *count;
    *count = (d->clock_max_mhz - d->clock_min_mhz) / d->clock_step_mhz + 1;
    if (!clocks || room < *count) return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++) clocks[i] = d->clock_max_mhz - i * d->clock_step_mhz; /* descending */
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, unsigned int kind, unsigned int *clock) {
    USE(d, clock);
    if (kind > CLOCK_VIDEO) return INVALID_ARGUMENT;
    *clock = kind == CLOCK_MEM ? MEMORY_MEGAHERTZ : read_state(d).sm_clock_mhz;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, unsigned int kind, unsigned int *clock) {
    USE(d, clock);
    if (kind > CLOCK_VIDEO) return INVALID_ARGUMENT;
    *clock = kind == CLOCK_MEM ? MEMORY_MEGAHERTZ : d->clock_max_mhz;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *reasons) {
    USE(d, reasons);
    struct state s = read_state(d);
    uint32_t unlimited, power;
    *reasons = REASON_IDLE;
    if (s.activity == 0.0) return SUCCESS;
    operating_point(d, UINT32_MAX, &s, &unlimited, &power);
    *reasons = (s.sm_clock_mhz < unlimited ? REASON_POWER_CAP : 0) |
               (unlimited < d->clock_max_mhz ? REASON_APPLICATIONS_CLOCKS : 0);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t d, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(d, reasons);
}

/* ---- the rest ------------------------------------------------------------------------------------------------ */

struct utilization {
    unsigned int gpu, memory;
};

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, struct utilization *rates) {
    USE(d, rates);
    if (d->flags & MIG) return NOT_SUPPORTED;
    rates->gpu = rates->memory = read_state(d).activity > 0 ? 100 : 0;
    return SUCCESS;
}

struct temperature {
    unsigned int version, sensor;
    int celsius;
};

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, struct temperature *t) {
    USE(d, t);
    if (t->version != TEMPERATURE_V1) return ARGUMENT_VERSION_MISMATCH;
    t->celsius = (int)(30 + 50ull * read_state(d).power_mw / d->max_limit_mw);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned int sensor, unsigned int *celsius) {
    USE(d, celsius);
    struct temperature t = {TEMPERATURE_V1, sensor, 0};
    nvmlReturn_t result = nvmlDeviceGetTemperatureV(d, &t);
    *celsius = (unsigned int)t.celsius;
    return result;
}

/* ---- events: Xid errors, from when a set was told of a GPU ----------------------------------------------------- */

/* A driver's caller sleeps until there is an event; here it looks ten times a second, which must cost next to nothing. */
enum { EVENT_XID = 8, MAX_DEVICES = 256, POLL_US = 100000 };

struct event_set {
    int registered[MAX_DEVICES];
    uint32_t seen[MAX_DEVICES];
};

struct event_data {
    nvmlDevice_t device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, unsigned long long *types) {
    USE(d, types);
    *types = EVENT_XID;
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(struct event_set **set) {
    if (!node) return UNINITIALIZED;
    if (!set) return INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    return *set ? SUCCESS : UNKNOWN;
}

nvmlReturn_t nvmlEventSetFree(struct event_set *set) {
    free(set);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, struct event_set *set) {
    USE(d, set);
    if (types != EVENT_XID) return NOT_SUPPORTED;
    set->seen[d - records] = atomic_load(&d->xids);
    set->registered[d - records] = 1;
    return SUCCESS;
}

/* A GPU that is lost says so by an event, too. */
nvmlReturn_t nvmlEventSetWait_v2(struct event_set *set, struct event_data *event, unsigned int timeout_ms) {
    if (!set || !event) return INVALID_ARGUMENT;
    uint64_t end = now_ns() + timeout_ms * 1000000ull;
    do {
        if (!node) return UNINITIALIZED;
        for (uint32_t i = 0; i < node->device_count; i++) {
            if (!set->registered[i] || set->seen[i] == atomic_load(&records[i].xids)) continue;
            set->seen[i]++;
            *event = (struct event_data){records + i, EVENT_XID, records[i].xid, 0xFFFFFFFFu, 0xFFFFFFFFu};
            return SUCCESS;
        }
        usleep(POLL_US);
    } while (now_ns() < end);
    return TIMEOUT;
}
