"""Orders a workload system over HTTP: a URL for each order, and one for the drain status.

docs/webhook.md has the contract. Any 2xx is success. A transient failure (no connection, time-out,
408, 425, 429, 5xx) of an order is retried here with back-off until the step's deadline, and one of
the status by the open drains; any other answer fails the step. Errors name the setting, host and
status; the URL's other parts and the answer's body may hold secrets and are never shown.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, Literal

import httpx
import msgspec

from schemas.duration import Duration
from schemas.enums import DrainMode
from schemas.secret_text import SecretText
from schemas.settings import Setting
from schemas.value_limits import UtcTime
from services.notifier.cloud_events import check_secret, signature_headers
from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    GpuReference,
    NodeReference,
    NodeWorkload,
    OwnerNotice,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
    WorkloadOrder,
    refuse_unset,
)
from services.primitives.clock import Clock
from services.runtime.http_caller import HttpCaller, RefusedHttpError, check_url, place, size
from services.runtime.tracing import current_headers

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
"""At most two polls and their replies, so that a saga continues within a second of the drain."""
BACKOFF_MAX_SECONDS: Final = 10.0
LOGIN_REMEDY: Final = (
    "give `secret` and `headers` the values that the receiver checks, and set both clocks right"
)
EVENTS: Final = ("cordon", "uncordon", "cordon_gpus", "checkpoint", "notify_owners", "drain")
"""What is posted, each to its own URL."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds the body of a POST."""

    event: str
    node_id: str
    node: NodeReference
    """What is known of it, as `exec` reads it."""
    gpus: tuple[GpuReference, ...] | None = None
    """cordon_gpus: all GPUs of the node that are to get no new work; may be empty."""
    saga: str = ""
    """Which a callback names."""
    reason: str = ""
    deadline: str = ""
    """checkpoint, notify_owners, drain: when work that is left ends; empty: it may take as long as
    it needs."""
    urgency: DrainMode | Literal[""] = ""
    """drain: whether the node waits for its work: `deadline`, `wait` or `immediate`."""
    timestamp: str


