"""Finds the one node, pool, saga or alert whose name is given or begun, for every command."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Final, NamedTuple, TypeVar, get_args

from schemas.fleet_queries import NodeView, Query
from services.bus.port import Stored
from services.cli.fleet_access import FleetAccess, NodeAccess
from services.fleet_client.fleet_client import PAGE_NODES
from services.fleet_client.saga_progress import Progress
from services.fleet_client.why_answer import WhyAnswer
from services.operator_text.quantities import first_of
from services.primitives.errors import AnswerError, NavarchError

NODES_MAX: Final = 1_000
"""Nodes that one command may name."""
AT_ONCE_MAX: Final = 16
SHOWN_MAX: Final = 5

T = TypeVar("T")


class Kind(NamedTuple):
    """Says how errors about one kind of name read."""

    several: str
    none: str = ""
    """Begins the sentence that no such name exists; empty: the fleet's own answer says it."""
    see: str = ""


NODE: Final = Kind("nodes", "there is no node", "navarch list")
GONE: Final = Kind("nodes")
POOL: Final = Kind("pools")
SAGA: Final = Kind("sagas")
ALERT: Final = Kind("open alerts", "there is no open alert", "navarch alerts list")
ANY: Final = Kind("nodes, pools and sagas")


class AmbiguousNameError(NavarchError):
    """A text is the beginning of several names."""


def complete(text: str, names: Iterable[str], kind: Kind = NODE) -> str:
    """Return the one name that is this text or begins with it; raise where none or several do."""
    known = set(names)
    found = sorted(each for each in known if text and each.startswith(text))
    if text in found:
        return text
    if not found:
        # With other digits it is another thing, and no mistyped one.
        near = get_close_matches(
            text, [each for each in known if _digits(each).startswith(_digits(text))], 1
        )
        meant = f"did you mean {near[0]}? See" if near else "see"
        raise NavarchError(f"{kind.none} {text!r}; {meant} {kind.see}")
    if len(found) > 1:
        shown = first_of(found, SHOWN_MAX)
        raise AmbiguousNameError(f"{text!r} is the beginning of several {kind.several}: {shown}")
    return found[0]


def _digits(name: str) -> str:
    return "".join(filter(str.isdecimal, name))


async def named(
    text: str,
    ask: Callable[[str], Awaitable[T]],
    names: Callable[[], Awaitable[Iterable[str]]],
    kind: Kind = NODE,
    absent: type[NavarchError] = NavarchError,
) -> T:
    """Return what is asked about the thing of this name, or of the one name that begins so.

    The names are read only where nothing has the whole name, as the error `absent` says.
    """
    try:
        return await ask(text)
    except absent as error:
        try:
            known = set(await names())
        except NavarchError:
            raise error from None  # it says more than that no names are to be had
        is_begun = any(text and each.startswith(text) for each in known)
        if text in known or not (is_begun or kind.none):
            raise
    return await ask(complete(text, known, kind))


async def node_names(fleet: NodeAccess, *, terminated: bool = False) -> list[str]:
    """Return the names of all nodes."""
    query = Query(terminated=terminated, limit=PAGE_NODES)
    return [each.id for each in await fleet.nodes(query)]


async def find_node(fleet: NodeAccess, text: str) -> tuple[NodeView, bytes]:
    """Return one node with its recent faults, and the same as JSON."""
    return await named(text, fleet.node, lambda: node_names(fleet), absent=AnswerError)


async def find_nodes(fleet: NodeAccess, texts: Sequence[str]) -> list[NodeView]:
    """Return every node that is named, each once; raise NavarchError if one cannot be found."""
    if len(texts) > NODES_MAX:
        raise NavarchError(f"{len(texts)} nodes are named; at most {NODES_MAX} may be")
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def find(text: str) -> NodeView:
        async with slots:
            return (await find_node(fleet, text))[0]

    found = await asyncio.gather(*map(find, dict.fromkeys(texts)))
    return list({each.id: each for each in found}.values())


async def saga_names(fleet: FleetAccess, *, ended: bool) -> list[str]:
    """Return the names of the open sagas, or of all whose logs are kept."""
    found = await fleet.saga_history("", None) if ended else await fleet.open_sagas("")
    return [each.saga for each in found]


async def find_saga(
    fleet: FleetAccess, text: str, *, ended: bool = True
) -> tuple[Progress, list[Stored]]:
    """Return a saga and the entries of its log; `ended`: the beginning may be of an ended one's."""
    return await named(text, fleet.saga, lambda: saga_names(fleet, ended=ended), SAGA)


async def explain(fleet: FleetAccess, text: str) -> WhyAnswer:
    """Return the state of a node, pool or saga explained."""

    async def names() -> list[str]:
        found = await asyncio.gather(
            node_names(fleet, terminated=True), fleet.pool_names(), saga_names(fleet, ended=True)
        )
        return [name for each in found for name in each]

    return await named(text, fleet.why, names, ANY)


# --- names that are completed before a command runs ----------------------------------------------


class NameMark(NamedTuple):
    """Marks an argument of a command, whose text becomes the full name before the command runs."""

    find: Callable[[FleetAccess, str], Awaitable[str]]


async def _pool(fleet: FleetAccess, text: str) -> str:
    async def ask(name: str) -> str:
        await fleet.check_pool(name)
        return name

    return await named(text, ask, fleet.pool_names, POOL)


async def _alert(fleet: FleetAccess, text: str) -> str:
    keys = [each.opened.key for each in await fleet.alerts() if each.opened is not None]
    return complete(text, keys, ALERT)


async def _ever(
    text: str,
    ask: Callable[[str], Awaitable[object]],
    names: Callable[[], Awaitable[list[str]]],
    kind: Kind,
) -> str:
    """Return the full name of what may be gone: where none begins so, the text."""

    async def name_of(name: str) -> str:
        await ask(name)
        return name

    try:
        return await named(text, name_of, names, kind)
    except AmbiguousNameError:
        raise
    except NavarchError:
        return text  # also where no service answers: what is stored is read all the same


async def _ever_node(fleet: FleetAccess, text: str) -> str:
    return await _ever(text, fleet.node, lambda: node_names(fleet, terminated=True), GONE)


async def _ever_saga(fleet: FleetAccess, text: str) -> str:
    return await _ever(text, fleet.saga, lambda: saga_names(fleet, ended=True), SAGA)


A_POOL: Final = NameMark(_pool)
AN_ALERT: Final = NameMark(_alert)
A_NODE: Final = NameMark(_ever_node)
A_SAGA: Final = NameMark(_ever_saga)
"""Mark what may be gone: the rest of the fleet's history still knows it."""


async def full_names(
    fleet: FleetAccess, own: Sequence[Parameter], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a command's arguments with full names in place of marked beginnings."""
    found = dict(given)
    for each in own:
        marks = [mark for mark in get_args(each.annotation)[1:] if isinstance(mark, NameMark)]
        if marks and given[each.name] != each.default:
            found[each.name] = await marks[0].find(fleet, given[each.name])
    return found
