"""What is left after a round, and what of it should not be so. Pure but for `gather`.

Truth is what the provider says and what the streams hold; the services' own records must agree with
it. Each difference is of one kind: something was *lost* (a replacement that did not come, a step
without its entry), *doubled* (two replacements, a step twice, an instance too many) or *leaked* (an
instance that nobody wants and somebody pays for).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from schemas import subjects
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.records import InstanceRecord, NodeRecord, PoolRecord, decoder, pool_key
from schemas.sagas import WHOLE, SagaEntry, saga_codec
from schemas.topology import DEAD, EVENTS, INSTANCES, NODES, POOLS, SAGAS
from services.runtime.bus import Bus, Stored
from services.saga.log import CorruptLogError, SagaState, fold
from tests.crash.provider import Truth

Kind = Literal["lost", "doubled", "leaked"]
KINDS: Final[tuple[Kind, ...]] = ("lost", "doubled", "leaked")

REPLACE_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    "terminate_first": (
        *("cordon", "drain", "terminate"),
        *("provision", "bootstrap", "register", "admit"),
    ),
    "provision_first": (
        *("cordon", "provision", "bootstrap", "register", "admit"),
        *("drain", "terminate"),
    ),
}
LAUNCH_STEPS: Final = ("provision", "bootstrap", "register", "admit")


class _Envelope(msgspec.Struct):
    id: str


_envelope = msgspec.json.Decoder(_Envelope)
_pools = decoder(PoolRecord)
_nodes = decoder(NodeRecord)
_instances = decoder(InstanceRecord)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that should not be so."""

    kind: Kind
    what: str
    saga: str = ""
    """The saga whose log says more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that tells whether the fleet is as it should be."""

    nodes_wanted: int
    instances_max: int
    """How many may ever stand at once."""
    broken: tuple[str, ...]
    """Nodes that a fault was published for, one fault each."""
    pool: PoolRecord
    logs: Mapping[str, tuple[Stored, ...]]
    """Saga -> its log."""
    replaced: tuple[NodeReplaced, ...]
    nodes: tuple[NodeRecord, ...]
    instances: tuple[InstanceRecord, ...]
    truth: Truth
    most: int
    """The most instances that were seen to stand at once."""
    orders: Mapping[tuple[str, str], Collection[str]]
    """(event, node) -> the keys under which the workload system was told."""
    events: Counter[str]
    """Id of every fact -> how often it is stored."""
    dead: tuple[str, ...] = ()


async def gather(
    bus: Bus,
    pool: str,
    truth: Truth,
    *,
    nodes_wanted: int,
    instances_max: int,
    broken: tuple[str, ...],
    most: int,
    orders: Mapping[tuple[str, str], Collection[str]],
) -> Evidence:
    """Read everything."""
    logs: dict[str, list[Stored]] = {}
    for stored in await bus.read(SAGAS.name, subjects.SAGAS):
        parsed = subjects.parse_saga(stored.subject)
        logs.setdefault(parsed.saga if parsed else stored.subject, []).append(stored)
    events = await bus.read(EVENTS.name, ">")
    replaced = (pool_codec.decode(each.data) for each in events)
    record = await bus.get(POOLS, pool_key(pool))
    assert record is not None, f"pool {pool} has no record"
    return Evidence(
        nodes_wanted=nodes_wanted,
        instances_max=instances_max,
        broken=broken,
        pool=_pools.decode(record.value),
        logs={saga: tuple(log) for saga, log in logs.items()},
        replaced=tuple(each for each in replaced if isinstance(each, NodeReplaced)),
        nodes=tuple(_nodes.decode(each.value) for each in await bus.entries(NODES)),
        instances=tuple(_instances.decode(each.value) for each in await bus.entries(INSTANCES)),
        truth=truth,
        most=most,
        orders=orders,
        events=Counter(_envelope.decode(each.data).id for each in events),
        dead=tuple(each.subject for each in await bus.read(DEAD.name, subjects.DEAD)),
    )


def is_settled(seen: Evidence) -> bool:
    """Whether the pool is at rest: every fault answered, nothing open, every node in service."""
    answered = {each.old_node for each in seen.replaced} >= set(seen.broken)
    return answered and not seen.pool.open and not list(_at_odds(seen))


def differences(seen: Evidence) -> list[Difference]:
    """Everything that should not be so, of a fleet at rest."""
    return [
        *_replacements(seen),
        *(each for saga in seen.logs for each in _log(saga, seen)),
        *_instances_made(seen),
        *_told(seen),
        *_at_odds(seen),
        *(Difference("lost", f"dead letter on {subject}") for subject in seen.dead),
    ]


def told(seen: Evidence, found: list[Difference]) -> str:
    """What a person needs to see why: each difference, and each log that it is about."""
    lines = [f"{each.kind}: {each.what}" for each in found]
    for saga in sorted({each.saga for each in found if each.saga}):
        lines += [f"log of {saga}:", *(f"  {_shown(each)}" for each in seen.logs.get(saga, ()))]
    if seen.pool.open:
        lines.append(f"open: {seen.pool.open}")
    for saga in seen.pool.open:
        lines += [f"log of {saga}:", *(f"  {_shown(each)}" for each in seen.logs.get(saga, ()))]
    lines.append(f"provider: {seen.truth.names}, made {seen.truth.made}")
    lines.append(f"nodes: { ({n.node: n.state for n in seen.nodes if n.state != 'terminated'}) }")
    live = {i.instance: i.state for i in seen.instances if i.state != "terminated"}
    return "\n".join([*lines, f"instances: {live}"])


