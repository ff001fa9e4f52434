"""Tests of the host: asked for, at boot and by schedule; each with its own risk."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.__main__ import run
from agent.maintenance.diagnostics import gpu_memory_test
from agent.maintenance.diagnostics.tool_runner import OUTPUT_BYTES_MAX, ToolHung, run_tool
from agent.maintenance.diagnostics_runner import DiagnosticsRunner
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.duration import Duration
from schemas.node_records import NodeRecord, node_key
from schemas.subjects import node_command
from schemas.topology import NODES
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.providers.local_gpus import compile_library, compiler
from tests.agent.bed import Bed
from tests.agent.conftest import AgentHost, contents, events


async def answer(diagnostics: DiagnosticsRunner, *names: str, **more: Any) -> Diagnosis:
    """Ask for tests."""
    return await diagnostics.answer(DiagnoseRequest(checks=names, **more))


async def test_what_is_asked_for_is_run_and_answered(bed: Bed):
    """Each test's outcome is in the answer, in order; a failure of the hardware is a fault, too."""
    bed.install("dcgmi", "dcgm-4-level3-fail.json", 226)
    bed.install("all_reduce_perf", "nccl.txt")
    bed.cordoned = True
    found = await answer(bed.make(), "boot", "nccl", "dcgm", level=3)
    assert [(each.name, each.ok) for each in found.checks] == [
        ("gpus-visible", True),
        ("nccl", True),
        ("dcgm", False),
    ]
    assert (found.ok, found.refused) == (False, "")
    assert [(each.name, each.gpus, each.metrics["level"]) for each in bed.failures] == [
        ("dcgm", (1,), 3)
    ]
    assert bed.asked("dcgmi") == ["diag -r 3 -j"]
    assert bed.asked("all_reduce_perf") == ["-b 8M -e 1G -f 2 -g 2"]


@pytest.mark.parametrize("names", [("boot",), ("smile",)])
async def test_each_answer_has_what_holds_and_what_is_unknown(bed: Bed, names: tuple[str, ...]):
    """Conditions come even where no test was run: a node whose driver hangs must not look well."""
    found = await answer(bed.make(), *names)
    seen = [(each.name, each.gpu_index, each.unknown) for each in found.conditions]
    assert seen == [("pcie-width", 3, False), ("nvml", -1, True)]


REFUSALS: list[tuple[tuple[str, ...], int, bool | None, str]] = [
    (("nccl",), 1, False, "nccl: needs the GPUs for itself; cordon this node first"),
    (("dcgm", "burn"), 2, False, "dcgm, burn: needs the GPUs for itself"),
    (("nccl",), 1, None, "nccl: whether this node is cordoned cannot be known now"),
    (("boot", "smile"), 1, True, "no check named smile (known: boot, burn, dcgm, memory, nccl"),
]


@pytest.mark.parametrize(("names", "level", "cordoned", "expected"), REFUSALS)
async def test_exclusive_tests_are_refused_unless_cordoned(
    bed: Bed, names: tuple[str, ...], level: int, cordoned: bool | None, expected: str
):
    """Tests that need the GPUs alone, or do not exist, are refused whole and with the reason."""
    for program in ("dcgmi", "all_reduce_perf", "gpu_burn"):
        bed.install(program)
    bed.cordoned = cordoned
    found = await answer(bed.make(), *names, level=level)
    assert (found.ok, found.checks) == (False, ())
    assert found.refused.startswith(expected)
    assert bed.asked("dcgmi") + bed.asked("all_reduce_perf") + bed.asked("gpu_burn") == []


async def test_the_first_level_disturbs_no_job(bed: Bed):
    """`dcgmi diag -r 1` is run on a node in service."""
    bed.install("dcgmi", "dcgm-4-level1.json")
    assert (await answer(bed.make(), "dcgm")).ok


