/* A stand-in for libnvidia-ml.so.1: simulated GPUs, driven by a text file.
 *
 * The local provider, the tests and the demo have no GPU. This library exports the NVML symbols that
 * the agent calls, so that the very path of a GPU host (pynvml, ctypes, C structures) runs here.
 *
 * NAVARCH_NVML_STATE names the file; it is read again whenever it changes. One order a line:
 *
 *   driver VERSION               count N
 *   gpu I KEY VALUE              KEY as in `keys` below, or uuid, serial, pci, name; I may be `*`
 *   gpu I lost 1                 every call for the GPU answers GPU_IS_LOST
 *   gpu I none KEY               the GPU has not got this reading: NOT_SUPPORTED
 *   fail FUNCTION CODE [I]       the call answers with CODE (of all GPUs, or of one)
 *   hang FUNCTION SECONDS [I]    the call takes that long, or until the line is gone
 *   xid ID I CODE                an event, delivered once, in the order of ID, to the caller that asked for
 *                                events before the line was written
 *
 * FUNCTION is an NVML name or `*`. Lines that cannot be read are ignored.
 */

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999
};

enum { GPUS_MAX = 64, RULES_MAX = 64, EVENTS_MAX = 1024, LINKS_MAX = 36, LINE_MAX_ = 512 };

enum key {
    TEMPERATURE, MEMORY_TEMPERATURE, MARGIN, UTILIZATION, MEMORY_UTILIZATION, MEMORY_TOTAL,
    MEMORY_USED, POWER, SM_CLOCK, MEMORY_CLOCK, THROTTLE, ECC_SBE, ECC_DBE, ECC_SBE_TOTAL,
    ECC_DBE_TOTAL, REMAPPED_CORRECTABLE, REMAPPED_UNCORRECTABLE, REMAP_PENDING, REMAP_FAILED,
    RETIRED_SBE, RETIRED_DBE, NVLINKS, NVLINKS_DOWN, NVLINK_ERRORS, PCIE_REPLAYS, PCIE_WIDTH,
    PCIE_WIDTH_MAX, PCIE_GENERATION, POWER_LIMIT, FABRIC_STATE, FABRIC_STATUS, FABRIC_HEALTH, LOST,
    FABRIC_CLUSTER, FABRIC_CLIQUE, PROCESSES, RECOVERY_ACTION, NVLINK_SPEED,
    KEYS
};

static const struct { const char *name; long long standard; } keys[KEYS] = {
    [TEMPERATURE] = {"temperature", 42},       [MEMORY_TEMPERATURE] = {"memory_temperature", 48},
    [MARGIN] = {"margin", 45},                 [UTILIZATION] = {"utilization", 0},
    [MEMORY_UTILIZATION] = {"memory_utilization", 0},
    [MEMORY_TOTAL] = {"memory_total", 85520809984LL}, [MEMORY_USED] = {"memory_used", 0},
    [POWER] = {"power", 70000},                [SM_CLOCK] = {"sm_clock", 1980},
    [MEMORY_CLOCK] = {"memory_clock", 2619},   [THROTTLE] = {"throttle", 1},
    [ECC_SBE] = {"ecc_sbe", 0},                [ECC_DBE] = {"ecc_dbe", 0},
    [ECC_SBE_TOTAL] = {"ecc_sbe_total", 0},    [ECC_DBE_TOTAL] = {"ecc_dbe_total", 0},
    [REMAPPED_CORRECTABLE] = {"remapped_correctable", 0},
    [REMAPPED_UNCORRECTABLE] = {"remapped_uncorrectable", 0},
    [REMAP_PENDING] = {"remap_pending", 0},    [REMAP_FAILED] = {"remap_failed", 0},
    [RETIRED_SBE] = {"retired_sbe", 0},        [RETIRED_DBE] = {"retired_dbe", 0},
    [NVLINKS] = {"nvlinks", 18},               [NVLINKS_DOWN] = {"nvlinks_down", 0},
    [NVLINK_ERRORS] = {"nvlink_errors", 0},    [PCIE_REPLAYS] = {"pcie_replays", 0},
    [PCIE_WIDTH] = {"pcie_width", 16},         [PCIE_WIDTH_MAX] = {"pcie_width_max", 16},
    [PCIE_GENERATION] = {"pcie_generation", 5}, [POWER_LIMIT] = {"power_limit", 700000},
    [FABRIC_STATE] = {"fabric_state", 3},      [FABRIC_STATUS] = {"fabric_status", 0},
    [FABRIC_HEALTH] = {"fabric_health", 0x1aa}, [LOST] = {"lost", 0},
    [FABRIC_CLUSTER] = {"fabric_cluster", 0},  [FABRIC_CLIQUE] = {"fabric_clique", 0},
    [PROCESSES] = {"processes", 0},            [RECOVERY_ACTION] = {"recovery_action", 0},
    [NVLINK_SPEED] = {"nvlink_speed", 26562},
};

