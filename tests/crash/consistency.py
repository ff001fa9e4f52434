"""Compares a fleet at rest with what it should be. Pure except for `gather`.

Truth is what the provider lists and what the streams hold; the services' records must agree with
it. A difference is something *lost* (a replacement that did not come, a step without its entry),
*doubled* (two replacements, a step twice, an instance too many) or *leaked* (an instance that is
not needed and still costs money).
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import WHOLE, SagaEntry, saga_codec
from schemas.saga_params import SagaParams
from schemas.topology import DEAD, EVENTS, INSTANCES, NODES, POOLS, SAGAS
from services.bus.port import Bus, Stored
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import CorruptLogError, SagaState, fold
from tests.crash import external_orders
from tests.crash.external_orders import Kind
from tests.crash.provider_truth import Truth

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
DONE: Final = frozenset({"done"})
ENDED: Final = frozenset({"done", "unwound"})


class _Envelope(msgspec.Struct):
    id: str


_envelope = msgspec.json.Decoder(_Envelope)
_pools = decoder(PoolRecord)
_nodes = decoder(NodeRecord)
_instances = decoder(InstanceRecord)


@dataclass(frozen=True, slots=True)
class Difference:
    """Describes one deviation from the expected state."""

    kind: Kind
    what: str
    saga: str = ""
    """The saga whose log belongs in the report."""


@dataclass(frozen=True, slots=True)
class ExpectedSaga:
    """A saga that must exist exactly once, and how it may end."""

    kind: str
    node: str = ""
    """Empty: of any node."""
    ends: frozenset[str] = DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the comparison needs."""

    nodes_wanted: int
    spares_wanted: int = 0
    instances_max: int
    """How many may ever exist at once."""
    expected_sagas: tuple[ExpectedSaga, ...]
    """Caused by a fault, by a request, or by the pool's first size."""
    pool: PoolRecord
    logs: Mapping[str, tuple[Stored, ...]]
    """Saga -> its log."""
    replaced: tuple[NodeReplaced, ...]
    nodes: tuple[NodeRecord, ...]
    instances: tuple[InstanceRecord, ...]
    truth: Truth
    most: int
    """The most instances that were seen at once."""
    orders: Mapping[tuple[str, str], Collection[str]]
    """(event, node) -> the saga steps whose keys the workload system received."""
    acts: tuple[tuple[str, str], ...] | None = None
    """(key, node) of each reset and reboot; the provider's have no key. None: not observable."""
    disturbed: tuple[str, ...] = ()
    """Nodes that were reset or rebooted with work on them."""
    events: Counter[str]
    """ID of every event -> how often it is stored."""
    dead: tuple[str, ...] = ()


async def gather(
    bus: Bus,
    pool: str,
    truth: Truth,
    **seen: Any,
) -> Evidence:
    """Read everything that is stored; `seen`: what the rig observed itself."""
    logs: dict[str, list[Stored]] = {}
    for stored in await bus.read(SAGAS.name, subjects.SAGAS):
        parsed = subjects.parse_saga(stored.subject)
        logs.setdefault(parsed.saga if parsed else stored.subject, []).append(stored)
    events = await bus.read(EVENTS.name, ">")
    replaced = (pool_codec.decode(each.data) for each in events)
    record = await bus.get(POOLS, pool_key(pool))
    assert record is not None, f"pool {pool} has no record"
    return Evidence(
        pool=_pools.decode(record.value),
        logs={saga: tuple(log) for saga, log in logs.items()},
        replaced=tuple(each for each in replaced if isinstance(each, NodeReplaced)),
        nodes=tuple(_nodes.decode(each.value) for each in await bus.entries(NODES)),
        instances=tuple(_instances.decode(each.value) for each in await bus.entries(INSTANCES)),
        truth=truth,
        events=Counter(_envelope.decode(each.data).id for each in events),
        dead=tuple(each.subject for each in await bus.read(DEAD.name, subjects.DEAD)),
        **seen,
    )


def is_settled(seen: Evidence) -> bool:
    """Return whether every expected saga ended, none is open, and every node is in service."""
    states = _states(seen)
    if any(not state.ended for state in states):
        return False
    found, wanted = _counted(seen)
    return not wanted - found and not seen.pool.open and not list(_at_odds(seen))


