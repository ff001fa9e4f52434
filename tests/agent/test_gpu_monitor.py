"""The real NVML binding against the stand-in library: what the agent makes of what GPUs do."""

import ast
import asyncio
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.conditions.declared import CONDITIONS
from agent.conditions.gpu_reader import FABRIC_PROBLEMS, fabric_problems
from agent.faults import sample_changes
from agent.faults.boot_checks import nvlink_domain
from agent.gpu_monitor import GpuMonitor
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from agent.sources.nvml import Nvml, NvmlUnavailable
from schemas.enums import SUBCODES
from schemas.gpu_samples import GpuSample
from schemas.node_records import GpuUse
from services.provisioner.providers.local_gpus import (
    build_library,
    compiler,
    simulated_gpus,
    write_state,
)
from tests.agent.reports import Reports

GPUS = simulated_gpus("node-7", 2)
CLUSTER = "00000000-0000-0000-0000-0000000000"


class Driver:
    """The simulated driver: its library and the file that scripts it."""

    def __init__(self, library: Path, state: Path) -> None:
        self.library = str(library)
        self._state = state
        self.order()

    def order(self, *orders: str, count: int = 2) -> None:
        """Script the GPUs again."""
        write_state(self._state, GPUS[:count], orders)


@pytest.fixture
def driver(tmp_path: Path, nvml_library: Path) -> Iterator[Driver]:
    """Make a driver whose two GPUs are in order."""
    os.environ["NAVARCH_NVML_STATE"] = str(tmp_path / "state")
    yield Driver(nvml_library, tmp_path / "state")
    del os.environ["NAVARCH_NVML_STATE"]


class MonitorRun(Reports):
    """A watch over the simulated GPUs, and what it reported."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.watch = GpuMonitor(
            Nvml(driver.library),
            ProbeThread("nvml test"),
            deadline_seconds=0.2,
            on_change=self.changed,
            observe=self.observe,
        )


def test_identities_and_readings_come_through(driver: Driver):
    """UUID, serial, address and every reading pass the binding unharmed."""
    driver.order("gpu 1 temperature 91", "gpu 1 power 689500", "gpu 1 nvlinks_down 2")
    nvml = Nvml(driver.library)
    inventory = nvml.open()
    assert inventory.gpus == GPUS
    assert inventory.driver_version == "550.54.15"
    sample = nvml.sample().gpus[1]
    nvml.close()
    assert sample.uuid == GPUS[1].uuid
    assert (sample.temperature_celsius, sample.power_watts, sample.nvlinks_up) == (91, 689.5, 16)
    absent = [f for f in sample.__struct_fields__ if f != "extra" and getattr(sample, f) is None]
    assert absent == []


def test_a_reading_that_a_gpu_has_not_got_is_absent(driver: Driver):
    """Not supported is no fault: the reading is missing and all others are there."""
    driver.order("gpu 0 none ecc_dbe", "gpu 0 none nvlinks", "gpu 0 none remap_failed")
    nvml = Nvml(driver.library)
    nvml.open()
    sample = nvml.sample()
    nvml.close()
    first, second = sample.gpus
    assert (first.ecc_dbe_volatile, first.nvlinks_up, first.remap_failed) == (None, None, None)
    assert (first.temperature_celsius, second.ecc_dbe_volatile, second.nvlinks_up) == (42, 0, 18)
    assert sample.failures == ()


def test_a_real_gpu_s_readings_are_the_stand_ins(driver: Driver):
    """An H100 in a VM of its own, driver 580.159.04: what it has not got, and what it reports."""
    nothing = ("retired_sbe", "retired_dbe", "nvlinks", "nvlink_errors", "nvlink_speed")
    driver.order(
        *(f"gpu 0 none {each}" for each in nothing),
        *("gpu 0 fabric_state 0", "gpu 0 fabric_health 0", "gpu 0 margin 44"),
        *("gpu 0 temperature 43", "gpu 0 memory_temperature 50", "gpu 0 power 130323"),
        *("gpu 0 throttle 0", "gpu 0 utilization 2"),
    )
    nvml = Nvml(driver.library)
    nvml.open()
    found = nvml.sample()
    nvml.close()
    assert found.failures == ()
    assert found.gpus[0] == GpuSample(
        index=0,
        uuid=GPUS[0].uuid,
        utilization_percent=2,
        memory_used_bytes=0,
        memory_total_bytes=85_520_809_984,
        power_watts=130.323,
        temperature_celsius=43,
        memory_temperature_celsius=50,
        temperature_margin_celsius=44,
        sm_clock_mhz=1980,
        throttle_reasons=0,
        ecc_dbe_volatile=0,
        ecc_sbe_volatile=0,
        ecc_dbe_aggregate=0,
        ecc_sbe_aggregate=0,
        remapped_correctable=0,
        remapped_uncorrectable=0,
        remap_pending=False,
        remap_failed=False,
        pcie_replays=0,
        pcie_width=16,
        pcie_generation=5,
        memory_utilization_percent=0,
        memory_clock_mhz=2619,
        power_limit_watts=700.0,
        recovery_action=0,
    )


@pytest.mark.parametrize(("order", "reserved"), [("", 0), ("fail {} 13", 503_316_480)])
def test_memory_is_used_as_nvidia_smi_shows_it(driver: Driver, order: str, reserved: int):
    """Drivers before 510 cannot tell what they reserve for themselves; it counts as used."""
    function = "nvmlDeviceGetMemoryInfo_v2"
    driver.order("gpu 1 memory_used 9000000000", *([order.format(function)] if order else []))
    nvml = Nvml(driver.library)
    nvml.open()
    sample = nvml.sample()
    nvml.close()
    assert sample.failures == ()
    assert sample.gpus[1].memory_used_bytes == 9_000_000_000 + reserved


def test_no_driver_is_said_so(driver: Driver):
    """Where NVML does not start the reason is reported; where the library is missing, likewise."""
    driver.order("fail nvmlInit 9")
    with pytest.raises(NvmlUnavailable, match="Driver Not Loaded"):
        Nvml(driver.library).open()
    with pytest.raises(NvmlUnavailable, match="missing"):
        Nvml("/missing/libnvidia-ml.so.1").open()


def test_use_is_dated_from_its_change(driver: Driver):
    """Utilization or memory means busy; without NVML nothing is known."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    found = []

    async def run() -> None:
        watch = MonitorRun(driver).watch
        for minute, orders in enumerate(
            ((), (), ("gpu 1 utilization 3",), ("gpu 1 memory_used 9000000000",), ())
        ):
            driver.order(*orders)
            await watch.sample()
            found.append(watch.use(noon + timedelta(minutes=minute)))
        driver.order("fail nvmlDeviceGetCount 999")
        async with watch.release():
            found.append(watch.use(noon))

    asyncio.run(run())
    since = [0, 0, 2, 2, 4]
    assert found == [
        GpuUse(busy=minute in (2, 3), since=noon + timedelta(minutes=since[minute]))
        for minute in range(5)
    ] + [None]


