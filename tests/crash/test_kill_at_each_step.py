"""Each service killed at each moment of a replacement: one replacement, and nothing left over."""

import pytest

from tests.crash.rig import SERVICES, Moment, Rig, Shape
from tests.crash.rounds import FAULT, TOLD, author, hold, moments, strike_service

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="terminate_first")

Case = tuple[str, Moment]


def takers() -> list[Case]:
    """Who takes work on at a moment that somebody else stores."""
    return [
        (service, moment)
        for moment in moments(SHAPE.order)
        for service in SERVICES
        if takes(service, moment)
    ]


def takes(service: str, moment: Moment) -> bool:
    """Whether a moment is work for a service that has not made it itself."""
    match service:
        case "health-monitor":
            return moment == FAULT
        case "pool-manager":
            return author(moment) not in ("", service)
        case _:
            done = Moment(moment.step, "succeeded")
            return moment.status == "started" and author(done) == service


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("moment", moments(SHAPE.order), ids=str)
async def test_a_service_killed_as_a_moment_is_stored(
    rig: Rig, service: str, moment: Moment
) -> None:
    """Killed within a millisecond or two of the entry: whatever it was doing, it does once."""
    hold(await strike_service(rig, rig.replica(service), moment, "kill"))


@pytest.mark.parametrize("moment", TOLD, ids=str)
async def test_the_pool_manager_killed_as_it_tells_a_fact(rig: Rig, moment: Moment) -> None:
    """Killed between telling and having done with the entry: it is not told twice."""
    hold(await strike_service(rig, rig.replica("pool-manager"), moment, "kill"))


@pytest.mark.parametrize(("service", "moment"), takers(), ids=str)
async def test_a_service_killed_while_it_surely_holds_the_work(
    rig: Rig, service: str, moment: Moment
) -> None:
    """Stopped first, so that the work is delivered to it and it cannot begin; then killed."""
    hold(await strike_service(rig, rig.replica(service), moment, "frozen"))
