"""The command of the owner: what it is given, what its end means, and that none is left behind."""

import asyncio
import json
import os
import shutil
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.duration import Duration
from services.notifier.workload import exec_notifier
from services.notifier.workload.exec_notifier import ExecNotifier, UnansweredCommandError
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.clock import SystemClock
from services.runtime.owner_command import CommandTimeoutError, run_command

NODE = NodeReference(pool="training", node="n1", hostname="gpu1", labels={"rack": "a"})
ORDER = WorkloadOrder(
    node=NODE,
    reason="xid-79; $(reboot)",
    key="replace-1/drain",
    deadline=datetime(2026, 11, 22, 4, 26, tzinfo=UTC),
    urgency="deadline",
)


def notifier(folder: Path, script: str, **options: object) -> ExecNotifier:
    """A notifier whose command is this script."""
    program = folder / "scheduler"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    chosen = ExecNotifier.Options(command=(str(program),), **options)  # type: ignore[arg-type]
    return ExecNotifier(options=chosen, clock=SystemClock())


async def test_the_command_gets_the_documented_order(tmp_path: Path) -> None:
    """The order is on standard input; nothing of it is an argument or goes through a shell."""
    await notifier(tmp_path, f"cat > {tmp_path}/order").drain(ORDER)
    assert json.loads((tmp_path / "order").read_text()) == {
        "version": 1,
        "order": "drain",
        "key": "replace-1/drain",
        "reason": "xid-79; $(reboot)",
        "deadline": "2026-11-22T04:26:00Z",
        "urgency": "deadline",
        "nodes": [{"pool": "training", "node": "n1", "hostname": "gpu1", "labels": {"rack": "a"}}],
    }


async def test_only_named_variables_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notifier's environment holds secrets of other systems."""
    monkeypatch.setenv("SLACK_TOKEN", "secret")
    monkeypatch.setenv("SCHEDULER_URL", "http://scheduler")
    await notifier(tmp_path, f"env > {tmp_path}/env", environment=("SCHEDULER_URL",)).drain(ORDER)
    names = {each.partition("=")[0] for each in (tmp_path / "env").read_text().splitlines()}
    assert "SCHEDULER_URL" in names
    assert not names & {"SLACK_TOKEN", "PYTHONPATH"}


@pytest.mark.parametrize(
    ("script", "failure", "says"),
    [
        ("echo no such node >&2; exit 65", StepFailure, "refuses cordon: no such node"),
        ("echo busy >&2; exit 1", UnansweredCommandError, "ended with 1: busy"),
        ("exit 75", UnansweredCommandError, "ended with 75: it printed nothing"),
        ("kill -9 $$", UnansweredCommandError, "ended with -9"),
        ("sleep 60", UnansweredCommandError, r"took longer than 0\.3 s and was killed"),
        ("printf '\\033[2Jgone' >&2; exit 65", StepFailure, r"\\u001b\[2Jgone"),
    ],
)
async def test_what_an_exit_code_means(
    tmp_path: Path, script: str, failure: type[Exception], says: str
) -> None:
    """65 fails the step; everything else is repeated. Its words are shown without controls."""
    with pytest.raises(failure, match=says):
        await notifier(tmp_path, script, timeout=Duration(0.3)).cordon(ORDER)


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        ('{"nodes":{"n1":{"drained":true}}}', NodeWorkload(drained=True)),
        ('{"nodes":{"n2":{"drained":true}}}', None),
        (
            '{"nodes":{"n1":{"drained":true,"running":[{"id":"job 1"}]}}}',
            NodeWorkload(drained=False, running=({"id": "job 1"},), total=1),  # type: ignore[arg-type]
        ),
    ],
)
async def test_a_status_is_believed_about_nodes_that_were_asked_about(
    tmp_path: Path, printed: str, answer: NodeWorkload | None
) -> None:
    """A node with work is not drained, whatever else the command says."""
    found = (await notifier(tmp_path, f"echo '{printed}'").workloads([NODE])).get("n1")
    if answer is None:
        assert found is None
        return
    assert isinstance(found, NodeWorkload)
    assert (found.drained, found.total) == (answer.drained, answer.total)


async def test_a_time_without_a_zone_is_no_status(tmp_path: Path) -> None:
    """No event may have it, so the field is named in the log."""
    printed = (
        '{"nodes":{"n1":{"drained":false,"running":[{"id":"a","ends_at":"2026-11-22T04:26"}]}}}'
    )
    with pytest.raises(UnansweredCommandError, match="ends_at"):
        await notifier(tmp_path, f"echo '{printed}'").workloads([NODE])


async def test_a_status_that_is_too_long_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is read to its end and dropped, so the command ends and memory is bounded."""
    monkeypatch.setattr(exec_notifier, "OUTPUT_BYTES_MAX", 1000)
    with pytest.raises(UnansweredCommandError, match="more than 1000 bytes"):
        await notifier(tmp_path, "head -c 100000 /dev/zero").workloads([NODE])


async def test_a_program_that_is_gone_fails_the_step(tmp_path: Path) -> None:
    """The step fails although the program was there at the start."""
    made = notifier(tmp_path, "exit 0")
    (tmp_path / "scheduler").unlink()
    with pytest.raises(StepFailure, match="cannot be run: No such file") as failure:
        await made.drain(ORDER)
    assert "full path" in failure.value.remedy


@pytest.mark.skipif(not shutil.which("setsid"), reason="no setsid here: apt-get install util-linux")
async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    """The command ends also where a child has left its session and keeps the output open."""
    pids = tmp_path / "pids"
    script = f"sleep 1000 & echo $! > {pids}; setsid sleep 60 & echo $! >> {pids}; wait"
    with pytest.raises(CommandTimeoutError):
        async with asyncio.timeout(10):
            await run_command(
                ("/bin/sh", "-c", script),
                b"{}",
                environment=(),
                seconds_max=0.3,
                output_bytes_max=100,
            )
    child, stranger = (int(each) for each in pids.read_text().split())
    async with asyncio.timeout(5):
        while Path(f"/proc/{child}").exists():
            await asyncio.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(stranger, 9)
