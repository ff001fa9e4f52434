"""Instances that are agent processes on this machine, with simulated GPUs: the embedded default.

Each instance is a directory with its kernel log (`kmsg`, in the kernel's record format), the state
of its GPUs, its agent's own state and log. Directory and process come and go under one lock per
instance, so that two provisioners on one host, or one that was killed anywhere, leave no second
agent and no unknown one. Terminated instances are kept for a while as `.terminated-<name>`.
"""

import asyncio
import os
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec.structs import replace

from schemas.messages import encode
from schemas.settings import FilePath, Setting
from schemas.value_limits import UtcTime
from services.bus.nats.credentials_file import issuer_of, life, seed_in
from services.bus.nats.nats_accounts import (
    AgentKeys,
    Key,
    bootstrap_credentials,
    read_agent_keys,
)
from services.primitives.atomic_files import write_secret
from services.primitives.errors import SetupError
from services.primitives.module_names import installed_name
from services.provisioner.instances.instance_tags import instance_for
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    InstanceStatus,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import local_host
from services.provisioner.providers import local_process as process
from services.provisioner.providers.local_gpus import build_library, simulated_gpus, write_state
from services.provisioner.providers.local_host import (
    BOOT_ID,
    KMSG,
    LOCKS,
    MUTEX_SECONDS_MAX,
    NVML_STATE,
    AgentStart,
    start_new_boot,
    write_agent_start,
)
from services.provisioner.providers.request_checks import invalid

T = TypeVar("T")
Instances = list[Instance]
"""Named, because providers have a method `list`."""

AGENT_COMMAND: Final = (sys.executable, "-m", installed_name("agent"))
HOST_COMMAND: Final = (sys.executable, "-m", local_host.MODULE)
INSTANCE_FILE: Final = "instance.json"
STATE: Final = "state"
CREDENTIALS: Final = "nats.creds"
BOOTSTRAP: Final = "bootstrap.creds"
NEW: Final = ".new-"
TERMINATED: Final = ".terminated-"
TERMINATED_KEPT_MAX: Final = 20
LIBRARY: Final = ".nvml"
HALTED: Final = "halted"
"""Marks an instance that was stopped with its host, and starts with it."""
THREADS_MAX: Final = 16
PASSED_ON: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "OTEL_EXPORTER_OTLP_ENDPOINT", "NAVARCH_LOG_LEVEL"),
)
"""Variables that an agent inherits from the provisioner: none that may be secret."""


class _InstanceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The instance's own file in its directory."""

    provider: str
    request: ProvisionRequest
    created_at: UtcTime


_kept = msgspec.json.Decoder(_InstanceFile)


