/* A stand-in for libcuda.so.1: GPUs whose memory is the process's own.
 *
 * CUDA_STAND_IN says how it fails: `init CODE`, `context CODE`, `alloc CODE`, or `flip` (the second
 * GPU loses a bit); anything else: not at all.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2 };

static int current;

static int failing(const char *where)
{
    const char *order = getenv("CUDA_STAND_IN");
    size_t length = strlen(where);
    if (order == NULL || strncmp(order, where, length) != 0)
        return 0;
    return order[length] == ' ' ? atoi(order + length + 1) : 1;
}

int cuInit(unsigned int flags)
{
    (void)flags;
    return failing("init");
}

int cuDeviceGetCount(int *count)
{
    *count = DEVICES;
    return 0;
}

int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)device;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &current;
    current = device;
    return failing("context");
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    return context == &current ? 0 : 201;
}

int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    *address = (uint64_t)(uintptr_t)malloc(size);
    return failing("alloc");
}

int cuMemFree_v2(uint64_t address)
{
    free((void *)(uintptr_t)address);
    return 0;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
    memcpy((void *)(uintptr_t)to, from, size);
    if (failing("flip") && current == 1)
        ((unsigned char *)(uintptr_t)to)[size / 2] ^= 4;
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
    memcpy(to, (const void *)(uintptr_t)from, size);
    return 0;
}
