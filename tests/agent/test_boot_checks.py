"""The boot check of NVLinks and fabric: what each model of GPU must have."""

import json
from pathlib import Path
from typing import Final

import pytest

from agent.conditions.rdma_reader import RDMA, RdmaNeeds, rdma_check
from agent.faults.boot_checks import INTERCONNECT, boot_checks
from agent.observations import GpuInventory, GpuNeeds, NodeSample
from agent.sources.host_metrics import rdma_ports
from schemas.gpu_samples import GpuSample
from schemas.node_events import GpuIdentity
from services.bus.nats.nats_bus import NatsBus
from tests.agent.conftest import AgentHost, events

H100: Final = "NVIDIA H100 80GB HBM3"
UP: Final = "all NVLinks are up, and the fabric is healthy"
HEALTHY_FABRIC: Final = 0x1AA

CASES: Final = [
    ("all links of an SXM board", H100, 8, None, {"nvlinks_up": 18, "fabric_state": 3}, UP),
    (
        "a link of an SXM board down since boot",
        H100,
        8,
        None,
        {"nvlinks_up": 17},
        "GPU 0 has 17 of 18 NVLinks up",
    ),
    ("no link reported at all", H100, 8, None, {}, "GPU 0 has 0 of 18 NVLinks up"),
    ("A100 board", "NVIDIA A100-SXM4-80GB", 4, None, {"nvlinks_up": 11}, "GPU 0 has 11 of 12"),
    ("a part of a board is not judged by its model", H100, 1, None, {"nvlinks_up": 0}, None),
    ("PCIe models need no links", "NVIDIA H100 PCIe", 8, None, {"nvlinks_up": 0}, None),
    ("H200 NVL is a PCIe model", "NVIDIA H200 NVL", 8, None, {"nvlinks_up": 0}, None),
    ("the setting wins over the model", H100, 1, 18, {"nvlinks_up": 17}, "GPU 0 has 17 of 18"),
    ("0 switches the comparison off", H100, 8, 0, {"nvlinks_up": 0}, None),
    (
        "the fabric still in progress",
        H100,
        1,
        None,
        {"fabric_state": 2},
        "GPU 0 has not joined the NVLink fabric (state 2)",
    ),
    (
        "the fabric refused the GPU",
        H100,
        1,
        None,
        {"fabric_state": 3, "fabric_status": 58},
        "GPU 0 failed to join the fabric (NVML error 58)",
    ),
    (
        "degraded bandwidth since boot",
        H100,
        1,
        None,
        {"fabric_state": 3, "fabric_health_mask": HEALTHY_FABRIC & ~0x3 | 0x1},
        "GPU 0: fabric degraded_bandwidth",
    ),
    (
        "a healthy fabric",
        H100,
        1,
        None,
        {"fabric_state": 3, "fabric_status": 0, "fabric_health_mask": HEALTHY_FABRIC},
        UP,
    ),
]