struct gpu {
    long long value[KEYS];
    char none[KEYS];
    char uuid[80], serial[30], pci[16], name[64];
};

struct rule { char function[64]; int gpu; double amount; };
struct event { long long id; int gpu; unsigned long long code; };

struct state {
    int count;
    char driver[64];
    struct gpu gpus[GPUS_MAX];
    struct rule fails[RULES_MAX], hangs[RULES_MAX];
    int fail_count, hang_count;
    struct event events[EVENTS_MAX];
    int event_count;
};

static struct state state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct timespec seen_time;
static ino_t seen_inode;
static off_t seen_size = -1;
static int references;
static long long delivered;

/* --- the file --------------------------------------------------------------------------------- */

static void defaults(struct state *s)
{
    memset(s, 0, sizeof *s);
    s->count = 1;
    strcpy(s->driver, "550.54.15");
    for (int i = 0; i < GPUS_MAX; i++) {
        struct gpu *g = &s->gpus[i];
        for (int k = 0; k < KEYS; k++)
            g->value[k] = keys[k].standard;
        snprintf(g->uuid, sizeof g->uuid, "GPU-00000000-0000-0000-0000-%012x", i);
        snprintf(g->serial, sizeof g->serial, "16500000000%02d", i);
        snprintf(g->pci, sizeof g->pci, "0000:%02x:00", 0x1b + i);
        strcpy(g->name, "NVIDIA H100 80GB HBM3");
    }
}

static int find_key(const char *name)
{
    for (int k = 0; k < KEYS; k++)
        if (!strcmp(keys[k].name, name))
            return k;
    return -1;
}

static void set_text(char *to, size_t size, const char *value)
{
    size_t length = strnlen(value, size - 1);
    memcpy(to, value, length);
    to[length] = 0;
}

static void set_gpu(struct gpu *g, const char *key, const char *value)
{
    int k;
    if (!strcmp(key, "uuid"))
        set_text(g->uuid, sizeof g->uuid, value);
    else if (!strcmp(key, "serial"))
        set_text(g->serial, sizeof g->serial, value);
    else if (!strcmp(key, "pci"))
        set_text(g->pci, sizeof g->pci, value);
    else if (!strcmp(key, "name"))
        set_text(g->name, sizeof g->name, value);
    else if (!strcmp(key, "none")) {
        if ((k = find_key(value)) >= 0)
            g->none[k] = 1;
    } else if ((k = find_key(key)) >= 0)
        g->value[k] = strtoll(value, NULL, 0);
}

static void add_rule(struct rule *rules, int *count, const char *function, double amount, int gpu)
{
    if (*count >= RULES_MAX)
        return;
    struct rule *r = &rules[(*count)++];
    set_text(r->function, sizeof r->function, function);
    r->amount = amount;
    r->gpu = gpu;
}

