"""The comparison itself: it finds what is lost, doubled or leaked, and accepts a sound fleet."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas.enums import SagaKind
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import (
    STATUSES,
    WHOLE,
    SagaDone,
    SagaEntry,
    SagaStarted,
    StepStarted,
    StepSucceeded,
)
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import PoolSpec
from schemas.subjects import saga_entry
from services.bus.port import Stored
from tests.crash.consistency import REPLACE_STEPS, Evidence, ExpectedSaga, differences, is_settled
from tests.crash.provider_truth import Truth

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
OLD, NEW, OTHER = "training-1", "training-3", "training-2"
SAGA = "replace-training-1-1"
LAUNCH = LaunchSpec(fleet="f", provider="fake", instance_type="t")


def log(drop: str = "", repeat: str = "") -> tuple[Stored, ...]:
    """A log of a replacement, with one entry left out or written twice."""
    params = SagaParams(pool="training", node=OLD, new_node=NEW, launch=LAUNCH)
    return written(SAGA, "replace", params, REPLACE_STEPS["terminate_first"], drop, repeat)


def first(node: str) -> dict[str, tuple[Stored, ...]]:
    """The log of a scale-up that brought a node."""
    saga = f"scale-up-{node}"
    params = SagaParams(pool="training", new_node=node, launch=LAUNCH)
    return {saga: written(saga, "scale-up", params, REPLACE_STEPS["terminate_first"][3:])}


def written(
    saga: str,
    kind: SagaKind,
    params: SagaParams,
    steps: tuple[str, ...],
    drop: str = "",
    repeat: str = "",
) -> tuple[Stored, ...]:
    """The log of a saga that went well."""
    about: dict[str, Any] = {"time": NOW, "saga": saga}
    entries: list[SagaEntry] = [SagaStarted(id="s", kind=kind, params=params, **about)]
    for step in steps:
        entries.append(StepStarted(id=f"{step}.started", step=step, **about))
        entries.append(StepSucceeded(id=f"{step}.succeeded", step=step, **about))
    entries.append(SagaDone(id="d", **about))
    kept = [each for each in entries if each.id != drop]
    kept += [each for each in entries if each.id == repeat]
    return tuple(
        Stored(
            saga_entry(saga, getattr(each, "step", WHOLE), STATUSES[type(each)]),
            encode(each),
            number,
            NOW,
        )
        for number, each in enumerate(kept, 1)
    )


def instance(name: str, state: str = "running") -> InstanceRecord:
    """Return an instance's record."""
    return InstanceRecord(
        pool="training",
        instance=name,
        state=state,  # type: ignore[arg-type]
        provider="fake",
        token=name,
        launch=LAUNCH,
        intended_at=NOW,
    )


def node(name: str, state: str = "active") -> NodeRecord:
    """Return a node's record."""
    return NodeRecord(pool="training", node=name, state=state)  # type: ignore[arg-type]


REPLACED = NodeReplaced(
    id="r", time=NOW, pool="training", old_node=OLD, new_node=NEW, saga=SAGA, reason="broken"
)
WELL = Evidence(
    nodes_wanted=2,
    instances_max=2,
    expected_sagas=(
        ExpectedSaga("scale-up"),
        ExpectedSaga("scale-up"),
        ExpectedSaga("replace", OLD),
    ),
    pool=PoolRecord(
        name="training",
        spec=PoolSpec(provider="fake", instance_type="t", min_nodes=2, max_nodes=4),
        desired=2,
    ),
    logs={SAGA: log(), **first(OLD), **first(OTHER)},
    replaced=(REPLACED,),
    nodes=(node(OLD, "terminated"), node(OTHER), node(NEW)),
    instances=(instance(OLD, "terminated"), instance(OTHER), instance(NEW)),
    truth=Truth(((OTHER, OTHER), (NEW, NEW)), 3),
    most=2,
    orders={("cordon", OLD): {f"{SAGA}/cordon"}, ("drain", OLD): {f"{SAGA}/drain"}},
    events=Counter({"r": 1}),
)


def changed(**fields: Any) -> Evidence:
    """Return the same fleet with one deviation."""
    values = {name: getattr(WELL, name) for name in WELL.__dataclass_fields__} | fields
    return Evidence(**values)