@pytest.mark.parametrize(
    ("model", "gpus", "nvlinks", "readings", "detail"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_interconnect(
    model: str, gpus: int, nvlinks: int | None, readings: dict[str, int], detail: str | None
) -> None:
    """The first GPU has these readings, the others are as they must be."""
    whole = {"nvlinks_up": 18}
    inventory = GpuInventory(
        tuple(GpuIdentity(index=i, uuid=f"GPU-{i}", name=model) for i in range(gpus))
    )
    sample = NodeSample(
        tuple(
            GpuSample(index=i, uuid=f"GPU-{i}", **(whole if i else readings)) for i in range(gpus)
        )
    )
    checks = boot_checks(GpuNeeds(gpus=gpus, nvlinks=nvlinks), {}, inventory, sample, "", "")
    found = next((each for each in checks if each.name == INTERCONNECT), None)
    assert (found is None) == (detail is None)
    if found is not None and detail is not None:
        assert found.detail.startswith(detail)
        assert found.ok == (detail == UP)


def test_gpus_of_two_nvlink_domains_fail() -> None:
    """One of them was moved to another partition, or its tray is cabled to another rack."""
    gpus = [
        GpuSample(index=i, uuid=f"GPU-{i}", fabric_state=3, nvlink_domain=f"d.{i}")
        for i in range(2)
    ]
    inventory = GpuInventory(tuple(GpuIdentity(index=i, uuid=f"GPU-{i}") for i in range(2)))
    checks = boot_checks(GpuNeeds(gpus=2), {}, inventory, NodeSample(tuple(gpus)), "", "")
    assert not checks[-1].ok
    assert "the GPUs are in different NVLink domains: d.0, d.1" == checks[-1].detail


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A host with two RDMA devices, of which one has two ports, and one is down."""
    for port, state in (
        ("mlx5_0/ports/1", "4: ACTIVE"),
        ("mlx5_1/ports/1", "1: DOWN"),
        ("mlx5_1/ports/2", "2: INIT"),
        ("rdmap16s27/ports/1", "4: ACTIVE"),
    ):
        directory = tmp_path / "class/infiniband" / port
        directory.mkdir(parents=True)
        (directory / "state").write_text(f"{state}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("needed", "ok", "detail"),
    [
        (1, True, "2 RDMA devices are up (mlx5_0, rdmap16s27), 1 are expected"),
        (2, True, "2 RDMA devices are up (mlx5_0, rdmap16s27), 2 are expected"),
        (3, False, "2 RDMA devices are up (mlx5_0, rdmap16s27), 3 are expected"),
    ],
)
def test_rdma_devices_are_counted(sys: Path, needed: int, ok: bool, detail: str) -> None:
    """Devices with an active port count; a host without any has none, and more are no fault."""
    needs = RdmaNeeds(devices=needed)
    found = rdma_check(needs, {}, rdma_ports(sys))
    assert (RDMA, ok, detail) == (found.name, found.ok, found.detail)
    assert rdma_ports(sys / "elsewhere") == ()
    assert not rdma_check(needs, {}, ()).ok
    assert not rdma_check(needs, {}, None).ok


@pytest.mark.slow
async def test_rdma_devices_that_come_up_late_pass_and_missing_ones_do_not(
    host: AgentHost, bus: NatsBus, sys: Path
) -> None:
    """Devices may come up late, as the fabric may: the network still sets links up at boot."""
    await host.start(NAVARCH_RDMA_DEVICES="3", NAVARCH_SYS=str(sys))
    await events(bus, host.node, 1)
    await host.logged("NVML reports XIDs of 4 GPUs")
    (sys / "class/infiniband/mlx5_1/ports/1/state").write_text("4: ACTIVE\n")
    _, stored = await events(bus, host.node, 2)
    checked = json.loads(stored.data)
    assert checked["ok"]
    assert checked["checks"][-1]["name"] == RDMA
    assert await host.stop() == 0


@pytest.mark.slow
async def test_links_down_since_boot_fail_the_boot_check(host: AgentHost, bus: NatsBus) -> None:
    """No event yet reports a change: the links were never up."""
    host.order("gpu 2 nvlinks_down 1")
    await host.start(NAVARCH_INTERCONNECT_WAIT="1ms")
    _, stored = await events(bus, host.node, 2)
    checked = json.loads(stored.data)
    assert not checked["ok"]
    assert checked["checks"][-1]["detail"] == "GPU 2 has 17 of 18 NVLinks up"
    assert await host.stop() == 0


@pytest.mark.slow
async def test_a_fabric_that_comes_up_late_passes(host: AgentHost, bus: NatsBus) -> None:
    """The boot check waits for the fabric manager instead of failing the node."""
    host.order("gpu 2 fabric_state 2")
    await host.start()
    await events(bus, host.node, 1)
    await host.logged("NVML reports XIDs of 4 GPUs")
    host.order()
    _, stored = await events(bus, host.node, 2)
    checked = json.loads(stored.data)
    assert checked["ok"]
    assert await host.stop() == 0