static void read_line(struct state *s, const char *line)
{
    char which[16], key[64], value[256];
    double amount;
    int gpu = -1;
    long long id;
    unsigned long long code;
    if (sscanf(line, " count %d", &gpu) == 1) {
        s->count = gpu < 0 ? 0 : gpu > GPUS_MAX ? GPUS_MAX : gpu;
    } else if (sscanf(line, " driver %63s", value) == 1) {
        set_text(s->driver, sizeof s->driver, value);
    } else if (sscanf(line, " gpu %15s %63s %255[^\n]", which, key, value) == 3) {
        if (!strcmp(which, "*")) {
            for (int i = 0; i < GPUS_MAX; i++)
                set_gpu(&s->gpus[i], key, value);
        } else if ((gpu = atoi(which)) >= 0 && gpu < GPUS_MAX)
            set_gpu(&s->gpus[gpu], key, value);
    } else if (sscanf(line, " fail %63s %lf %d", key, &amount, &gpu) >= 2) {
        add_rule(s->fails, &s->fail_count, key, amount, gpu);
    } else if (sscanf(line, " hang %63s %lf %d", key, &amount, &gpu) >= 2) {
        add_rule(s->hangs, &s->hang_count, key, amount, gpu);
    } else if (sscanf(line, " xid %lld %d %llu", &id, &gpu, &code) == 3) {
        if (s->event_count < EVENTS_MAX && gpu >= 0 && gpu < GPUS_MAX)
            s->events[s->event_count++] = (struct event){id, gpu, code};
    }
}

