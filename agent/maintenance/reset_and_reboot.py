"""Resets GPUs and reboots the host, when it is asked to and nobody works there.

The second thing beside testing that an agent does to its host, and like that it decides nothing: a
saga asks, under a key of its own, and what was done under a key is not done again. Both are refused
unless the node is cordoned, and a reset as long as a process runs on the GPUs.
"""

import asyncio
import logging
import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agent.faults.fault_builder import GpuMap
from agent.maintenance.diagnostics.findings import DETAIL_CHARS_MAX, Output
from agent.maintenance.diagnostics.tool_runner import ToolHung, run_tool
from agent.settings import AgentConfig
from agent.sources.nvml import GpuProcess
from schemas.agent_commands import ActionResult, RebootRequest, ResetRequest
from schemas.messages import encode
from services.bus.port import Headers
from services.primitives.atomic_files import write_whole
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

RESET_SECONDS_MAX: Final = 180.0
"""Of one call of the tool; at most two are made."""
ANSWER_SECONDS: Final = 0.5
"""Between the answer and the end: it must have left."""
REBOOT_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.25
REBOOTS: Final = (("systemctl", "reboot"), ("shutdown", "-r", "now"))
"""What reboots a host, the first that is there."""
DONE_MAX: Final = 32
DONE_BYTES_MAX: Final = 262_144
NAMED_MAX: Final = 8
"""Processes that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What it is done with."""

    clock: Clock
    environment: Mapping[str, str]
    boot_id: str
    root: bool
    """Whether this process may reboot the host."""
    gpus: Callable[[], GpuMap]
    cordoned: Callable[[], Awaitable[bool | None]]
    """Whether this node is cordoned; None: that cannot be known now."""
    processes: Callable[[], Awaitable[tuple[GpuProcess, ...]]]
    """What runs on the GPUs, as far as NVML says."""
    released: Callable[[], AbstractAsyncContextManager[None]]
    """While it is held, the agent itself is off the GPUs."""


class DoneFile:
    """What was done under which key, for whoever asks again after a restart."""

    def __init__(self, path: Path) -> None:
        """Keep it at `path`."""
        self._path = path
        self._done: dict[str, ActionResult] | None = None

    def get(self, key: str) -> ActionResult | None:
        """What came of it; None where it was never done."""
        return self._loaded().get(key)

    def put(self, key: str, acted: ActionResult) -> None:
        """Remember it, and forget the oldest."""
        kept = self._loaded()
        kept[key] = acted
        for old in list(kept)[:-DONE_MAX]:
            del kept[old]
        try:
            write_whole(self._path, msgspec.json.encode(kept))
        except OSError as error:
            log.warning("cannot write %s: a restart forgets what was done: %s", self._path, error)

    def _loaded(self) -> dict[str, ActionResult]:
        if self._done is None:
            self._done = self._load()
        return self._done

    def _load(self) -> dict[str, ActionResult]:
        try:
            if self._path.stat().st_size > DONE_BYTES_MAX:
                raise ValueError(f"larger than {DONE_BYTES_MAX} bytes")  # noqa: TRY301
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, ActionResult])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("cannot read %s: what was done is forgotten: %s", self._path, error)
            return {}