async def test_a_missing_tool_is_said_so_and_is_no_fault(bed: Bed):
    """Asked for by name, a test without its tool fails in the answer and nowhere else."""
    found = await answer(bed.make(), "dcgm", "burn")
    assert [each.detail for each in found.checks] == [
        "dcgmi is not on this host",
        "gpu_burn or gpu-burn is not on this host",
    ]
    assert (found.ok, bed.failures) == (False, [])


async def test_a_tool_is_run_at_home(bed: Bed):
    """gpu_burn finds its kernel beside itself, and gets its duration as argument."""
    bed.install("gpu_burn", "burn.txt", script='pwd >> "$0.home"')
    bed.cordoned = True
    found = await answer(bed.make(), "burn", seconds=7)
    assert [each.detail for each in found.checks] == ["2 GPUs burnt for 7 s"]
    home = Path((bed.install("x").parent / "gpu_burn.home").read_text().strip())
    assert (bed.asked("gpu_burn"), home) == (["7"], bed.install("x").parent.resolve())


# --- running a tool ------------------------------------------------------------------------------


async def test_a_tool_that_hangs_is_stopped_with_all_it_started(tmp_path: Path):
    """The deadline ends the whole process group, also one that does not want to go."""
    mark = tmp_path / "child"
    script = f"trap '' TERM; sleep 600 & echo $! > {mark}; echo said; wait; wait"
    began = time.monotonic()
    with pytest.raises(ToolHung, match=r"not done in 0\.5 s"):
        await run_tool(
            ("/bin/sh", "-c", script),
            seconds_max=0.5,
            environment={"PATH": "/usr/bin:/bin"},
            grace_seconds=0.2,
        )
    assert time.monotonic() - began < 20
    async with asyncio.timeout(60):
        while _alive(int(mark.read_text())):
            await asyncio.sleep(0)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


async def test_output_is_kept_within_bounds():
    """The front and the back of endless output are kept; secrets are not handed on."""
    script = (
        "import os; print(os.environ.get('NAVARCH_NATS_PASSWORD')); print('x' * 9_000_000 + 'end')"
    )
    output = await run_tool(
        (sys.executable, "-c", script),
        seconds_max=60,
        environment={"NAVARCH_NATS_PASSWORD": "secret"},
    )
    assert output.text.startswith("None\n")
    assert output.text.endswith("end\n")
    assert len(output.text) <= OUTPUT_BYTES_MAX + 65_536
    assert (output.code, output.errors) == (0, "")


# --- at boot and by schedule ---------------------------------------------------------------------


async def test_boot_tests_are_those_that_the_host_has(bed: Bed):
    """nvidia-smi where it is installed, and our own memory test, unless the GPUs are in use."""
    bed.install("nvidia-smi", "nvidia-smi-lost.txt", 15)
    (smi, *_) = await bed.make().at_boot()
    assert (smi.name, smi.ok) == ("nvidia-smi", False)
    assert [each.name for each in bed.failures] == ["nvidia-smi"]
    assert not bed.make(nvml_library="/x").boot_tests
    assert not bed.make(boot_tests="none").boot_tests
    assert not Bed(bed.install("x").parent / "none").make(gpu_count=0).boot_tests


async def test_the_schedule_runs_and_reports_a_failure_once(bed: Bed):
    """A test that fails at every run is reported when it begins and every quarter of an hour."""
    bed.install("nvidia-smi", "nvidia-smi-lost.txt", 15)
    bed.install("nvbandwidth", "nvbandwidth.json")
    diagnostics = bed.make(
        diagnose_interval=Duration(300), diagnose_checks="nvidia-smi, nvbandwidth, dcgm"
    )
    task = asyncio.create_task(diagnostics.run())
    async with asyncio.timeout(60):
        await bed.clock.pass_on(times=5)
        await bed.clock.pausing.acquire()
    task.cancel()
    await asyncio.wait({task})
    assert len(bed.asked("nvidia-smi")) == 5
    assert bed.asked("nvbandwidth") == []
    assert [each.name for each in bed.failures] == ["nvidia-smi"] * 2