/* With the lock held: read the file again if it is another than the one read last. */
static void refresh(void)
{
    const char *path = getenv("NAVARCH_NVML_STATE");
    struct stat now;
    char line[LINE_MAX_];
    if (path == NULL || stat(path, &now) != 0) {
        if (seen_size == -1)
            defaults(&state);
        seen_size = seen_size == -1 ? -2 : seen_size;
        return;
    }
    if (now.st_size == seen_size && now.st_ino == seen_inode
        && now.st_mtim.tv_sec == seen_time.tv_sec && now.st_mtim.tv_nsec == seen_time.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    defaults(&state);
    while (fgets(line, sizeof line, file) != NULL)
        read_line(&state, line);
    fclose(file);
    seen_size = now.st_size;
    seen_inode = now.st_ino;
    seen_time = now.st_mtim;
}

/* --- every call passes here ------------------------------------------------------------------- */

static double amount_of(const struct rule *rules, int count, const char *function, int gpu)
{
    for (int i = 0; i < count; i++) {
        const struct rule *r = &rules[i];
        if ((!strcmp(r->function, "*") || !strcmp(r->function, function))
            && (r->gpu < 0 || r->gpu == gpu))
            return r->amount;
    }
    return 0;
}

static int enter(const char *function, int gpu)
{
    const struct timespec slice = {0, 20 * 1000 * 1000};
    double hung = 0, hang;
    int code;
    pthread_mutex_lock(&lock);
    refresh();
    while ((hang = amount_of(state.hangs, state.hang_count, function, gpu)) > hung) {
        pthread_mutex_unlock(&lock);
        nanosleep(&slice, NULL);
        hung += 0.02;
        pthread_mutex_lock(&lock);
        refresh();
    }
    code = (int)amount_of(state.fails, state.fail_count, function, gpu);
    if (code == OK && references == 0)
        code = UNINITIALIZED;
    if (code == OK && gpu >= 0)
        code = gpu >= state.count ? INVALID_ARGUMENT
             : state.gpus[gpu].value[LOST] ? GPU_IS_LOST : OK;
    pthread_mutex_unlock(&lock);
    return code;
}

/* A handle is a pointer into this array; the index is what it means. */
static char handles[GPUS_MAX];

static int index_of(const void *device)
{
    const char *at = device;
    return at >= handles && at < handles + GPUS_MAX ? (int)(at - handles) : -2;
}

static int number(const char *function, void *device, enum key key, long long *value)
{
    int gpu = index_of(device), code;
    if (gpu < 0)
        return INVALID_ARGUMENT;
    if ((code = enter(function, gpu)) != OK)
        return code;
    pthread_mutex_lock(&lock);
    *value = state.gpus[gpu].value[key];
    code = state.gpus[gpu].none[key] ? NOT_SUPPORTED : OK;
    pthread_mutex_unlock(&lock);
    return code;
}

static int small(const char *function, void *device, enum key key, unsigned int *to)
{
    long long value = 0;
    int code = number(function, device, key, &value);
    *to = (unsigned int)value;
    return code;
}

static int text(const char *function, void *device, size_t offset, char *to, unsigned int size)
{
    int gpu = index_of(device), code;
    if (gpu < 0)
        return INVALID_ARGUMENT;
    if ((code = enter(function, gpu)) != OK)
        return code;
    pthread_mutex_lock(&lock);
    snprintf(to, size, "%s", (const char *)&state.gpus[gpu] + offset);
    pthread_mutex_unlock(&lock);
    return OK;
}

/* --- the library as a whole ------------------------------------------------------------------- */

int nvmlInitWithFlags(unsigned int flags)
{
    int code;
    (void)flags;
    pthread_mutex_lock(&lock);
    references++;
    pthread_mutex_unlock(&lock);
    code = enter("nvmlInit", -1);
    if (code != OK) {
        pthread_mutex_lock(&lock);
        references--;
        pthread_mutex_unlock(&lock);
    }
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    int code = OK;
    pthread_mutex_lock(&lock);
    if (references > 0)
        references--;
    else
        code = UNINITIALIZED;
    pthread_mutex_unlock(&lock);
    return code;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    int code = enter("nvmlSystemGetDriverVersion", -1);
    if (code == OK) {
        pthread_mutex_lock(&lock);
        snprintf(version, size, "%s", state.driver);
        pthread_mutex_unlock(&lock);
    }
    return code;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    int code = enter("nvmlDeviceGetCount", -1);
    *count = (unsigned int)state.count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
    if (index >= GPUS_MAX)
        return INVALID_ARGUMENT;
    *device = &handles[index];
    return enter("nvmlDeviceGetHandleByIndex", (int)index);
}

int nvmlDeviceGetIndex(void *device, unsigned int *index)
{
    int gpu = index_of(device);
    *index = (unsigned int)gpu;
    return gpu < 0 ? INVALID_ARGUMENT : enter("nvmlDeviceGetIndex", gpu);
}

/* --- who a GPU is ----------------------------------------------------------------------------- */

int nvmlDeviceGetName(void *device, char *to, unsigned int size)
{
    return text("nvmlDeviceGetName", device, offsetof(struct gpu, name), to, size);
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned int size)
{
    return text("nvmlDeviceGetUUID", device, offsetof(struct gpu, uuid), to, size);
}

int nvmlDeviceGetSerial(void *device, char *to, unsigned int size)
{
    return text("nvmlDeviceGetSerial", device, offsetof(struct gpu, serial), to, size);
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *to)
{
    char short_form[16];
    int code;
    memset(to, 0, sizeof *to);
    code = text("nvmlDeviceGetPciInfo", device, offsetof(struct gpu, pci), short_form, 16);
    if (code != OK)
        return code;
    if (sscanf(short_form, "%x:%x:%x", &to->domain, &to->bus, &to->device) != 3)
        return UNKNOWN;
    to->device_id = 0x233010de;
    snprintf(to->bus_id_legacy, sizeof to->bus_id_legacy, "%04X:%02X:%02X.0",
             to->domain & 0xffff, to->bus & 0xff, to->device & 0xff);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.0", to->domain, to->bus, to->device);
    return OK;
}

/* --- readings --------------------------------------------------------------------------------- */

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *to)
{
    (void)sensor;
    return small("nvmlDeviceGetTemperature", device, TEMPERATURE, to);
}

struct margin { unsigned int version; int margin; };
struct utilization { unsigned int gpu, memory; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned int version; unsigned long long total, reserved, free, used; };
#define MEMORY_RESERVED 503316480ULL /* of an H100 with driver 580 */

