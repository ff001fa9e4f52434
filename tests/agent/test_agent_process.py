"""The agent as a process on a real server: what the kernel log and the GPUs do becomes facts."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from agent.faults.fault_builder import traceparent
from schemas import subjects
from schemas.headers import STREAM_SOURCE
from schemas.node_records import node_key
from schemas.topology import HEARTBEATS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import BOOT, XID_79, AgentHost, contents, events
from tests.support.settling import without_shares

HUNG_SECONDS = 100


async def test_an_agent_registers_then_reports_a_line(host: AgentHost, bus: NatsBus):
    """First who it is, then that it is fit, then the fault, with GPU, id and trace."""
    await host.start()
    host.write(XID_79.format(pci="0000:61:00"))
    stored = await events(bus, host.node, 3)
    registered, checked, fault = sorted(contents(stored), key=lambda each: "fault" in each["type"])
    assert [gpu["uuid"] for gpu in registered["gpus"]] == [gpu.uuid for gpu in host.gpus]
    assert (checked["ok"], checked["boot_id"]) == (True, BOOT)
    gpu = host.gpus[3]
    expected = {
        "id": "training.training-1.0777c57c.kmsg.0",
        "kind": "xid",
        "code": 79,
        "pci": "0000:61:00",
        "gpu_index": 3,
        "gpu_uuid": gpu.uuid,
        "gpu_serial": gpu.serial,
        "metrics": {"xid_code": 79, "pid": 7, "process": "python"},
        "system": "DCGM_HEALTH_WATCH_PCIE",
        "source": "kmsg",
    }
    assert {key: fault[key] for key in expected} == expected
    headers = next(each.headers for each in stored if b"kmsg.0" in each.data)
    given = {name: each for name, each in headers.items() if name != STREAM_SOURCE}
    assert given == {"Nats-Msg-Id": fault["id"], "traceparent": traceparent(fault["id"])}


async def test_a_line_names_the_job_of_its_process(host: AgentHost, bus: NatsBus, tmp_path: Path):
    """The job is that of the control group which the process has right then; no process, no job."""
    group = tmp_path / "proc" / "4711" / "cgroup"
    group.parent.mkdir(parents=True)
    group.write_text("0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n")
    await host.start(NAVARCH_PROC=str(tmp_path / "proc"), NAVARCH_RACK="hall-2-rack-17")
    for pid in (4711, 4712):
        host.write(f"NVRM: Xid (PCI:{host.gpus[0].pci}): 31, pid={pid}, name=python, MMU Fault")
    reported = contents(await events(bus, host.node, 4))
    assert ["hall-2-rack-17"] == [each["rack"] for each in reported if "rack" in each]
    assert ["slurm-1234", ""] == [each["job"] for each in reported if each.get("kind") == "xid"]
    assert await host.stop() == 0


async def test_a_restart_resumes_and_a_reboot_starts_from_the_beginning(
    host: AgentHost, bus: NatsBus
):
    """Lines written while the agent was down are reported once; a new boot is a new log."""
    await host.start()
    host.write("usb 1-1: new device", XID_79.format(pci="0000:1b:00"))
    await events(bus, host.node, 3)
    assert await host.stop() == 0
    host.write(XID_79.format(pci="0000:43:00"))
    await host.start()
    await events(bus, host.node, 6)
    assert await host.stop() == 0
    await host.start(NAVARCH_BOOT_ID="11111111-0000-0000-0000-000000000000")
    all_events = contents(await events(bus, host.node, 10))
    faults = [each["id"].split(".", 2)[2] for each in all_events if "fault" in each["type"]]
    assert faults == ["0777c57c.kmsg.1", "0777c57c.kmsg.2", "11111111.kmsg.1", "11111111.kmsg.2"]


@pytest.mark.parametrize("crash", [False, True])
async def test_faults_wait_for_the_broker(
    host: AgentHost, bus: NatsBus, server: EmbeddedServer, crash: bool
):
    """Faults of an outage arrive in order, once, even where the agent is killed meanwhile."""
    await without_shares(bus)
    await host.start()
    await events(bus, host.node, 2)
    await server.stop()
    host.write(*(f"NVRM: Xid (PCI:0000:1b:00): {code}, x" for code in range(1, 41)))
    await host.logged("fault", times=40)
    if crash:
        await host.stop(signal.SIGKILL)
        host.write("NVRM: Xid (PCI:0000:1b:00): 41, x")
        await host.start()
        await host.logged("fault")
    await server.start()
    count = 45 if crash else 42
    found = contents(await events(bus, host.node, count))
    codes = [each["code"] for each in found if "fault" in each["type"]]
    assert codes == list(range(1, 42 if crash else 41))


@pytest.mark.parametrize("loss", ["corrupt", "deleted"])
async def test_a_lost_spool_loses_no_fault_of_the_kernel_log(
    host: AgentHost, bus: NatsBus, server: EmbeddedServer, loss: str
):
    """The kernel log is read again for what a lost spool held."""
    await host.start()
    await events(bus, host.node, 2)
    await server.stop()
    host.write(XID_79.format(pci="0000:1b:00"))
    await host.logged("fault")
    assert await host.stop() == 0
    spool = host.state / "spool.sqlite"
    if loss == "corrupt":
        spool.write_bytes(b"not a database" * 500)
    else:
        spool.unlink()
    await host.start()
    await server.start()
    found = contents(await events(bus, host.node, 5))
    assert [each["code"] for each in found if "fault" in each["type"]] == [79]


async def test_an_agent_that_starts_before_the_broker_loses_nothing(
    host: AgentHost, bus: NatsBus, server: EmbeddedServer
):
    """Registration and faults wait, in order, for a broker that comes later."""
    await server.stop()
    await host.start()
    host.write(XID_79.format(pci="0000:1b:00"))
    await host.logged("fault")
    await server.start()
    found = contents(await events(bus, host.node, 3))
    assert found[0]["type"].endswith(".registered")
    assert sum("fault" in each["type"] for each in found) == 1


async def test_lines_lost_are_reported(host: AgentHost, bus: NatsBus):
    """A gap in the sequence is a fault that says how many lines are missing."""
    await host.start()
    await events(bus, host.node, 2)
    host.write("usb 1-1: new device")
    host.write("usb 1-1: gone", skip=7)
    (fault,) = contents((await events(bus, host.node, 3))[2:])
    assert (fault["kind"], fault["metrics"]) == ("lines_lost", {"lines_lost": 7})


async def test_a_lost_gpu_is_a_fault(host: AgentHost, bus: NatsBus):
    """NVML's word that a GPU is lost is a fault though no line was written."""
    await host.start()
    await events(bus, host.node, 2)
    host.order("gpu 2 lost 1")
    (fault,) = contents((await events(bus, host.node, 3))[2:])
    assert (fault["kind"], fault["gpu_index"], fault["source"]) == ("gpu_lost", 2, "nvml")


