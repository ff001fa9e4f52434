"""Starts Python programs by forking a process that has imported their modules.

A program needs most of a second of processor time to import what it uses, and the tests start
hundreds. Apart from that a forked program is a process like any other: its own PID, memory, files
and signals. One process forks for all tests of a pytest process, and ends with it.
"""

import asyncio
import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from services.primitives.process_lifetime import PR_SET_PDEATHSIG

ROOT: Final = Path(__file__).resolve().parents[2]
MESSAGE_BYTES_MAX: Final = 1 << 18
LINE_BYTES_MAX: Final = 1 << 20
DESCRIPTORS_MAX: Final = 1024
IMPORTED: Final = (
    "services.runtime.import_trim",
    "services.provisioner.providers.fake",
    "services.provisioner.providers.local",
    "services.pool_manager.service",
    "services.health_monitor.service",
    "services.provisioner.service",
    "services.notifier.service",
    "services.metrics.service",
    "services.cli.app",
    "services.cli.bus_client",
    "services.fleet_client.explanation",
)
"""In this order."""


class ForkedProcess:
    """Controls one program, with what `asyncio.subprocess.Process` offers of it."""

    def __init__(self, pid: int, outputs: tuple[asyncio.StreamReader, ...]) -> None:
        """It runs; `outputs` has its stdout and, if that is read separately, its stderr."""
        self.pid = pid
        self.stdout = outputs[0]
        self.stderr = outputs[-1] if len(outputs) > 1 else None
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code, or minus the signal that killed it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes, bytes]:
        """Wait until it has ended; return all of its outputs."""
        readers = [each for each in (self.stdout, self.stderr) if each is not None]
        found = await asyncio.gather(*(each.read() for each in readers))
        await self.wait()
        return found[0], found[1] if len(found) > 1 else b""

    def terminate(self) -> None:
        """Request its end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, signal: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, signal)

    def end(self, returncode: int) -> None:
        """Record that it has ended."""
        self.returncode = returncode
        self._ended.set()


class ForkServer:
    """A connection to the process that forks: leave it and whatever it started is killed."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._starting: deque[asyncio.Future[ForkedProcess]] = deque()
        self._outputs: deque[tuple[asyncio.StreamReader, ...]] = deque()
        self._running: dict[int, ForkedProcess] = {}

    async def __aenter__(self) -> Self:
        """Connect; orders wait until the server has imported everything."""
        self._control.connect(_address())
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()

    async def start(
        self,
        program: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        cwd: Path = ROOT,
        separate: bool = False,
    ) -> ForkedProcess:
        """Run a module with its arguments, as `python -m` would; `separate`: read stderr apart."""
        pipes = [await _pipe() for _ in range(2 if separate else 1)]
        order = {"program": program, "environment": dict(environment), "cwd": str(cwd)}
        started: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._starting.append(started)
        self._outputs.append(tuple(reader for reader, _ in pipes))
        socket.send_fds(self._control, [json.dumps(order).encode()], [each for _, each in pipes])
        for _, writing in pipes:
            os.close(writing)
        return await started

    def _receive(self) -> None:
        data = self._control.recv(MESSAGE_BYTES_MAX)
        if not data:  # its standard error says why
            asyncio.get_running_loop().remove_reader(self._control)
            for each in self._starting:
                each.set_exception(RuntimeError("the fork server has ended"))
            return
        pid, status = json.loads(data)
        if status is None:
            process = ForkedProcess(pid, self._outputs.popleft())
            self._running[pid] = process
            self._starting.popleft().set_result(process)
        else:
            self._running.pop(pid).end(status)


async def _pipe() -> tuple[asyncio.StreamReader, int]:
    """A pipe's end to read from, and the descriptor of the other."""
    reading, writing = os.pipe()
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
    )
    return reader, writing


@cache
def _address() -> str:
    """Start the process that forks; the address on which it takes orders.

    It ends when its standard input does.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    address = f"\0navarch-fork-{os.getpid()}"
    listening.bind(address)
    listening.listen()
    number = listening.fileno()
    server = subprocess.Popen(
        (sys.executable, "-m", "tests.support.fork_server", str(number)),
        pass_fds=(number,),
        stdin=subprocess.PIPE,
        cwd=ROOT,
    )
    listening.close()
    atexit.register(server.communicate)
    return address


def serve(listening: socket.socket) -> None:
    """Fork a program for each order, and report each PID and exit status, until stdin ends."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    for each in (0, listening, woken):
        waiting.register(each, selectors.EVENT_READ)
    while True:
        ready = [key.fileobj for key, _ in waiting.select()]
        for each in ready:
            if each == 0:
                _kill(running)
                return
            if each is listening:
                waiting.register(listening.accept()[0], selectors.EVENT_READ)
            elif each is woken:
                woken.recv(MESSAGE_BYTES_MAX)
            elif isinstance(each, socket.socket) and not _obey(each, running):
                waiting.unregister(each)
                _kill({pid: owner for pid, owner in running.items() if owner is each})
                each.close()
        for pid, status in _ended():
            owner = running.pop(pid)
            _report(owner, pid, status)


def _obey(control: socket.socket, running: dict[int, socket.socket]) -> bool:
    """Fork a program if one is ordered; False: the connection has ended."""
    data, outputs, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 2)
    if not data:
        return False
    pid = os.fork()
    if pid == 0:
        _run(json.loads(data), outputs)
    for each in outputs:
        os.close(each)
    running[pid] = control
    _report(control, pid, None)
    return True


def _report(control: socket.socket, pid: int, status: int | None) -> None:
    with suppress(OSError):  # it has disconnected
        control.send(json.dumps([pid, status]).encode())


def _kill(running: Mapping[int, socket.socket]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _ended() -> list[tuple[int, int]]:
    found = []
    try:
        while (each := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((each[0], os.waitstatus_to_exitcode(each[1])))
    except ChildProcessError:
        pass
    return found


def _run(order: dict[str, Any], outputs: list[int]) -> NoReturn:
    """Be the program: with its own session, outputs, environment, directory and arguments.

    The kernel kills it if the server ends.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, outputs[0], outputs[-1])):
        os.dup2(descriptor, number)
    os.closerange(3, DESCRIPTORS_MAX)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    module, *arguments = order["program"]
    sys.argv = [module, *arguments]
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the interpreter's own last resort
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    for _name in IMPORTED:
        importlib.import_module(_name)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
