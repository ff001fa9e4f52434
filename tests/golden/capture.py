"""`python -m tests.golden.capture`: take the goldens and the saga logs from runs of real services.

Sources, the best first: the fleet of config/demo.yaml on this machine, with real agents; every
scenario of config/scenarios; fuzz campaigns of fixed seeds. `sources.json` says where each golden
comes from. A type that no run produces keeps its example from `examples.py`.
"""

import argparse
import asyncio
import functools
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from schemas import (
    alert_records,
    evidence_bundles,
    fleet_budget,
    lease_records,
    offering_records,
    pool_records,
)
from schemas import subjects as s
from schemas.dead_letters import dead_codec
from schemas.duration import decode_hook
from schemas.fleet_events import fleet_codec
from schemas.hardware_denylist import HardwareRecord
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import Message, encode
from schemas.node_events import node_codec
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.operations import REQUESTS
from schemas.permissions import SERVICES
from schemas.pool_events import pool_codec
from schemas.present_answers import PresentAnswer
from schemas.saga_log_entries import StepEntry, StepStarted, StepSucceeded, saga_codec, timer_codec
from schemas.saga_params import SagaParams
from schemas.topology import SAGAS
from services.bus.port import Stored
from services.cli.commands.simulator.scenario_commands import why
from services.saga.definitions import DEFINITIONS
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.inputs.fuzz import fuzz_runner
from services.simulator.inputs.scenario.scenario_file import read_file
from services.simulator.inputs.scenario.scenario_runner import run
from tests.golden.catalogue import HAND_MADE, HERE, Golden, everything, write_sources
from tests.golden.demo_run import demo_messages

SAGA_LOGS: Final = HERE / "saga_logs"
SCENARIOS: Final = HERE.parents[1] / "config" / "scenarios"
SEEDS: Final = tuple(str(number) for number in range(1, 9))
SEED_MINUTES: Final = 2.0
FREQUENT: Final = ("TELEMETRY", "KV_HEARTBEATS", "KV_LEASES")
FREQUENT_MAX: Final = 20
"""So many messages of a frequent kind are examined in each run."""
CODECS: Final = (node_codec, pool_codec, fleet_codec, saga_codec, timer_codec, dead_codec)
KEYS: Final[tuple[tuple[str, str, type[Any]], ...]] = (
    ("POOLS", pool_records.FLEET_KEY, pool_records.FleetRecord),
    ("POOLS", fleet_budget.FLEET_BUDGET_KEY, fleet_budget.FleetBudgetRecord),
    ("POOLS", pool_records.pool_key(""), pool_records.PoolRecord),
    ("POOLS", pool_records.removed_key(""), pool_records.RemovedPool),
    ("NODES", "", NodeRecord),
    ("HEALTH", "", HealthRecord),
    ("INSTANCES", "", InstanceRecord),
    ("HEARTBEATS", "", HeartbeatRecord),
    ("HARDWARE", "", HardwareRecord),
    ("OFFERINGS", "blocked.", offering_records.BlockRecord),
    ("OFFERINGS", offering_records.prices_key(""), offering_records.PricesRecord),
    ("OFFERINGS", offering_records.placement_key(""), offering_records.PlacementRecord),
    ("OFFERINGS", offering_records.SPEND_KEY, offering_records.SpendRecord),
    ("ALERTS", "", alert_records.OpenAlertRecord),
    ("LEASES", "provisioner.pace-", lease_records.RateLimitRecord),
    ("LEASES", "provisioner.claim-", lease_records.LaunchClaimRecord),
    ("LEASES", "provisioner.batch-", lease_records.LaunchBatchRecord),
    ("LEASES", "pool-manager.openings.", lease_records.OpeningsRecord),
    ("LEASES", "pool-manager.removals.", lease_records.RemovalGrantsRecord),
    *(
        ("LEASES", f"{service}.{kind}.", record)
        for service in SERVICES
        for kind, record in (
            ("suspect", lease_records.SuspectRecord),
            ("set-aside", lease_records.SetAsideRecord),
        )
    ),
    ("LEASES", "", lease_records.LeaseRecord),
    ("ANSWERS", "", PresentAnswer),
    ("REPAIRS", evidence_bundles.TOTALS_KEY, evidence_bundles.RepairTotals),
)
"""Bucket, how the key begins, and what is stored there; the first that fits counts."""
OUTPUTS: Final = {
    "provision": "ProvisionOutputs",
    "drain": "DrainOutputs",
    "vacate": "VacateOutputs",
    "check": "CheckOutputs",
    "reset": "ActionOutputs",
    "reboot": "ActionOutputs",
}
"""Step -> the type of its outputs."""


