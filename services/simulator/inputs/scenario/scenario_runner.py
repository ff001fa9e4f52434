"""Runs a scenario on a simulated fleet, event by event in virtual time."""

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
from schemas.messages import Message, decoder, encode
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, POOLS, SAGAS
from services.bus.port import Bus, Stored
from services.pool_manager.autoscaling.metrics_sources import Load
from services.pool_manager.planner.sizing.open_sagas import open_for
from services.primitives.errors import BusError, NavarchError
from services.simulator.engine import virtual_time
from services.simulator.engine.run_history import LogSink, RunHistory, run_log
from services.simulator.engine.simulated_cloud import offering_of
from services.simulator.engine.simulated_fleet import SimulatedFleet, Violation
from services.simulator.engine.simulation_context import FLEET, SimulationContext
from services.simulator.engine.virtual_time import moment
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.assertions import (
    FleetView,
    evaluate,
    evaluate_why,
    unmet,
    with_refusal,
)
from services.simulator.inputs.scenario.scenario_outcome import (
    AssertionResult,
    ObservedNode,
    PlayedEvent,
    ScenarioResult,
    observe,
)
from services.simulator.inputs.scenario.scenario_pools import initial_fleet
from services.simulator.inputs.scenario.scenario_validation import VERBS, applied_pools, by_time

LOOK_SECONDS: Final = 0.5
"""How often a wait checks its condition."""
DIAGNOSE_SECONDS: Final = 60.0
STORY_MAX: Final = 50_000
SETTLE_SECONDS: Final = 0.05
"""Between two events of the same moment."""
_pools = decoder(PoolRecord)

AskWhy = Callable[[Bus, str, datetime], Awaitable[str]]
"""Answers `navarch why` about a node or pool at a moment."""


async def _no_answer(bus: Bus, name: str, at: datetime) -> str:
    del bus, name, at
    raise NavarchError(
        "a `why` assertion needs the CLI, which answers it; use `navarch simulator run`"
    )


def run(
    scenario: f.Scenario, seed: str = "", why: AskWhy = _no_answer, log: LogSink | None = None
) -> ScenarioResult:
    """Run a scenario; the same file and seed have the same result, to the byte.

    `why` answers assertions of that type. `log` gets every line.
    """
    with run_log(log) as on_line:
        runs = RunHistory(on_line=on_line)
        return virtual_time.run(
            lambda: ScenarioRunner(scenario, seed or str(scenario.seed), why, runs).run()
        )


