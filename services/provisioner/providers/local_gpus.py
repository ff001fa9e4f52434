"""Simulated GPUs for the local provider, the tests and the demo: the library and its state file.

`build_library` compiles the stand-in for libnvidia-ml.so.1 in this folder. NAVARCH_NVML_LIBRARY
names it to the agent, and it reads the GPUs' state from the file that NAVARCH_NVML_STATE names
(`write_state`). The format is described at the top of `local_nvml.c`.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from schemas.node_events import GpuIdentity
from services.primitives.errors import SetupError

SOURCE: Final = Path(__file__).with_name("local_nvml.c")
SONAME: Final = "libnvidia-ml.so.1"
COMPILE_SECONDS_MAX: Final = 120.0
IDENTITY: Final = ("uuid", "serial", "pci", "name")
GPU_WORDS: Final = 3
BROKEN: Final = "# broken"
"""Ends a line of the state file that survives resets and reboots."""
GPU_NAME: Final = "NVIDIA H100 80GB HBM3"
BUSES: Final = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
"""PCI buses of an eight-GPU server."""


def compiler() -> list[str] | None:
    """Find a C compiler: $CC, cc, gcc or clang, else the `ziglang` wheel's.

    None: there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return None


def build_library(directory: Path) -> Path:
    """Compile the stand-in into `directory`, unless this source was compiled there before.

    A container image has it beside the source, and needs no compiler where it runs. Two processes
    may compile at once: each writes its own file and renames it into place.
    """
    name = Path(hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]) / SONAME
    target = directory / name
    for found in (target, SOURCE.parent / name):
        if found.exists():
            return found
    compile_library(SOURCE, target)
    return target


def compile_library(source: Path, target: Path) -> None:
    """Compile one C file into a shared library, put into place atomically."""
    command = compiler()
    if command is None:
        raise SetupError(
            "simulated GPUs need a C compiler and none was found: install gcc or clang, "
            "or `pip install ziglang`"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        done = subprocess.run(
            [
                *command,
                *("-O1", "-shared", "-fPIC", f"-Wl,-soname,{target.name}", "-o", str(built)),
                *(str(source), "-lpthread"),
            ],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise SetupError(f"{' '.join(command)} could not compile {source}:\n{done.stderr}")
        built.replace(target)


def simulated_gpus(instance: str, count: int) -> tuple[GpuIdentity, ...]:
    """Return GPUs that are the same at every call, and differ between instances."""
    gpus = []
    for index in range(count):
        digest = hashlib.sha256(f"{instance}/{index}".encode()).hexdigest()
        uuid = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        bus = BUSES[index] if index < len(BUSES) else 0x01 + index
        domain = 0 if index < len(BUSES) else 1
        gpus.append(
            GpuIdentity(
                index=index,
                uuid=uuid,
                serial=f"165{int(digest[32:44], 16) % 10**10:010d}",
                pci=f"{domain:04x}:{bus:02x}:00",
                name=GPU_NAME,
            )
        )
    return tuple(gpus)


def state_text(gpus: Iterable[GpuIdentity], orders: Sequence[str] = ()) -> str:
    """Return the state file's text: these GPUs, and further commands, one per line."""
    known = tuple(gpus)
    lines = [f"count {len(known)}"]
    for gpu in known:
        named = ((key, getattr(gpu, key)) for key in IDENTITY)
        lines += [f"gpu {gpu.index} {key} {value}" for key, value in named if value]
    return "\n".join([*lines, *orders, ""])


def write_state(path: Path, gpus: Iterable[GpuIdentity], orders: Sequence[str] = ()) -> None:
    """Replace the state file."""
    write_text(path, state_text(gpus, orders))


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)


def after_reset(text: str, uuids: Sequence[str] = ()) -> str:
    """Return a state file's text after a reset of these GPUs; none named: of all.

    Counters and pending remaps are gone. A GPU that is lost stays so: only a reboot finds it again.
    """
    lines = text.splitlines()
    chosen = _indexes(lines, uuids)

    def stays(line: str) -> bool:
        words = line.split()
        if len(words) < GPU_WORDS or words[0] != "gpu" or line.endswith(BROKEN):
            return True
        every = words[1] == "*" and not uuids
        return not (every or words[1] in chosen) or words[2] in (*IDENTITY, "lost", "none")

    return "\n".join([*filter(stays, lines), ""])


def after_reboot(text: str) -> str:
    """Return a state file's text after a reboot: the GPUs' identities, and what is broken."""

    def stays(line: str) -> bool:
        words = line.split()
        if line.endswith(BROKEN) or words[:1] in (["count"], ["driver"]):
            return True
        return len(words) >= GPU_WORDS and words[0] == "gpu" and words[2] in (*IDENTITY, "none")

    return "\n".join([*filter(stays, text.splitlines()), ""])


def reset_problem(text: str, uuids: Sequence[str] = ()) -> str:
    """Return why `nvidia-smi --gpu-reset` would fail, in its words; empty: it would not."""
    lines = text.splitlines()
    chosen = _indexes(lines, uuids)
    for line in lines:
        match line.split():
            case ["gpu", which, key, value, *_] if value != "0" and which in (*chosen, "*"):
                if key == "processes":
                    return f"GPU {which}: In use by another client"
                if key == "lost":
                    return f"GPU {which} is lost. Reboot the system to recover this GPU"
    return ""


def _indexes(lines: Iterable[str], uuids: Sequence[str]) -> set[str]:
    """Return the file's indexes of these UUIDs; no UUID: of all."""
    known = {}
    for line in lines:
        match line.split():
            case ["gpu", index, "uuid", uuid, *_]:
                known[uuid] = index
            case _:
                continue
    return {index for uuid, index in known.items() if not uuids or uuid in uuids}


def kmsg_record(sequence: int, microseconds: int, text: str, *, priority: int = 3) -> bytes:
    """Return a kernel log record in the format of /dev/kmsg."""
    return f"{priority},{sequence},{microseconds},-;{text}\n".encode()
