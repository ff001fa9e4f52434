"""A round with a destroyer: a node breaks, something stored is destroyed, the fleet converges.

No healthy node may be terminated. Where the fleet cannot converge by itself a service must name it
and the command that resolves it; the round then does what an operator would do.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_queries import CurrentFailure
from schemas.topology import DURABLES
from services.primitives.errors import BusError, Refused
from services.provisioner.time_limits import TimeLimits
from tests.crash import consistency
from tests.crash.destroyer import STREAM_NAMES, Destroyer, Destruction, draw_destruction
from tests.crash.fleet_shape import TOOK_EFFECT, Moment
from tests.crash.rig import LOOK_SECONDS, SERVICES, Rig
from tests.crash.scripted_agents import GONE

CONVERGE_SECONDS_MAX: Final = (
    TimeLimits().sweep_grace_seconds + 2 * TimeLimits().sweep_interval_seconds
)
"""A record that was set back is left to a launch or removal for the grace; then a sweep is due."""
LOST_SECONDS: Final = 25.0
"""How long a fleet must be at rest until a broken node that is not replaced is forgotten."""
SPAN_SECONDS: Final = 0.6
"""About the duration of a replacement."""
TERMINATED: Final = Moment("terminate", TOOK_EFFECT)

_failures = msgspec.json.Decoder(tuple[CurrentFailure, ...])


@dataclass(slots=True)
class Outcome:
    """Holds the result of a round."""

    destruction: Destruction
    seconds: float = 0.0
    named: list[str] = field(default_factory=list)
    """Failures that the services reported, with the remedy."""
    wrong: list[str] = field(default_factory=list)
    """Healthy nodes terminated, and what did not converge and was not named."""
    operator: list[str] = field(default_factory=list)
    """What the operator had to do."""

    def __str__(self) -> str:
        """Write one line."""
        did = f", {', '.join(self.operator)}" if self.operator else ""
        named = f", {len(self.named)} failures named" if self.named else ""
        end = "wrong" if self.wrong else "converged"
        return f"{self.destruction}: {end} after {self.seconds:.1f} s{named}{did}"


@dataclass(slots=True)
class DestroyTally:
    """Counts the rounds of a campaign and collects their problems."""

    rounds: int = 0
    converged: int = 0
    operator: int = 0
    """Rounds in which an operator did what a service named."""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the last line that the campaign prints."""
        return (
            f"rounds={self.rounds} converged={self.converged} operator={self.operator} "
            f"wrong={len(self.problems)}"
        )

    def status(self) -> int:
        """The exit code: 0 only where every round converged and terminated no healthy node."""
        return 0 if self.rounds and self.converged == self.rounds and not self.problems else 1


async def destroy_at_random(
    rig: Rig, chance: random.Random, rounds: int, say: Callable[[str], None]
) -> DestroyTally:
    """Draw what is destroyed in each round; stop at the first that is wrong."""
    tally, destroyer = DestroyTally(), Destroyer(rig)
    for number in range(1, rounds + 1):
        tally.rounds = number
        outcome = await destroy_round(rig, destroyer, draw_destruction(chance, SPAN_SECONDS))
        say(f"{number}: {outcome}")
        tally.operator += bool(outcome.operator)
        tally.problems += outcome.wrong
        if outcome.wrong:
            tally.problems += [f"named: {each}" for each in outcome.named]
            break
        tally.converged += 1
    return tally


async def destroy_round(rig: Rig, destroyer: Destroyer, destruction: Destruction) -> Outcome:
    """Break a node, destroy, and wait for the fleet to converge."""
    outcome = Outcome(destruction)
    seen: dict[tuple[str, str], CurrentFailure] = {}
    begun, loop = len(rig.signs), asyncio.get_running_loop()
    watching = asyncio.create_task(_watch_failures(rig, seen))
    try:
        destroyer.keep_copy()
        if destruction.way == "roll back":
            await rig.break_a_node()
            await _converged(rig, CONVERGE_SECONDS_MAX)
        node = await rig.break_a_node()
        await asyncio.sleep(destruction.at_seconds)
        await destroyer.destroy(destruction)
        at = loop.time()
        odd = await _converged(rig, CONVERGE_SECONDS_MAX)
        if node in rig.provider.names():
            # Either its fault is lost, or what follows has not begun yet.
            odd = await _gone(rig, node, LOST_SECONDS) or odd
        outcome.seconds = loop.time() - at
        if node in rig.provider.names() and not odd:
            if not any("EVENTS" in about or "HEALTH" in about for _, about in seen):
                outcome.wrong.append(f"{node} is broken, and forgotten")
            outcome.operator.append(f"reported {node} again")
            await rig.fault(node, GONE)
            odd = await _gone(rig, node, CONVERGE_SECONDS_MAX)
            if node in rig.provider.names():
                odd.append(f"{node} is broken, was reported again, and is not replaced")
        outcome.wrong += odd
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    outcome.named = [f"{each.about}: {each.reason}; {each.remedy}" for each in seen.values()]
    terminated = {about for _, moment, about in rig.signs[begun:] if moment == TERMINATED}
    outcome.wrong += [f"{each} was healthy, and terminated" for each in terminated - {*rig.broken}]
    return outcome


async def _watch_failures(rig: Rig, seen: dict[tuple[str, str], CurrentFailure]) -> None:
    while True:
        for service in SERVICES:
            with suppress(BusError, msgspec.DecodeError):
                subject = subjects.query(f"failures-{service}")
                reply = await rig.bus.request(subject, b"", timeout_seconds=1)
                for each in _failures.decode(reply.data):
                    seen[each.failure, each.about] = each
        await asyncio.sleep(1)


async def _gone(rig: Rig, node: str, seconds: float) -> list[str]:
    """Wait until an instance is gone and the fleet at rest; return what is odd at the end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while node in rig.provider.names():
                await asyncio.sleep(LOOK_SECONDS)
    return await _converged(rig, CONVERGE_SECONDS_MAX)


async def _converged(rig: Rig, seconds: float) -> list[str]:
    """Wait until the fleet is at rest; return what is odd at the end."""
    odd = ["the records could not be read"]
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while odd:
                await asyncio.sleep(5 * LOOK_SECONDS)
                with suppress(BusError, msgspec.DecodeError, AssertionError):
                    odd = [*consistency.unsettled(await rig.evidence()), *await _missing(rig)]
    return odd


async def _missing(rig: Rig) -> list[str]:
    """Streams and durables that are not created again yet."""
    gone = []
    for name in STREAM_NAMES:
        try:
            info = await rig.bus.admin(f"STREAM.INFO.{name}", {})
        except Refused:
            gone.append(f"stream {name} is gone")
            continue
        there = await rig.bus.admin(f"CONSUMER.NAMES.{info['config']['name']}", {})
        wanted = {each.name for each in DURABLES if each.stream == name}
        missing = wanted - set(there.get("consumers") or ())
        gone += [f"durable {name}.{each} is gone" for each in sorted(missing)]
    return gone
