"""Links and ports are compared with the host's type, and with what they have been before."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from agent.conditions.engine import Conditions, Observed, held, step
from agent.conditions.gpu_reader import NvmlView, read_gpus
from agent.conditions.rdma_reader import PORTS_MAX, RdmaNeeds, RdmaPort, kept, rdma_check
from agent.faults.boot_checks import PCIE, boot_checks
from agent.observations import Best, GpuInventory, GpuNeeds, NodeSample
from agent.rdma_monitor import RdmaMonitor
from agent.sources.host_metrics import rdma_ports
from schemas.gpu_samples import GpuSample
from schemas.node_events import GpuIdentity
from services.primitives.clock import SystemClock
from tests.agent.conftest import AgentHost, contents, events

IB: Final = RdmaNeeds(devices=8, link_layer="InfiniBand", gbit_per_second=400)
COUNTED: Final = RdmaNeeds(devices=8)
UNKNOWN: Final = RdmaNeeds()


class Host:
    """Writes the RDMA ports of a simulated host below its /sys."""

    def __init__(self, sys: Path) -> None:
        self.sys = sys
        for number in range(8):
            self.port(f"mlx5_ib{number}")
        self.port("mlx5_an0", layer="Ethernet", rate="100 Gb/sec (4X EDR)")

    def port(
        self,
        device: str,
        state: str = "4: ACTIVE",
        layer: str = "InfiniBand",
        rate: str = "400 Gb/sec (4X NDR)",
    ) -> None:
        """Write one port of a device."""
        at = self.sys / "class/infiniband" / device / "ports/1"
        at.mkdir(parents=True, exist_ok=True)
        for name, text in (("state", state), ("link_layer", layer), ("rate", rate)):
            (at / name).write_text(f"{text}\n")

    def remove(self, device: str) -> None:
        """Take a device away."""
        at = self.sys / "class/infiniband" / device / "ports/1"
        for each in at.iterdir():
            each.unlink()
        for each in (at, at.parent, at.parent.parent):
            each.rmdir()


@pytest.fixture
def node(tmp_path: Path) -> Host:
    """Give eight InfiniBand ports, and the Ethernet bond."""
    return Host(tmp_path / "sys")


def monitor(
    node: Host, needs: RdmaNeeds, seen: list[Observed], known: Any = (), *, same_boot: bool = False
) -> RdmaMonitor:
    """Return the monitor of that host's agent; `seen`: what it observes."""
    return RdmaMonitor(
        node.sys, needs, SystemClock(), seen.append, dict(known), same_boot=same_boot
    )


@pytest.mark.parametrize("needs", [IB, COUNTED], ids=["layer known", "layer not known"])
@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", ""])
def test_one_infiniband_port_of_eight_is_down_and_the_ethernet_bond_is_not_the_eighth(
    node: Host, needs: RdmaNeeds, state: str
) -> None:
    """The bond is up and is an RDMA device, but not one of the type's."""
    assert rdma_check(needs, {}, rdma_ports(node.sys)).ok
    node.port("mlx5_ib3", state=state)
    check = rdma_check(needs, {}, rdma_ports(node.sys))
    assert not check.ok
    assert check.detail.startswith("7 RDMA devices are up")
    assert "mlx5_an0" not in check.detail


def test_a_port_that_is_not_even_listed_is_missed_where_the_layer_is_known(node: Host) -> None:
    """Seven InfiniBand devices and the bond are eight devices, and still not the type's."""
    node.remove("mlx5_ib7")
    assert not rdma_check(IB, {}, rdma_ports(node.sys)).ok


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"state": "1: DOWN"}, "mlx5_ib2/1 was up and is down"),
        ({"rate": "200 Gb/sec (2X NDR)"}, "mlx5_ib2/1 has 200 of 400 Gb/s"),
        ({"layer": "Ethernet"}, "mlx5_ib2/1 was InfiniBand and is Ethernet"),
        (None, "mlx5_ib2/1 was up and is gone"),
    ],
)
async def test_ports_are_compared_with_those_of_the_admission_by_name(
    node: Host, change: dict[str, str] | None, text: str
) -> None:
    """Where nothing is known of the type: name, rate and link layer of what was up then."""
    seen: list[Observed] = []
    first = monitor(node, UNKNOWN, seen)
    assert await first.check() == ()
    first.admit()
    again = monitor(node, UNKNOWN, seen, first.known, same_boot=True)
    await again.look()
    assert seen[-1].seen == {}
    if change is None:
        node.remove("mlx5_ib2")
    else:
        node.port("mlx5_ib2", **change)
    again = monitor(node, UNKNOWN, seen, first.known, same_boot=True)
    await again.look()
    [[key, found]] = seen[-1].seen.items()
    assert key == ("rdma-devices", -1)
    assert text in found.message
    [check] = await monitor(node, UNKNOWN, seen, first.known).check()
    assert not check.ok


async def test_a_boot_with_no_fewer_ports_may_name_them_otherwise(node: Host) -> None:
    """Other names after a reboot are no lost ports; fewer are."""
    first = monitor(node, UNKNOWN, [])
    await first.check()
    first.admit()
    for number in range(8):
        node.remove(f"mlx5_ib{number}")
        node.port(f"ibp{number}")
    renamed = monitor(node, UNKNOWN, [], first.known)
    assert await renamed.check() == ()
    node.port("ibp4", state="1: DOWN")
    [check] = await monitor(node, UNKNOWN, [], first.known).check()
    assert not check.ok