class Collector:
    """The best example of each type, and one log of each kind of saga and end."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.goldens = {each.name: each for each in everything()}
        self.names = {each.kind: each.name for each in everything()}
        self.found: dict[str, tuple[tuple[int, int, int], bytes, str]] = {}
        self.logs: dict[str, tuple[tuple[int, int], str, list[Stored]]] = {}
        self._open: dict[str, list[Stored]] = {}
        self._frequent: Counter[str] = Counter()

    def take(self, source: str, rank: int, stream: str, stored: Stored) -> None:
        """Examine one stored message; a lower rank is a better source."""
        self._frequent[stream] += stream in FREQUENT
        if self._frequent[stream] > FREQUENT_MAX:
            return
        if stream.startswith("KV_"):
            self._take_record(source, rank, stream.removeprefix("KV_"), stored)
        elif verb := _request_verb(stored.subject):
            # An operator may write a duration in several ways; a golden has the encoder's.
            request = msgspec.json.decode(stored.data, type=REQUESTS[verb], dec_hook=decode_hook)
            self._take_bytes(source, rank, verb, encode(request))
        else:
            for codec in CODECS:
                message = codec.decode(stored.data)
                if isinstance(message, Message):
                    self._take_structs(source, rank, message)
                    if isinstance(message, StepEntry):
                        self._take_step_data(source, rank, message)
                    break
        if stream == SAGAS.name and (entry := s.parse_saga(stored.subject)):
            self._open.setdefault(entry.saga, []).append(stored)

    def end_run(self, source: str, rank: int) -> None:
        """Keep the shortest log of each kind of saga and end; the next run has other sagas."""
        for log in self._open.values():
            state: SagaState | None = None
            for stored in log:
                state = fold_stored(state, stored)
            if state is None or state.skipped or state.status in ("running", "unwinding"):
                continue
            name, quality = f"{state.kind}-{state.status}", (rank, -_variety(log))
            if name not in self.logs or quality < self.logs[name][0]:
                self.logs[name] = (quality, source, log)
        self._open.clear()
        self._frequent.clear()

    def _take_record(self, source: str, rank: int, bucket: str, stored: Stored) -> None:
        key = stored.subject.removeprefix(f"$KV.{bucket}.")
        for name, start, kind in KEYS:
            if stored.data and name == bucket and key.startswith(start):
                value = msgspec.json.decode(stored.data, type=kind, dec_hook=decode_hook)
                self._take_structs(source, rank, value)
                return

    def _take_step_data(self, source: str, rank: int, entry: StepEntry) -> None:
        if isinstance(entry, StepSucceeded) and entry.step in OUTPUTS and entry.outputs:
            self._take_bytes(source, rank, OUTPUTS[entry.step], msgspec.json.encode(entry.outputs))
        if isinstance(entry, StepStarted) and (name := _inputs_of().get(entry.step)):
            self._take_bytes(source, rank, name, msgspec.json.encode(entry.inputs))

    def _take_bytes(self, source: str, rank: int, name: str, data: bytes) -> None:
        golden = self.goldens.get(name)
        if golden is not None:
            try:
                value = msgspec.json.decode(data, type=golden.kind, dec_hook=decode_hook)
            except msgspec.MsgspecError:
                return
            self._keep(source, rank, golden, value, data)

    def _take_structs(self, source: str, rank: int, value: Any) -> None:
        for each in _structs(value):
            name = self.names.get(type(each))
            if name is not None:
                self._keep(source, rank, self.goldens[name], each, encode(each))

    def _keep(self, source: str, rank: int, golden: Golden, value: Any, data: bytes) -> None:
        filled = sum(
            getattr(value, field.name) not in (field.default, None, "", (), 0, False)
            for field in msgspec.structs.fields(golden.kind)
        )
        quality = (rank, -filled, len(data))
        if golden.name not in self.found or quality < self.found[golden.name][0]:
            self.found[golden.name] = (quality, data, source)

    def write(self) -> None:
        """Write what was found, and examples for the rest."""
        sources: dict[str, str] = {}
        for name, golden in sorted(self.goldens.items()):
            golden.path.parent.mkdir(exist_ok=True)
            if name in self.found:
                _, data, sources[name] = self.found[name]
                golden.path.write_bytes(msgspec.json.format(data, indent=2) + b"\n")
            else:
                sources[name] = HAND_MADE
        write_sources(sources)
        SAGA_LOGS.mkdir(exist_ok=True)
        for old in SAGA_LOGS.glob("*.json"):
            old.unlink()
        for name, (_, source, log) in sorted(self.logs.items()):
            text = json.dumps(recorded_log(source, log), indent=1)
            (SAGA_LOGS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def recorded_log(source: str, log: list[Stored]) -> dict[str, Any]:
    """A saga's log as it is stored in a file, with the state that it leads to."""
    return {
        "source": source,
        "end": end_state(log),
        "entries": [
            {
                "subject": each.subject,
                "sequence": each.sequence,
                "time": each.time.isoformat(),
                "headers": dict(each.headers),
                "data": json.loads(each.data),
            }
            for each in log
        ],
    }