async def test_a_hung_call_neither_blocks_the_agent_nor_its_end(host: AgentHost, bus: NatsBus):
    """A hung NVML call is one fault; lines are reported, questions answered, SIGTERM obeyed."""
    await host.start()
    await events(bus, host.node, 2)
    host.order(f"hang nvmlDeviceGetPowerUsage {HUNG_SECONDS} 1")
    (hung,) = contents((await events(bus, host.node, 3))[2:])
    assert (hung["kind"], hung["gpu_index"], hung["subcode"]) == ("probe_hung", 1, "power")
    host.write(XID_79.format(pci="0000:1b:00"))
    (fault,) = contents((await events(bus, host.node, 4))[3:])
    assert fault["code"] == 79
    ping = subjects.node_command("training", host.node, "ping")
    assert json.loads((await bus.request(ping, b"", timeout_seconds=30)).data)["ok"]
    async with asyncio.timeout(HUNG_SECONDS / 2):
        assert await host.stop() == 0


async def test_diagnose_answers_with_the_boot_checks(host: AgentHost, bus: NatsBus):
    """The answer says in words what the checks find; here one GPU fewer than there should be."""
    await host.start(NAVARCH_GPU_COUNT="8")
    stored = contents(await events(bus, host.node, 3))
    assert [each.get("ok") for each in stored] == [None, False, None]
    assert stored[2]["kind"] == "gpu_count"
    diagnose = subjects.node_command("training", host.node, "diagnose")
    answer = json.loads((await bus.request(diagnose, b"", timeout_seconds=30)).data)
    failed = [each["detail"] for each in answer["checks"] if not each["ok"]]
    assert failed == ["4 GPUs are visible, 8 are expected"]


async def test_heartbeats_stop_with_the_agent(host: AgentHost, bus: NatsBus):
    """The heartbeat is a key that the server itself removes after its time to live."""
    await host.start(NAVARCH_HEARTBEAT_INTERVAL="300ms", NAVARCH_HEARTBEAT_TTL="1s")
    key = node_key("training", host.node)
    async with asyncio.timeout(60):
        async for entry in bus.watch(HEARTBEATS, key):
            if entry.revision == 3:
                break
        await host.stop(signal.SIGKILL)
        while await bus.get(HEARTBEATS, key) is not None:
            await asyncio.sleep(0.02)


async def test_the_agent_ends_with_what_it_belongs_to(host: AgentHost, bus: NatsBus):
    """The agent exits without the directory that NAVARCH_EXIT_WITHOUT names: its work is over."""
    belongs_to = host.kmsg.parent / "instance"
    belongs_to.mkdir()
    await host.start(NAVARCH_EXIT_WITHOUT=str(belongs_to), NAVARCH_HEARTBEAT_INTERVAL="100ms")
    await events(bus, host.node, 2)
    belongs_to.rmdir()
    assert host.process is not None
    async with asyncio.timeout(60):
        assert await host.process.wait() == 0