def test_what_is_remembered_of_ports_has_a_bound() -> None:
    """A driver that names ports otherwise again and again fills no memory."""
    found: dict[str, RdmaPort] = {}
    for number in range(PORTS_MAX + 50):
        found = kept(found, [RdmaPort(device=f"mlx5_{number}")])
    assert len(found) == PORTS_MAX


def seen_of(needs: GpuNeeds, best: Best, **readings: Any) -> set[str]:
    """Return what holds of a GPU with these readings after two minutes."""
    gpu = GpuIdentity(index=0, uuid="GPU-0", name="NVIDIA H100 PCIe")
    whole = {"pcie_width": 16, "pcie_generation": 5, "nvlinks_up": 18, "utilization_percent": 90}
    sample = NodeSample((GpuSample(index=0, uuid="GPU-0", **(whole | readings)),))
    view = NvmlView(
        inventory=GpuInventory((gpu,)), sample=sample, needs=needs, best={"GPU-0": best}
    )
    state = Conditions()
    for second in range(120):
        state, _ = step(state, read_gpus(view), 1e6 + second, 1.0)
    return {each.name for each in held(state)}


FIGURES: Final = GpuNeeds(nvlinks=18, nvlink_gbyte_per_second=25, pcie_width=16, pcie_generation=5)
HAD: Final = Best(pcie_width=16, pcie_generation=5, nvlinks=18, nvlink_mbyte_per_second=26_562)


@pytest.mark.parametrize(
    ("needs", "best"),
    [(FIGURES, Best()), (GpuNeeds(), HAD)],
    ids=["of the type", "of the admission"],
)
@pytest.mark.parametrize(
    ("readings", "names"),
    [
        ({}, set()),
        ({"pcie_width": 8}, {"pcie-width"}),
        ({"pcie_width": None}, set()),
        ({"pcie_generation": 3}, {"pcie-generation"}),
        ({"pcie_generation": 1, "utilization_percent": 3}, set()),
        ({"pcie_generation": 1, "utilization_percent": None}, set()),
        ({"nvlinks_up": 17}, {"nvlinks-down"}),
        ({"nvlinks_up": 0}, {"nvlinks-all-down"}),
        ({"nvlink_mbyte_per_second": 20_000}, {"nvlinks-slow"}),
        ({"nvlink_mbyte_per_second": 26_562}, set()),
        ({"nvlink_mbyte_per_second": 25_781}, set()),
    ],
)
def test_a_gpu_is_compared_with_its_type_and_with_what_it_has_had(
    needs: GpuNeeds, best: Best, readings: dict[str, Any], names: set[str]
) -> None:
    """Lanes, generation under load, links and their speed; what is not read is no fault."""
    assert seen_of(needs, best, **readings) == names


def test_what_is_not_known_is_not_compared() -> None:
    """A virtual machine with half the lanes has what it always had."""
    assert seen_of(GpuNeeds(), Best(), pcie_width=8, pcie_generation=1, nvlinks_up=0) == set()


@pytest.mark.parametrize(
    ("needs", "best", "ok"),
    [(FIGURES, {}, False), (GpuNeeds(), {"GPU-0": HAD}, False), (GpuNeeds(), {}, True)],
    ids=["of the type", "before the reboot", "not known"],
)
def test_a_reboot_that_changed_nothing_of_the_lanes_fails_the_boot_check(
    needs: GpuNeeds, best: dict[str, Best], *, ok: bool
) -> None:
    """Half the lanes are named at boot, too."""
    inventory = GpuInventory((GpuIdentity(index=0, uuid="GPU-0"),))
    sample = NodeSample((GpuSample(index=0, uuid="GPU-0", pcie_width=8, nvlinks_up=18),))
    checks = boot_checks(needs, best, inventory, sample, "", "")
    failed = [(each.name, each.detail) for each in checks if not each.ok]
    assert failed == ([] if ok else [(PCIE, "GPU 0: the PCIe link has 8 lanes of 16")])


async def test_an_agent_holds_its_host_to_the_figures_of_its_type(
    host: AgentHost, bus: Any, tmp_path: Path
) -> None:
    """Half the lanes of one GPU since before the agent began: the type knows better."""
    host.order("gpu 2 pcie_width 8", "gpu 1 nvlink_speed 20000")
    node = Host(tmp_path / "sys")
    await host.start(
        NAVARCH_PCIE_WIDTH="16",
        NAVARCH_NVLINK_GBYTE_PER_SECOND="25",
        NAVARCH_RDMA_DEVICES="8",
        NAVARCH_RDMA_LINK_LAYER="InfiniBand",
        NAVARCH_RDMA_GBIT_PER_SECOND="400",
        NAVARCH_SYS=str(node.sys),
    )
    found = contents(await asyncio.wait_for(events(bus, host.node, 3), 30))
    checks = next(each["checks"] for each in found if "checks" in each)
    failed = {each["name"]: each["detail"] for each in checks if not each["ok"]}
    assert failed == {"pcie": "GPU 2: the PCIe link has 8 lanes of 16"}
    assert [each["condition"] for each in found if "condition" in each] == ["pcie-width"]