def end_state(log: list[Stored]) -> dict[str, Any]:
    """Return what today's code makes of a log."""
    state: SagaState | None = None
    for stored in log:
        state = fold_stored(state, stored)
    assert state is not None
    return {
        "saga": state.saga,
        "kind": state.kind,
        "status": state.status,
        "reason": state.reason,
        "failed_step": state.failed_step,
        "cancelled": state.cancelled,
        "steps": {name: step.status for name, step in state.steps.items()},
        "outputs": {name: dict(outputs) for name, outputs in state.outputs.items()},
    }


def _variety(log: list[Stored]) -> int:
    """How many different steps and statuses a log has, less for what it repeats."""
    return 2 * len({each.subject for each in log}) - len(log)


def _request_verb(subject: str) -> str:
    return next(
        (
            verb
            for verb in REQUESTS
            if subject.startswith(f"{s.ROOT}.") and subject.endswith(f".request.{verb}")
        ),
        "",
    )


@functools.cache
def _inputs_of() -> dict[str, str]:
    """Step -> the name of the type of its inputs, by the functions that build them."""
    found: dict[str, str] = {}
    for definition in DEFINITIONS.values():
        for order in ("provision_first", "terminate_first"):
            params = SagaParams(pool="p", node="n", new_node="m", order=order, boot_id="b")
            for step in definition.steps(params):
                try:
                    found[step.name] = type(step.inputs(params, {})).__name__
                except (KeyError, TypeError, AssertionError):
                    continue
    return found


def _structs(value: Any) -> Iterator[Any]:
    """A struct and everything inside it."""
    if isinstance(value, msgspec.Struct):
        yield value
        for field in msgspec.structs.fields(value):
            yield from _structs(getattr(value, field.name))
    elif isinstance(value, dict):
        for each in value.values():
            yield from _structs(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _structs(each)


def _simulated(collector: Collector, source: str, rank: int, simulate: Callable[[], Any]) -> None:
    """Run something that makes a `SimulationContext`, and take all that is stored there."""
    original = SimulationContext.__init__

    @functools.wraps(original)
    def watched(self: SimulationContext, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.watchers.append(lambda stream, stored: collector.take(source, rank, stream, stored))

    SimulationContext.__init__ = watched  # type: ignore[method-assign]
    sys.stderr.write(f"{source}\n")
    try:
        simulate()
    finally:
        SimulationContext.__init__ = original  # type: ignore[method-assign]
    collector.end_run(source, rank)


def main() -> None:
    """Capture, and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.capture", description=__doc__)
    parser.add_argument("--no-demo", action="store_true", help="simulations alone")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    collector = Collector()
    if not arguments.no_demo:
        for stream, stored in asyncio.run(demo_messages()):
            collector.take("demo", 0, stream, stored)
        collector.end_run("demo", 0)
    for file in sorted(SCENARIOS.glob("*.yaml")):
        scenario = read_file(file)
        source = f"scenario {file.name}"
        _simulated(collector, source, 1, lambda scenario=scenario: run(scenario, why=why))  # type: ignore[misc]
    for seed in SEEDS:
        _simulated(
            collector,
            f"fuzz seed {seed}",
            2,
            lambda seed=seed: fuzz_runner.one(seed, SEED_MINUTES),  # type: ignore[misc]
        )
    collector.write()
    missing = sorted(collector.goldens.keys() - collector.found.keys())
    sys.stdout.write(f"{len(collector.found)} captured, {len(collector.logs)} saga logs\n")
    sys.stdout.write(f"written by hand: {', '.join(missing)}\n")


if __name__ == "__main__":
    main()