class LocalProvider:
    """Runs agents on this machine."""

    capabilities = Capabilities(idempotency_token=True, reboot=True)
    """The instance's name serves as the idempotency token."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `providers: {local: {gpu_count: 8}}`."""

        directory: FilePath = ""
        """Directory of the instances; empty: `local` under data_dir."""
        gpu_count: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8
        """Simulated GPUs of an instance whose pool names no number; 0: none, without a C
        compiler."""
        variables: dict[str, str] = msgspec.field(default_factory=dict)
        """Further environment variables for the agents."""

    def __init__(
        self,
        *,
        options: Options,
        environment: Environment,
        command: Sequence[str] = AGENT_COMMAND,
    ) -> None:
        """`command` starts an agent."""
        self._options = options
        self._environment = environment
        self.name = environment.name
        self._command = tuple(command)
        place = Path(options.directory) if options.directory else environment.data_dir / "local"
        self.directory = place.absolute()
        self._threads = ThreadPoolExecutor(THREADS_MAX, f"local-{environment.name}")
        self._children: set[int] = set()

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Create the directory and start the agent, unless they exist."""
        return await self._in_thread(lambda: self._provision(request))

    async def terminate(self, provider_id: str) -> None:
        """End the agent, then rename its directory."""
        await self._in_thread(lambda: self._terminate(provider_id))

    async def list(self) -> list[Instance]:
        """Return every instance that was not terminated, whether or not its agent runs."""
        return await self._in_thread(self._list)

    async def reboot(self, instance: Instance) -> None:
        """End the agent and start it as another boot."""
        await self._in_thread(lambda: self._reboot(instance.provider_id))

    async def resume(self) -> None:
        """Start the agents that `stop_all` stopped, and those that ended with their container."""
        await self._in_thread(self._resume)

    async def close(self) -> None:
        """End the threads; agents continue."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work)
        except process.BusyError as error:
            raise ProviderError("TRANSIENT", str(error)) from error
        except SetupError as error:
            raise invalid(str(error)) from error
        except OSError as error:
            raise ProviderError("TRANSIENT", f"{self.directory}: {error}") from error

    @contextmanager
    def _alone(self, name: str, seconds_max: float = MUTEX_SECONDS_MAX) -> Iterator[Path]:
        """Hold the instance's lock on this host."""
        if "/" in name or name.startswith("."):
            raise invalid(f"{name!r} cannot name an instance")
        with process.mutex(self.directory / LOCKS / name, seconds_max):
            yield self.directory / name

    def _provision(self, request: ProvisionRequest) -> Instance:
        with self._alone(request.name) as place:
            kept = _read(place) or self._make(place, request)
            if kept.request.token != request.token:
                raise invalid(f"{place} belongs to another fleet's instance of the same name")
            self._start(place, kept)
            return _instance(kept, "running")

    def _make(self, place: Path, request: ProvisionRequest) -> _InstanceFile:
        """Create the directory under another name and rename it, so that it is always complete."""
        plain = msgspec.structs.replace(request, user_data="")  # it may hold credentials
        kept = _InstanceFile(provider=self.name, request=plain, created_at=datetime.now(UTC))
        fresh = place.with_name(f"{NEW}{place.name}")
        shutil.rmtree(fresh, ignore_errors=True)
        (fresh / STATE).mkdir(parents=True)
        (fresh / KMSG).touch()
        write_state(fresh / NVML_STATE, simulated_gpus(request.name, self._gpus(request)))
        (fresh / BOOT_ID).write_text(str(uuid.uuid4()), encoding="ascii")
        (fresh / INSTANCE_FILE).write_bytes(encode(kept))
        fresh.rename(place)
        return kept

    def _gpus(self, request: ProvisionRequest) -> int:
        return request.gpu_count or self._options.gpu_count

    def _start(self, place: Path, kept: _InstanceFile) -> None:
        if process.is_alive(place):
            return
        variables = self._variables(place, kept.request)
        write_agent_start(place, AgentStart(command=self._command, environment=variables))
        pid = process.spawn(place, self._command, variables)
        self._reap()
        if pid:
            self._children.add(pid)
        (place / HALTED).unlink(missing_ok=True)

    def _variables(self, place: Path, request: ProvisionRequest) -> dict[str, str]:
        """Return the agent's environment."""
        agent, gpus = self._environment.agent, self._gpus(request)
        variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        if self._environment.agent_signing_file:
            variables |= self._enrollment(place, request)
        if authority := self._environment.nats_tls_ca_file:
            variables["NAVARCH_NATS_TLS_CA_FILE"] = authority
        if gpus:
            library = build_library(self.directory / LIBRARY)
            variables["NAVARCH_NVML_LIBRARY"] = str(library)
        return variables | {
            "NAVARCH_NATS_URL": self._environment.nats_url,
            "NAVARCH_POOL": request.pool,
            "NAVARCH_NODE": request.node,
            "NAVARCH_INSTANCE": request.name,
            "NAVARCH_ADDRESS": "127.0.0.1",
            "NAVARCH_KMSG": str(place / KMSG),
            "NAVARCH_NVML_STATE": str(place / NVML_STATE),
            "NAVARCH_STATE_DIR": str(place / STATE),
            "NAVARCH_BOOT_ID": (place / BOOT_ID).read_text(encoding="ascii"),
            "NAVARCH_GPU_COUNT": str(gpus),
            "NAVARCH_HEARTBEAT_INTERVAL": f"{agent.heartbeat_interval:g}s",
            "NAVARCH_HEARTBEAT_TTL": f"{agent.heartbeat_ttl:g}s",
            "NAVARCH_SAMPLE_INTERVAL": f"{agent.sample_interval:g}s",
            "NAVARCH_TELEMETRY_INTERVAL": f"{agent.telemetry_interval:g}s",
            "NAVARCH_EXIT_WITHOUT": str(place),
            "NAVARCH_DRILLS": "allowed",
            "NAVARCH_RESET_COMMAND": shlex.join((*HOST_COMMAND, "nvidia-smi")),
            "NAVARCH_REBOOT_COMMAND": shlex.join((*HOST_COMMAND, "reboot", str(place))),
            **self._options.variables,
        }

    def _enrollment(self, place: Path, request: ProvisionRequest) -> dict[str, str]:
        """Let the agent fetch its credentials, unless it has some that it can renew."""
        own, bootstrap = place / CREDENTIALS, place / BOOTSTRAP
        keys = read_agent_keys(Path(self._environment.agent_signing_file))
        now = datetime.now(UTC)
        if not _is_renewable(own, keys, now.timestamp()):
            if own.exists():  # its key stays: the provisioner accepts no other
                if seed := seed_in(own.read_text(encoding="ascii", errors="replace")):
                    write_secret(place / f"{CREDENTIALS}.key", seed)
                own.unlink()
            until = now + timedelta(seconds=self._environment.agent.enroll_within)
            made = bootstrap_credentials(
                keys, request.pool, request.node, request.token, now, until
            )
            write_secret(bootstrap, made, synced=False)
        return {"NAVARCH_NATS_CREDS_FILE": str(own), "NAVARCH_NATS_BOOTSTRAP_FILE": str(bootstrap)}

    def _terminate(self, name: str) -> None:
        with self._alone(name) as place:
            shutil.rmtree(place.with_name(f"{NEW}{name}"), ignore_errors=True)
            if not place.exists():
                return
            process.stop(place)
            aside = place.with_name(f"{TERMINATED}{name}")
            shutil.rmtree(aside, ignore_errors=True)
            place.rename(aside)
            os.utime(aside)
        self._reap()
        self._forget_old()

    def _reboot(self, name: str) -> None:
        with self._alone(name) as place:
            kept = _read(place)
            if kept is None:
                raise invalid(f"there is no instance {name}")
            process.stop(place)
            start_new_boot(place)
            self._start(place, kept)

    def _forget_old(self) -> None:
        """Delete all but the last terminated instances, which operators may inspect."""
        found: list[tuple[float, Path]] = []
        for each in self.directory.glob(f"{TERMINATED}*"):
            with suppress(FileNotFoundError):
                found.append((each.stat().st_mtime, each))
        for _, each in sorted(found)[:-TERMINATED_KEPT_MAX]:
            shutil.rmtree(each, ignore_errors=True)
            lock = self.directory / LOCKS / each.name.removeprefix(TERMINATED)
            lock.unlink(missing_ok=True)

    def _list(self) -> Instances:
        self._reap()
        found = (self._inspect(place) for place in instance_directories(self.directory))
        return [instance for instance in found if instance is not None]

    def _inspect(self, place: Path) -> Instance | None:
        kept = _read(place)
        if kept is None or kept.provider != self.name:
            return None
        try:
            with self._alone(place.name, 0.0):
                status: InstanceStatus = "running" if process.is_alive(place) else "stopped"
                if status == "stopped" and not process.has_lived(place):
                    # The launch was interrupted before the agent's start, and is to be repeated.
                    return None
        except process.BusyError:
            # It is being started or stopped, and exists until then.
            status = "pending"
        return _instance(kept, status)

    def _resume(self) -> None:
        for place in instance_directories(self.directory):
            kept = _read(place)
            if kept is None or kept.provider != self.name:
                continue
            with self._alone(place.name):
                if (place / HALTED).exists() or process.ended_with_host(place):
                    start_new_boot(place)
                    self._start(place, kept)

    def _reap(self) -> None:
        """Reap agents that have ended by themselves; they are children of this process."""
        for pid in tuple(self._children):
            if process.reap(pid):
                self._children.discard(pid)