# --- the memory test -----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in for libcuda.so.1."""
    if compiler() is None:
        pytest.skip("no C compiler, so no simulated CUDA")
    source = Path(__file__).parent / "simulated_cuda.c"
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    compile_library(source, library)
    return library


MEMORY = [
    ("", True, "2 GPUs hold what is written to them"),
    ("flip", False, "memory does not hold what is written: near byte"),
    ("init 802", False, "CUDA does not start: cuInit answers with CUDA error 802"),
    ("context 46", True, "0 GPUs hold what is written to them, 2 are in use"),
    ("alloc 2", True, "0 GPUs hold what is written to them, 2 are in use"),
    ("context 999", False, "GPU GPU-00000000-0000-0000-0000-000000000000: cuDevicePrimaryCtx"),
]


@pytest.mark.parametrize(("order", "ok", "detail"), MEMORY, ids=[m[0] for m in MEMORY])
async def test_memory_is_written_and_read(
    bed: Bed, cuda: Path, monkeypatch: pytest.MonkeyPatch, order: str, ok: bool, detail: str
):
    """Memory reads back as written; a CUDA that does not start fails; a GPU in use is let be."""
    monkeypatch.setenv("CUDA_STAND_IN", order)
    process = await run_tool(
        (sys.executable, "-m", gpu_memory_test.__name__, str(cuda), "1048576"),
        seconds_max=60,
        environment=os.environ,
    )
    checks = bed.make(cuda_library=str(cuda))._checks
    found = checks["memory"].parse(process, bed.make()._parameters(1))
    assert (found.ok, found.ran) == (ok, True)
    assert found.detail.startswith(detail)


async def test_without_cuda_the_memory_test_says_nothing(bed: Bed):
    """Where there is no CUDA driver the test cannot be run, which is no failure of the memory."""
    process = await run_tool(
        (sys.executable, "-m", gpu_memory_test.__name__, "/missing/libcuda.so.1", "1048576"),
        seconds_max=60,
        environment=os.environ,
    )
    found = bed.make()._checks["memory"].parse(process, bed.make()._parameters(1))
    assert (found.ran, process.code) == (False, 2)
    bed.busy = True
    assert await bed.make().at_boot() == ()


async def test_nothing_is_tested_while_the_boot_checks_wait(bed: Bed) -> None:
    """The request is repeated: a driver that is late after a reboot is not one that fails."""
    bed.waits = "the boot checks are not over: NVML does not start: Driver Not Loaded"
    found = await bed.make().answer(DiagnoseRequest(checks=("boot",)))
    assert (found.ok, found.refused, found.checks) == (False, bed.waits, ())
    bed.waits = ""
    assert (await bed.make().answer(DiagnoseRequest(checks=("boot",)))).refused == ""


# --- the agent as a process ----------------------------------------------------------------------


async def test_an_agent_answers_a_diagnose_request(host: AgentHost, bus: NatsBus, bed: Bed):
    """Refused on a node in service; on a cordoned one it is run and its failure reported."""
    bed.install("dcgmi", "dcgm-4-level3-fail.json", 226)
    await host.start(PATH=f"{bed.install('x').parent}:{os.environ['PATH']}")
    await events(bus, host.node, 2)
    subject = node_command("training", host.node, "diagnose")

    async def ask(**body: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (await bus.request(subject, json.dumps(body).encode(), timeout_seconds=60)).data
        )
        return found

    assert (await ask(checks=["dcgm"], level=3))["refused"].startswith("dcgm: whether this node")
    record = NodeRecord(pool="training", node=host.node)
    key = node_key("training", host.node)
    await bus.put(NODES, key, msgspec.json.encode(record))
    assert (await ask(checks=["dcgm"], level=3))["refused"].startswith("dcgm: needs the GPUs")
    await bus.put(NODES, key, msgspec.json.encode(msgspec.structs.replace(record, cordoned=True)))
    found = await ask(checks=["dcgm"], level=3)
    assert (found["ok"], found["checks"][0]["name"]) == (False, "dcgm")
    assert (await ask())["ok"]
    assert (await ask(check="dcgm"))["error"] == "invalid-request"
    (fault,) = contents((await events(bus, host.node, 3))[2:])
    assert (fault["kind"], fault["subcode"], fault["gpu_index"]) == ("diagnostic", "dcgm", 1)
    assert fault["gpu_uuid"] == host.gpus[1].uuid
    assert fault["metrics"] == {"check": "dcgm", "level": 3, "passed": 5, "failed": 1, "gpus": "1"}


