"""A real Slurm runs in a folder: munge, slurmctld, and one slurmd for each node.

Each node has eight simulated GPUs: device nodes of which Slurm counts the names. One more node may
register itself, as a replacement does (`slurmd -Z`); of those each needs an address space of its
own, so there is one. Requeued jobs start after five seconds; elsewhere after two minutes, unless
`cred_expire` is set.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from services.primitives.free_ports import free_ports
from tests.support.inprocess import eventually

PROGRAMS: Final = ("slurmctld", "slurmd", "scontrol", "squeue", "sinfo", "sbatch", "munged")
GPUS: Final = 8
COMMAND_SECONDS_MAX: Final = 30.0
READY_SECONDS_MAX: Final = 60.0
CONFIG: Final = """
ClusterName=navarch
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={dynamic_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/run/munge.socket,cred_expire=5
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/slurmd-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=info
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,nohold_on_prolog_fail
CommunicationParameters=NoCtldInAddrAny{addresses}
ReturnToService=0
KillWait=1
SlurmdTimeout={slurmd_timeout}
SlurmctldTimeout=30
InactiveLimit=0
GresTypes=gpu
MaxNodeCount=16
{extra}
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
NodeSet=navarch Feature=navarch
PartitionName=training Nodes=navarch MaxTime=INFINITE State=UP
"""
NODE: Final = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000 "
    "Gres=gpu:h100:8 State=UNKNOWN"
)
GRES: Final = "Name=gpu Type=h100 File={folder}/dev/nvidia[0-7]\n"


def missing() -> str:
    """Return why no Slurm runs here, or nothing if it does."""
    if absent := [each for each in PROGRAMS if not _program(each)]:
        return f"no {absent[0]} here: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.geteuid() == 0 else "slurmd and its device nodes need root"


class SlurmSite:
    """A running cluster; `conf` is its slurm.conf."""

    def __init__(
        self,
        folder: Path,
        nodes: tuple[str, ...],
        extra: str,
        timeout: int,
        *,
        any_address: bool = False,
    ) -> None:
        """Write the configuration."""
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.nodes = nodes
        self._processes: dict[str, Process] = {}
        self._dynamic: set[str] = set()
        """Names of nodes that registered themselves."""
        self._host = socket.gethostname().partition(".")[0]
        ports = free_ports(len(nodes) + 2)
        listed = "\n".join(
            NODE.format(name=name, host=self._host, port=port)
            for name, port in zip(nodes, ports[2:], strict=True)
        )
        (folder / "dev").mkdir()
        for index in range(GPUS):
            os.mknod(folder / f"dev/nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "gres.conf").write_text(GRES.format(folder=folder))
        self.conf.write_text(
            CONFIG.format(
                folder=folder,
                host=self._host,
                ctld_port=ports[0],
                dynamic_port=ports[1],
                slurmd_timeout=timeout,
                nodes=listed,
                extra=extra,
                addresses="" if any_address else ",NoInAddrAny",
            )
        )

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment that every Slurm command here needs."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def run(self, *command: str) -> str:
        """The output of a Slurm command; CalledProcessError if it fails."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=COMMAND_SECONDS_MAX,
        )
        return done.stdout.strip()

    def state(self, node: str) -> str:
        """Return a node's state with its flags, as `allocated+drain`."""
        shown = self.run("sinfo", "-hNn", node, "-O", "StateComplete:100")
        return shown.partition("\n")[0].strip()  # a line for each of its partitions

    def flags(self, node: str) -> set[str]:
        """Return the parts of a node's state."""
        return set(self.state(node).split("+"))

    def reason(self, node: str) -> str:
        """Return a node's reason as `sinfo -R` shows it."""
        return self.run("sinfo", "-hNn", node, "-o", "%E").partition("\n")[0]

    def job_state(self, job: str) -> str:
        """`RUNNING`, `PENDING`, …; empty: it is over and forgotten."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T")

    def job_nodes(self, job: str) -> str:
        """Return the nodes on which a job runs, as Slurm abbreviates them."""
        return self.run("squeue", "-h", "-j", job, "-o", "%N")

    async def submit(self, *options: str, script: str = "sleep 300") -> str:
        """Start a batch job and wait until it runs; return its id."""
        job = self.run("sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap", script)
        await self.until_job(job, "RUNNING")
        return job

    def job_hosts(self, job: str) -> set[str]:
        """Return the nodes on which a job runs, one by one."""
        return set(self.run("scontrol", "show", "hostnames", self.job_nodes(job)).split())

    async def until_job(
        self, job: str, *states: str, within_seconds: float = READY_SECONDS_MAX
    ) -> None:
        """Wait until a job has one of these states."""

        async def reached() -> bool:
            return self.job_state(job) in states

        await eventually(reached, within_seconds=within_seconds, every=0.1)

    async def until_state(self, node: str, *states: str) -> None:
        """Wait until a node has one of these states."""

        async def reached() -> bool:
            return self.state(node) in states

        await eventually(reached, within_seconds=READY_SECONDS_MAX, every=0.1)

    async def start_controller(self) -> None:
        """Start slurmctld and wait until it answers."""
        await self._start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

        async def answers() -> bool:
            with suppress(subprocess.CalledProcessError):
                return "UP" in self.run("scontrol", "ping")
            return False

        await eventually(answers, within_seconds=READY_SECONDS_MAX, every=0.05)

    async def start_node(self, name: str, *, rebooted: bool = False) -> None:
        """Start the slurmd of a node of slurm.conf; `rebooted`: as on a new machine."""
        options = ("-b",) if rebooted else ()
        await self._start(name, "slurmd", "-D", *options, "-N", name, "-f", str(self.conf))

    async def start_by_command(self, name: str, *arguments: str) -> None:
        """Start the slurmd of a node by a command of the administrator."""
        await self._start(name, "slurmd", *arguments, "-f", str(self.conf))

    async def start_dynamic_node(self, name: str) -> None:
        """Start a slurmd that registers itself.

        Only one at a time has the port at which slurmctld looks for such a node; others register
        and are given jobs, which slurmctld cannot start.
        """
        about = "CPUs=4 RealMemory=1000 Gres=gpu:h100:8 Feature=navarch NodeAddr=127.0.0.1"
        conf = self.conf.read_text()
        if self._dynamic & self._processes.keys():
            [port] = free_ports(1)
            conf = re.sub("(?m)^SlurmdPort=.*$", f"SlurmdPort={port}", conf)
        self._dynamic.add(name)
        folder = self.folder / f"dynamic-{name}"
        folder.mkdir()
        (folder / "slurm.conf").write_text(conf)
        (folder / "gres.conf").write_text((self.folder / "gres.conf").read_text())
        await self._start(
            *(name, "slurmd", "-D", "-Z", "-N", name, "-f", str(folder / "slurm.conf")),
            *("--conf", about),
        )

    async def kill(self, name: str) -> None:
        """End slurmctld or a node's slurmd with its jobs, as a power cut would."""
        process = self._processes.pop(name)
        process.kill()
        await process.wait()
        self._kill_jobs(name)

    async def stop(self, name: str) -> None:
        """End slurmctld or a node's slurmd in order."""
        process = self._processes.pop(name)
        process.terminate()
        await process.wait()

    async def end(self) -> None:
        """End everything, and what the jobs left."""
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._processes.values():
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
                await process.wait()
        self._kill_jobs("*")

    def _kill_jobs(self, name: str) -> None:
        """Kill a node's slurmstepds, which outlive slurmd, and what runs below them."""
        log = str(self.folder / f"slurmd-{name}.log")
        sessions = {_session(each) for each in _processes() if _has_open(each, log)} - {0}
        # Each slurmstepd before its job: one that sees its job end reports it to slurmctld.
        for each in sorted(_processes()):
            if _session(each) in sessions:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)

    async def _start(self, name: str, program: str, *arguments: str) -> None:
        path = _program(program)
        assert path is not None
        log = (self.folder / f"{name}.out").open("ab")
        with log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                path, *arguments, env=self.environment, stdout=log, stderr=log
            )


