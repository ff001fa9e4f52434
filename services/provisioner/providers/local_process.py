"""One agent process per instance directory, exact under any crash of the provisioner.

The process holds a lock on the directory's file `alive` from before it exists as a program until it
ends: the lock is taken first and handed to the child. So whether an instance lives is a question to
the kernel and never to a process number, which may be another's by now. The child itself writes
its number to `pid`, before it becomes the agent.
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
LOCK_FD: Final = 3
"""Where the child finds the lock; it need do nothing with it."""
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
    """Be the only one on this host who works on an instance; BusyError where one does for long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds_max
    with path.open("ab") as file:
        while not _lock(file.fileno()):
            if time.monotonic() >= until:
                raise BusyError(f"{path.name} is being worked on")
            time.sleep(LOOK_SECONDS)
        try:
            yield
        finally:
            # Closing is not enough: a child that was just spawned drops its copy of the file a
            # moment after its parent goes on, and until then the lock would remain.
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(directory: Path) -> bool:
    """Whether the directory's process lives; to be asked under the mutex."""
    try:
        descriptor = os.open(directory / ALIVE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor)
    finally:
        os.close(descriptor)


def has_lived(directory: Path) -> bool:
    """Whether a process was ever started here."""
    return (directory / PID).exists()


def spawn(directory: Path, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start the directory's process unless it lives; return its number, 0 if it lived already.

    To be called under the mutex.
    """
    descriptor = os.open(directory / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _lock(descriptor):
            return 0
        (directory / PID).unlink(missing_ok=True)
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
        """Find the directory's process; none where it does not live."""
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
        # Only now is the number known to be the holder's: it lives, and we have hold of it.
        if is_alive(directory):
            self._pid, self._handle = pid, handle
        else:
            os.close(handle)

    @property
    def found(self) -> bool:
        """Whether there is anything to end."""
        return self._handle >= 0

    def ask(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def end(self, seconds_max: float = TERM_SECONDS) -> None:
        """Wait for it, then end it by force; BusyError where even that takes long."""
        if not self.found:
            return
        try:
            if not self._ended(seconds_max):
                self._signal(signal.SIGKILL)
                if not self._ended(KILL_SECONDS):
                    raise BusyError(f"process {self._pid} does not end")
        finally:
            os.close(self._handle)
            self._handle = -1
        reap(self._pid)
        if is_alive(self._directory):
            # What it started lives on, in its group and with its lock.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.found:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def _ended(self, seconds_max: float) -> bool:
        readable, _, _ = select.select([self._handle], [], [], seconds_max)
        return bool(readable)


def stop(directory: Path) -> None:
    """End the directory's process; to be called under the mutex."""
    victim = RunningProcess(directory)
    victim.ask()
    victim.end()


def reap(pid: int) -> bool:
    """Let a child that has ended go; False where it still runs."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _pid_of(directory: Path) -> int:
    """The number of the directory's process; 0 where none lives."""
    until = time.monotonic() + PID_SECONDS_MAX
    while is_alive(directory):
        try:
            text = (directory / PID).read_text(encoding="ascii")
        except FileNotFoundError:
            text = ""
        if text.endswith("\n"):
            return int(text)
        if time.monotonic() >= until:
            raise BusyError(f"{directory.name} lives and has not said its process number")
        time.sleep(LOOK_SECONDS)
    return 0
