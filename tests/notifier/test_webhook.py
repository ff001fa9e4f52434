"""The webhook notifier keeps its contract against a real HTTP server."""

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from starlette.responses import PlainTextResponse, RedirectResponse

from schemas.duration import Duration, decode_hook
from schemas.settings import PluginSettings
from services.notifier.cloud_events import sign
from services.notifier.workload.webhook_notifier import WebhookDrain, WebhookNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    StepFailure,
    WorkloadOrder,
)
from services.primitives.errors import ConfigurationError
from services.runtime.http_caller import TransientHttpError
from services.settings.plugin_loader import load_plugin

AT_ONCE = WebhookDrain(completes="at-once")


class FixedClock:
    """A clock with a constant time whose sleeps return at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2024, 1, 15, 10, 30, 0, 999_999, UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def order(key: str, reason: str = "") -> WorkloadOrder:
    """Return an order about node-1."""
    reference = NodeReference(pool="training", node="node-1")
    return WorkloadOrder(node=reference, reason=reason, key=key)


async def is_drained(notifier: Notifier, node: str) -> bool:
    """Return what the status says of one node."""
    answers = await notifier.workloads([NodeReference(pool="training", node=node)])
    answer = answers[node]
    assert isinstance(answer, NodeWorkload)
    return answer.drained


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
async def webhook(receiver, clock):
    notifier = WebhookNotifier(
        options=WebhookNotifier.Options(
            cordon_url=f"{receiver.url}/cordon",
            uncordon_url=f"{receiver.url}/uncordon",
            drain_url=f"{receiver.url}/drain",
            drain_status_url=f"{receiver.url}/status?cluster=a",
            timeout=Duration(5),
            headers={"Authorization": "Bearer secret"},
        ),
        clock=clock,
    )
    yield notifier
    await notifier.close()


async def test_orders_have_the_documented_bodies(receiver, webhook):
    """Each order is a POST of event, node, reason (omitted when empty) and time, with its key."""
    await webhook.cordon(order("replace-1/cordon", "XID 79"))
    await webhook.drain(msgspec.structs.replace(order("replace-1/drain"), urgency="wait"))
    await webhook.uncordon(order("replace-1/cordon"))
    moment, known = "2024-01-15T10:30:00Z", {"pool": "training", "node": "node-1"}
    about = {"node_id": "node-1", "node": known, "saga": "replace-1"}
    expected = [
        (
            "/cordon",
            {"event": "cordon", **about, "reason": "XID 79", "timestamp": moment},
        ),
        ("/drain", {"event": "drain", **about, "urgency": "wait", "timestamp": moment}),
        ("/uncordon", {"event": "uncordon", **about, "timestamp": moment}),
    ]
    assert receiver.orders == expected
    assert {each["authorization"] for each in receiver.headers} == {"Bearer secret"}
    assert {each["content-type"] for each in receiver.headers} == {"application/json"}


async def test_the_status_is_requested_per_node(receiver, webhook):
    """The node is added to the URL's own query; the answer is returned."""
    assert await is_drained(webhook, "node-1") is False
    receiver.drained = True
    assert await is_drained(webhook, "node-2") is True
    assert receiver.status_requests == ["node-1", "node-2"]


@pytest.mark.parametrize("code", [200, 201, 202, 204, 299])
async def test_any_2xx_is_success(receiver, webhook, code):
    """Every 2xx code is accepted."""
    receiver.answers = [PlainTextResponse("", status_code=code)]
    await webhook.cordon(order("k"))
    assert len(receiver.orders) == 1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409, 410, 422])
async def test_a_refusal_fails_the_step_without_the_answer(receiver, webhook, code):
    """A permanent failure is not retried; the answer's text may hold a secret."""
    receiver.answers = [PlainTextResponse("no such node", status_code=code)]
    says = rf"POST cordon_url \({receiver.url}\): {code} .*12 bytes, not shown"
    with pytest.raises(StepFailure, match=says):
        await webhook.cordon(order("k"))
    assert len(receiver.orders) == 1