async def test_the_command_asks_the_nodes_own_agent(
    host: AgentHost,
    bus: NatsBus,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """`navarch-agent diagnose` prints what the agent answers, and its exit status means it."""
    await host.start()
    await events(bus, host.node, 2)
    for name, value in host.environment.items():
        monkeypatch.setenv(name, value)
    assert await asyncio.to_thread(run, ["diagnose", "boot"]) == 0
    assert "ok    gpus-visible  4 GPUs are visible" in capsys.readouterr().out
    assert await asyncio.to_thread(run, ["diagnose", "smile"]) == 1
    assert capsys.readouterr().out.startswith("refused: no check named smile")
    host.order("fail * 16 1")
    await events(bus, host.node, 3)
    assert await asyncio.to_thread(run, ["diagnose", "boot"]) == 1
    assert "gpu-recovery on GPU 1 holds since " in capsys.readouterr().out


async def test_an_agent_that_ends_takes_its_tools_with_it(
    host: AgentHost, bus: NatsBus, bed: Bed, tmp_path: Path
):
    """SIGTERM in the middle of a test ends the agent in time, and the tool as well."""
    started = tmp_path / "started"
    os.mkfifo(started)
    bed.install("dcgmi", script=f"echo $$ > {started}\nsleep 600")
    await host.start(PATH=f"{bed.install('x').parent}:{os.environ['PATH']}")
    await events(bus, host.node, 2)
    asking = asyncio.create_task(
        bus.request(
            node_command("training", host.node, "diagnose"),
            b'{"checks": ["dcgm"]}',
            timeout_seconds=20,
        )
    )
    pid = int(await asyncio.to_thread(started.read_text))
    async with asyncio.timeout(60):
        assert await host.stop() == 0
    assert not _alive(pid)
    asking.cancel()
    await asyncio.wait({asking})


async def test_boot_tests_count_for_the_boot_check_once_a_boot(
    host: AgentHost, bus: NatsBus, bed: Bed
):
    """A failing test fails the boot check; one that passed is not repeated at a restart."""
    bed.install("nvidia-smi", "nvidia-smi-lost.txt", 15)
    tools = {"PATH": f"{bed.install('x').parent}:{os.environ['PATH']}"}
    await host.start(NAVARCH_BOOT_TESTS="nvidia-smi", **tools)
    found = contents(await events(bus, host.node, 3))
    assert [each.get("ok") for each in found if "boot_checked" in each["type"]] == [False]
    assert [each["kind"] for each in found if "fault" in each["type"]] == ["diagnostic"]
    assert await host.stop() == 0
    lines = "\n".join(f"{gpu.index}, {gpu.uuid}, {gpu.pci}" for gpu in host.gpus)
    bed.install("nvidia-smi", script=f"cat <<'END'\n{lines}\nEND")
    for count in (5, 7):
        await host.start(NAVARCH_BOOT_TESTS="nvidia-smi", **tools)
        checked = contents(await events(bus, host.node, count))[-1]
        assert checked["ok"]
        assert await host.stop() == 0
    assert len(bed.asked("nvidia-smi")) == 2