def instance_directories(directory: Path) -> list[Path]:
    """Return the directories of instances that were not terminated."""
    if not directory.is_dir():
        return []
    return sorted(each for each in directory.iterdir() if not each.name.startswith("."))


def stop_all(directory: Path) -> int:
    """End every agent that was started from this directory; return how many there were.

    The instances stay: they were stopped with their host, and `resume` starts them again.
    """
    places = instance_directories(directory)
    victims = [(place, process.RunningProcess(place)) for place in places]
    living = [(place, victim) for place, victim in victims if victim.found]
    for place, victim in living:
        (place / HALTED).touch()
        victim.request_end()
    for _, victim in living:
        victim.end()
    return len(living)


def _is_renewable(own: Path, keys: AgentKeys, now: float) -> bool:
    """Whether an agent has credentials of these keys, and may still request others with them."""
    _, until = life(str(own.with_name(f"{own.name}.rejoin")))
    return until > now and issuer_of(str(own)) == Key(keys.seed).public


def _read(place: Path) -> _InstanceFile | None:
    """Read the instance's file; None if there is none."""
    try:
        return _kept.decode((place / INSTANCE_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise invalid(f"{place / INSTANCE_FILE} cannot be read: {error}") from error


def _instance(kept: _InstanceFile, status: InstanceStatus) -> Instance:
    made = instance_for(kept.request, kept.request.name)
    return replace(made, status=status, address="127.0.0.1", created_at=kept.created_at)