def test_sound_fleet_has_no_difference() -> None:
    """One fault, one replacement, and records that agree with the provider."""
    assert differences(WELL) == []
    assert is_settled(WELL)


def quarantined(name: str, saga: str = "quarantine-1") -> dict[str, Any]:
    """A node's quarantine, and the order that it gave."""
    params = SagaParams(pool="training", node=name)
    orders = {key: {*keys} for key, keys in WELL.orders.items()}
    orders.setdefault(("cordon", name), set()).add(f"{saga}/cordon")
    return {
        "logs": {**WELL.logs, saga: written(saga, "quarantine", params, ("cordon",))},
        "orders": orders,
    }


def test_a_node_whose_repair_waits_may_be_quarantined() -> None:
    """Another one's repair, which was cancelled, had not ended when it broke."""
    assert differences(changed(**quarantined(OLD))) == []


CASES = [
    ("doubled", "a quarantine of a healthy node", quarantined(OTHER)),
    ("lost", "no replacement", {"replaced": ()}),
    ("lost", "a step without its end", {"logs": {**WELL.logs, SAGA: log(drop="drain.succeeded")}}),
    (
        "lost",
        "a request without its saga",
        {"expected_sagas": (*WELL.expected_sagas, ExpectedSaga("drain", OTHER))},
    ),
    ("doubled", "a saga without a cause", {"expected_sagas": WELL.expected_sagas[:2]}),
    ("lost", "no end", {"logs": {**WELL.logs, SAGA: log(drop="d")}}),
    ("lost", "an order never heard", {"orders": {("cordon", OLD): {f"{SAGA}/cordon"}}}),
    ("lost", "a dead letter", {"dead": ("somewhere",)}),
    ("lost", "an instance that vanished", {"truth": Truth(((NEW, NEW),), 3)}),
    ("lost", "a node half way", {"nodes": (node(OTHER), node(NEW, "registered"))}),
    ("doubled", "two replacements", {"replaced": (REPLACED, REPLACED)}),
    ("doubled", "a step twice", {"logs": {**WELL.logs, SAGA: log(repeat="provision.succeeded")}}),
    ("doubled", "an instance too many, gone again", {"truth": Truth(WELL.truth.existing, 4)}),
    ("doubled", "too many at once", {"most": 3}),
    ("doubled", "a fact twice", {"events": Counter({"r": 2})}),
    (
        "doubled",
        "an order under two keys",
        {"orders": {**WELL.orders, ("cordon", OLD): {f"{SAGA}/cordon", "another"}}},
    ),
    ("leaked", "an unknown instance", {"truth": Truth((*WELL.truth.existing, ("x", "x")), 3)}),
    ("leaked", "the old one", {"truth": Truth((*WELL.truth.existing, (OLD, OLD)), 3)}),
    ("leaked", "a record", {"instances": (*WELL.instances, instance("x", "leaked"))}),
]


def test_an_order_after_a_late_one_needs_no_step_of_its_own() -> None:
    """A delivery whose saga has gone on orders what the node's record says, under its own key."""
    late = {("cordon", OLD): {*WELL.orders["cordon", OLD], f"{SAGA}/drain/late-2"}}
    assert not differences(changed(orders={**WELL.orders, **late}))
    never = {("drain", OLD): {*WELL.orders["drain", OLD], f"{SAGA}/drain/late-2"}}
    assert differences(changed(orders={**WELL.orders, **never}))


@pytest.mark.parametrize(("kind", "what", "fields"), CASES, ids=[case[1] for case in CASES])
def test_each_deviation_is_found(kind: str, what: str, fields: dict[str, Any]) -> None:
    """Each deviation is found, under its kind."""
    assert kind in {each.kind for each in differences(changed(**fields))}, what


def test_fleet_with_an_open_saga_is_not_at_rest() -> None:
    """Matching records are not enough while a saga is open."""
    opened = OpenSaga(kind="replace", node=OTHER, since=NOW)
    pool = msgspec.structs.replace(WELL.pool, open={"replace-training-2-1": opened})
    assert not is_settled(changed(pool=pool))
