"""Records that have one key each, every field at its extremes: unreadable, or harmless."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import inspect
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from schemas.evidence_bundles import REPAIR_BUCKETS, RepairCount, RepairTotals
from schemas.fleet_budget import BudgetClaim, FleetBudgetRecord
from schemas.launch_offers import Offering
from schemas.lease_records import RemovalGrantsRecord
from schemas.messages import Record, decoder, encode
from schemas.node_events import Repaired
from schemas.offering_records import (
    Interruption,
    InterruptionsRecord,
    SpendRecord,
    SpendReservation,
)
from schemas.plugin_records import PluginSwitch, PluginSwitchRecord
from schemas.pool_records import FleetRecord
from schemas.settings import FleetBudgetSpec
from schemas.stops import Stop, StopsAnswer, StopsRecord, StopState
from services.metrics.evidence.repair_sums import BUCKETS_SECONDS, add_repair
from services.metrics.evidence.repair_totals import families
from services.metrics.fleet.fleet_metrics import stop_gauge
from services.operator_text.stop_text import stop_lines
from services.pool_manager.planner.disruption_budget import noted, others, room_at
from services.pool_manager.planner.safety.removal_gates import with_grant
from services.pool_manager.plugin_switches import switched
from services.pool_manager.queries import fleet_view
from services.provisioner.offerings.interruptions import count, with_interruption
from services.provisioner.offerings.spend import (
    add_reservation,
    price_limits,
    sum_costs,
    without_reservation,
)
from services.runtime.plugin_host import PluginHost
from tests.pool_manager.test_removal_gates import PROPOSAL
from tests.whole_fleet.poison import HOSTILE, NOT_PUBLISHED, extremes, variations

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = 3600.0
SPOT = Offering(provider="p", zone="a", instance_type="t", market="spot")
REPAIRED = Repaired(
    id="r",
    time=NOW,
    pool="a",
    node="n",
    outcome="replaced",
    fault_signature="xid-79",
    unhealthy_at=NOW - timedelta(hours=1),
    restored_at=NOW,
)
KEYS = ("", "x", "-1", "0", "9" * 10, "9" * 5_000, "1767225600", "../../x", HOSTILE)


def budget(record: FleetBudgetRecord) -> None:
    """Read it as the decisions of every pool do."""
    spec = FleetBudgetSpec()
    fleet_view(record, spec, NOW)
    found = others(spec, record, "training")
    assert found is not None
    for each in found.claims:
        noted(each.disruptions, WINDOW, NOW)
        room_at(each.disruptions, WINDOW, NOW)


def spend(record: SpendRecord) -> None:
    """Read it as launches under a cap do."""
    price_limits(sum_costs({}, record.reserved, ""), "a", 7.0, 70.0)
    without_reservation(add_reservation(record, "a.n", 5.0, SPOT, NOW), "a.m", SPOT)


def interruptions(record: InterruptionsRecord) -> None:
    """Read it as launches do, and add to it."""
    count(record.recent, WINDOW, NOW)
    with_interruption(record, SPOT, "i", NOW)


class Shown(Collector):
    """Shows totals as metrics."""

    def __init__(self, totals: RepairTotals) -> None:
        self.collect = lambda: families(totals, {})  # type: ignore[method-assign]


def repairs(record: RepairTotals) -> None:
    """Show and sum them as the metrics service does."""
    registry = CollectorRegistry()
    for totals in (record, add_repair(record, REPAIRED, 2**62)):
        registry = CollectorRegistry()
        registry.register(Shown(totals))
        generate_latest(registry)


def fleet(record: FleetRecord) -> None:
    """Require an ID that can tag every instance."""
    assert record.id
    assert record.id.isascii()
    assert record.id.isprintable()


def switch(record: PluginSwitchRecord) -> None:
    """Apply it as every process does, and order another one as an operator does."""
    PluginHost().apply(record)
    after = switched(record, PluginSwitch(name="acme", disabled=True), "ops", NOW)
    assert decoder(PluginSwitchRecord).decode(encode(after)) == after


def grants(record: RemovalGrantsRecord) -> None:
    """Decide on another removal of the pool."""
    after = RemovalGrantsRecord(granted=with_grant(record.granted, PROPOSAL, NOW))
    assert decoder(RemovalGrantsRecord).decode(encode(after)) == after


def stops(record: StopsRecord) -> None:
    """Decide under them, and show them, as every process does."""
    state = StopState(record.stops)
    for scope, each in state.at(NOW).items():
        assert state.find((scope,), NOW) is each
        assert each.scope not in state.without(each.scope).stops
    assert list(stop_lines(StopsAnswer(stops=tuple(record.stops.values())))) is not None
    assert stop_gauge(state, NOW).values
    assert decoder(StopsRecord).decode(encode(record)) == record


TABLE: dict[type[Record], tuple[Callable[[Any], None], Record]] = {
    FleetBudgetRecord: (
        budget,
        FleetBudgetRecord(claims={"other": BudgetClaim(disruptions={"1767225600": 1})}),
    ),
    SpendRecord: (
        spend,
        SpendRecord(reserved={"a.m": SpendReservation(dollars_per_hour=5.0, at=NOW)}),
    ),
    InterruptionsRecord: (
        interruptions,
        InterruptionsRecord(recent=(Interruption(offering=SPOT, instance="j", at=NOW),)),
    ),
    RepairTotals: (repairs, RepairTotals(counts=(RepairCount(pool="a", fault_signature="f"),))),
    FleetRecord: (fleet, FleetRecord(id="default")),
    PluginSwitchRecord: (switch, PluginSwitchRecord(name="acme", at=NOW, number=1)),
    StopsRecord: (stops, StopsRecord(number=1, stops={"fleet": Stop(since=NOW, reason="r")})),
    RemovalGrantsRecord: (grants, RemovalGrantsRecord(granted={"fake/i-1": NOW})),
}


def of_maps(kind: inspect.Type, value: Any) -> list[Any]:
    """The map with each of its keys and values at its extremes."""
    if not isinstance(kind, inspect.DictType) or not value:
        return []
    (key, inner), *_ = value.items()
    made = [{each: inner} for each in KEYS]
    made += [{key: each} for each in extremes(kind.value_type, inner)]
    if isinstance(kind.value_type, inspect.StructType):
        for field in kind.value_type.fields:
            deep = of_maps(field.type, inner.get(field.encode_name))
            made += [{key: {**inner, field.encode_name: each}} for each in deep]
    return made


@pytest.mark.parametrize("kind", TABLE)
def test_a_record_with_one_key_is_unreadable_or_harmless(kind: type[Record]) -> None:
    """Readable ones are processed; that others are named by their key is tested elsewhere."""
    process, ordinary = TABLE[kind]
    plain, about = json.loads(encode(ordinary)), inspect.type_info(kind)
    assert isinstance(about, inspect.StructType)
    made = list(variations(about, plain, 3))
    for field in about.fields:
        deep = of_maps(field.type, plain.get(field.encode_name))
        made += [{**plain, field.encode_name: each} for each in deep]
    read = 0
    for each in made:
        data = json.dumps(each, ensure_ascii=False).encode("utf-8", "surrogatepass")
        try:
            record = decoder(kind).decode(data)
        except msgspec.DecodeError:
            continue
        read += 1
        process(record)
    assert 0 < read < len(made)


def test_every_record_that_the_table_of_messages_leaves_out_is_in_this_one() -> None:
    """Objects of EVIDENCE are read for people alone, and tested where they are stored."""
    objects = {"EvidenceBundle", "EvidenceCapture"}
    assert {each.__name__ for each in TABLE} == NOT_PUBLISHED.keys() - objects
    assert len(BUCKETS_SECONDS) + 1 == REPAIR_BUCKETS
