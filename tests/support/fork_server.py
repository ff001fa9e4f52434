"""Starts Python programs by forking a process that has imported their modules.

A service needs most of a second of processor time to import what it uses, and the crash tests
start hundreds. Apart from that a forked program is a process like any other: its own PID, memory,
files and signals.
"""

import asyncio
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Self

ROOT: Final = Path(__file__).resolve().parents[2]
MESSAGE_BYTES_MAX: Final = 1 << 18


class ForkedProcess:
    """One program, with what `asyncio.subprocess.Process` offers of it."""

    def __init__(self, pid: int, stdout: asyncio.StreamReader) -> None:
        """It runs; both of its outputs are read from `stdout`."""
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code, or minus the signal that killed it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def end(self, returncode: int) -> None:
        """Record that it has ended."""
        self.returncode = returncode
        self._ended.set()


class ForkServer:
    """The process that forks. Enter it to start it; leave it and whatever it forked is killed."""

    def __init__(self, *modules: str) -> None:
        """Import these modules, in this order."""
        self._modules = modules
        self._control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._starting: deque[asyncio.Future[ForkedProcess]] = deque()
        self._outputs: deque[asyncio.StreamReader] = deque()
        self._running: dict[int, ForkedProcess] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Start it; orders wait until it has imported everything."""
        number = self._theirs.fileno()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.fork_server", str(number), *self._modules),
            pass_fds=(number,),
            stdin=asyncio.subprocess.DEVNULL,
            cwd=ROOT,
        )
        self._theirs.close()
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._receive)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        if self._process is not None:
            await self._process.wait()

    async def start(
        self, program: tuple[str, ...], environment: Mapping[str, str], line_bytes_max: int
    ) -> ForkedProcess:
        """Run a module with its arguments, as `python -m` would."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        stdout = asyncio.StreamReader(limit=line_bytes_max)
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(reading, "rb")
        )
        order = json.dumps({"program": program, "environment": dict(environment)}).encode()
        started: asyncio.Future[ForkedProcess] = loop.create_future()
        self._starting.append(started)
        self._outputs.append(stdout)
        socket.send_fds(self._control, [order], [writing])
        os.close(writing)
        return await started

    def _receive(self) -> None:
        data = self._control.recv(MESSAGE_BYTES_MAX)
        if not data:
            raise RuntimeError("the fork server has ended")
        pid, status = json.loads(data)
        if status is None:
            process = ForkedProcess(pid, self._outputs.popleft())
            self._running[pid] = process
            self._starting.popleft().set_result(process)
        else:
            self._running.pop(pid).end(status)


def serve(control: socket.socket) -> None:
    """Fork a program for each order, and report each PID and exit status."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: set[int] = set()
    waiting = selectors.DefaultSelector()
    waiting.register(control, selectors.EVENT_READ)
    waiting.register(woken, selectors.EVENT_READ)
    while True:
        ready = {key.fileobj for key, _ in waiting.select()}
        if control in ready:
            data, outputs, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
            if not data:
                break
            pid = os.fork()
            if pid == 0:
                control.close()
                _run(json.loads(data), outputs[0])
            os.close(outputs[0])
            running.add(pid)
            control.send(json.dumps([pid, None]).encode())
        if woken in ready:
            woken.recv(MESSAGE_BYTES_MAX)
            for pid, status in _ended():
                running.discard(pid)
                control.send(json.dumps([pid, status]).encode())
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


def _run(order: dict[str, Any], output: int) -> NoReturn:
    """Be the program: with its own session, outputs, environment and arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
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
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    serve(socket.socket(fileno=int(sys.argv[1])))