class CheckpointReply(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the answer to `checkpoint`, which may be empty."""

    checkpoint_at: UtcTime | None = None
    """When the work on the node has written its next checkpoint."""


class DrainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the body of the status URL's answer."""

    drained: bool
    """Ignored for a node with `running`."""
    message: str = ""
    running: tuple[RunningWork, ...] = ()
    total: int = 0


_status = msgspec.json.Decoder(DrainStatus)
_checkpoint = msgspec.json.Decoder(CheckpointReply)


class WebhookDrain(Setting, frozen=True, kw_only=True):
    """Says when a drain has ended."""

    completes: Literal["when-reported", "when-called-back", "at-once"] = "when-reported"
    """when-reported: when `drain_status_url` says so, which a callback has asked at once;
    when-called-back: when a callback says so; at-once: when the order was accepted, whatever still
    runs on the node."""


class WebhookNotifier:
    """A workload system behind URLs; an order without a URL is skipped."""

    name = "webhook"
    batches = False
    """The status URL is asked about one node."""
    poll_seconds = POLL_SECONDS
    """Short: most receivers answer from memory."""

    class Options(Setting, frozen=True, kw_only=True):
        """Configures `notifier: {type: webhook, webhook: {cordon_url: …}}`."""

        cordon_url: SecretText = ""
        """Is sent the order to give a node no new work; empty: it is skipped."""
        uncordon_url: SecretText = ""
        """Is sent the order to give a node work again; empty: it is skipped."""
        cordon_gpus_url: SecretText = ""
        """Is sent which GPUs of a node get no new work; empty: nodes are cordoned whole."""
        checkpoint_url: SecretText = ""
        """Is sent the request to save the state of a node's work; empty: it is skipped."""
        notify_owners_url: SecretText = ""
        """Is sent, when a drain with a deadline begins, that the owners of a node's work should
        hear of it; empty: it is skipped."""
        drain_url: SecretText = ""
        """Is sent the order to move work off a node; empty: it is skipped."""
        drain_status_url: SecretText = ""
        """Is asked whether a node's work has ended."""
        drain: WebhookDrain = WebhookDrain()
        timeout: Duration = Duration(30)
        """For one request, from connecting to the last byte."""
        headers: dict[str, SecretText] = {}  # noqa: RUF012 - msgspec copies it
        """HTTP headers of each request."""
        secret: SecretText = ""
        """Key of the signature; empty: none is sent."""

        def __post_init__(self) -> None:
            """Refuse URLs and time-outs that can never work."""
            for name in (*(f"{each}_url" for each in EVENTS), "drain_status_url"):
                check_url(name, getattr(self, name))
            check_secret(self.secret)
            if self.timeout <= 0:
                raise ValueError("timeout must be more than 0 (30s is the default)")
            completes = self.drain.completes
            if not self.drain_status_url and completes == "when-reported":
                raise ValueError(
                    "`drain_status_url` is missing, so nothing would report whether work is left "
                    "on a node; add it, or call back: `drain: {completes: when-called-back}`, or "
                    "terminate nodes without asking: `drain: {completes: at-once}`"
                )
            if self.drain_status_url and completes != "when-reported":
                raise ValueError(
                    f"`drain_status_url` and `drain: {{completes: {completes}}}` exclude each "
                    "other; remove one"
                )

    def __init__(self, *, options: Options, clock: Clock) -> None:
        """Make the client; it connects at the first request."""
        self._options = options
        self._clock = clock
        self._http = HttpCaller(
            clock, timeout_seconds=options.timeout, headers=options.headers, sign=self._sign
        )

    @property
    def confirms_drains(self) -> bool:
        """Return whether there is a status URL or a callback."""
        return self._options.drain.completes != "at-once"

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def cordon(self, order: WorkloadOrder) -> None:
        """Send the order `cordon`."""
        await self._order("cordon", self._options.cordon_url, order)

    async def uncordon(self, order: WorkloadOrder) -> None:
        """Send the order `uncordon`."""
        await self._order("uncordon", self._options.uncordon_url, order)

    async def cordon_gpus(self, order: WorkloadOrder) -> None:
        """Send the order `cordon_gpus`."""
        if not self._options.cordon_gpus_url:
            refuse_unset("cordon_gpus_url", order)
            return
        await self._order("cordon_gpus", self._options.cordon_gpus_url, order)

    async def drain(self, order: WorkloadOrder) -> None:
        """Send the order `drain`."""
        await self._order("drain", self._options.drain_url, order)

    async def checkpoint(self, order: WorkloadOrder) -> Sequence[RunningWork]:
        """POST `checkpoint`; which work was asked the receiver alone knows."""
        if not self._options.checkpoint_url:
            return ()
        response = await self._order("checkpoint", self._options.checkpoint_url, order)
        at = None
        if response is not None and response.content:
            try:
                at = _checkpoint.decode(response.content).checkpoint_at
            except (msgspec.DecodeError, RecursionError) as error:
                log.info("the answer announces no checkpoint", extra={"reason": str(error)})
        return [RunningWork(id=f"the work on {order.node.node}", checkpoint_at=at)]

    @property
    def notifies_owners(self) -> bool:
        """Return whether there is a URL for it."""
        return bool(self._options.notify_owners_url)

    async def notify_owners(self, order: WorkloadOrder) -> Sequence[OwnerNotice]:
        """POST `notify_owners`; who the owners are the receiver alone knows."""
        await self._order("notify_owners", self._options.notify_owners_url, order)
        return ()

    async def evict(self, order: WorkloadOrder) -> None:
        """Nothing: the contract has no such event."""

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        """GET the status of each, or take what the callback said."""
        if not self._options.drain_status_url:
            waits = "it calls back when the work has left"
            return {
                each.node: NodeWorkload(
                    drained=each.called_back, detail="" if each.called_back else waits
                )
                for each in nodes
            }
        answers = await asyncio.gather(*(self._status(each.node) for each in nodes))
        return dict(zip((each.node for each in nodes), answers, strict=True))

    async def wait_for_change(self) -> None:
        """Nothing reports one."""
        await asyncio.Event().wait()

    async def _status(self, node: str) -> NodeWorkload:
        target = httpx.URL(self._options.drain_status_url).copy_merge_params({"node_id": node})
        request = self._http.request("GET", target)
        try:
            response = await self._http.send(request, "drain_status_url")
            status = _status.decode(response.content)
        except RefusedHttpError as error:
            raise _refused(error) from error
        except (msgspec.DecodeError, RecursionError) as error:
            where = place("drain_status_url", request)
            raise StepFailure(
                f"{where}: not a drain status: {error} ({size(response)})", "INVALID"
            ) from error
        return _workload(status)

    async def _order(self, event: str, url: str, order: WorkloadOrder) -> httpx.Response | None:
        node, reason, key = order.node.node, order.reason, order.key
        if not url:
            log.info(
                "no %s_url is configured: the workload system is not notified",
                event,
                extra={"node": node},
            )
            return None
        body = Order(
            event=event,
            node_id=node,
            node=order.node,
            gpus=order.gpus if event == "cordon_gpus" else None,
            saga=order.saga,
            reason=reason,
            deadline=_moment(order.deadline) if order.deadline else "",
            urgency=order.urgency or "",
            timestamp=_moment(self._clock.now()),
        )
        content = msgspec.json.encode(body)
        request = self._http.request(
            "POST",
            url,
            content=content,
            headers={
                **current_headers(),
                "Content-Type": "application/json",
                "Idempotency-Key": f"{key}:{event}",  # the undo of a step has the step's key
            },
        )
        try:
            response = await self._http.send_until_answered(
                request, f"{event}_url", f"{event} {node}", backoff_max_seconds=BACKOFF_MAX_SECONDS
            )
        except RefusedHttpError as error:
            raise _refused(error) from error
        log.info("notified the workload system", extra={"event": event, "node": node, "key": key})
        return response

    def _sign(self, request: httpx.Request) -> dict[str, str]:
        """Over the body; a GET has none, so over its path and query."""
        content = request.content if request.method == "POST" else request.url.raw_path
        return signature_headers(self._options.secret, self._clock.now(), content)


def _refused(error: RefusedHttpError) -> StepFailure:
    """With the remedy, where the receiver did not accept the signature or the headers."""
    login = error.answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
    text = f"{error}: {LOGIN_REMEDY}" if login else str(error)
    return StepFailure(text, "INVALID", LOGIN_REMEDY if login else "")


def _workload(status: DrainStatus) -> NodeWorkload:
    """The answer; a receiver that names no work may say in its message what is left."""
    running = status.running
    if not running and status.message and not status.drained:
        running = (RunningWork(id=status.message),)
    return NodeWorkload(
        drained=status.drained and not running,
        running=running[:RUNNING_MAX],
        total=max(status.total, len(running)),
        detail=status.message,
    )


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
