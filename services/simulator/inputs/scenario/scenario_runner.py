"""Plays a scenario on a stage, event by event in virtual time, and says what came of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.duration import Duration, format_duration
from schemas.messages import encode
from services.bus.port import Bus
from services.primitives.errors import BusError, NavarchError
from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.engine.simulated_fleet import SimulatedFleet
from services.simulator.engine.virtual_time import moment
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.assertions import (
    FleetView,
    answered,
    answered_why,
    expected,
    judged,
)
from services.simulator.inputs.scenario.initial_fleet import beginning
from services.simulator.inputs.scenario.observed_status import ObservedNode, standing
from services.simulator.inputs.scenario.scenario_outcome import (
    AssertionResult,
    PlayedEvent,
    ScenarioResult,
)
from services.simulator.inputs.scenario.scenario_validation import VERBS, applied, in_order

LOOK_SECONDS: Final = 0.5
"""How often something that is waited for is looked at."""
DIAGNOSE_SECONDS: Final = 60.0
SETTLE_SECONDS: Final = 0.05
"""Between an event and the next at the same time."""

AskWhy = Callable[[Bus, str, datetime], Awaitable[str]]
"""What people are told who ask why a node or pool is as it is at that moment."""


async def _nobody(bus: Bus, name: str, at: datetime) -> str:
    del bus, name, at
    raise NavarchError("the scenario asks why something is so, and nobody is there to tell it")


def run(scenario: f.Scenario, seed: str = "", why: AskWhy = _nobody) -> ScenarioResult:
    """Play a scenario; the same file and seed have the same outcome, to the byte.

    `why` answers what assertions of that type ask.
    """
    with silenced():
        return virtual_time.run(
            lambda: ScenarioRunner(scenario, seed or str(scenario.seed), why).play_all()
        )


class ScenarioRunner:
    """One play of a scenario. To be used inside a virtual loop."""

    def __init__(self, scenario: f.Scenario, seed: str, why: AskWhy = _nobody) -> None:
        """Put the stage up; nothing moves yet."""
        self._scenario = scenario
        self._seed = seed
        self._why = why
        self.fleet = SimulatedFleet(seed, beginning(scenario, moment(0.0)))
        self.steps: list[PlayedEvent] = []

    async def play_all(self) -> ScenarioResult:
        """Play everything, and look at each assertion when its moment has come."""
        await self.fleet.open()
        looked: dict[int, AssertionResult] = {}
        looks = asyncio.create_task(self._look(looked))
        for _, event in in_order(self._scenario.events):
            await self.until(float(event.at))
            if not await self.play(event) and event.action == "wait_for_status":
                looks.cancel()  # what comes after it would meet what it was not meant for
                break
            await asyncio.sleep(SETTLE_SECONDS)
        else:
            if self._scenario.duration is not None:
                await self.until(float(self._scenario.duration))
        await asyncio.wait({looks})
        for number, each in enumerate(self._scenario.assertions):
            if number not in looked:
                looked[number] = await self._judged(each)
        outcome = self.outcome(tuple(looked[number] for number in sorted(looked)))
        self.fleet.close()
        return outcome

    async def _look(self, looked: dict[int, AssertionResult]) -> None:
        """Look at the assertions that have their moment, whatever the events wait for then."""
        moments = Counter(event.at for event in self._scenario.events)
        timed = [
            (each.at, number, each)
            for number, each in enumerate(self._scenario.assertions)
            if each.at is not None
        ]
        for at, number, each in sorted(timed, key=lambda each: each[:2]):
            # What happens at that moment has happened.
            await self.until(float(at) + SETTLE_SECONDS * (moments[at] + 1))
            looked[number] = await self._judged(each)

    async def until(self, at: float) -> None:
        """Let time pass until a moment."""
        if (left := at - self.fleet.simulation.now()) > 0:
            await asyncio.sleep(left)

    def outcome(self, checks: tuple[AssertionResult, ...]) -> ScenarioResult:
        """How it stands now."""
        simulation, view = self.fleet.simulation, self.view()
        return ScenarioResult(
            name=self._scenario.name,
            seed=self._seed,
            seconds=round(simulation.now(), 3),
            digest=simulation.history.digest,
            steps=tuple(answered(each, self.fleet.story) for each in self.steps),
            checks=checks,
            nodes=tuple(view.nodes.values()),
            story=tuple(self.fleet.story),
            defects=tuple(
                f"{name} ended by itself: {text}"
                for name, service in self.fleet.services.items()
                for text in service.defects
            ),
        )

    async def _judged(self, each: f.Assertion) -> AssertionResult:
        """Whether an assertion holds now."""
        now = self.fleet.simulation.now()
        if each.type == "why":
            fleet = self.fleet
            clock = fleet.simulation.clock
            checked = answered_why(
                each, await self._why(fleet.operator.bus, each.target, clock.now())
            )
        else:
            checked = judged(each, self.view())
        return replace(checked, at=None if each.at is None else round(now, 3))

    def observed_nodes(self) -> dict[str, ObservedNode]:
        """Node -> how it stands."""
        health = self.fleet.health()
        found = {}
        for record in self.fleet.nodes():
            machine = self.fleet.machines.named(record.node)
            unfit = machine.unfit if machine is not None else None
            found[record.node] = standing(record, health.get(record.node), unfit=unfit)
        return found

    def view(self) -> FleetView:
        """How everything stands."""
        names = dict.fromkeys((*self._scenario.configuration.pools, *applied(self._scenario)))
        records = {name: self.fleet.pool(name) for name in names}
        return FleetView(
            nodes=self.observed_nodes(),
            pools={name: record for name, record in records.items() if record is not None},
            machines=self.fleet.standing(),
            launches=self.fleet.cloud.asked,
            dollars=self.fleet.dollars(),
            sagas=self.fleet.sagas,
            story=self.fleet.story,
        )

    # --- events ---------------------------------------------------------------------------------

    async def play(self, event: f.Event) -> bool:
        """Play one event; False: it does not hold."""
        at = self.fleet.simulation.now()
        self.fleet.simulation.note(f"scenario: {words(event)}")
        ok, detail, request = True, "", ""
        params = event.params
        match params:
            case f.ExpectParams():
                detail = await self._expect(event, params)
                ok = not detail
            case f.CommandParams():
                ok, detail, request = await self._command(event.target, params)
            case f.WaitParams():
                await asyncio.sleep(float(params.duration))
            case f.LogParams():
                pass
            case f.FailureParams():
                detail = self.fleet.inject(event.target, params)
                ok = not detail
            case f.RecoverParams():
                self.fleet.recover(event.target, params.failure_type)
            case f.RequestParams():
                request = self._ask(event.target, params.verb, params.body)
            case f.LoadParams():
                self.fleet.load(event.target, params)
            case f.NoParams():
                await self._fleet(event.action)
        took = round(self.fleet.simulation.now() - at, 3)
        self.steps.append(
            PlayedEvent(
                at=round(at, 3),
                seconds=took,
                text=words(event),
                ok=ok,
                detail=detail,
                request=request,
                refused=getattr(params, "refused", False),
            )
        )
        return ok

    async def _fleet(self, action: f.Action) -> None:
        if action == "start_fleet":
            await self.fleet.start()
        else:
            self.fleet.stop()

    async def _expect(self, event: f.Event, params: f.ExpectParams) -> str:
        waits = event.action == "wait_for_status"
        until = self.fleet.simulation.now() + (float(params.timeout) if waits else 0.0)
        while wrong := expected(params, event.target, self.view()):
            if self.fleet.simulation.now() >= until:
                return wrong
            await asyncio.sleep(LOOK_SECONDS)
        return ""

    def _ask(self, pool: str, verb: str, body: dict[str, Any]) -> str:
        """Ask, and say under which id it will be answered."""
        request = str(body.get("request") or f"event-{len(self.steps) + 1}")
        self.fleet.ask(pool, verb, {**body, "request": request})
        return request

    async def _command(self, node: str, params: f.CommandParams) -> tuple[bool, str, str]:
        """Whether it went well, what came of it, and the id of what was asked for."""
        pool = self._pool_of(node)
        if params.command_type == "run_diagnostic":
            return True, await self._diagnose(pool, node, params), ""
        verb = VERBS[params.command_type]
        if params.command_type == "terminate":
            if pool in self._scenario.own_pools and not self._scenario.replace_fatal:
                detail = await self.fleet.take_away(pool, node)
                return not detail, detail, ""
            verb = "replace"
        reason = {"reason": params.reason} if params.reason else {}
        body = {"node": node, **reason, **params.command_args}
        return True, "", self._ask(pool, verb, body)

    async def _diagnose(self, pool: str, node: str, params: f.CommandParams) -> str:
        request = msgspec.convert(params.command_args, DiagnoseRequest)
        subject = subjects.node_command(pool, node, "diagnose")
        try:
            reply = await self.fleet.operator.bus.request(
                subject, encode(request), timeout_seconds=DIAGNOSE_SECONDS
            )
        except BusError as error:
            return f"no answer: {error}"
        diagnosis = msgspec.json.decode(reply.data, type=Diagnosis)
        if diagnosis.refused:
            return f"refused: {diagnosis.refused}"
        failed = "; ".join(
            f"{each.name}: {each.detail}" for each in diagnosis.checks if not each.ok
        )
        return f"failed: {failed}" if failed else "passed"

    def _pool_of(self, node: str) -> str:
        """The pool that a node is in."""
        found = next((each.pool for each in self.fleet.nodes() if each.node == node), "")
        return found or next(iter(self._scenario.configuration.pools))


def words(event: f.Event) -> str:
    """An event in a line: `inject_failure node-1 xid_error xid_code=48`."""
    params = event.params
    defaults = {field.name: field.default for field in msgspec.structs.fields(params)}
    given = {name: getattr(params, name) for name in defaults}
    shown = []
    for key, value in given.items():
        if key in ("failure_type", "command_type", "verb", "message", "expected_status"):
            shown += [str(value)] if value else []
        elif key == "xid_code" and given["failure_type"] == "xid_error":
            shown.append(f"xid_code={value}")
        elif value not in (None, {}, "") and value != defaults.get(key):
            if isinstance(value, dict):
                shown += [f"{inner}={each}" for inner, each in value.items()]
                continue
            text = _short(value) if isinstance(value, Duration) else value
            shown.append(f"{key}={text}")
    return " ".join(part for part in (event.action, event.target, *shown) if part)


def _short(value: Duration) -> str:
    """A duration as somebody would write it: `1m30s`, `1.5s`."""
    return format_duration(value) if value < 1 or value.is_integer() else f"{value:g}s"