int nvmlDeviceGetMarginTemperature(void *device, struct margin *to)
{
    long long value = 0;
    int code = number("nvmlDeviceGetMarginTemperature", device, MARGIN, &value);
    to->margin = (int)value;
    return code;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *to)
{
    unsigned int gpu = 0, memory = 0;
    int code = small("nvmlDeviceGetUtilizationRates", device, UTILIZATION, &gpu);
    if (code == OK)
        code = small("nvmlDeviceGetUtilizationRates", device, MEMORY_UTILIZATION, &memory);
    to->gpu = gpu;
    to->memory = memory;
    return code;
}

static int memory_of(const char *function, void *device, long long *total, long long *used)
{
    int code = number(function, device, MEMORY_TOTAL, total);
    return code == OK ? number(function, device, MEMORY_USED, used) : code;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *to)
{
    long long total = 0, used = 0;
    int code = memory_of("nvmlDeviceGetMemoryInfo", device, &total, &used);
    to->total = (unsigned long long)total;
    to->used = (unsigned long long)used + MEMORY_RESERVED;
    to->free = (unsigned long long)(total - used) - MEMORY_RESERVED;
    return code;
}

/* What the driver reserves counts as used in the first version, and by itself in the second. */
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *to)
{
    long long total = 0, used = 0;
    int code = memory_of("nvmlDeviceGetMemoryInfo_v2", device, &total, &used);
    to->total = (unsigned long long)total;
    to->reserved = MEMORY_RESERVED;
    to->used = (unsigned long long)used;
    to->free = (unsigned long long)(total - used) - MEMORY_RESERVED;
    return code;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *to)
{
    return small("nvmlDeviceGetPowerUsage", device, POWER, to);
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned int *to)
{
    return small("nvmlDeviceGetEnforcedPowerLimit", device, POWER_LIMIT, to);
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned int *to)
{
    return small("nvmlDeviceGetClockInfo", device, clock == 2 ? MEMORY_CLOCK : SM_CLOCK, to);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *to)
{
    long long value = 0;
    int code = number("nvmlDeviceGetCurrentClocksEventReasons", device, THROTTLE, &value);
    *to = (unsigned long long)value;
    return code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *to)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, to);
}

int nvmlDeviceGetTotalEccErrors(void *device, int type, int counter, unsigned long long *to)
{
    static const enum key which[2][2] = {{ECC_SBE, ECC_SBE_TOTAL}, {ECC_DBE, ECC_DBE_TOTAL}};
    long long value = 0;
    int code = number("nvmlDeviceGetTotalEccErrors", device, which[type == 1][counter == 1], &value);
    *to = (unsigned long long)value;
    return code;
}

int nvmlDeviceGetRemappedRows(void *device, unsigned int *correctable, unsigned int *uncorrectable,
                              unsigned int *pending, unsigned int *failed)
{
    const char *f = "nvmlDeviceGetRemappedRows";
    int code = small(f, device, REMAPPED_CORRECTABLE, correctable);
    if (code == OK)
        code = small(f, device, REMAPPED_UNCORRECTABLE, uncorrectable);
    if (code == OK)
        code = small(f, device, REMAP_PENDING, pending);
    if (code == OK)
        code = small(f, device, REMAP_FAILED, failed);
    return code;
}

int nvmlDeviceGetRetiredPages(void *device, int cause, unsigned int *count, unsigned long long *to)
{
    unsigned int room = *count, there = 0;
    int code = small("nvmlDeviceGetRetiredPages", device, cause == 1 ? RETIRED_DBE : RETIRED_SBE,
                     &there);
    *count = there;
    if (code != OK)
        return code;
    if (to == NULL || room < there)
        return there == 0 ? OK : INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < there; i++)
        to[i] = 0x1000ULL * (i + 1);
    return OK;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned int link, unsigned int *active)
{
    unsigned int links = 0, down = 0;
    int code = small("nvmlDeviceGetNvLinkState", device, NVLINKS, &links);
    if (code == OK)
        code = small("nvmlDeviceGetNvLinkState", device, NVLINKS_DOWN, &down);
    *active = link >= down;
    return code != OK ? code : link < links && link < LINKS_MAX ? OK : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned int link, int counter,
                                    unsigned long long *to)
{
    long long value = 0;
    int code = number("nvmlDeviceGetNvLinkErrorCounter", device, NVLINK_ERRORS, &value);
    *to = link == 0 && counter == 0 ? (unsigned long long)value : 0;
    return code;
}

