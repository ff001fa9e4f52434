"""One round: a node breaks, and a process is struck during the replacement and started again.

The claim is the same for every process and moment: one replacement, nothing lost, doubled or
leaked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from tests.crash.consistency import REPLACE_STEPS, Difference
from tests.crash.fleet_shape import WRITTEN, moments_of_step
from tests.crash.replica_process import Replica
from tests.crash.rig import SERVICES, TOOK_EFFECT, Moment, Rig
from tests.support.busyness import allowed
from tests.support.wide import WHOLE

STRUCK_SECONDS_MAX: Final = 60.0
RESUME_SECONDS_MAX: Final = 3.0
"""From the start of a killed service to the next step of its saga: what the design promises."""

Strike = Literal["kill", "frozen", "terminate"]
"""`kill`: -9 as the moment is seen. `frozen`: stopped beforehand, so that it takes the work and
cannot begin it, and killed as the moment is seen. `terminate`: -15 as the moment is seen."""

Perform = Callable[[Rig], Awaitable[str]]
"""Starts what a process is struck in; returns the node."""
Case = tuple[str, Moment]
"""A service, and when it is struck."""

COORDINATOR: Final = "pool-manager"
PERFORMERS: Final = {
    **dict.fromkeys(("cordon", "drain", "uncordon", "promote", "reserve"), "notifier"),
    **dict.fromkeys(("provision", "bootstrap", "terminate"), "provisioner"),
    **dict.fromkeys(("reset", "reboot", "check"), "provisioner"),
}
"""Step -> the service that performs it; the coordinator completes the others."""
WITH_EFFECT: Final = ("cordon", "drain", "terminate", "provision")
"""Steps whose effect is visible from outside before it is stored."""

FAULT: Final = Moment("fault", "stored")
VERDICT: Final = Moment("verdict", "stored")


PUBLISHED: Final = tuple(
    Moment(fact, "published")
    for fact in ("saga-opened", "cordoned", "drained", "terminated", "admitted", "node-replaced")
)
"""Events that the pool-manager publishes about a replacement before it acknowledges the entry."""


def moments(order: str) -> list[Moment]:
    """Return every moment of a replacement, in order."""
    found = [FAULT, VERDICT, Moment("saga", "started")]
    for step in REPLACE_STEPS[order]:
        found += moments_of_step(step, WITH_EFFECT)
    return [*found, Moment("saga", "done")]


def author(moment: Moment) -> str:
    """The service that stores what a moment is about; empty where none does."""
    if moment == VERDICT:
        return "health-monitor"
    if moment.status == "stored" and any(moment.step in each for each in WRITTEN.values()):
        return PERFORMERS["provision"]
    if moment == FAULT or moment.status == TOOK_EFFECT:
        return ""
    return PERFORMERS.get(moment.step, COORDINATOR) if moment.status == "succeeded" else COORDINATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Holds the result of a round."""

    node: str
    resume_seconds: float | None
    """From the restart of the struck process to what it stored next; None: it had nothing to do."""
    status: int = 0
    """The exit status of the struck process."""
    differences: Sequence[Difference] = ()
    report: str = ""


def resume_seconds_allowed() -> float:
    """Return how many seconds a struck process may take to resume, on this machine now."""
    return allowed(RESUME_SECONDS_MAX)


def check_outcome(outcome: Outcome) -> None:
    """Assert what every round claims."""
    assert not outcome.differences, outcome.report
    if outcome.resume_seconds is not None:
        assert outcome.resume_seconds <= resume_seconds_allowed()


async def replace_without_strike(rig: Rig) -> Outcome:
    """Break a node without a strike."""
    node = await rig.break_a_node()
    return await _outcome(rig, node, 0.0, 0, ())


async def strike_service(rig: Rig, victim: Replica, moment: Moment, strike: Strike) -> Outcome:
    """Strike `victim` at a moment of a replacement and start it again."""
    await victim.is_ready()
    struck = rig.arm(moment, victim.terminate if strike == "terminate" else victim.kill)
    if strike == "frozen":
        before = _before(rig, moment)
        if before is None:
            victim.freeze()
        else:
            rig.arm(before, victim.freeze)
    node = await rig.break_a_node()
    async with asyncio.timeout(STRUCK_SECONDS_MAX):
        await struck.wait()
    status = await victim.gone()
    await victim.start()
    return await _outcome(rig, node, victim.started_at, status, {victim.service})


T = TypeVar("T")


def sample(cases: Sequence[T], every: int) -> Sequence[T]:
    """A share of the cases, as many as a run of all tests has time for.

    All of them where CRASH_MATRIX is `whole`, as in `make crash-matrix`.
    """
    return cases if WHOLE else cases[::every]


