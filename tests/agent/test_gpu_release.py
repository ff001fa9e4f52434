"""While GPUs are reset the agent holds none of them, says nothing of it, and then looks again."""

import asyncio

import pytest

from agent.sources.nvml import GpuProcess, Nvml
from tests.agent.test_gpu_monitor import GPUS, Driver, MonitorRun, driver

__all__ = ["driver"]


async def test_while_it_is_off_the_gpus_it_reports_nothing(driver: Driver) -> None:
    """No sample, no fault that NVML is gone; afterwards all GPUs are read again."""
    watched = MonitorRun(driver)
    watch = watched.watch
    assert await watch.sample() is not None
    async with watch.release():
        assert [None, None] == list(await asyncio.gather(watch.sample(), watch.sample()))
        assert ("the GPUs are being reset", None) == (watch.problem, watch.inventory)
    again = await watch.sample()

    assert again is not None
    assert len(GPUS) == len(again.gpus)
    assert ("", []) == (watch.problem, watched.kinds())


async def test_what_a_reset_takes_away_is_no_news(driver: Driver) -> None:
    """Counters that begin again and links that come up one by one are no faults."""
    driver.order("gpu 1 ecc_sbe 400", "gpu 1 pcie_replays 300")
    watched = MonitorRun(driver)
    await watched.watch.sample()
    watched.kinds()
    async with watched.watch.release():
        driver.order("gpu 1 nvlinks_down 2")
    await watched.watch.sample()
    assert [] == watched.kinds()


async def test_a_gpu_that_does_not_come_back_is_reported(driver: Driver) -> None:
    """A reset may be its end."""
    watched = MonitorRun(driver)
    await watched.watch.sample()
    async with watched.watch.release():
        driver.order(count=1)
    await watched.watch.sample()
    assert [("gpu_lost", 1, "vanished")] == watched.kinds()


async def test_a_reset_that_raises_leaves_no_gpu_unwatched(driver: Driver) -> None:
    """The watch goes on whatever happens while the GPUs are released."""
    watched = MonitorRun(driver)
    await watched.watch.sample()
    with pytest.raises(OSError, match="no such tool"):
        async with watched.watch.release():
            raise OSError("no such tool")
    assert await watched.watch.sample() is not None


async def test_who_computes_on_the_gpus_is_known(driver: Driver) -> None:
    """Processes are listed for each GPU; a GPU that is lost has none."""
    driver.order("gpu 0 processes 2", "gpu 1 processes 1", "gpu 1 lost 1")
    watched = MonitorRun(driver)
    await watched.watch.sample()
    assert (GpuProcess(0, 4000), GpuProcess(0, 4001)) == await watched.watch.processes()


def test_a_gpu_that_cannot_report_its_processes_has_none(driver: Driver) -> None:
    """Some cards and drivers do not support the question, and that is no error."""
    driver.order("gpu * none processes")
    nvml = Nvml(driver.library)
    nvml.open()
    assert () == nvml.processes()