int nvmlDeviceGetPcieReplayCounter(void *device, unsigned int *to)
{
    return small("nvmlDeviceGetPcieReplayCounter", device, PCIE_REPLAYS, to);
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned int *to)
{
    return small("nvmlDeviceGetCurrPcieLinkWidth", device, PCIE_WIDTH, to);
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned int *to)
{
    return small("nvmlDeviceGetMaxPcieLinkWidth", device, PCIE_WIDTH_MAX, to);
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned int *to)
{
    return small("nvmlDeviceGetCurrPcieLinkGeneration", device, PCIE_GENERATION, to);
}

struct process { unsigned int pid; unsigned long long memory; unsigned int gi, ci; };

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, struct process *to)
{
    unsigned int room = *count, there = 0;
    int code = small("nvmlDeviceGetComputeRunningProcesses", device, PROCESSES, &there);
    *count = there;
    if (code != OK)
        return code;
    if (to == NULL || room < there)
        return there == 0 ? OK : INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < there; i++)
        to[i] = (struct process){4000 + i, 1 << 30, 0xffffffff, 0xffffffff};
    return OK;
}

struct fabric_info {
    unsigned int version;
    unsigned char cluster[16];
    int status;
    uint32_t clique, state, health;
};

int nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_info *to)
{
    const char *f = "nvmlDeviceGetGpuFabricInfoV";
    unsigned int status = 0;
    long long cluster = 0;
    int code = small(f, device, FABRIC_STATE, &to->state);
    if (code == OK)
        code = small(f, device, FABRIC_STATUS, &status);
    if (code == OK)
        code = small(f, device, FABRIC_HEALTH, &to->health);
    if (code == OK)
        code = number(f, device, FABRIC_CLUSTER, &cluster);
    if (code == OK)
        code = small(f, device, FABRIC_CLIQUE, &to->clique);
    for (int i = 0; i < 16; i++)
        to->cluster[i] = i < 8 ? 0 : (unsigned char)((unsigned long long)cluster >> 8 * (15 - i));
    to->status = (int)status;
    return code;
}

struct field_value {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    int type, result;
    union { double d; int si; unsigned int ui; unsigned long ul; unsigned long long ull; } value;
};

enum { FIELD_CRC_FLIT = 38, FIELD_CRC_DATA = 45, FIELD_REPLAY = 52, FIELD_RECOVERY = 59,
       FIELD_MEMORY_TEMPERATURE = 82, FIELD_LINK_SPEED = 90, FIELD_LINK_COUNT = 91,
       FIELD_RECOVERY_ACTION = 230,
       TYPE_UINT = 1, TYPE_ULL = 3 };