@pytest.mark.parametrize("code", [401, 403])
async def test_a_signature_that_is_refused_names_what_to_compare(receiver, webhook, code):
    """A secret with a typing error, or a clock that is wrong."""
    receiver.answers = [PlainTextResponse("no", code)] * 2
    for refused in (webhook.cordon(order("k")), is_drained(webhook, "node-1")):
        with pytest.raises(StepFailure, match=r"give `secret`.*clocks") as failed:
            await refused
        assert "`secret`" in failed.value.remedy


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504])
async def test_a_transient_failure_is_retried_with_growing_delays(receiver, webhook, clock, code):
    """Every try carries the same key and the same body."""
    receiver.answers = [PlainTextResponse("busy", status_code=code) for _ in range(9)]
    await webhook.cordon(order("k", "XID 79"))
    assert (len(receiver.orders), set(receiver.keys)) == (10, {"k:cordon"})
    assert all(each == receiver.orders[0] for each in receiver.orders)
    assert clock.slept == sorted(clock.slept)
    assert (clock.slept[0], clock.slept[-1]) == (0.1, 10.0)


async def test_a_status_that_fails_is_not_repeated_here(receiver, webhook, clock):
    """The open drains ask again, within a second; a second loop inside would add its own delays."""
    receiver.answers = [PlainTextResponse("busy", status_code=503)]
    with pytest.raises(TransientHttpError, match="503"):
        await is_drained(webhook, "node-1")
    assert (len(receiver.status_requests), clock.slept) == (1, [])


async def test_a_cordon_and_its_undo_have_different_keys(receiver, webhook):
    """The undo has the key of the step; a receiver that drops repeated keys would drop it."""
    await webhook.cordon(order("replace-1/cordon"))
    await webhook.uncordon(order("replace-1/cordon"))
    assert receiver.keys == ["replace-1/cordon:cordon", "replace-1/cordon:uncordon"]


class MovingClock(FixedClock):
    """A clock on which each sleep takes an hour."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=len(self.slept))


async def test_each_try_is_signed_when_it_is_sent(receiver):
    """A receiver may refuse old signatures, also after an outage of an hour."""
    clock, secret = MovingClock(), "0123456789abcdef"
    options = WebhookNotifier.Options(
        cordon_url=f"{receiver.url}/cordon",
        drain_status_url=f"{receiver.url}/status?cluster=a",
        secret=secret,
    )
    notifier = WebhookNotifier(options=options, clock=clock)
    receiver.answers = [PlainTextResponse("busy", status_code=503)]
    await notifier.cordon(order("k", "XID 79"))
    times = [int(each["x-navarch-timestamp"]) for each in receiver.headers]
    assert times[1] - times[0] == 3600
    for each, at, content in zip(receiver.headers, times, receiver.bodies, strict=True):
        assert each["x-navarch-signature"] == sign(secret, str(at), content)
    await is_drained(notifier, "node-1")
    target = b"/status?cluster=a&node_id=node-1"
    headers = receiver.status_headers[0]
    assert headers["x-navarch-signature"] == sign(secret, headers["x-navarch-timestamp"], target)
    await notifier.close()


async def test_a_redirect_is_refused_with_the_remedy(receiver, webhook):
    """A followed redirect would turn the POST into a GET, so it is not followed."""
    receiver.answers = [RedirectResponse(f"{receiver.url}/elsewhere", status_code=302)]
    with pytest.raises(StepFailure, match="configure the final URL"):
        await webhook.cordon(order("k"))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('{"drained": false, "message": "job 4711 of alice"}', ["job 4711 of alice"]),
        ('{"drained": true, "message": "none"}', []),
        ('{"drained": false, "message": "two", "running": [{"id": "a"}, {"id": "b"}]}', ["a", "b"]),
        ('{"drained": true, "running": [{"id": "a"}]}', ["a"]),
    ],
)
async def test_the_status_names_the_work_that_is_left(receiver, webhook, body, named):
    """Work is named by itself, or in the status's message; a node with work is not drained."""
    receiver.answers = [PlainTextResponse(body)]
    found = (await webhook.workloads([NodeReference(pool="training", node="node-1")]))["node-1"]
    assert [each.id for each in found.running] == named
    assert found.total == len(named)
    assert found.drained == (not named)


@pytest.mark.parametrize("body", ["", "drained", "[]", '{"drained": "yes"}', '{"message": ""}'])
async def test_an_invalid_status_fails_the_step(receiver, webhook, body):
    """Such an answer neither lets a node be terminated nor keeps the drain waiting."""
    receiver.answers = [PlainTextResponse(body)]
    with pytest.raises(StepFailure, match="not a drain status"):
        await is_drained(webhook, "node-1")


