"""`make demo`: it works, also beside another copy, and leaves nothing behind."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.node_events import GpuIdentity
from services.cli.commands.demo_command import xid_79
from tests.support.busyness import allowed

Leftovers = Callable[[Path], list[str]]
ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def started(temporary: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the demo with a known temporary directory; stop it if the test fails."""
    temporary.mkdir()
    keep = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")}
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "demo"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=keep | {"TMPDIR": str(temporary)},
        cwd=ROOT,
    )
    try:
        yield demo
    finally:
        if demo.returncode is None:
            demo.terminate()
            await demo.communicate()


@pytest.mark.slow
async def test_two_demos_at_once_each_replace_a_node_and_leave_nothing(
    tmp_path: Path, processes_naming: Leftovers
) -> None:
    """Exit code 0, the outcome on the last line, and neither process nor file afterwards."""
    async with started(tmp_path / "one") as one, started(tmp_path / "two") as two:
        async with asyncio.timeout(150):
            outputs = await asyncio.gather(one.communicate(), two.communicate())
        said = [out.decode() for out, _ in outputs]
        assert [one.returncode, two.returncode] == [0, 0], "\n".join(said)
    for text in said:
        outcome: dict[str, Any] = json.loads(text.splitlines()[-1])
        assert outcome["ok"] is True
        assert 0 < outcome["kmsg_to_cordon_ms"] < outcome["kmsg_to_replaced_ms"]
        assert outcome["kmsg_to_replaced_ms"] < allowed(30.0) * 1000
        assert outcome["old_node"] != outcome["new_node"]
        for step in ("cordon", "drain", "terminate", "provision", "bootstrap", "register", "admit"):
            assert f"{step} succeeded" in text
    assert processes_naming(tmp_path) == []
    assert [list((tmp_path / name).iterdir()) for name in ("one", "two")] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "last"),
    [(signal.SIGINT, 130, "stopped; nothing is left running"), (signal.SIGKILL, -9, "")],
)
async def test_a_demo_that_is_interrupted_leaves_nothing(
    number: int, status: int, last: str, tmp_path: Path, processes_naming: Leftovers
) -> None:
    """Ctrl-C and kill -9 end every process and remove the directory."""
    async with started(tmp_path / "one") as demo:
        assert demo.stdout is not None
        async with asyncio.timeout(60):
            while b"8 GPUs, active" not in (line := await demo.stdout.readline()):
                assert line, "it ended before its nodes came"
            demo.send_signal(number)
            # The process that clears up after a killed one holds its end of the pipe.
            rest = (await demo.stdout.read()).decode()
            assert await demo.wait() == status
    # Who is killed says nothing more, but may have said before that further nodes came.
    assert not last or rest.splitlines()[-1] == last
    assert processes_naming(tmp_path) == []
    assert list((tmp_path / "one").iterdir()) == []


def test_the_demo_writes_what_the_driver_writes() -> None:
    """The line is a kernel log record whose text is the driver's."""
    gpu = GpuIdentity(index=3, pci="0000:61:00")
    assert xid_79(gpu, 7, 12) == (
        "3,7,12,-;NVRM: Xid (PCI:0000:61:00): 79, pid='<unknown>', name=<unknown>, "
        "GPU has fallen off the bus."
    )