def rounds(services: Sequence[str], places: Sequence[Moment]) -> list[tuple[Case, ...]]:
    """Every service at every moment, in as many rounds as there are moments.

    In each round every service is struck once, each at another moment, spread over the whole saga.
    """
    apart = max(1, len(places) // len(services))
    return [
        tuple(
            (service, places[(number + apart * place) % len(places)])
            for place, service in enumerate(services)
        )
        for number in range(len(places))
    ]


def case_names(cases: Sequence[Case]) -> str:
    """Write `pool-manager at drain.started, notifier at …`."""
    return ", ".join(f"{service} at {moment}" for service, moment in cases)


async def strike_services(
    rig: Rig, cases: Sequence[Case], strike: Strike, perform: Perform = Rig.break_a_node
) -> Outcome:
    """Strike several services, each at its own moment of one saga, and start each again."""
    victims = [(rig.replica(service), moment) for service, moment in cases]
    await asyncio.gather(*(victim.is_ready() for victim, _ in victims))
    struck = [
        (victim, rig.arm(moment, victim.terminate if strike == "terminate" else victim.kill))
        for victim, moment in victims
    ]
    if strike == "frozen":
        for victim, moment in victims:
            before = _before(rig, moment)
            if before is None:
                victim.freeze()
            else:
                rig.arm(before, victim.freeze)

    async def back(victim: Replica, done: asyncio.Event) -> int:
        async with asyncio.timeout(len(cases) * STRUCK_SECONDS_MAX):
            await done.wait()
        status = await victim.gone()
        await victim.start()
        return status

    node, *statuses = await asyncio.gather(
        perform(rig), *(back(victim, done) for victim, done in struck)
    )
    began = max(victim.started_at for victim, _ in victims)
    authors = {victim.service for victim, _ in victims}
    return await _outcome(rig, node, began, max(statuses, key=abs), authors)


async def strike_server(rig: Rig, moment: Moment, *, kill: bool) -> Outcome:
    """Kill nats-server at a moment, or stop it in order, and start it on its store and port."""
    struck = rig.arm(moment, rig.server_kill if kill else rig.server_terminate)
    node = await rig.break_a_node()
    async with asyncio.timeout(STRUCK_SECONDS_MAX):
        await struck.wait()
    await rig.server.wait()
    began = asyncio.get_running_loop().time()
    await rig.server.start()
    return await _outcome(rig, node, began, 0, set(SERVICES))


async def stop_without_server(rig: Rig, victim: Replica) -> Outcome:
    """Stop a service while a node breaks and nats-server is away; then start both."""
    await victim.is_ready()
    rig.server_kill()
    await rig.server.wait()
    breaking = asyncio.create_task(rig.break_a_node())
    victim.terminate()
    status = await victim.gone()
    await rig.server.start()
    await victim.start()
    return await _outcome(rig, await breaking, victim.started_at, status, {victim.service})


async def start_without_server(rig: Rig, victim: Replica, after_seconds: float) -> Outcome:
    """Kill a service as a node breaks, and nats-server while the service starts again."""
    await victim.is_ready()
    struck = rig.arm(FAULT, victim.kill)
    node = await rig.break_a_node()
    async with asyncio.timeout(STRUCK_SECONDS_MAX):
        await struck.wait()
    status = await victim.gone()
    await victim.start()
    await asyncio.sleep(after_seconds)
    rig.server_kill()
    await rig.server.wait()
    began = asyncio.get_running_loop().time()
    await rig.server.start()
    return await _outcome(rig, node, began, status, set(SERVICES))


async def exchange_service(
    rig: Rig,
    victim: Replica,
    code: Path,
    moment: Moment,
    before_start: Callable[[], Awaitable[None]] | None = None,
) -> Outcome:
    """Stop a service in order at a moment of a replacement, and start it from other code.

    `before_start` does what an operator does meanwhile.
    """
    await victim.is_ready()
    struck = rig.arm(moment, victim.terminate)
    node = await rig.break_a_node()
    async with asyncio.timeout(STRUCK_SECONDS_MAX):
        await struck.wait()
    status = await victim.gone()
    victim.code = code
    if before_start is not None:
        await before_start()
    await victim.start()
    await victim.is_ready()
    return await _outcome(rig, node, victim.started_at, status, ())


async def _outcome(
    rig: Rig, node: str, began: float, status: int, authors: Collection[str]
) -> Outcome:
    found, report = await rig.differences()
    signs = (at for at, moment, _ in rig.signs if at > began and author(moment) in authors)
    sign = next(signs, None)
    return Outcome(
        node=node,
        resume_seconds=None if sign is None else sign - began,
        status=status,
        differences=found,
        report=report,
    )


def _before(rig: Rig, moment: Moment) -> Moment | None:
    """The moment before; None if it is the fault itself."""
    order = moments(rig.shape.order)
    place = order.index(moment)
    return order[place - 1] if place else None