@pytest.mark.parametrize(("code", "busy"), [(9, False), (18, None)])
def test_nothing_runs_on_gpus_without_the_kernel_module(
    driver: Driver, code: int, busy: bool | None
) -> None:
    """Programs that run go on where only the version of the library is another one."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    async def run() -> GpuUse | None:
        watch = MonitorRun(driver).watch
        driver.order("gpu 1 utilization 3")
        await watch.sample()
        driver.order(f"fail * {code}", "gpu 1 utilization 3")
        await watch.sample()
        return watch.use(noon)

    found = asyncio.run(run())
    assert (found.busy if found else None) is busy


SCRIPTS = [
    (("gpu 1 lost 1",), [("gpu_lost", 1, "")]),
    (("fail nvmlDeviceGetPowerUsage 999 1",), [("probe_failed", 1, "")]),
    (("gpu 0 ecc_dbe 2",), [("ecc_dbe", 0, "")]),
    (("gpu 0 ecc_sbe 500",), [("ecc_sbe", 0, "")]),
    (("gpu 0 ecc_sbe 3",), []),
    (("gpu 1 remap_pending 1",), [("row_remap", 1, "pending")]),
    (("gpu 1 remap_failed 1",), [("row_remap", 1, "failed")]),
    (("gpu 1 remapped_uncorrectable 1",), [("row_remap", 1, "uncorrectable")]),
    (("gpu 1 retired_dbe 1",), [("page_retirement", 1, "")]),
    (("gpu 0 nvlink_errors 7",), [("nvlink", 0, "errors")]),
    (("gpu 0 nvlinks_down 1",), [("nvlink", 0, "down")]),
    (("gpu 0 pcie_replays 5000",), [("pcie", 0, "replays")]),
    (("gpu 0 pcie_width 8",), [("pcie", 0, "width")]),
    (("gpu 1 fabric_state 2",), [("fabric", 1, "left")]),
    (("gpu 1 fabric_status 999",), [("fabric", 1, "failed")]),
    (("gpu 1 fabric_health 0x1a9",), [("fabric", 1, "health")]),
    (("gpu 1 fabric_health 0x5aa",), [("fabric", 1, "health")]),
    (("gpu 1 fabric_health 0",), []),
    (("gpu 0 throttle 0x48",), [("thermal", 0, "hw_slowdown")]),
    (("gpu 0 throttle 0x88",), [("power", 0, "power_brake")]),
    (("gpu 0 throttle 0x4",), []),
    (("gpu 0 temperature 99",), []),
    (("fail * 9",), [("probe_failed", -1, "")]),
]


@pytest.mark.parametrize(("orders", "expected"), SCRIPTS, ids=[s[0][0] for s in SCRIPTS])
async def test_what_turns_worse_is_reported_once(
    driver: Driver, orders: tuple[str, ...], expected: list[tuple[str, int, str]]
):
    """A change is reported in the next sample, and not again while it lasts; levels are not."""
    watched = MonitorRun(driver)
    await watched.watch.open()
    await watched.watch.sample()
    assert watched.kinds() == []
    driver.order(*orders)
    await watched.watch.sample()
    assert watched.kinds() == expected
    await watched.watch.sample()
    await watched.watch.sample()
    assert watched.kinds() == []


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0, []),
        (0x1AA, []),
        (0x1A9, ["degraded_bandwidth"]),
        (0x1A6, ["route_recovery"]),
        (0x19A, ["unhealthy_routes"]),
        (0x16A, ["access_timeout_recovery"]),
        (0x5AA, ["incorrect_configuration_5"]),
        (0x81AA, ["manager_disconnected"]),
        (0x41AA, []),
        (0x555, [*(name for name, *_ in FABRIC_PROBLEMS[:4]), "incorrect_configuration_5"]),
    ],
)
def test_the_fabric_health_mask_is_read(mask: int, expected: list[str]):
    """Each part of NVML's mask has its own bad value; not supported is not bad."""
    assert fabric_problems(mask) == expected


