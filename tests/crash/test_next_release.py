"""A fleet moves to a next release and back, service by service, in two orders."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.replica_process import ROOT
from tests.crash.rig import SERVICES, Rig, Shape
from tests.crash.rounds import exchange_service, moments
from tests.support.releases import next_release

pytestmark = pytest.mark.slow

SHAPE = Shape()
MOMENTS = moments(SHAPE.order)[2:]
ORDERS = pytest.mark.parametrize(
    "order", [SERVICES, SERVICES[::-1]], ids=["pool-manager first", "pool-manager last"]
)


async def exchanged(rig: Rig, steps: Sequence[tuple[str, Path]]) -> None:
    """Each service, in the middle of a replacement: nothing is lost, doubled or leaked."""
    for number, (service, code) in enumerate(steps):
        moment = MOMENTS[number % len(MOMENTS)]
        outcome = await exchange_service(rig, rig.replica(service), code, moment)
        assert not outcome.differences, f"{service} of {code} at {moment}\n{outcome.report}"
    assert rig.unexpected_ends == []


@ORDERS
async def test_services_are_exchanged_one_by_one_and_back(
    tmp_path: Path, order: Sequence[str]
) -> None:
    """The next release has more settings, fields, buckets, events of a consumer."""
    later = next_release(tmp_path / "later")
    async with Rig(tmp_path / "fleet", SHAPE) as rig:
        there = [(each, later) for each in order]
        await exchanged(rig, [*there, *((each, ROOT) for each in order)])