def _shown(stored: Stored) -> str:
    moment = stored.time.isoformat(timespec="milliseconds")[11:23]
    return f"{moment} {stored.sequence} {stored.subject.split('.', 4)[-1]}"


def _replacements(seen: Evidence) -> Iterator[Difference]:
    """One replacement a fault: one event, one saga."""
    events = Counter(each.old_node for each in seen.replaced)
    sagas: Counter[str] = Counter()
    for saga, log in seen.logs.items():
        state = _state(saga, log)
        if isinstance(state, SagaState) and state.kind == "replace":
            sagas[state.params.node] += 1
    for what, counted in (("node-replaced events", events), ("replace sagas", sagas)):
        for node in seen.broken:
            if counted[node] != 1:
                kind: Kind = "doubled" if counted[node] else "lost"
                yield Difference(kind, f"{node} broke once and has {counted[node]} {what}")
        for node in set(counted) - set(seen.broken):
            yield Difference("doubled", f"{node} never broke and has {counted[node]} {what}")


def _log(saga: str, seen: Evidence) -> Iterator[Difference]:
    """A log is legal, ended, and has each step's start and success once, in the saga's order."""
    state = _state(saga, seen.logs[saga])
    if isinstance(state, str):
        yield Difference("doubled", state, saga)
        return
    steps = LAUNCH_STEPS if state.kind == "scale-up" else REPLACE_STEPS[state.params.order]
    expected = [(WHOLE, "started")]
    expected += [(step, status) for step in steps for status in ("started", "succeeded")]
    expected.append((WHOLE, "done"))
    found = [_place(each) for each in seen.logs[saga]]
    if found == expected:
        return
    for place, times in Counter(found).items():
        if times > 1:
            yield Difference("doubled", f"{saga}: {'.'.join(place)} {times} times", saga)
    for place in expected:
        if place not in found:
            yield Difference("lost", f"{saga}: {'.'.join(place)} is missing", saga)
    if sorted(found) == sorted(expected) or set(found) - set(expected):
        yield Difference("lost", f"{saga}: not the steps of a {state.kind}, in order", saga)


def _place(stored: Stored) -> tuple[str, str]:
    parsed = subjects.parse_saga(stored.subject)
    return (parsed.step, parsed.status) if parsed else (stored.subject, "")


def _state(saga: str, log: tuple[Stored, ...]) -> SagaState | str:
    """The folded log, or what is wrong with it."""
    state: SagaState | None = None
    for stored in log:
        entry = saga_codec.decode(stored.data)
        if not isinstance(entry, SagaEntry):
            return f"{saga}: {stored.subject} is no entry"
        try:
            state = fold(state, entry, stored.sequence, stored.headers)
        except CorruptLogError as error:
            return str(error)
    assert state is not None
    return state


def _instances_made(seen: Evidence) -> Iterator[Difference]:
    """Never more instances than intended, ever and at once."""
    wanted = seen.nodes_wanted + len(seen.broken)
    if seen.truth.made > wanted:
        yield Difference("doubled", f"{seen.truth.made} instances made where {wanted} were wanted")
    if seen.truth.made < wanted:
        yield Difference("lost", f"{seen.truth.made} instances made where {wanted} were wanted")
    if seen.most > seen.instances_max:
        at_once = f"{seen.most} instances stood at once where {seen.instances_max} may"
        yield Difference("doubled", at_once)
    for name, times in Counter(seen.truth.names).items():
        if times > 1:
            yield Difference("doubled", f"{name} stands {times} times")


def _told(seen: Evidence) -> Iterator[Difference]:
    """The workload system heard each order once in effect, and the fleet each fact once."""
    wanted = {(event, node) for event in ("cordon", "drain") for node in seen.broken}
    for event, node in sorted(wanted - set(seen.orders)):
        yield Difference("lost", f"the workload system never heard {event} {node}")
    for event, node in sorted(set(seen.orders) - wanted):
        yield Difference("doubled", f"the workload system heard {event} {node}, which never broke")
    for (event, node), keys in seen.orders.items():
        if len(keys) != 1:
            yield Difference("doubled", f"{event} {node} was ordered under {sorted(keys)}")
    for name, times in seen.events.items():
        if times > 1:
            yield Difference("doubled", f"the fact {name} is stored {times} times")


def _at_odds(seen: Evidence) -> Iterator[Difference]:
    """What the provider has, what INSTANCES says runs and which nodes serve are the same."""
    standing = set(seen.truth.names)
    running = {each.instance for each in seen.instances if each.state == "running"}
    serving = {
        each.node
        for each in seen.nodes
        if each.state == "active" and not each.cordoned and not each.lost and not each.saga
    }
    for name in sorted(standing - running):
        yield Difference("leaked", f"{name} stands at the provider and no record says it runs")
    for name in sorted(standing & set(seen.broken)):
        yield Difference("leaked", f"{name} broke and still stands")
    for name in sorted(running - standing):
        yield Difference("lost", f"{name} runs by its record and does not stand")
    for name in sorted(running ^ serving):
        yield Difference("lost", f"{name} is running or serving, not both")
    if len(standing) != seen.nodes_wanted:
        kind: Kind = "leaked" if len(standing) > seen.nodes_wanted else "lost"
        yield Difference(kind, f"{len(standing)} instances where {seen.nodes_wanted} are wanted")
    for each in seen.instances:
        if each.state not in ("running", "terminated"):
            yield Difference("leaked", f"{each.instance} is {each.state}: {each.error}")
    for node in seen.nodes:
        if node.state not in ("active", "terminated"):
            yield Difference("lost", f"{node.node} is still {node.state}")