def test_a_gpu_without_a_fabric_reports_nothing_of_it(driver: Driver):
    """PCIe cards have no fabric: state 0 and a refused call both mean that it is absent."""
    driver.order("gpu 0 fabric_state 0", "fail nvmlDeviceGetGpuFabricInfoV 3 1")
    nvml = Nvml(driver.library)
    nvml.open()
    samples = nvml.sample()
    nvml.close()
    assert [each.fabric_state for each in samples.gpus] == [None, None]
    assert samples.failures == ()


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        ((), ""),
        (("gpu * fabric_clique 5",), ""),
        (("gpu * fabric_cluster 0x1f", "gpu * fabric_clique 5"), f"{CLUSTER}1f.5"),
        (("gpu * fabric_cluster 0x1f", "gpu * fabric_state 1"), ""),
        (("gpu * fabric_cluster 0x1f", "gpu * fabric_state 2"), ""),
        (("gpu * fabric_cluster 0x1f", "gpu * fabric_status 999"), ""),
        (("gpu * fabric_cluster 0x1f", "gpu 1 fabric_clique 6"), ""),
        (("gpu * fabric_cluster 0x1f", "gpu 1 fabric_state 1"), ""),
        (("gpu * fabric_cluster 0x1f", "gpu 1 none fabric_state"), ""),
        (("gpu * fabric_cluster 0x1f", "fail nvmlDeviceGetGpuFabricInfoV 3"), ""),
        (("gpu * fabric_cluster 0x1f", "fail nvmlDeviceGetGpuFabricInfoV 999"), ""),
    ],
)
def test_the_nvlink_domain_is_read(driver: Driver, orders: tuple[str, ...], expected: str):
    """Zeros, a GPU that has not joined, or another domain for one of them: there is none."""
    driver.order(*orders)
    nvml = Nvml(driver.library)
    opened = nvml.open()
    sample = nvml.sample()
    nvml.close()
    assert (expected, expected) == (opened.nvlink_domain, nvlink_domain(sample))


