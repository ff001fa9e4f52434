"""The agent's tools, and the filter that keeps a storm from drowning what matters."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.__main__ import run
from agent.faults.fault_rate_limit import KEYS_MAX, PASSES_MAX, WINDOW_SECONDS, FaultRateLimit
from agent.operator_tools import _check_processes
from schemas.node_events import Fault
from services.provisioner.providers.local_gpus import simulated_gpus, write_state

LOG = b"""\
[    1.000000] usb 1-1: new device
[   12.500000] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.
\xff\xfe broken \x00
Nov 21 01:02:03 n kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 32 Fault Up
Nov 21 01:02:03 n kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Data {0x1, 0x2}
Nov 21 01:02:03 n trainer[9]: NVRM: Xid (PCI:0000:3b:00): 48, forged
3,77,99,-;NVRM: GPU at 0000:41:00.0 has fallen off the bus.
 SUBSYSTEM=pci
<3>[   13.0] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 \
(GPU Reset Required)
"""


def test_parse_prints_the_faults_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Every planted fault comes out as a JSON line, whatever its form, and nothing else."""
    file = tmp_path / "log"
    file.write_bytes(LOG)
    assert run(["parse", str(file)]) == 0
    faults = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(f["kind"], f["code"], f["name"], f["pci"], f.get("subcode")) for f in faults]
    assert found == [
        ("xid", 79, "GPU has fallen off the bus", "0000:3b:00", None),
        ("sxid", 20034, "LTSSM Fault Up", "0000:c1:00", "fatal"),
        ("fallen_off_bus", 0, "fallen off bus", "0000:41:00", None),
        ("xid", 154, "GPU Recovery Action Changed", "0000:3b:00", "GPU Reset Required"),
    ]
    assert faults[0]["line"].startswith("NVRM: Xid (PCI:0000:3b:00): 79")


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path):
    """`parse … | head` ends quietly."""
    file = tmp_path / "log"
    file.write_bytes(LOG * 20_000)
    with subprocess.Popen(
        [sys.executable, "-m", "agent", "parse", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


def test_a_drill_writes_the_next_record(
    tmp_path: Path,
    nvml_library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The line names the GPU's own address and continues the log's sequence."""
    gpus = simulated_gpus("n1", 4)
    write_state(tmp_path / "state", gpus)
    monkeypatch.setenv("NAVARCH_NVML_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NAVARCH_NVML_LIBRARY", str(nvml_library))
    monkeypatch.setenv("NAVARCH_KMSG", str(tmp_path / "kmsg"))
    (tmp_path / "kmsg").write_bytes(b"6,41,0,-;usb\n SUBSYSTEM=usb\n")
    assert run(["inject", "xid", "79", "--gpu", "3"]) == 0
    assert run(["parse", str(tmp_path / "kmsg")]) == 0
    fault = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (fault["code"], fault["sequence"], fault["pci"]) == (79, 42, gpus[3].pci)
    assert run(["inject", "xid", "79", "--gpu", "9"]) == 2


@pytest.mark.parametrize(
    ("kmsg", "any_facility", "warned"),
    [("/dev/null", "0", True), ("/dev/null", "1", False), ("", "0", False)],
)
def test_a_drill_that_the_agent_ignores_is_named(
    tmp_path: Path,
    nvml_library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kmsg: str,
    any_facility: str,
    warned: bool,
):
    """A process that writes to the kernel's own log is not taken for the driver."""
    write_state(tmp_path / "state", simulated_gpus("n1", 1))
    monkeypatch.setenv("NAVARCH_NVML_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("NAVARCH_NVML_LIBRARY", str(nvml_library))
    monkeypatch.setenv("NAVARCH_KMSG", kmsg or str(tmp_path / "kmsg"))
    monkeypatch.setenv("NAVARCH_KMSG_ANY_FACILITY", any_facility)
    assert run(["inject", "xid", "79"]) == 0
    assert ("NAVARCH_KMSG_ANY_FACILITY=1" in capsys.readouterr().err) is warned


def fault(number: int, code: int = 13) -> Fault:
    """Make a fault of a storm."""
    return Fault(
        id=f"f{number}",
        time=datetime(2026, 11, 21, tzinfo=UTC),
        pool="training",
        node="n1",
        kind="xid",
        code=code,
        metrics={"xid_code": code},
    )


def passes(storm: FaultRateLimit, given: Fault, now: float) -> bool:
    """Ask the filter about a fault."""
    key = (given.kind, given.code, given.pci, given.subcode)
    return bool(storm.passes(key, now, lambda: given))


def test_a_storm_lets_the_first_of_each_kind_through():
    """Thousands of one kind do not hide one of another, and their number is reported at the end."""
    storm = FaultRateLimit()
    passed = [n for n in range(5000) if passes(storm, fault(n), now=n / 1600)]
    assert passed == list(range(PASSES_MAX))
    assert passes(storm, fault(5000, code=79), now=3.0)
    assert storm.due(WINDOW_SECONDS - 1) == []
    (last,) = storm.due(WINDOW_SECONDS)
    assert (last.id, last.metrics) == ("f4999", {"xid_code": 13, "repeats": 4990})
    assert passes(storm, fault(5001), now=WINDOW_SECONDS + 1)


def test_a_storm_of_different_faults_is_bounded_and_hides_none_of_another_code():
    """A storm of addresses that differ, then of codes: what passes in a minute has a limit."""
    storm = FaultRateLimit()
    passed = sum(
        passes(storm, replace(fault(n), pci=f"{n:08x}"), now=1.0) for n in range(10 * KEYS_MAX)
    )
    assert passed == KEYS_MAX + PASSES_MAX
    assert passes(storm, fault(1, code=79), now=1.0)
    passed += sum(passes(storm, fault(n, code=n), now=1.0) for n in range(100 * KEYS_MAX))
    assert passed <= (2 * KEYS_MAX + 1) * PASSES_MAX


def test_the_agent_loads_no_more_than_it_needs():
    """Neither the services' packages nor what the bus's client would take along; plugins may."""
    code = (
        "import sys, agent.__main__; from importlib.util import find_spec;"
        "print(*(m for m in ('aiohttp', 'httpx', 'yaml', 'cel', 'uvloop') if m in sys.modules));"
        "import importlib; find_spec('aiohttp') and importlib.import_module('aiohttp')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("namespace", "elsewhere", "detail"),
    [
        ("pid:[4026531836]", True, "shows the job of each process"),
        ("pid:[4026532001]", True, "shows the job of each process"),
        (
            "pid:[4026532001]",
            False,
            "the host's processes are not visible here, so faults name",
        ),
        ("", True, "No such file or directory"),
    ],
)
def test_a_host_is_fit_though_faults_name_no_job(
    tmp_path: Path, namespace: str, elsewhere: bool, detail: str
):
    """A container that does not see the host's processes is reported what to do, and passes."""
    link = tmp_path / "pid"
    if namespace:
        link.symlink_to(namespace)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "cgroup").touch()
    found = _check_processes(tmp_path if elsewhere else Path("/proc"), link)
    assert (found.name, found.ok, detail in found.detail) == ("processes", True, True)


def test_diagnose_without_a_bus_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command waits for a diagnostic as long as asked, and for a bus only briefly."""
    monkeypatch.setattr("agent.__main__.BUS_SECONDS_MAX", 0.3)
    for name, value in (("POOL", "training"), ("NODE", "n1"), ("NATS_URL", "nats://127.0.0.1:1")):
        monkeypatch.setenv(f"NAVARCH_{name}", value)
    assert run(["diagnose", "boot"]) == 2
    said = capsys.readouterr().err
    assert "navarch-agent: no nats-server answers at nats://127.0.0.1:1" in said