class Mending:
    """Answers `reset-gpu` and `reboot`."""

    def __init__(self, config: AgentConfig, means: Means) -> None:
        """Do it as `config` says."""
        self._config = config
        self._means = means
        self._done = DoneFile(Path(config.state_dir) / "mended.json")
        self._turn = asyncio.Lock()
        self._going: asyncio.Task[None] | None = None
        self._failed = ""
        """Why this host could not be rebooted when it was tried."""

    # --- reset ----------------------------------------------------------------------------------

    async def reset(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        """Reset the GPUs that are named, or all; answer what came of it."""
        request = msgspec.json.decode(data, type=ResetRequest)
        async with self._turn:
            acted = self._done.get(request.key)
            if acted is None:
                acted = await self._reset(request)
                if not acted.refused:
                    self._done.put(request.key, acted)
        return encode(acted)

    async def _reset(self, request: ResetRequest) -> ActionResult:
        command = reset_command(self._config, self._means.environment)
        if not command:
            return self._acted(ok=False, detail="nvidia-smi is not on this host")
        if refused := await self._refusal():
            return self._acted(ok=False, refused=refused)
        known = {gpu.uuid for gpu in self._means.gpus().gpus}
        chosen = tuple(uuid for uuid in request.gpus if uuid in known)
        log.warning("resets %s", ", ".join(chosen) or "all GPUs", extra={"id": request.key})
        async with self._means.released():
            ok, detail = await self._try(command, chosen)
            if not ok and chosen:
                # Some GPUs can only be reset together with those that they are linked to.
                one = f"{', '.join(chosen)} alone: {detail}; "
                ok, detail = await self._try(command, ())
                detail = f"{one}all together: {detail}"
        log.warning("reset %s: %s", "done" if ok else "failed", detail)
        return self._acted(ok=ok, detail=detail)

    async def _try(self, command: Sequence[str], chosen: Sequence[str]) -> tuple[bool, str]:
        which = ("-i", ",".join(chosen)) if chosen else ()
        try:
            output = await run_tool(
                (*command, "--gpu-reset", *which),
                seconds_max=RESET_SECONDS_MAX,
                environment=self._means.environment,
            )
        except ToolHung as error:
            return False, str(error)
        except OSError as error:
            return False, f"cannot be started: {error}"
        return output.code == 0, _words(output)

    async def _refusal(self) -> str:
        """Say why it must not be done now; empty where it may."""
        cordoned = await self._means.cordoned()
        if cordoned is None:
            return "whether this node is cordoned cannot be known now; ask again later"
        if not cordoned:
            return "this node is not cordoned: cordon it first, and drain it"
        running = await self._means.processes()
        if running:
            named = ", ".join(f"{each.pid} on GPU {each.index}" for each in running[:NAMED_MAX])
            what = "process uses" if len(running) == 1 else "processes use"
            return f"{len(running)} {what} the GPUs ({named}): they must end first"
        return ""

    def _acted(self, *, ok: bool, detail: str = "", refused: str = "") -> ActionResult:
        return ActionResult(
            ok=ok,
            detail=detail[:DETAIL_CHARS_MAX],
            refused=refused,
            boot_id=self._means.boot_id,
            at=self._means.clock.now(),
        )

    # --- reboot ---------------------------------------------------------------------------------

    async def reboot(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        """Answer, then reboot this host; where the boot is another one already, only answer."""
        request = msgspec.json.decode(data, type=RebootRequest)
        return encode(await self._reboot(request))

    async def _reboot(self, request: RebootRequest) -> ActionResult:
        if request.boot_id != self._means.boot_id:
            return self._acted(ok=True, detail="it has another boot already")
        if self._failed:
            return self._acted(ok=False, detail=self._failed)
        if self._going is not None:
            return self._acted(ok=True, detail="it is going down")
        command, problem = reboot_command(
            self._config, self._means.environment, root=self._means.root
        )
        if problem:
            return self._acted(ok=False, detail=problem)
        cordoned = await self._means.cordoned()
        if not cordoned:
            known = "is not cordoned: cordon it first" if cordoned is False else "may not be so"
            return self._acted(ok=False, refused=f"this node {known}, and drain it")
        log.warning("reboots this host: %s", shlex.join(command), extra={"id": request.key})
        self._going = asyncio.create_task(self._go_down(command))
        return self._acted(ok=True, detail=f"going down: {shlex.join(command)}")

    async def _go_down(self, command: Sequence[str]) -> None:
        await self._means.clock.sleep(ANSWER_SECONDS)
        try:
            process = _detached(command, self._means.environment)
        except OSError as error:
            self._failed = f"{shlex.join(command)}: {error}"
        else:
            self._failed = await self._ended(command, process)
        if self._failed:
            log.error("this host could not be rebooted: %s", self._failed)

    async def _ended(self, command: Sequence[str], process: "subprocess.Popen[bytes]") -> str:
        """Wait for the command, and say what went wrong; a host that goes down ends this first."""
        until = self._means.clock.monotonic() + REBOOT_SECONDS_MAX
        while process.poll() is None:
            if self._means.clock.monotonic() >= until:
                return f"{shlex.join(command)}: not done in {REBOOT_SECONDS_MAX:g} s"
            await self._means.clock.sleep(LOOK_SECONDS)
        assert process.stdout is not None
        with process.stdout:
            printed = process.stdout.read(DETAIL_CHARS_MAX)
        if process.returncode == 0:
            return ""
        told = printed.decode("utf-8", "replace").strip()
        return f"{shlex.join(command)} ends with {process.returncode}: {told}"


def _detached(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start what is to outlive this process, and must not end with its loop."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def reset_command(config: AgentConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Find what resets GPUs; empty where it is not on this host."""
    named = tuple(shlex.split(config.reset_command)) or ("nvidia-smi",)
    found = shutil.which(named[0], path=environment.get("PATH"))
    return (found, *named[1:]) if found else ()


def reboot_command(
    config: AgentConfig, environment: Mapping[str, str], *, root: bool
) -> tuple[tuple[str, ...], str]:
    """Find what reboots this host; else say why this agent cannot."""
    path = environment.get("PATH")
    if config.reboot_command:
        named = tuple(shlex.split(config.reboot_command))
        if found := shutil.which(named[0], path=path):
            return (found, *named[1:]), ""
        return (), f"{named[0]} of NAVARCH_REBOOT_COMMAND is not on this host"
    if not root:
        return (), "the agent is not root; run it as root, or set NAVARCH_REBOOT_COMMAND"
    for program, *arguments in REBOOTS:
        if found := shutil.which(program, path=path):
            return (found, *arguments), ""
    return (), "neither systemctl nor shutdown is here; set NAVARCH_REBOOT_COMMAND"


def _words(output: Output) -> str:
    """What a tool printed, in one line; its exit status where it failed."""
    printed = " ".join(f"{output.text} {output.errors}".split())
    return printed if output.code == 0 else f"exit status {output.code}: {printed}"