async def test_a_gpu_that_is_lost_again_is_reported_again(driver: Driver):
    """A GPU that has answered in between fails again as a new failure."""
    watched = MonitorRun(driver)
    await watched.watch.open()
    for order in ("gpu 1 lost 1", "", "gpu 1 lost 1"):
        driver.order(order)
        await watched.watch.sample()
    assert watched.kinds() == [("gpu_lost", 1, ""), ("gpu_lost", 1, "")]


async def test_a_hung_call_is_reported_once_and_recovers(driver: Driver):
    """The watch goes on while a call hangs, names what hangs, and samples again afterwards."""
    watched = MonitorRun(driver)
    await watched.watch.open()
    driver.order("hang nvmlDeviceGetTemperature 60 1")
    assert await watched.watch.sample() is None
    assert await watched.watch.sample() is None
    assert watched.kinds() == [("probe_hung", 1, "temperature")]
    driver.order()
    async with asyncio.timeout(60):
        while await watched.watch.sample() is None:
            continue
    assert watched.kinds() == []


async def test_a_gpu_that_a_new_driver_does_not_see_is_lost(driver: Driver):
    """When the driver comes back with fewer GPUs, the missing one is a fault."""
    watched = MonitorRun(driver)
    await watched.watch.open()
    driver.order(count=1)
    await watched.watch.open()
    await watched.watch.sample()
    assert watched.kinds() == [("gpu_lost", 1, "vanished")]


async def test_states_that_are_bad_from_the_start_are_reported(driver: Driver):
    """A failed remap or uncorrectable errors of this boot count though no change was seen."""
    driver.order("gpu 0 remap_failed 1", "gpu 1 ecc_dbe 4", "gpu 1 retired_dbe 9")
    watched = MonitorRun(driver)
    await watched.watch.open()
    await watched.watch.sample()
    assert sorted(watched.kinds()) == [("ecc_dbe", 1, ""), ("row_remap", 0, "failed")]


async def test_a_slow_sample_is_not_a_hung_one():
    """Many calls may take longer than the deadline together, as long as one follows another."""
    probe, calls = ProbeThread("slow"), [0]
    waiting = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> str:
        for _ in range(8):
            time.sleep(0.03)
            calls[0] += 1
        loop.call_soon_threadsafe(waiting.set)
        return "done"

    assert await probe.call(slow, 0.1, lambda: calls[0]) == "done"
    with pytest.raises(ProbeHung):
        await probe.call(slow, 0.1)
    await waiting.wait()


def test_simulated_gpus_are_stable_and_different():
    """An instance always has the same GPUs, and no two instances share one."""
    assert simulated_gpus("a", 8) == simulated_gpus("a", 8)
    uuids = {gpu.uuid for name in ("a", "b") for gpu in simulated_gpus(name, 16)}
    places = {gpu.pci for gpu in simulated_gpus("a", 16)}
    assert (len(uuids), len(places)) == (32, 16)


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
async def test_two_processes_may_build_at_once(tmp_path: Path):
    """Building twice at the same time gives one library, and building again changes nothing."""
    both = await asyncio.gather(*(asyncio.to_thread(build_library, tmp_path) for _ in range(2)))
    assert both[0] == both[1]
    built = both[0].stat().st_mtime_ns
    assert build_library(tmp_path).stat().st_mtime_ns == built
    assert [each.name for each in both[0].parent.iterdir()] == ["libnvidia-ml.so.1"]


def test_every_subcode_that_a_change_has_is_declared():
    """`navarch policy explain` refuses a subcode that is not declared for its kind."""
    root = Path(sample_changes.__file__).parents[1]
    found = set()
    for file in (*root.glob("*.py"), *root.glob("faults/*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "SampleChange":
                given = [*call.args[3:4], *(k.value for k in call.keywords if k.arg == "subcode")]
                kind = call.args[0]
                if given and all(isinstance(each, ast.Constant) for each in (kind, *given)):
                    found.add((ast.literal_eval(kind), ast.literal_eval(given[0])))
    rules = [each for each in sample_changes._RULES if isinstance(each, sample_changes._Counter)]
    found |= {(each.kind, each.subcode) for each in (*rules, *CONDITIONS) if each.subcode}
    found = {(kind, each) for kind, each in found if kind in SUBCODES}
    assert len(found) >= 13
    assert found == {(kind, each) for kind in SUBCODES if kind != "sxid" for each in SUBCODES[kind]}