int nvmlDeviceGetFieldValues(void *device, int count, struct field_value *values)
{
    int gpu = index_of(device), code;
    if (gpu < 0)
        return INVALID_ARGUMENT;
    if ((code = enter("nvmlDeviceGetFieldValues", gpu)) != OK)
        return code;
    pthread_mutex_lock(&lock);
    const struct gpu *g = &state.gpus[gpu];
    for (int i = 0; i < count; i++) {
        struct field_value *v = &values[i];
        enum key key = NVLINK_ERRORS;
        v->type = TYPE_ULL;
        v->result = OK;
        v->value.ull = 0;
        switch (v->field) {
        case FIELD_CRC_FLIT: v->value.ull = (unsigned long long)g->value[NVLINK_ERRORS]; break;
        case FIELD_CRC_DATA: case FIELD_REPLAY: case FIELD_RECOVERY: break;
        case FIELD_MEMORY_TEMPERATURE:
            key = MEMORY_TEMPERATURE;
            v->type = TYPE_UINT;
            v->value.ui = (unsigned int)g->value[key];
            break;
        case FIELD_LINK_SPEED:
            key = NVLINK_SPEED;
            v->type = TYPE_UINT;
            v->value.ui = (unsigned int)g->value[key];
            break;
        case FIELD_LINK_COUNT:
            key = NVLINKS;
            v->type = TYPE_UINT;
            v->value.ui = (unsigned int)g->value[key];
            break;
        case FIELD_RECOVERY_ACTION:
            key = RECOVERY_ACTION;
            v->type = TYPE_UINT;
            v->value.ui = (unsigned int)g->value[key];
            break;
        default: v->result = NOT_SUPPORTED;
        }
        if (g->none[key])
            v->result = NOT_SUPPORTED;
    }
    pthread_mutex_unlock(&lock);
    return OK;
}

/* --- events ----------------------------------------------------------------------------------- */

struct event_data {
    void *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

static char event_set;

int nvmlEventSetCreate(void **set)
{
    int code = enter("nvmlEventSetCreate", -1);
    *set = &event_set;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < state.event_count; i++)
        if (state.events[i].id > delivered)
            delivered = state.events[i].id;
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    return OK;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    int gpu = index_of(device);
    (void)types;
    (void)set;
    return gpu < 0 ? INVALID_ARGUMENT : enter("nvmlDeviceRegisterEvents", gpu);
}

/* Wait until something in the state file's directory changed, at most so long; where that cannot be
 * watched, for 25 ms. Returns the milliseconds waited, from 1 on. */
static unsigned int wait_for_change(unsigned int timeout_ms)
{
    static int watch = -2;
    const struct timespec slice = {0, 25 * 1000 * 1000};
    struct timespec before, after;
    char directory[LINE_MAX_];
    const char *path = getenv("NAVARCH_NVML_STATE"), *end = path ? strrchr(path, '/') : NULL;
    if (watch == -2 && end != NULL && (size_t)(end - path) < sizeof directory - 1) {
        memcpy(directory, path, (size_t)(end - path) + 1);
        directory[end - path + 1] = 0;
        watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        if (watch >= 0 && inotify_add_watch(watch, directory, IN_CLOSE_WRITE | IN_MOVED_TO) < 0)
            watch = -1;
    }
    if (watch < 0) {
        nanosleep(&slice, NULL);
        return 25;
    }
    struct pollfd changed = {watch, POLLIN, 0};
    char events[4096];
    clock_gettime(CLOCK_MONOTONIC, &before);
    poll(&changed, 1, (int)timeout_ms);
    while (read(watch, events, sizeof events) > 0)
        ;
    clock_gettime(CLOCK_MONOTONIC, &after);
    long long passed = (after.tv_sec - before.tv_sec) * 1000LL
                     + (after.tv_nsec - before.tv_nsec) / 1000000;
    return passed > 0 ? (unsigned int)passed : 1;
}

int nvmlEventSetWait_v2(void *set, struct event_data *to, unsigned int timeout_ms)
{
    (void)set;
    for (unsigned int waited = 0;;) {
        int code = enter("nvmlEventSetWait", -1);
        if (code != OK)
            return code;
        pthread_mutex_lock(&lock);
        const struct event *next = NULL;
        for (int i = 0; i < state.event_count; i++)
            if (state.events[i].id > delivered && (!next || state.events[i].id < next->id))
                next = &state.events[i];
        if (next != NULL) {
            delivered = next->id;
            *to = (struct event_data){&handles[next->gpu], 8, next->code, 0xffffffff, 0xffffffff};
        }
        pthread_mutex_unlock(&lock);
        if (next != NULL)
            return OK;
        if (waited >= timeout_ms)
            return TIMEOUT;
        waited += wait_for_change(timeout_ms - waited);
    }
}
