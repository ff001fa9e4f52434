"""The agent as a process: what several witnesses see is one fault, also over a restart."""

import signal
from typing import Any

from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import XID_79, AgentHost, contents, events

LISTENS = "NVML reports XIDs of 4 GPUs"
MARK = "NVRM: Xid (PCI:0000:1b:00): 119, the mark"
"""A fault that ends a test: everything before it has been published when it comes."""


async def faults(host: AgentHost, bus: NatsBus, count: int) -> list[dict[str, Any]]:
    """Wait for so many facts in all, and give the faults among them."""
    found = contents(await events(bus, host.node, count))
    return [each for each in found if "fault" in each["type"]]


async def test_nvml_alone_is_enough(host: AgentHost, bus: NatsBus):
    """An XID that no line reports is a fault all the same, with GPU, UUID and serial."""
    await host.start()
    await host.logged(LISTENS)
    host.order("xid 1 2 31")
    (fault,) = await faults(host, bus, 3)
    gpu = host.gpus[2]
    expected = {
        "kind": "xid",
        "code": 31,
        "source": "nvml",
        "gpu_index": 2,
        "gpu_uuid": gpu.uuid,
        "gpu_serial": gpu.serial,
        "pci": gpu.pci,
        "metrics": {"xid_code": 31},
        "system": "DCGM_HEALTH_WATCH_SM",
    }
    assert {key: fault[key] for key in expected} == expected


async def test_without_a_kernel_log_nvml_is_the_witness(host: AgentHost, bus: NatsBus):
    """A kernel log that cannot be read is a fault of its own, and XIDs still come, at once."""
    host.kmsg.mkdir()
    await host.start(NAVARCH_KMSG=str(host.kmsg / "missing" / "kmsg"))
    await host.logged(LISTENS)
    host.order("xid 1 2 154")
    found = await faults(host, bus, 4)
    assert [(each["kind"], each["source"]) for each in found] == [
        ("probe_failed", "nvml"),
        ("xid", "nvml"),
    ]


async def test_a_line_and_an_event_are_one_fault(host: AgentHost, bus: NatsBus):
    """Both witnesses report the same two XIDs; each is published once."""
    await host.start()
    await host.logged(LISTENS)
    pci = host.gpus[0].pci
    host.order("xid 1 0 13")
    assert [each["source"] for each in await faults(host, bus, 3)] == ["nvml"]
    host.write(f"NVRM: Xid (PCI:{pci}): 13, Graphics Exception", XID_79.format(pci=pci))
    assert [each["code"] for each in await faults(host, bus, 4)] == [13, 79]
    host.order("xid 1 0 13", "xid 2 0 79", "xid 3 1 79")
    found = await faults(host, bus, 5)
    published = [(each["code"], each["gpu_index"], each["source"]) for each in found]
    assert published == [(13, 0, "nvml"), (79, 0, "kmsg"), (79, 1, "nvml")]


async def test_a_gpu_that_falls_off_the_bus_is_reported_once(host: AgentHost, bus: NatsBus):
    """XID 79 is reported at once, lines that only repeat it are not, another GPU's are.

    The condition that NVML shows begins all the same, marked as a duplicate.
    """
    await host.start()
    await events(bus, host.node, 2)
    first, other = host.gpus[0].pci, host.gpus[1].pci
    host.write(
        XID_79.format(pci=first),
        f"NVRM: GPU {first}.0: GPU has fallen off the bus.",
        f"NVRM: GPU {first}.0: GPU is lost",
    )
    await host.logged("duplicate of", times=2)
    host.order("gpu 0 lost 1")
    found = await faults(host, bus, 4)
    assert found[1]["metrics"]["duplicate_of"] == found[0]["id"]
    host.write(f"NVRM: GPU at {other}.0 has fallen off the bus.", MARK)
    found = await faults(host, bus, 6)
    assert [(each["kind"], each["pci"]) for each in found] == [
        ("xid", first),
        ("gpu_lost", first),
        ("fallen_off_bus", other),
        ("xid", first),
    ]


async def test_a_restart_reports_what_is_new_and_nothing_twice(host: AgentHost, bus: NatsBus):
    """An error from before the restart is not reported again; one during it is reported."""
    await host.start()
    await events(bus, host.node, 2)
    host.order("gpu 1 ecc_dbe 1")
    await events(bus, host.node, 3)
    assert await host.stop() == 0
    await host.start()
    await events(bus, host.node, 5)
    assert await host.stop() == 0
    host.order("gpu 1 ecc_dbe 3", "gpu 2 retired_dbe 1")
    await host.start()
    found = await faults(host, bus, 9)
    assert [(each["kind"], each["metrics"].get("increase")) for each in found] == [
        ("ecc_dbe", 1),
        ("ecc_dbe", 2),
        ("page_retirement", 1),
    ]


async def test_a_gpu_that_is_gone_still_has_its_name(host: AgentHost, bus: NatsBus):
    """One that vanished while the agent was down is a fault, and its XIDs say who it was."""
    await host.start(NAVARCH_GPU_COUNT="")
    await events(bus, host.node, 2)
    assert await host.stop() == 0
    gone = host.gpus[3]
    host.gpus = host.gpus[:3]
    host.order()
    await host.start(NAVARCH_GPU_COUNT="")
    found = await faults(host, bus, 5)
    host.write(XID_79.format(pci=gone.pci))
    found += (await faults(host, bus, 6))[1:]
    who = [(e["kind"], e["gpu_index"], e["gpu_uuid"], e["gpu_serial"]) for e in found]
    assert who == [
        ("gpu_lost", 3, gone.uuid, gone.serial),
        ("xid", 3, gone.uuid, gone.serial),
    ]


async def test_a_hung_wait_for_events_stops_nothing(host: AgentHost, bus: NatsBus):
    """A driver in which waiting for events hangs is sampled on, and the agent ends in time."""
    await host.start()
    await host.logged(LISTENS)
    host.order("hang nvmlEventSetWait 60")
    host.write(MARK)
    assert [each["code"] for each in await faults(host, bus, 3)] == [119]
    host.order("hang nvmlEventSetWait 60", "gpu 0 ecc_dbe 1")
    assert [each["kind"] for each in await faults(host, bus, 4)] == ["xid", "ecc_dbe"]
    assert await host.stop(signal.SIGTERM) == 0


async def test_a_driver_without_events_is_no_fault(host: AgentHost, bus: NatsBus):
    """Not supported means that the second witness is quietly absent."""
    host.order("fail nvmlDeviceRegisterEvents 3")
    await host.start()
    await host.logged("NVML reports XIDs of 0 GPUs")
    host.write(MARK)
    assert [each["code"] for each in await faults(host, bus, 3)] == [119]


async def test_a_driver_at_work_does_not_hang(host: AgentHost, bus: NatsBus):
    """A call that waits while the driver handles a program's exceptions is no fault.

    On an H200 one took 1.01 s, after a misaligned address on all SMs.
    """
    await host.start(NAVARCH_PROBE_DEADLINE="")
    await events(bus, host.node, 2)
    host.order("hang nvmlDeviceGetMemoryInfo_v2 1.02 0", "gpu 0 ecc_dbe 1")
    assert [each["kind"] for each in await faults(host, bus, 3)] == ["ecc_dbe"]
