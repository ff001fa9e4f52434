"""A driver that is late, of another version, or gives up a GPU, seen by an agent of its own."""

import asyncio

import msgspec

from agent.faults.kernel_log_scanner import KernelLogScanner
from agent.observations import KernelLogLine
from schemas import subjects
from schemas.node_events import Telemetry
from schemas.topology import TELEMETRY
from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import AgentHost, contents, events

LATE = {"NAVARCH_INTERCONNECT_WAIT": "2s", "NAVARCH_TELEMETRY_INTERVAL": "1s"}


async def test_boot_checks_wait_for_the_driver(host: AgentHost, bus: NatsBus):
    """A driver that loads after the agent costs nothing: it registers again and passes."""
    host.order("fail * 9")
    await host.start(**LATE)
    await host.logged("waiting for the driver")
    host.order()
    found = contents(await events(bus, host.node, 3))
    assert [len(each["gpus"]) for each in found[:2]] == [0, 4]
    assert found[2]["ok"]


async def test_a_driver_that_never_loads_is_named(host: AgentHost, bus: NatsBus):
    """The check `driver` fails after the stated time, and the condition begins."""
    host.order("fail nvmlInit 9")
    await host.start(NAVARCH_DRIVER_WAIT="2s")
    found = contents(await events(bus, host.node, 3))
    checks = next(each["checks"] for each in found if "checks" in each)
    assert [each["name"] for each in checks if not each["ok"]] == ["driver"]
    assert [each["condition"] for each in found if "kind" in each] == ["driver-not-loaded"]


async def test_samples_say_that_the_driver_is_waited_for_while_it_lasts(
    host: AgentHost, bus: NatsBus
):
    """Once its time is over the samples name the condition, and what is unknown no longer waits."""
    host.order("fail nvmlInit 9")
    await host.start(NAVARCH_DRIVER_WAIT="3s", NAVARCH_TELEMETRY_INTERVAL="1s")
    said: list[str] = []
    subject = subjects.telemetry("training", host.node)
    async with asyncio.timeout(30):
        async for stored in bus.follow(TELEMETRY.name, [subject], "last_per_subject"):
            sample = msgspec.json.decode(stored.data, type=Telemetry)
            listed = sample.conditions.held if sample.conditions else ()
            said += [each.message for each in listed if each.unknown]
            if said and not said[-1].startswith("waiting for the driver: "):
                break
    assert said[0].startswith("waiting for the driver: ")
    assert said[0].endswith(said[-1])
    assert [each.name for each in listed if not each.unknown] == ["driver-not-loaded"]


async def test_a_diagnose_request_waits_for_the_driver(host: AgentHost, bus: NatsBus):
    """A saga that has rebooted the host asks until the boot checks are over."""
    host.order("fail * 9")
    await host.start(**LATE)
    await host.logged("waiting for the driver")
    await events(bus, host.node, 1)
    subject = subjects.node_command("training", host.node, "diagnose")
    request = b'{"checks": ["boot"]}'
    answer = msgspec.json.decode((await bus.request(subject, request, timeout_seconds=30)).data)
    assert "Driver Not Loaded" in answer["refused"]
    host.order()
    await events(bus, host.node, 3)
    answer = msgspec.json.decode((await bus.request(subject, request, timeout_seconds=30)).data)
    assert (answer["ok"], answer.get("refused", "")) == (True, "")


async def test_a_restart_while_the_driver_fails_keeps_the_gpus(host: AgentHost, bus: NatsBus):
    """An agent that starts again registers the GPUs of this boot, and reports no failed check."""
    await host.start()
    await events(bus, host.node, 2)
    assert await host.stop() == 0
    host.order("fail * 18")
    await host.start(**LATE)
    await host.logged("waiting for the driver")
    found = contents(await events(bus, host.node, 3))
    assert len(found[2]["gpus"]) == 4


async def test_a_gpu_that_needs_its_reset_says_so_as_xid_154(host: AgentHost, bus: NatsBus):
    """NVML's code and its recovery action are one condition each, in the driver's words."""
    await host.start()
    await events(bus, host.node, 2)
    host.order("fail * 16 1", "gpu 2 recovery_action 2")
    found = contents(await events(bus, host.node, 4))[2:]
    assert sorted((e["code"], e["gpu_index"], e["subcode"]) for e in found) == [
        (154, 1, "GPU Reset Required"),
        (154, 2, "Node Reboot Required"),
    ]
    host.order()
    over = contents(await asyncio.wait_for(events(bus, host.node, 6), 30))[4:]
    assert {each["condition"] for each in over} == {"gpu-recovery"}


def test_an_api_mismatch_line_is_a_mismatch_of_the_host():
    """The line names no GPU, so none is taken from the lines before it."""
    scanner = KernelLogScanner()
    scanner.scan(KernelLogLine("NVRM: GPU at PCI:0000:3b:00: GPU-0"))
    text = "NVRM: API mismatch: the client has the version 550.54.15, but\nNVRM: this kernel module"
    found = scanner.scan(KernelLogLine(text))
    assert found is not None
    assert (found.kind, found.subcode, found.pci) == ("probe_failed", "mismatch", "")
