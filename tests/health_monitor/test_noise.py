"""A month of noise: values that jitter about each bound, and readers that fail for a minute.

The agent's reader and engine, and the health-monitor's rules and policy, run on virtual time.
`python -m tests.health_monitor.test_noise DAYS` runs longer ones and prints the figures.
"""

import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from agent.conditions.declared import BY_NAME
from agent.conditions.engine import Conditions, held, step
from agent.conditions.gpu_reader import NvmlOutage, NvmlView, read_gpus
from agent.observations import Best, GpuInventory, GpuNeeds, NodeSample, NvmlFailure
from schemas.gpu_samples import GpuSample
from schemas.health_records import HealthRecord
from schemas.held_conditions import bounded
from schemas.node_events import GpuIdentity
from services.health_monitor.rules.health_state import next_review, working_of
from services.health_monitor.rules.node_health import PublishVerdict, Trigger
from services.health_monitor.rules.open_conditions import decide_listed, decide_reviewed
from tests.health_monitor.test_open_conditions import healthy, judge

SAMPLE_SECONDS: Final = 15.0
FAILS_SECONDS: Final = (60.0, 90.0)
BEGAN: Final = datetime(2026, 11, 1, tzinfo=UTC)
GPUS: Final = tuple(
    GpuIdentity(index=i, uuid=f"GPU-{i}", name="NVIDIA H100 80GB HBM3") for i in range(8)
)
NEEDS: Final = GpuNeeds(
    gpus=8, nvlinks=18, nvlink_gbyte_per_second=25, pcie_width=16, pcie_generation=5
)
HAD: Final = {
    gpu.uuid: Best(pcie_width=16, pcie_generation=5, nvlinks=18, nvlink_mbyte_per_second=26_562)
    for gpu in GPUS
}
BLIPS: Final[tuple[dict[str, Any], ...]] = (
    {"throttle_reasons": 0x8},
    {"throttle_reasons": 0x80},
    {"nvlinks_up": 0},
    {"nvlink_mbyte_per_second": 20_000},
    {"pcie_width": 8},
    {"pcie_generation": 3, "utilization_percent": 99},
)
"""Readings of one sample alone: shorter than any of their conditions must last."""
BLIPS_A_DAY: Final = 200
FAILURES_A_DAY: Final = 3


@dataclass
class Noise:
    """Runs a node for some days, and counts what comes of it."""

    days: float
    seed: int = 1
    verdicts: Counter[str] = field(default_factory=Counter)
    begins: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    blips: int = 0
    samples: int = 0
    shaken: bool = False
    """The sample before had a reading beyond its bound: the next one has none."""

    def run(self) -> "Noise":
        """Take each sample as the agent and the health-monitor do."""
        dice = random.Random(self.seed)
        state, record = Conditions(), healthy("boot-1")
        per_day = 86_400 / SAMPLE_SECONDS
        failing: NvmlView | None = None
        fails_until = 0.0
        for number in range(int(self.days * per_day)):
            at = number * SAMPLE_SECONDS
            if at >= fails_until:
                failing = None
            if failing is None and dice.random() < FAILURES_A_DAY / per_day:
                failing, fails_until = _failure(dice), at + dice.uniform(*FAILS_SECONDS)
                self.failures += 1
            view = failing or self._view(dice, per_day)
            now = BEGAN + timedelta(seconds=at)
            state, changes = step(state, read_gpus(view), now.timestamp(), SAMPLE_SECONDS)
            self.begins.update(each.track.name for each in changes if not each.over)
            record = self._heard(record, state, number + 2, now)
            self.samples += 1
        return self

    def _view(self, dice: random.Random, per_day: float) -> NvmlView:
        blip = dice.random() < BLIPS_A_DAY / per_day and not self.shaken
        self.shaken = blip
        self.blips += blip
        shaken = dice.randrange(8) if blip else -1
        gpus = tuple(_jittered(dice, index, blipped=index == shaken) for index in range(8))
        inventory = GpuInventory(GPUS)
        return NvmlView(
            opened=True, inventory=inventory, sample=NodeSample(gpus), needs=NEEDS, best=HAD
        )

    def _heard(
        self, record: HealthRecord, state: Conditions, number: int, now: datetime
    ) -> HealthRecord:
        listed = bounded("boot-1", state.counter, held(state))
        seen = Trigger(f"sample-{number}", 0, now)
        effects: tuple[Any, ...] = ()
        if listed != record.conditions:
            decided = decide_listed(record, listed, seen, judge)
            assert decided is not None
            record, effects = decided
        if 0 < next_review(working_of(record)) <= now.timestamp():
            record, more = decide_reviewed(record, Trigger(f"review-{number}", 0, now), judge)
            effects = (*effects, *more)
        found = (each.verdict.status for each in effects if isinstance(each, PublishVerdict))
        self.verdicts.update(found)
        return record


