"""A random campaign: actions, and strikes on processes at random moments, drawn from a seed.

The draw depends on the seed only; the timing depends on the machine. So a seed repeats the strikes,
and a defect usually shows again within a few runs of the same seed.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from services.bus.nats.embedded_server import EmbeddedServer
from tests.crash.consistency import DONE, KINDS, Difference, differences, report
from tests.crash.fleet_actions import FLEET_ACTIONS, REPLACE, FleetAction, moments
from tests.crash.fleet_shape import Shape
from tests.crash.replica_process import Replica
from tests.crash.rig import Moment, Rig, UnsettledError
from tests.crash.rounds import RESUME_SECONDS_MAX, resume_seconds_allowed

SERVER: Final = "nats-server"
STRIKES_MAX: Final = 3
AWAY_SECONDS_MAX: Final = 0.3
"""How long a struck process stays away."""
AIMED_SECONDS_MAX: Final = 0.02
"""About the duration of a step."""
AGAIN_SECONDS_MAX: Final = 0.4
"""A service is ready about half as long after its start: some are killed while they start."""
PAUSE_SECONDS: Final = 30.0
"""The longest pause: a paused process does not know that it was cut off."""

How = Literal["kill", "terminate", "pause"]


@dataclass(frozen=True, slots=True)
class Strike:
    """A strike on one process, some time after the action began or after a moment of its sagas."""

    at_seconds: float
    target: str
    how: How
    away_seconds: float
    after: Moment | None = None
    """None: counted from the start of the action."""
    again_seconds: float = 0.0
    """How long after its restart it is killed once more; 0: never."""

    def __str__(self) -> str:
        """Write `kill provisioner/1 at 120 ms for 80 ms`."""
        at_ms, away_ms = self.at_seconds * 1000, self.away_seconds * 1000
        again = f" and again after {self.again_seconds * 1000:.0f}" if self.again_seconds else ""
        after = f" after {self.after}" if self.after else ""
        return f"{self.how} {self.target} at {at_ms:.0f} ms{after} for {away_ms:.0f} ms{again}"


def draw(
    chance: random.Random,
    targets: Sequence[str],
    aims: Sequence[Moment],
    span_seconds: float,
    pause_seconds: float = PAUSE_SECONDS,
) -> list[Strike]:
    """Draw a round's strikes: one to three, each on another process; of the servers only one.

    Most of a saga is waiting, so half of the strikes are aimed at moments of its steps.
    """
    services = [each for each in targets if not each.startswith(SERVER)]
    server = chance.choice([each for each in targets if each.startswith(SERVER)])
    struck = chance.sample([*services, server], k=chance.randint(1, STRIKES_MAX))
    strikes = []
    for target in struck:
        aimed = chance.random() < 1 / 2
        how: How = chance.choice(("kill", "kill", "kill", "kill", "terminate", "pause"))
        again = how != "pause" and chance.random() < 1 / 4
        away = pause_seconds if how == "pause" else AWAY_SECONDS_MAX
        strike = Strike(
            at_seconds=chance.uniform(0, AIMED_SECONDS_MAX if aimed else span_seconds),
            target=target,
            how=how,
            away_seconds=chance.uniform(0, away),
            after=chance.choice(aims) if aimed else None,
            again_seconds=chance.uniform(0, AGAIN_SECONDS_MAX) if again else 0.0,
        )
        strikes.append(strike)
    return strikes


def choose(chance: random.Random, shape: Shape) -> FleetAction:
    """Draw the action of a round; in one of four rounds only the fault."""
    fitting = [play for play in FLEET_ACTIONS[1:] if play.fits(shape)]
    return REPLACE if chance.random() < 1 / 4 else chance.choice(fitting)


@dataclass(slots=True)
class Tally:
    """Counts the rounds of a campaign and collects their differences and problems."""

    rounds: int = 0
    replaced: int = 0
    """Nodes that broke and were replaced: one a round."""
    found: list[Difference] = field(default_factory=list)
    resume_seconds_max: float = 0.0
    resume_seconds_allowed: float = RESUME_SECONDS_MAX
    """More on a busy machine."""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the last line that the campaign prints."""
        kinds = {kind: sum(1 for each in self.found if each.kind == kind) for kind in KINDS}
        counts = " ".join(f"{kind}={count}" for kind, count in kinds.items())
        return (
            f"rounds={self.rounds} replaced={self.replaced} {counts} "
            f"resume_s_max={self.resume_seconds_max:.2f}"
        )

    def status(self) -> int:
        """The exit code: 0 only where every round ended with one replacement, in time."""
        late = self.resume_seconds_max > self.resume_seconds_allowed
        whole = self.rounds > 0 and self.replaced == self.rounds
        return 0 if whole and not late and not self.found and not self.problems else 1


