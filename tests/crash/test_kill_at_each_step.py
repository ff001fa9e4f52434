"""Each service is killed at each moment of a replacement: still one replacement.

`make test` kills some service at every moment; `make crash-matrix` every service at every moment.
"""

import pytest

from tests.crash.rig import SERVICES, Moment, Rig, Shape
from tests.crash.rounds import (
    FAULT,
    PUBLISHED,
    Case,
    author,
    case_names,
    check_outcome,
    moments,
    rounds,
    strike_service,
    strike_services,
)
from tests.support.wide import WHOLE

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape(order="terminate_first")
ROUNDS = rounds(SERVICES, moments(SHAPE.order))
IN_EVERY_RUN = ROUNDS if WHOLE else ROUNDS[:6]
"""The first six rounds strike at every moment."""


def receivers() -> list[Case]:
    """The service that starts work when another service stores a moment."""
    return [
        (service, moment)
        for moment in moments(SHAPE.order)
        for service in SERVICES
        if receives(service, moment)
    ]


def receives(service: str, moment: Moment) -> bool:
    """Return whether a moment is work for a service that did not store it."""
    match service:
        case "health-monitor":
            return moment == FAULT
        case "pool-manager":
            return author(moment) not in ("", service)
        case _:
            done = Moment(moment.step, "succeeded")
            return moment.status == "started" and author(done) == service


def cases_with_held_work() -> list[tuple[Case, ...]]:
    """The same in rounds, each with every service at most once."""
    left, found = receivers(), []
    while left:
        now = {service: (service, moment) for service, moment in reversed(left)}
        found.append(tuple(now.values()))
        left = [case for case in left if case not in now.values()]
    return found


@pytest.mark.parametrize("cases", IN_EVERY_RUN, ids=case_names)
async def test_services_killed_as_a_moment_is_stored(rig: Rig, cases: tuple[Case, ...]) -> None:
    """Killed within two milliseconds of the entry, they still do their work once."""
    check_outcome(await strike_services(rig, cases, "kill"))


@pytest.mark.parametrize("moment", PUBLISHED, ids=str)
async def test_pool_manager_killed_as_it_publishes_an_event(rig: Rig, moment: Moment) -> None:
    """Killed between publishing and acknowledging the entry, it publishes nothing twice."""
    check_outcome(await strike_service(rig, rig.replica("pool-manager"), moment, "kill"))


@pytest.mark.parametrize("cases", cases_with_held_work(), ids=case_names)
async def test_services_killed_while_they_hold_work(rig: Rig, cases: tuple[Case, ...]) -> None:
    """Frozen first, so that work is delivered to them and cannot begin; then killed."""
    check_outcome(await strike_services(rig, cases, "frozen"))


async def test_every_service_is_struck_at_every_moment() -> None:
    """Every pair of service and moment is in a round, however the rounds combine them."""
    pairs = {case for cases in ROUNDS for case in cases}
    assert {(service, moment) for service in SERVICES for moment in moments(SHAPE.order)} == pairs
    struck = {moment for cases in IN_EVERY_RUN for _, moment in cases}
    assert set(moments(SHAPE.order)) == struck
    assert set(receivers()) == {case for cases in cases_with_held_work() for case in cases}