def _jittered(dice: random.Random, index: int, *, blipped: bool) -> GpuSample:
    """Return readings that are right beside each bound, or beyond one of them for a moment."""
    busy = dice.random() < 0.7
    readings: dict[str, Any] = {
        "utilization_percent": dice.randint(50, 100) if busy else dice.randint(0, 49),
        "pcie_generation": 5 if busy else dice.randint(1, 5),
        "pcie_width": 16,
        "nvlinks_up": 18,
        "nvlink_mbyte_per_second": dice.choice((25_300, 25_781, 26_562)),
        "fabric_state": 3,
        "throttle_reasons": dice.choice((0, 0x1, 0x4)),
    }
    if blipped:
        readings |= dice.choice(BLIPS)
    return GpuSample(index=index, uuid=f"GPU-{index}", **readings)


def _failure(dice: random.Random) -> NvmlView:
    """Return a reader that fails: it hangs, every call fails, or one GPU does not answer."""
    match dice.randrange(4):
        case 0:
            return NvmlView(outage=NvmlOutage("NVML hangs", hangs=True), opened=True, best=HAD)
        case 1:
            return NvmlView(outage=NvmlOutage("Unknown Error", code=999), opened=True, best=HAD)
        case 2:
            return NvmlView(outage=NvmlOutage("not loaded", code=9), opened=True, best=HAD)
        case _:
            failure = NvmlFailure(3, "probe_failed", "Unknown Error", 999)
            gpus = tuple(_jittered(dice, i, blipped=False) for i in range(8) if i != 3)
            sample = NodeSample(gpus, (failure,))
            return NvmlView(
                opened=True, inventory=GpuInventory(GPUS), sample=sample, needs=NEEDS, best=HAD
            )


def _check(found: Noise) -> None:
    """Raise where noise took the node out of service, or flooded."""
    assert found.failures
    assert found.blips
    assert not found.verdicts["unhealthy"], found.begins
    # A reader that fails degrades its node for that minute, and nothing else begins.
    assert not [name for name in found.begins if not BY_NAME[name].of_reader], found.begins
    assert sum(found.begins.values()) <= found.failures
    assert sum(found.verdicts.values()) <= 2 * found.failures


def test_two_days_of_noise_take_nothing_out_of_service() -> None:
    """Each failing minute degrades the node for itself; no value that jitters does anything."""
    _check(Noise(days=2).run())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_a_month_of_noise_takes_nothing_out_of_service(seed: int) -> None:
    """Thirty days of samples are judged as two are."""
    _check(Noise(days=30, seed=seed).run())


def main() -> None:
    """Print the figures of as many days as the command names."""
    start = time.perf_counter()
    found = Noise(days=float(sys.argv[1])).run()
    _check(found)
    figures = {each: getattr(found, each) for each in ("days", "samples", "blips", "failures")}
    figures |= {"begins": found.begins, "verdicts": found.verdicts}
    figures["seconds"] = round(time.perf_counter() - start, 1)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