def unsettled(seen: Evidence) -> list[str]:
    """Return what is not at rest, whatever the cause, in a fleet whose streams lost history."""
    logs = [f"{each.saga} is {each.status}" for each in _states(seen) if not each.ended]
    opened = [f"{each} is open" for each in seen.pool.open]
    odd = [each.what for each in _at_odds(seen) if "was replaced" not in each.what]
    return [*logs, *opened, *odd]


def differences(seen: Evidence) -> list[Difference]:
    """Return all differences of a fleet at rest."""
    return [
        *_replacements(seen),
        *(each for saga in seen.logs for each in _log(saga, seen)),
        *_instances_made(seen),
        *_once(seen),
        *_at_odds(seen),
        *(Difference("lost", f"dead letter on {subject}") for subject in seen.dead),
    ]


def report(seen: Evidence, found: list[Difference]) -> str:
    """Each difference, and each log that it is about."""
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


def _states(seen: Evidence) -> list[SagaState]:
    found = (_state(saga, log) for saga, log in seen.logs.items())
    return [state for state in found if isinstance(state, SagaState)]


def _counted(seen: Evidence) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """(kind, node) -> how many sagas there are, and how many are wanted.

    A node whose repair waits for the end of another one is quarantined until then, once.
    """
    wanted = Counter((each.kind, each.node) for each in seen.expected_sagas)
    found: Counter[tuple[str, str]] = Counter()
    broken, quarantined = {each.node for each in seen.expected_sagas}, set[str]()
    for state in _states(seen):
        node = state.params.node
        if state.kind == "quarantine" and node in broken - quarantined:
            quarantined.add(node)
            continue
        exact = (state.kind, node)
        found[exact if exact in wanted else (state.kind, "")] += 1
    return found, wanted


def _replacements(seen: Evidence) -> Iterator[Difference]:
    """Each expected saga once, ended as it may; one event for each replacement."""
    found, wanted = _counted(seen)
    for kind, node in sorted(found | wanted):
        many, times = found[kind, node], wanted[kind, node]
        if many != times:
            what = f"{many} {kind} sagas of {node or 'any node'} where {times} were expected"
            yield Difference("doubled" if many > times else "lost", what)
    replaced = Counter(each.old_node for each in seen.replaced)
    done: Counter[str] = Counter()
    for state in _states(seen):
        about = (state.kind, state.params.node)
        ends = [
            each.ends
            for each in seen.expected_sagas
            if (each.kind, each.node) in (about, (about[0], ""))
        ]
        allowed = frozenset[str]().union(*ends) if ends else ENDED
        if state.status not in allowed:
            what = f"{state.saga} is {state.status}, not {' or '.join(sorted(allowed))}"
            yield Difference("lost", what, state.saga)
        if state.kind == "replace" and state.status == "done":
            done[state.params.node] += 1
    for node in sorted(
        each.node for each in seen.expected_sagas if each.kind == "replace" and each.ends == DONE
    ):
        if not done[node]:
            yield Difference("lost", f"{node} was to be replaced and was not")
    for node in sorted(set(done) | set(replaced)):
        if done[node] != replaced[node]:
            kind_: Kind = "doubled" if replaced[node] > done[node] else "lost"
            what = f"{node} was replaced {done[node]} times, with {replaced[node]} events"
            yield Difference(kind_, what)


def steps_of(kind: str, params: SagaParams) -> list[str]:
    """Return the names of a saga's steps, in order."""
    definitions = {str(name): each for name, each in DEFINITIONS.items()}
    return [step.name for step in definitions[kind].steps(params)]


