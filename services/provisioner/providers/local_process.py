"""Runs one agent process per instance directory, exact under any crash of the provisioner.

The process holds a lock on the directory's file `alive` until it ends: the parent takes the lock
and passes it to the child. So the kernel knows whether an instance runs; a process ID may have been
reused. The child writes its ID to `pid` before it becomes the agent.
"""

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ALIVE: Final = "alive"
PID: Final = "pid"
LOG: Final = "agent.log"
HOST: Final = "host"
"""The host's life in which the process was started."""
LOCK_FD: Final = 3
"""The child's descriptor of the lock."""
TERM_SECONDS: Final = 2.0
KILL_SECONDS: Final = 5.0
PID_SECONDS_MAX: Final = 2.0
LOOK_SECONDS: Final = 0.005

SHELL: Final = "/bin/sh"
HAND_OVER: Final = 'echo $$ >"$0" && exec "$@"'


class BusyError(Exception):
    """Another process works on this instance, or its process ID is not known yet: try again."""


@contextlib.contextmanager
def mutex(path: Path, seconds_max: float) -> Iterator[None]:
    """Hold an instance's lock on this host; BusyError if another process holds it for so long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds_max
    with path.open("ab") as file:
        while not _lock(file.fileno()):
            if time.monotonic() >= until:
                raise BusyError(f"another process works on {path.name}")
            time.sleep(LOOK_SECONDS)
        try:
            yield
        finally:
            # Closing is not enough: a child that was just spawned closes its copy of the file a
            # moment later, and keeps the lock until then.
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(directory: Path) -> bool:
    """Return whether the directory's process runs; call it under the mutex."""
    try:
        descriptor = os.open(directory / ALIVE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def has_lived(directory: Path) -> bool:
    """Return whether a process was ever started here."""
    return (directory / PID).exists()


def ended_with_host(directory: Path) -> bool:
    """Return whether the process ended with the host or container that it ran in.

    Call it under the mutex. One that ended while its host went on has crashed, or was killed.
    """
    try:
        started = (directory / HOST).read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return started != _host_life() and not is_alive(directory)


def _host_life() -> str:
    """Return what stays the same while this host, or this container, runs."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    # When process 1 started: field 22, and the second is a name in parentheses.
    fields = Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return f"{boot} {fields[19]}"


def spawn(directory: Path, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the directory's process; return its ID, or 0 if it runs already.

    Call it under the mutex.
    """
    descriptor = os.open(directory / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _lock(descriptor):
            return 0
        (directory / PID).unlink(missing_ok=True)
        (directory / HOST).write_text(_host_life(), encoding="ascii")
        log = str(directory / LOG)
        return os.posix_spawn(
            SHELL,
            [SHELL, "-c", HAND_OVER, str(directory / PID), *command],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, descriptor, LOCK_FD),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
        )
    finally:
        os.close(descriptor)


class RunningProcess:
    """A process to end, distinguished from any later one with the same ID."""

    def __init__(self, directory: Path) -> None:
        """Find the directory's process, if it runs."""
        self._directory = directory
        self._pid = 0
        self._handle = -1
        pid = _pid_of(directory)
        if pid == 0:
            return
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        # Only now is the ID known to be the lock holder's: it runs, and the handle keeps its ID.
        if is_alive(directory):
            self._pid, self._handle = pid, handle
        else:
            os.close(handle)

    @property
    def found(self) -> bool:
        """Return whether it runs."""
        return self._handle >= 0

    def request_end(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def end(self, seconds_max: float = TERM_SECONDS) -> None:
        """Wait for its end, then kill it; BusyError if that takes too long."""
        if not self.found:
            return
        try:
            if not self._wait_for_end(seconds_max):
                self._signal(signal.SIGKILL)
                if not self._wait_for_end(KILL_SECONDS):
                    raise BusyError(f"process {self._pid} does not end")
        finally:
            os.close(self._handle)
            self._handle = -1
        reap(self._pid)
        if is_alive(self._directory):
            # Its children still run, in its group and with its lock.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.found:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def _wait_for_end(self, seconds_max: float) -> bool:
        readable, _, _ = select.select([self._handle], [], [], seconds_max)
        return bool(readable)


def stop(directory: Path) -> None:
    """End the directory's process; call it under the mutex."""
    victim = RunningProcess(directory)
    victim.request_end()
    victim.end()


def reap(pid: int) -> bool:
    """Reap a child that has ended; False if it still runs."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _pid_of(directory: Path) -> int:
    """Return the ID of the directory's process; 0 if it does not run."""
    until = time.monotonic() + PID_SECONDS_MAX
    while is_alive(directory):
        try:
            text = (directory / PID).read_text(encoding="ascii")
        except FileNotFoundError:
            text = ""
        if text.endswith("\n"):
            return int(text)
        if time.monotonic() >= until:
            raise BusyError(f"{directory.name} runs and has not written its process ID")
        time.sleep(LOOK_SECONDS)
    return 0
