"""Writes a pattern to every GPU's memory and reads it back, through the CUDA driver library.

Runs as a separate process (`python -m agent.maintenance.diagnostics.gpu_memory_test LIBRARY
BYTES`): CUDA may hang or crash its process, and keeps hundreds of megabytes. It prints one JSON
object per GPU. Starting CUDA is part of the test: a host may list its GPUs and still refuse every
program.
"""

import ctypes
import sys
from typing import Any, Final

import msgspec

LIBRARY: Final = "libcuda.so.1"
PATTERNS: Final = (0xA5A5A5A5, 0x5A5A5A5A)
WORD_BYTES: Final = 4
CHUNK_BYTES: Final = 65_536
UUID_BYTES: Final = 16


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answers with CUDA error {code}")
        self.code = code


class Cuda:
    """The few calls that are needed."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call; raise CudaError where it fails."""
        code = int(getattr(self._library, name)(*arguments))
        if code:
            raise CudaError(name, code)

    def uuid(self, device: int) -> str:
        """Name a device as NVML does."""
        raw = (ctypes.c_ubyte * UUID_BYTES)()
        self.call("cuDeviceGetUuid", raw, ctypes.c_int(device))
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def check(cuda: Cuda, device: int, size: int) -> str:
    """Test one GPU; say what is wrong, empty where nothing is."""
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
    try:
        cuda.call("cuCtxSetCurrent", context)
        cuda.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        try:
            return next(filter(None, (_pass(cuda, address, size, each) for each in PATTERNS)), "")
        finally:
            cuda.call("cuMemFree_v2", address)
    finally:
        cuda.call("cuDevicePrimaryCtxRelease_v2", ctypes.c_int(device))


def _pass(cuda: Cuda, address: ctypes.c_uint64, size: int, pattern: int) -> str:
    written = pattern.to_bytes(WORD_BYTES, "little") * (size // WORD_BYTES)
    read = ctypes.create_string_buffer(size)
    cuda.call("cuMemcpyHtoD_v2", address, ctypes.c_char_p(written), ctypes.c_size_t(size))
    cuda.call("cuMemcpyDtoH_v2", read, address, ctypes.c_size_t(size))
    found = memoryview(read)
    for begin in range(0, size, CHUNK_BYTES):
        if bytes(found[begin : begin + CHUNK_BYTES]) != written[begin : begin + CHUNK_BYTES]:
            return f"memory does not hold what is written: near byte {begin} of {size}"
    return ""


def main(library: str, size: int) -> int:
    """Test every GPU; return the exit status."""
    try:
        cuda = Cuda(library or LIBRARY)
        cuda.call("cuInit", ctypes.c_uint(0))
        count = ctypes.c_int()
        cuda.call("cuDeviceGetCount", ctypes.byref(count))
    except CudaError as error:
        _say(error=f"CUDA does not start: {error}", code=error.code)
        return 1
    except (OSError, AttributeError) as error:
        print(f"no CUDA driver here: {error}", file=sys.stderr)  # noqa: T201
        return 2
    for device in range(count.value):
        uuid = ""
        try:
            uuid = cuda.uuid(device)
            _say(gpu=device, uuid=uuid, error=check(cuda, device, size), code=0)
        except CudaError as error:
            _say(gpu=device, uuid=uuid, error=f"GPU {uuid or device}: {error}", code=error.code)
    return 0


def _say(**found: object) -> None:
    print(msgspec.json.encode(found).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