def _log(saga: str, seen: Evidence) -> Iterator[Difference]:
    """A log is valid, ended, and has start and success of each step once, in order."""
    state = _state(saga, seen.logs[saga])
    if isinstance(state, str):
        yield Difference("doubled", state, saga)
        return
    found = [_place(each) for each in seen.logs[saga]]
    if not state.retries:
        for place, times in Counter(found).items():
            if times > 1:
                yield Difference("doubled", f"{saga}: {'.'.join(place)} {times} times", saga)
    if state.status == "unwound":
        return
    expected = [(WHOLE, "started")]
    steps = steps_of(state.kind, state.params)
    expected += [(step, status) for step in steps for status in ("started", "succeeded")]
    expected.append((WHOLE, "done"))
    for place in expected:
        if place not in found:
            yield Difference("lost", f"{saga}: {'.'.join(place)} is missing", saga)
    strange = sorted(found) == sorted(expected) and found != expected
    if strange or (set(found) - set(expected) and not state.retries):
        yield Difference("lost", f"{saga}: not the steps of a {state.kind}, in order", saga)


def _place(stored: Stored) -> tuple[str, str]:
    parsed = subjects.parse_saga(stored.subject)
    return (parsed.step, parsed.status) if parsed else (stored.subject, "")


def _state(saga: str, log: tuple[Stored, ...]) -> SagaState | str:
    """The folded log, or why it cannot be folded."""
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
    """Never more instances than intended, in total and at once."""
    least = most = 0
    for state in _states(seen):
        launched = state.step("provision").status
        least += state.status == "done" and launched == "succeeded"
        most += launched != "pending"
    made = seen.truth.made
    if made > most:
        yield Difference("doubled", f"{made} instances made where {most} were wanted")
    if made < least:
        yield Difference("lost", f"{made} instances made where {least} were wanted")
    if seen.most > seen.instances_max:
        at_once = f"{seen.most} instances existed at once where {seen.instances_max} may"
        yield Difference("doubled", at_once)
    for name, times in Counter(seen.truth.names).items():
        if times > 1:
            yield Difference("doubled", f"{name} exists {times} times")


def _once(seen: Evidence) -> Iterator[Difference]:
    """Orders, resets and reboots took effect once, and each event is stored once."""
    logs = [
        (state, [_place(stored) for stored in seen.logs[state.saga]]) for state in _states(seen)
    ]
    wrong = [
        *external_orders.unmatched_orders(logs, seen.orders),
        *external_orders.unmatched_resets_and_reboots(logs, seen.acts),
    ]
    for kind, what in wrong:
        yield Difference(kind, what)
    for node in seen.disturbed:
        yield Difference("lost", f"the work of {node} was disturbed by a reset or a reboot")
    for name, times in seen.events.items():
        if times > 1:
            yield Difference("doubled", f"the event {name} is stored {times} times")


def _at_odds(seen: Evidence) -> Iterator[Difference]:
    """The provider's instances, the running ones of INSTANCES and the nodes in service agree."""
    existing = set(seen.truth.names)
    running = {each.instance for each in seen.instances if each.state == "running"}
    serving = {
        each.node
        for each in seen.nodes
        if each.state == "active"
        and not each.lost
        and not each.saga
        # A spare is cordoned.
        and each.cordoned == each.spare
    }
    spares = sum(1 for each in seen.nodes if each.state == "active" and each.spare)
    for name in sorted(existing - running):
        yield Difference("leaked", f"{name} exists at the provider and no record says that it runs")
    for name in sorted(existing & {each.old_node for each in seen.replaced}):
        yield Difference("leaked", f"{name} was replaced and still exists")
    for name in sorted(running - existing):
        yield Difference("lost", f"{name} runs by its record and does not exist")
    for name in sorted(running ^ serving):
        yield Difference("lost", f"{name} is running or serving, not both")
    wanted = seen.nodes_wanted + seen.spares_wanted
    if len(existing) != wanted:
        kind: Kind = "leaked" if len(existing) > wanted else "lost"
        yield Difference(kind, f"{len(existing)} instances where {wanted} are wanted")
    if spares != seen.spares_wanted:
        yield Difference("lost", f"{spares} spares where {seen.spares_wanted} are wanted")
    for each in seen.instances:
        if each.state not in ("running", "terminated"):
            yield Difference("leaked", f"{each.instance} is {each.state}: {each.error}")
    for node in seen.nodes:
        if node.state not in ("active", "terminated"):
            yield Difference("lost", f"{node.node} is still {node.state}")