async def test_a_request_without_an_answer_times_out_and_is_retried(receiver, clock):
    """The time-out covers the whole request."""
    receiver.hold = asyncio.Event()
    options = WebhookNotifier.Options(
        cordon_url=f"{receiver.url}/cordon", drain=AT_ONCE, timeout=Duration(0.05)
    )
    notifier = WebhookNotifier(options=options, clock=clock)
    ordering = asyncio.create_task(notifier.cordon(order("k")))
    await receiver.wait_for(lambda: len(receiver.orders) >= 2)
    receiver.hold.set()
    receiver.hold = None
    async with asyncio.timeout(60):
        await ordering
    await notifier.close()


async def test_an_order_without_a_url_is_skipped_and_confirms_nothing(clock):
    """No notifier reports a drained node unless the workload system said so."""
    notifier = WebhookNotifier(options=WebhookNotifier.Options(drain=AT_ONCE), clock=clock)
    await notifier.cordon(order("k", "r"))
    await notifier.uncordon(order("k"))
    await notifier.drain(order("k", "r"))
    assert notifier.confirms_drains is False
    await notifier.close()


async def test_a_receiver_that_is_down_is_retried(clock):
    """No connection is not a refusal; cancelling, as the deadline does, ends the retries."""
    options = WebhookNotifier.Options(cordon_url="http://127.0.0.1:9/cordon", drain=AT_ONCE)
    notifier = WebhookNotifier(options=options, clock=clock)
    ordering = asyncio.create_task(notifier.cordon(order("k")))
    async with asyncio.timeout(60):
        while len(clock.slept) < 3:
            await asyncio.sleep(0)
    ordering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ordering
    await notifier.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"cordon_url": "scheduler/cordon"}, "cordon_url is not a URL: write"),
        ({"drain_url": "ftp://scheduler/x"}, "drain_url is not a URL"),
        ({"drain_status_url": "http://"}, "drain_status_url is not a URL"),
        ({"timeout": "soon"}, "timeout: .*write 30s"),
        ({"secret": "guess"}, "`secret` is shorter than 16"),
        ({"timeout": 0}, "timeout must be more than 0"),
        ({"cordonurl": "http://a/b"}, "cordonurl: unknown key; did you mean `cordon_url`?"),
        ({"headers": {"a": 1}}, "headers"),
        ({"cordon_url": "http://a/b"}, "`drain_status_url` is missing.*{completes: at-once}"),
        ({"drain_status_url": "http://a", "drain": {"completes": "at-once"}}, "exclude each other"),
        (
            {"drain_status_url": "http://a", "drain": {"completes": "when-called-back"}},
            "exclude each other",
        ),
        (
            {"drain": {"completes": "later"}},
            "drain.completes.*write one of when-reported, when-called-back",
        ),
    ],
)
def test_wrong_options_are_refused_with_the_key(options, problem):
    """An option that can never work is a configuration error that names it."""
    settings = PluginSettings(type="webhook", options=options, path="notifier.webhook")
    with pytest.raises(ConfigurationError, match=problem):
        load_plugin("navarch.notifiers", settings, None)


@pytest.mark.parametrize(
    ("name", "given"), [("webhook", {"drain": {"completes": "at-once"}}), ("noop", {})]
)
def test_the_built_in_notifiers_have_the_protocol_and_are_found_by_name(name, given):
    """The built-in notifiers are loaded as any plugin is."""
    settings = PluginSettings(type=name, options=given)
    kind, options = load_plugin("navarch.notifiers", settings, None)
    assert isinstance(kind(options=options, clock=FixedClock()), Notifier)


def test_the_documented_configuration_is_accepted():
    """Durations are accepted as text, and so is every documented key."""
    given = {
        "cordon_url": "https://scheduler/cordon",
        "uncordon_url": "https://scheduler/uncordon",
        "drain_url": "https://scheduler/drain",
        "drain_status_url": "https://scheduler/drained",
        "timeout": "45s",
        "headers": {"Authorization": "Bearer x"},
    }
    options = msgspec.convert(given, WebhookNotifier.Options, dec_hook=decode_hook)
    assert (options.timeout, options.drain_url) == (45.0, "https://scheduler/drain")