@asynccontextmanager
async def slurm_site(
    nodes: tuple[str, ...] = ("gpu1", "gpu2", "gpu3"),
    *,
    folder: Path | None = None,
    extra: str = "",
    slurmd_timeout: int = 30,
    any_address: bool = False,
) -> AsyncIterator[SlurmSite]:
    """A cluster of idle nodes, in a folder that every user may enter, as munge must.

    `folder`: where its files are; None: a temporary folder. `any_address`: slurmd listens on every
    address of the machine, as it must where slurm.conf does not know the node's.
    """
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="navarch-slurm-")))
        stack.enter_context(munge(folder / "munge"))
        site = SlurmSite(folder, nodes, extra, slurmd_timeout, any_address=any_address)
        try:
            await site.start_controller()
            for each in nodes:
                await site.start_node(each)
            for each in nodes:
                await site.until_state(each, "idle")
            yield site
        finally:
            await site.end()


@contextmanager
def munge(folder: Path) -> Iterator[None]:
    """Run a munged of our own, as the user munge, with a key of its own."""
    private, run = folder / "private", folder / "run"
    folder.parent.chmod(0o755)
    for each, mode in ((folder, 0o755), (private, 0o700), (run, 0o755)):
        each.mkdir()
        each.chmod(mode)
    (private / "key").write_bytes(os.urandom(128))
    (private / "key").chmod(0o600)
    for each in (private, private / "key", run):
        shutil.chown(each, "munge", "munge")
    path = _program("munged")
    assert path is not None
    command = [path, "--foreground", f"--key-file={private}/key"]
    command += [f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid"]
    command += [f"--log-file={private}/log", f"--seed-file={private}/seed"]
    with subprocess.Popen(command, user="munge", group="munge", stderr=DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def _processes() -> Iterator[int]:
    """The ids of this machine's processes."""
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())


def _has_open(process: int, pattern: str) -> bool:
    """Whether a process has a file open whose path matches."""
    with suppress(OSError), os.scandir(f"/proc/{process}/fd") as files:
        return any(fnmatch(os.path.realpath(each.path), pattern) for each in files)
    return False


def _session(process: int) -> int:
    """Its session; 0: it has ended."""
    with suppress(ProcessLookupError):
        return os.getsid(process)
    return 0


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