class ScenarioRunner:
    """Runs a scenario once. Used inside a virtual loop."""

    def __init__(
        self,
        scenario: f.Scenario,
        seed: str,
        why: AskWhy = _no_answer,
        history: RunHistory | None = None,
    ) -> None:
        self._scenario = scenario
        self._seed = seed
        self._why = why
        simulation = SimulationContext(seed, history)
        self.fleet = SimulatedFleet(simulation, initial_fleet(scenario, moment(0.0)))
        self.steps: list[PlayedEvent] = []
        self.story: list[tuple[float, Message]] = []
        """Events, with their times."""
        self._sagas: list[SagaStarted] = []
        self._results: dict[int, AssertionResult] = {}
        """Number of an assertion -> whether it held when it was evaluated."""
        self.fleet.simulation.watchers.append(self._on_stored)

    def _on_stored(self, stream: str, stored: Stored) -> None:
        if len(self.story) >= STORY_MAX:
            return
        if stream == EVENTS.name:
            message = decode_stored(stored)
            if isinstance(message, Message):
                self.story.append((self.fleet.simulation.now(), message))
        elif stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, SagaStarted):
                self._sagas.append(entry)

    async def run(self) -> ScenarioResult:
        """Run every event, and evaluate each assertion at its moment."""
        return self.result(await self.fleet.run(self._events()))

    async def _events(self) -> None:
        await self.fleet.open()
        timed = asyncio.create_task(self._evaluate_timed())
        for _, event in by_time(self._scenario.events):
            await self.until(float(event.at))
            if not await self.play(event) and event.action == "wait_for_status":
                timed.cancel()  # later events assume that the wait succeeded
                break
            await asyncio.sleep(SETTLE_SECONDS)
        else:
            if self._scenario.duration is not None:
                await self.until(float(self._scenario.duration))
        await asyncio.wait({timed})
        for number, each in enumerate(self._scenario.assertions):
            if number not in self._results:
                self._results[number] = await self._evaluate(each)

    async def _evaluate_timed(self) -> None:
        """Evaluate the assertions that have a moment, also while an event waits."""
        moments = Counter(event.at for event in self._scenario.events)
        timed = [
            (each.at, number, each)
            for number, each in enumerate(self._scenario.assertions)
            if each.at is not None
        ]
        for at, number, each in sorted(timed, key=lambda each: each[:2]):
            # After every event of the same moment.
            await self.until(float(at) + SETTLE_SECONDS * (moments[at] + 1))
            self._results[number] = await self._evaluate(each)

    async def until(self, at: float) -> None:
        """Wait until a moment."""
        if (left := at - self.fleet.simulation.now()) > 0:
            await asyncio.sleep(left)

    def result(self, violation: Violation | None = None) -> ScenarioResult:
        """Return the result so far."""
        simulation = self.fleet.simulation
        return ScenarioResult(
            name=self._scenario.name,
            seed=self._seed,
            seconds=round(simulation.now(), 3),
            digest=simulation.history.digest,
            steps=tuple(with_refusal(each, self.story) for each in self.steps),
            checks=tuple(self._results[number] for number in sorted(self._results)),
            nodes=tuple(self.observed_nodes().values()),
            story=tuple(self.story),
            defects=tuple(self.fleet.defects),
            violation=violation,
        )

    async def _evaluate(self, each: f.Assertion) -> AssertionResult:
        at, fleet = self.fleet.simulation.now(), self.fleet
        if each.type == "why":
            now = fleet.simulation.clock.now()
            result = evaluate_why(each, await self._why(fleet.operator.bus, each.target, now))
        else:
            result = evaluate(each, self.view())
        return replace(result, at=None if each.at is None else round(at, 3))

    def observed_nodes(self) -> dict[str, ObservedNode]:
        """Return the status and health of every node, by name."""
        health = {each.node: each for each in self.fleet.records.health()}
        found = {}
        for record in self.fleet.records.nodes():
            machine = self.fleet.machines.machine_of(record.node)
            unfit = machine.unfit if machine is not None else None
            found[record.node] = observe(record, health.get(record.node), unfit=unfit)
        return found

    def view(self) -> FleetView:
        """The fleet as assertions see it."""
        fleet = self.fleet
        names = dict.fromkeys((*self._scenario.configuration.pools, *applied_pools(self._scenario)))
        records = {name: fleet.records.pool(name) for name in names}
        dollars: Counter[str] = Counter()
        for each in fleet.records.instances():
            if each.state != "terminated":
                dollars[each.pool] += each.dollars_per_hour  # type: ignore[assignment]
        return FleetView(
            nodes=self.observed_nodes(),
            pools={name: record for name, record in records.items() if record is not None},
            machines=[
                (each.instance.pool, offering_of(each)) for each in fleet.cloud.machines.values()
            ],
            launches=fleet.cloud.asked,
            dollars=dollars,
            sagas=self._sagas,
            story=self.story,
        )

    # --- events -----------------------------------------------------------------------------------

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
                detail = self.fleet.faults.inject(params.fault(event.target))
                ok = not detail
            case f.RecoverParams():
                self.fleet.faults.recover(event.target, params.failure_type)
            case f.RequestParams():
                request = self._request(event.target, params.verb, params.body)
            case f.LoadParams():
                self._load(event.target, params)
            case f.NoParams():
                if event.action == "start_fleet":
                    await self.fleet.start()
                else:
                    self.fleet.power_off()
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

    def _load(self, target: str, params: f.LoadParams) -> None:
        """Set the utilization of the GPUs of a pool or a node, and a pool's queue."""
        if params.utilization is not None:
            self.fleet.machines.load(target, params.utilization)
        if params.jobs is not None:
            self.fleet.workload.jobs[target] = params.jobs
        if params.pending_jobs is not None or params.queue_depth is not None:
            self.fleet.workload.loads[target] = Load(
                pending_jobs=params.pending_jobs, queue_depth=params.queue_depth
            )

    async def _expect(self, event: f.Event, params: f.ExpectParams) -> str:
        waits = event.action == "wait_for_status"
        until = self.fleet.simulation.now() + (float(params.timeout) if waits else 0.0)
        while wrong := unmet(params, event.target, self.view()):
            if self.fleet.simulation.now() >= until:
                return wrong
            await asyncio.sleep(LOOK_SECONDS)
        return ""

    def _request(self, pool: str, verb: str, body: dict[str, Any]) -> str:
        """Publish a request; return its ID."""
        request = str(body.get("request") or f"event-{len(self.steps) + 1}")
        self.fleet.request(pool, verb, {**body, "request": request})
        return request

    async def _command(self, node: str, params: f.CommandParams) -> tuple[bool, str, str]:
        """Whether it succeeded, its result, and the ID of its request."""
        pool = self._pool_of(node)
        if params.command_type == "run_diagnostic":
            return True, await self._diagnose(pool, node, params), ""
        verb = VERBS[params.command_type]
        if params.command_type == "terminate":
            if pool in self._scenario.own_pools and not self._scenario.replace_fatal:
                detail = await self._terminate(pool, node)
                return not detail, detail, ""
            verb = "replace"
        reason = {"reason": params.reason} if params.reason else {}
        body = {"node": node, **reason, **params.command_args}
        return True, "", self._request(pool, verb, body)

    async def _terminate(self, pool: str, name: str) -> str:
        """Remove this node as a smaller `scale` does; return why not, if it cannot be.

        The decision is written to the pool's record; the services carry it out.
        """
        fleet = self.fleet
        node = next((each for each in fleet.records.nodes() if each.node == name), None)
        entry = await fleet.operator.bus.get(POOLS, pool_key(pool))
        if node is None or entry is None or node.saga:
            return f"{name} cannot be ended now: {node.saga if node else 'it is not recorded'}"
        record: PoolRecord = _pools.decode(entry.value)
        now = fleet.simulation.clock.now()
        saga, opened, record = open_for(FLEET, record, "scale-down", now, node)
        opened = msgspec.structs.replace(opened, reason="terminate", by="operator")
        record = msgspec.structs.replace(
            record, desired=max(record.desired - 1, 0), open={**record.open, saga: opened}
        )
        await fleet.operator.bus.update(POOLS, pool_key(pool), encode(record), entry.revision)
        return ""

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
        found = next((each.pool for each in self.fleet.records.nodes() if each.node == node), "")
        return found or next(iter(self._scenario.configuration.pools))


def words(event: f.Event) -> str:
    """Return an event in one line: `inject_failure node-1 xid_error xid_code=48`."""
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
    """A duration as in a file: `1m30s`, `1.5s`."""
    return format_duration(value) if value < 1 or value.is_integer() else f"{value:g}s"