class Campaign:
    """Rounds on one fleet."""

    def __init__(
        self,
        rig: Rig,
        chance: random.Random,
        span_seconds: float,
        say: Callable[[str], None],
        *,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """Strike within `span_seconds` of each beginning; `say` takes a line a round."""
        self._pause_seconds = pause_seconds
        self._rig = rig
        self._chance = chance
        self._span_seconds = span_seconds
        self._say = say
        self._tally = Tally()

    async def run(self, rounds: int) -> Tally:
        """Run the rounds; stop at the first that leaves a difference."""
        tally, rig = self._tally, self._rig
        for number in range(1, rounds + 1):
            tally.rounds = number
            try:
                whole = await self._round(number)
            except* UnsettledError as group:
                tally.problems += [str(error) for error in group.exceptions]
                whole = False
            except* TimeoutError:
                tally.problems.append(await self._report())
                whole = False
            if not whole:
                break
        else:
            # Messages that a killed process held are redelivered by now and must change nothing.
            await rig.quiet()
            await self._look()
        seen = await rig.evidence()
        called_for = {each.node for each in rig.expected_sagas if each.ends == DONE}
        tally.replaced = len({each.old_node for each in seen.replaced} & called_for)
        return tally

    async def _round(self, number: int) -> bool:
        rig, loop = self._rig, asyncio.get_running_loop()
        play = choose(self._chance, rig.shape)
        order, spares = rig.shape.order, rig.shape.spares > 0
        aims = moments(REPLACE, order, spares=spares)
        if play is not REPLACE:
            aims = [*aims, *moments(play, order, spares=spares)]
        strikes = draw(self._chance, self._targets(), aims, self._span_seconds, self._pause_seconds)
        await asyncio.gather(*(each.is_ready() for each in rig.replicas))
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(_perform(rig, play))
            back = [group.create_task(self._strike(strike, playing)) for strike in strikes]
        whole = await self._look()
        rested = loop.time() - begun
        again = max(task.result() for task in back)
        sign = next((at for at, *_ in rig.signs if at > again), None)
        resumed = 0.0 if sign is None else sign - again
        tally = self._tally
        tally.resume_seconds_max = max(tally.resume_seconds_max, resumed)
        tally.resume_seconds_allowed = max(tally.resume_seconds_allowed, resume_seconds_allowed())
        self._say(
            f"{number}: {playing.result()}; {', '.join(map(str, strikes))}; "
            f"at rest after {rested:.2f} s, resumed in {resumed:.2f} s"
        )
        return whole

    def _targets(self) -> list[str]:
        servers = [f"{SERVER}/{each.name}" for each in self._rig.servers]
        return [*(each.name for each in self._rig.replicas), *servers]

    async def _strike(self, strike: Strike, playing: "asyncio.Task[str]") -> float:
        """Strike at its time; return when the process or server is back."""
        if strike.after is not None:
            seen = asyncio.create_task(self._rig.arm(strike.after, _nothing).wait())
            await asyncio.wait({seen, playing}, return_when=asyncio.FIRST_COMPLETED)
            seen.cancel()
        await asyncio.sleep(strike.at_seconds)
        if strike.target.startswith(SERVER):
            name = strike.target.partition("/")[2]
            return await self._strike_server(
                next(each for each in self._rig.servers if each.name == name), strike
            )
        replica = next(each for each in self._rig.replicas if each.name == strike.target)
        if strike.how == "pause":
            replica.freeze()
            await asyncio.sleep(strike.away_seconds)
            replica.thaw()
            return asyncio.get_running_loop().time()
        await self._strike_service(replica, strike)
        return replica.started_at

    async def _strike_service(self, replica: Replica, strike: Strike) -> None:
        if strike.how == "kill":
            replica.kill()
        else:
            replica.terminate()
        status = await replica.gone()
        if strike.how == "terminate" and status != 0:
            self._tally.problems.append(f"{replica.name} got SIGTERM and ended with {status}")
        await asyncio.sleep(strike.away_seconds)
        await replica.start()
        if strike.again_seconds:
            await asyncio.sleep(strike.again_seconds)
            replica.kill()
            await replica.gone()
            await replica.start()

    async def _strike_server(self, server: EmbeddedServer, strike: Strike) -> float:
        """Strike a server; a cluster is back when every stream has a leader again."""
        if strike.how == "pause":
            os.kill(server.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(strike.away_seconds)
            finally:
                os.kill(server.pid, signal.SIGCONT)
        else:
            os.kill(server.pid, signal.SIGKILL if strike.how == "kill" else signal.SIGTERM)
            await _server_back(server, strike.away_seconds)
            if strike.again_seconds:
                await asyncio.sleep(strike.again_seconds)
                os.kill(server.pid, signal.SIGKILL)
                await _server_back(server, 0)
        await self._rig.led()
        return asyncio.get_running_loop().time()

    async def _report(self) -> str:
        """The state of a fleet in which an expected moment did not come."""
        seen = await self._rig.evidence()
        return f"a moment did not come\n{report(seen, differences(seen))}"

    async def _look(self) -> bool:
        """Compare, and keep what differs."""
        found, why = await self._rig.differences()
        self._tally.found = found
        if found:
            self._tally.problems.append(why)
        return not found


async def _server_back(server: EmbeddedServer, away_seconds: float) -> None:
    await server.wait()
    await asyncio.sleep(away_seconds)
    await server.start()


async def _perform(rig: Rig, play: FleetAction) -> str:
    """Perform an action, then break a node: each round replaces one."""
    about = "" if play is REPLACE else f"{await play.perform(rig)}, then "
    return f"{play.name}: {about}{await REPLACE.perform(rig)} broke"


def _nothing() -> None:
    """Do nothing when the moment comes."""
