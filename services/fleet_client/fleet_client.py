"""Queries, requests and histories over one bus connection."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from schemas import subjects
from schemas.dry_run import DryRun, DryRunRequest
from schemas.fleet_queries import (
    CurrentFailure,
    Expiry,
    FleetBudgetView,
    NodeView,
    Page,
    Query,
)
from schemas.messages import decoder, encode
from schemas.names import TOKEN
from schemas.node_events import FACTS, Drained, WorkRemains
from schemas.operations import ServiceOrder
from schemas.operator_requests import HoldRequest, NodeRequest, Request
from schemas.permissions import SERVICES
from schemas.pool_events import (
    PoolEvent,
    RequestAccepted,
    RequestRefused,
    Scaled,
    ScaleRefused,
    pool_codec,
)
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import WHOLE
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, HEALTH_EVENTS, POOLS, SAGAS
from services.bus.nats.connection_expiry import expiring
from services.bus.port import Bus, Stored
from services.bus.protocol.endpoint_replies import reply_data
from services.fleet_client.local_user import requester, token_of, user_name
from services.fleet_client.node_filter import has_labels, labels_asked
from services.fleet_client.node_timeline import mentions, sagas_about
from services.fleet_client.query_answers import decode_answer, decode_nodes
from services.fleet_client.stored_events import event_filters, is_about, stored_batches
from services.operator_text.safe_text import escape_line
from services.operator_text.workload_words import work_words
from services.primitives.errors import (
    AnswerError,
    BusError,
    NavarchError,
    NoResponders,
    NotPermitted,
    StoreFull,
    Unavailable,
)
from services.runtime.failure_query import failure_answers

T = TypeVar("T")

QUERY_SECONDS_MAX: Final = 5.0
ANSWER_SECONDS_MAX: Final = 10.0
PAGES_MAX: Final = 1000
PAGE_NODES: Final = 1000
"""Nodes a page, some 400 bytes each: they must fit one message of the bus."""
PART_NODES: Final = 100
"""Nodes decoded at once."""
HEALTH_FILTERS: Final = (*HEALTH_EVENTS.filters, subjects.node_event_wildcard("verdict"))
"""Under which subjects what the health-monitor decides on is stored, and its verdicts."""
ANSWERS: Final = ("request-accepted", "request-refused", "scaled", "scale-refused")
ROLE_NEEDED: Final = (
    "this needs the role operator, or pool-admin to create or remove a pool, and your credentials "
    "do not have it: `navarch nats-config user add NAME --role operator` makes some"
)
MAYBE_STORED: Final = (
    "the request may be stored all the same, and is carried out then: look at `navarch events` "
    "before you repeat it"
)
ENDS: Final = frozenset({"done", "unwound", "stuck"})

_pools = decoder(PoolRecord)

NodeRequests = NodeRequest | HoldRequest
RequestAnswer = RequestAccepted | RequestRefused | Scaled | ScaleRefused


class UnansweredError(NavarchError):
    """A request is stored, and its answer has not come in time."""

    code: Final = "unanswered"


class NoReplyError(NavarchError):
    """A service does not answer a query, or none of its replicas is there."""


class FleetClient:
    """Queries, requests and histories over one bus connection."""

    def __init__(
        self,
        bus: Bus,
        expiries: Sequence[Expiry] = (),
        expiry_warning: float = 0.0,
        *,
        user: str = "",
    ) -> None:
        """Query over `bus`; `expiries`: what this connection depends on.

        `user`: the name in our credentials.
        """
        self.bus = bus
        self.expiries = expiries
        self.user = user
        self._expiry_warning = expiry_warning

    async def query(
        self,
        name: str,
        query: msgspec.Struct,
        *,
        timeout_seconds: float = QUERY_SECONDS_MAX,
        who: str = "pool-manager",
    ) -> bytes:
        """Send one query; raise NavarchError if it is refused or no service replies."""
        return await self._ask(subjects.query(name), name, encode(query), timeout_seconds, who)

    async def _ask(
        self, subject: str, name: str, data: bytes, timeout_seconds: float, who: str
    ) -> bytes:
        try:
            reply = await self.bus.request(subject, data, timeout_seconds=timeout_seconds)
        except NotPermitted as error:
            raise NavarchError(ROLE_NEEDED) from error
        except Unavailable as error:
            raise NoReplyError(
                f"no reply to the query {name}: is the {who} running? ({error})"
            ) from error
        try:
            return reply_data(reply)
        except AnswerError as error:
            raise AnswerError(escape_line(str(error))) from error

    async def order(
        self,
        name: str,
        order: msgspec.Struct,
        *,
        timeout_seconds: float = QUERY_SECONDS_MAX,
        who: str = "pool-manager",
    ) -> bytes:
        """Have a service do something at once; raise NavarchError if it refuses or is away."""
        subject = subjects.order(name, self.user or token_of(user_name()))
        return await self._ask(subject, name, encode(order), timeout_seconds, who)

    async def pages(
        self, name: str, query: Query, *, who: str = "pool-manager"
    ) -> list[msgspec.Raw]:
        """Return all items of a paged query, as JSON."""
        items: list[msgspec.Raw] = []
        async for page in self.each_page(name, query, who=who):
            items.extend(page.items)
        return items

    async def each_page(
        self, name: str, query: Query, *, who: str = "pool-manager"
    ) -> AsyncIterator[Page]:
        """The pages of a query, each asked for when it is wanted."""
        for _ in range(PAGES_MAX):
            page = await self.page(name, query, who=who)
            yield page
            if not page.next:
                return
            query = msgspec.structs.replace(query, after=page.next)
        raise NavarchError(f"more than {PAGES_MAX} pages of {name}: query one pool at a time")

    async def nodes(self, query: Query) -> list[NodeView]:
        """All nodes of a query; the next page is under way while one is decoded."""
        decoding = [
            asyncio.create_task(_decoded(page.items))
            async for page in self.each_page("nodes", query)
        ]
        return [node for nodes in await asyncio.gather(*decoding) for node in nodes]

    async def some_nodes(
        self, query: Query, keep: Callable[[NodeView], bool], limit: int
    ) -> tuple[tuple[NodeView, ...], str]:
        """The first `limit` nodes to keep, and the `after` of what follows; empty: that was all."""
        found: list[NodeView] = []
        async for page in self.each_page("nodes", query):
            for node in decode_nodes(page.items):
                if keep(node):
                    found.append(node)
                if len(found) == limit:
                    return tuple(found), f"{node.pool}.{node.id}"
        return tuple(found), ""

    async def page(self, name: str, query: Query, *, who: str = "pool-manager") -> Page:
        """Return one page of a paged query."""
        return decode_answer(Page, await self.query(name, query, who=who), name, who)

    async def remaining_work(self, sagas: Sequence[dict[str, Any]]) -> list[str]:
        """Return what the drains of these sagas wait for, as the notifier last reported it."""
        found = []
        for saga in (each for each in sagas if each.get("node")):
            place = saga["pool"], saga["node"]
            stored, ended = await asyncio.gather(
                *(
                    self.bus.last(EVENTS.name, subjects.node_event(*place, FACTS[kind]))
                    for kind in (WorkRemains, Drained)
                )
            )
            message = decode_stored(stored) if stored is not None else None
            over = stored and ended and ended.sequence > stored.sequence
            if isinstance(message, WorkRemains) and message.saga == saga.get("saga") and not over:
                found.append(f"{message.node} {work_words(message, datetime.now(UTC))}")
        return found

    async def failures(self) -> list[CurrentFailure]:
        """Return what fails now in the services that answer, and what expires here."""
        found = expiring(self.expiries, datetime.now(UTC), self._expiry_warning)
        answers = await asyncio.gather(*map(self._failures_of, SERVICES))
        found += [each for answer in answers for each in answer]
        # Services and users depend on the same certificate.
        return list({(each.failure, each.about): each for each in found}.values())

    async def _failures_of(self, service: str) -> list[CurrentFailure]:
        found: list[CurrentFailure] = []
        with suppress(BusError):
            for data in await failure_answers(self.bus, service):
                found += decode_answer(list[CurrentFailure], data, "failures", service)
        return found

    async def node(self, node: str) -> tuple[NodeView, bytes]:
        """Return one node with its recent faults, and the same as JSON."""
        data = await self.query("node", Query(node=node))
        return decode_answer(NodeView, data, "node"), data

    async def budget(self) -> FleetBudgetView:
        """The fleet's budget and how much of it is used."""
        return decode_answer(FleetBudgetView, await self.query("budget", Query()), "budget")

    async def check_pool(self, pool: str) -> None:
        """Fail if there is no such pool: an empty answer would look like a pool without events."""
        if pool and (not TOKEN.match(pool) or await self.bus.get(POOLS, pool_key(pool)) is None):
            entries = await self.bus.entries(POOLS, pool_key("*"))
            raise no_pool(pool, [each.key.removeprefix(pool_key("")) for each in entries])

    async def pool_records(self) -> list[PoolRecord]:
        """Return every pool's record."""
        entries = await self.bus.entries(POOLS, pool_key("*"))
        return [_pools.decode(each.value) for each in entries]

    async def pools_labelled(self, labels: Sequence[str]) -> frozenset[str]:
        """The pools with all these labels; ValueError for what is not `KEY=VALUE`."""
        asked = labels_asked(labels)
        records = await self.pool_records()
        return frozenset(each.name for each in records if has_labels(each.spec.labels, asked))

    async def request(self, pool: str, verb: str, request: Request) -> RequestAnswer:
        """Send a request to a pool and wait for the event that answers it."""
        # Where the server checks who asks, the subject says it, and nothing else counts.
        by = "" if self.user else request.by or requester()
        own = request.request or f"cli-{secrets.token_hex(8)}"
        mine = msgspec.structs.replace(request, by=by, request=own)
        # The start of the answers is read before the request is sent, so that none is missed.
        after = await self.bus.last_sequence(EVENTS.name)
        return await self.send(pool, verb, mine, after=after)

    async def dry_run(self, pool: str, verb: str, request: Request) -> DryRun:
        """Return what a request would do; nothing is changed."""
        node = getattr(request, "node", "")
        asked = DryRunRequest(pool=pool, verb=verb, node=node, request=msgspec.Raw(encode(request)))
        return decode_answer(DryRun, await self.query("dry-run", asked), "dry-run")

    async def perform(self, order: ServiceOrder[T], request: msgspec.Struct) -> T:
        """Have a service perform an order at once; its answer."""
        ask = self.query if order.is_query else self.order
        data = await ask(order.name, request, timeout_seconds=order.seconds_max, who=order.service)
        return decode_answer(order.answer, data, order.name, order.service)

    async def send(
        self, pool: str, verb: str, request: Request, *, after: int, msg_id: str = ""
    ) -> RequestAnswer:
        """Send a request with its ID, and wait for the answer among the events after a sequence.

        `msg_id`: stores the request once, however often it is sent within ten minutes; an answer
        to another request whose ID begins with it counts, too.
        """
        subject = subjects.pool_request(pool, verb, self.user)
        try:
            await self.bus.publish(subject, encode(request), msg_id=msg_id)
        except NotPermitted as error:
            raise NavarchError(ROLE_NEEDED) from error
        except (NoResponders, StoreFull):
            raise
        except Unavailable as error:
            raise Unavailable(f"{error}; {MAYBE_STORED}") from error
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self.answer(pool, msg_id or request.request, after)
        except TimeoutError as error:
            raise UnansweredError(
                f"no answer to this {verb} request within {ANSWER_SECONDS_MAX:g} s: is the "
                "pool-manager running? The request is stored and will be answered when it is"
            ) from error

    async def earlier_answer(
        self, pool: str, request: str, since: datetime
    ) -> RequestAnswer | None:
        """The answer, since a time, to a request whose ID begins so; None if there is none yet."""
        async for batch in stored_batches(self.bus, EVENTS.name, answer_filters(pool), since):
            for stored in batch:
                if (found := answer_in(stored, request)) is not None:
                    return found
        return None

    async def answer(self, pool: str, request: str, after: int) -> RequestAnswer:
        """Wait for the answer, after a sequence, to a request whose ID begins so."""
        following = self.bus.follow(EVENTS.name, answer_filters(pool), "new", after=after)
        async with aclosing(as_generator(following)) as events:
            async for stored in events:
                if (found := answer_in(stored, request)) is not None:
                    return found
        raise Unavailable("the bus stopped before the answer came")

    async def follow_saga(
        self, saga: str, *, after: int | None = None
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """A saga's entries, all or those after a sequence, also future ones, until it has ended."""
        tree = [subjects.saga_tree(saga)]
        entries = self.bus.follow(SAGAS.name, tree, "all", after=after)
        async with aclosing(as_generator(entries)) as following:
            async for stored in following:
                yield (stored,)
                if ends_saga(stored):
                    return

    async def follow_events(
        self, *, pool: str, node: str, since: datetime | int | None, follow: bool = True
    ) -> AsyncGenerator[Sequence[Stored], None]:
        """Yield events from now, from a time on, or after a sequence; of a pool, a node, or all.

        Stored events come in batches, which is much faster than to `follow` the later ones singly.
        """
        filters = event_filters(pool, node)
        after: int | datetime | None = since
        if since is not None:
            async for batch in stored_batches(self.bus, EVENTS.name, filters, since):
                after = batch[-1].sequence
                yield [each for each in batch if is_about(each, node)]
        if not follow:
            return
        async with aclosing(
            as_generator(self.bus.follow(EVENTS.name, filters, "new", after=after))
        ) as following:
            async for stored in following:
                if is_about(stored, node):
                    yield (stored,)

    async def node_history(self, node: str) -> list[Stored]:
        """Return every stored event and saga entry about a node."""
        bus = self.bus
        own, pools, started = await asyncio.gather(
            bus.read(EVENTS.name, subjects.node_events_named(node)),
            bus.read(EVENTS.name, subjects.POOL_EVENTS),
            bus.read(SAGAS.name, subjects.saga_step_wildcard(WHOLE, "started")),
        )
        trees = await asyncio.gather(
            *(bus.read(SAGAS.name, subjects.saga_tree(each)) for each in sagas_about(node, started))
        )
        about = [each for each in pools if mentions(decode_stored(each), node)]
        return [*own, *about, *(entry for tree in trees for entry in tree)]


def ends_saga(stored: Stored) -> bool:
    """Return whether a saga's entry is its last."""
    entry = subjects.parse_saga(stored.subject)
    return entry is not None and entry.step == WHOLE and entry.status in ENDS


def no_pool(pool: str, names: Sequence[str]) -> NavarchError:
    """Return the error that there is no such pool, and which there are."""
    there = ", ".join(sorted(names)) or "none yet"
    return NavarchError(f"there is no pool {pool!r}; there is: {there}")


def answer_filters(pool: str) -> list[str]:
    """Return the subjects under which answers to a pool's requests are stored."""
    return [subjects.pool_event(pool, fact) for fact in ANSWERS]


def answer_in(stored: Stored, request: str) -> RequestAnswer | None:
    """The answer to a request whose ID begins so, if this is one."""
    event = pool_codec.decode(stored.data)
    if isinstance(event, RequestAnswer) and event.request.startswith(request):
        return event
    return None


def as_generator(source: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """A follower as the generator that it is, so that its consumer can be closed at once."""
    assert isinstance(source, AsyncGenerator)
    return source


async def _decoded(items: Sequence[msgspec.Raw]) -> list[NodeView]:
    """Decode a page in parts, between which its successor is asked for and received."""
    found: list[NodeView] = []
    for first in range(0, len(items), PART_NODES):
        found += decode_nodes(items[first : first + PART_NODES])
        await asyncio.sleep(0)
    return found


def require_accepted(answer: RequestAnswer) -> PoolEvent:
    """Return the answer; raise AnswerError if it is a refusal."""
    if isinstance(answer, RequestRefused | ScaleRefused):
        text = f"refused ({answer.refusal}): {escape_line(answer.reason)}"
        raise AnswerError(text, answer.refusal)
    return answer
