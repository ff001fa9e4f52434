"""Each channel sends to local servers that check the vendors' published limits.

No real vendor is called.
"""

import hashlib
import hmac
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from schemas.alert_records import Alert
from schemas.duration import Duration
from services.notifier.alerts.alert_channel import AlertChannel, ChannelRefusalError
from services.notifier.alerts.channels.alertmanager_channel import AlertmanagerChannel
from services.notifier.alerts.channels.email_channel import EmailChannel
from services.notifier.alerts.channels.exec_channel import ExecAlertChannel
from services.notifier.alerts.channels.opsgenie_channel import OpsgenieChannel
from services.notifier.alerts.channels.pagerduty_channel import PagerDutyChannel
from services.notifier.alerts.channels.slack_channel import SlackChannel
from services.notifier.alerts.channels.teams_channel import TeamsChannel
from services.notifier.alerts.channels.webhook_channel import AlertWebhookChannel
from services.primitives.clock import SystemClock
from services.runtime.http_caller import TransientHttpError
from services.runtime.owner_command import CommandTimeoutError
from tests.support.serving import serving

SECRET = "0123456789abcdef-secret-token"
CLOCK = SystemClock()
OPENED = Alert(
    severity="critical",
    title="training/n1: unhealthy",
    text="XID 79: the GPU fell off the bus <b>& more</b>.",
    pool="training",
    node="n1",
    kind="verdict",
    fault="xid-79",
    key="health/training/n1",
    event="v-1",
    time=datetime(2026, 11, 22, 3, 4, 5, tzinfo=UTC),
)
LONG = replace(OPENED, title="t" * 9_000, text="\u00e4" * 40_000, key="k" * 900, event="v-2")
ENDED = replace(OPENED, event="v-3", title="training/n1: replaced", text="", resolved=True)
Check = Callable[[str, Any], None]


@dataclass(slots=True)
class Vendor:
    """A vendor's API on loopback: checks what it receives as published."""

    check: Check
    answer: Callable[[str], Response]
    url: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[Response] = field(default_factory=list)

    async def handle(self, request: Request) -> Response:
        body = await request.body()
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.calls.append((path, json.loads(body)))
        self.headers.append(dict(request.headers) | {"body": body.decode()})
        if self.answers:
            return self.answers.pop(0)
        try:
            self.check(path, json.loads(body))
        except AssertionError as error:
            return PlainTextResponse(f"wrong: {error}", status_code=400)
        return self.answer(path)


@asynccontextmanager
async def vendor(check: Check, answer: Callable[[str], Response]) -> AsyncIterator[Vendor]:
    found = Vendor(check, answer)
    app = Starlette(routes=[Route("/{path:path}", found.handle, methods=["POST"])])
    async with serving(app) as found.url:
        yield found


def accepted(_: str) -> Response:
    return JSONResponse({"status": "success"}, status_code=202)


def check_slack(path: str, body: Any) -> None:
    """Block Kit: 50 blocks; header 150, section 3,000, ten context elements; text 40,000."""
    assert len(body["text"]) <= 40_000
    assert len(body.get("blocks", [])) <= 50
    for block in body.get("blocks", []):
        match block["type"]:
            case "header":
                assert block["text"]["type"] == "plain_text"
                assert 1 <= len(block["text"]["text"]) <= 150
            case "section":
                assert 1 <= len(block["text"]["text"]) <= 3_000
                assert "<b>" not in block["text"]["text"]
            case "context":
                assert 1 <= len(block["elements"]) <= 10
                assert all(1 <= len(each["text"]) <= 3_000 for each in block["elements"])
            case other:
                raise AssertionError(other)
    if "chat." in path:
        assert body["channel"]
    if path.endswith("chat.update"):
        assert body["ts"]


def check_pagerduty(path: str, body: Any) -> None:
    """Check Events API v2: routing_key, event_action, dedup_key 255; payload with summary 1,024."""
    assert path == "/v2/enqueue"
    assert body["routing_key"]
    assert len(body["dedup_key"]) <= 255
    assert body["event_action"] in ("trigger", "acknowledge", "resolve")
    assert len(json.dumps(body)) <= 512 * 1024
    if body["event_action"] == "trigger":
        payload = body["payload"]
        assert 1 <= len(payload["summary"]) <= 1_024
        assert payload["source"]
        assert payload["severity"] in ("critical", "warning", "error", "info")
        datetime.fromisoformat(payload["timestamp"])


def check_opsgenie(path: str, body: Any) -> None:
    """Alert API: message 130, alias 512, description 15,000, 20 tags of 50, entity 512."""
    if path == "/v2/alerts":
        assert 1 <= len(body["message"]) <= 130
        assert len(body["alias"]) <= 512
        assert len(body["description"]) <= 15_000
        assert len(body["tags"]) <= 20
        assert all(len(each) <= 50 for each in body["tags"])
        assert sum(map(len, (*body["details"], *body["details"].values()))) <= 8_000
        assert body["priority"] in ("P1", "P2", "P3", "P4", "P5")
        assert len(body["source"]) <= 100
    else:
        assert path.startswith("/v2/alerts/")
        assert path.endswith(("/close?identifierType=alias", "/acknowledge?identifierType=alias"))
        assert len(body["note"]) <= 25_000
        assert len(body.get("user", "")) <= 100


def check_teams(path: str, body: Any) -> None:
    """Check a message of 28 KB with Adaptive Cards, each with type, version and body."""
    assert path
    assert len(json.dumps(body).encode()) <= 28 * 1024
    assert body["type"] == "message"
    for each in body["attachments"]:
        assert each["contentType"] == "application/vnd.microsoft.card.adaptive"
        card = each["content"]
        assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
        assert {part["type"] for part in card["body"]} <= {"TextBlock", "FactSet"}


def check_alertmanager(path: str, body: Any) -> None:
    """API v2: a list; labels with names of one form and a value; RFC 3339 times."""
    assert path == "/api/v2/alerts"
    for each in body:
        assert each["labels"]["alertname"]
        for name, value in each["labels"].items():
            assert name.isidentifier()
            assert value
        assert datetime.fromisoformat(each["startsAt"]) <= datetime.fromisoformat(each["endsAt"])


def slack_answer(path: str) -> Response:
    if path == "/hook":
        return PlainTextResponse("ok")
    return JSONResponse({"ok": True, "ts": "1763780645.000100", "channel": "C1"})


def slack(url: str, **more: Any) -> SlackChannel:
    given = {"token": SECRET, "channel": "C1", "api_url": url} | more
    return SlackChannel(options=SlackChannel.Options(**given), clock=CLOCK)


def slack_hook(url: str) -> SlackChannel:
    return slack(url, token="", channel="", webhook_url=f"{url}/hook")


def pagerduty(url: str) -> PagerDutyChannel:
    options = PagerDutyChannel.Options(routing_key=SECRET, events_url=url)
    return PagerDutyChannel(options=options, clock=CLOCK)


def opsgenie(url: str) -> OpsgenieChannel:
    return OpsgenieChannel(
        options=OpsgenieChannel.Options(api_key=SECRET, api_url=url), clock=CLOCK
    )


def teams(url: str) -> TeamsChannel:
    options = TeamsChannel.Options(webhook_url=f"{url}/workflows/{SECRET}")
    return TeamsChannel(options=options, clock=CLOCK)


def alertmanager(url: str) -> AlertmanagerChannel:
    return AlertmanagerChannel(options=AlertmanagerChannel.Options(urls=(url,)), clock=CLOCK)


def webhook(url: str, **more: Any) -> AlertWebhookChannel:
    options = AlertWebhookChannel.Options(url=f"{url}/alerts", secret=SECRET, **more)
    return AlertWebhookChannel(options=options, clock=CLOCK)


def unchecked(path: str, body: Any) -> None:
    assert path
    assert body


VENDORS: list[Any] = [
    pytest.param(slack, check_slack, slack_answer, id="slack"),
    pytest.param(slack_hook, check_slack, slack_answer, id="slack webhook"),
    pytest.param(pagerduty, check_pagerduty, accepted, id="pagerduty"),
    pytest.param(opsgenie, check_opsgenie, accepted, id="opsgenie"),
    pytest.param(teams, check_teams, accepted, id="teams"),
    pytest.param(alertmanager, check_alertmanager, accepted, id="alertmanager"),
    pytest.param(webhook, unchecked, accepted, id="webhook"),
]


@pytest.mark.parametrize(("make", "check", "answer"), VENDORS)
async def test_every_alert_is_within_the_published_limits(
    make: Callable[[str], AlertChannel], check: Check, answer: Callable[[str], Response]
) -> None:
    """The vendor's check accepts a beginning, one with texts far too long, news, and an end."""
    async with vendor(check, answer) as api:
        channel = make(api.url)
        assert isinstance(channel, AlertChannel)
        receipt = ""
        for each in (OPENED, LONG, replace(OPENED, severity="warning", event="v-4"), ENDED):
            sent = await channel.send(each, receipt)
            receipt = sent.receipt or receipt
            assert sent.answer
        await channel.close()
        assert len(receipt) <= 512


@pytest.mark.parametrize(("make", "check", "answer"), VENDORS)
async def test_a_busy_vendor_is_no_refusal_and_no_error_has_the_secret(
    make: Callable[[str], AlertChannel], check: Check, answer: Callable[[str], Response]
) -> None:
    """A busy vendor says when to come back; a refusal has the vendor's reason."""
    async with vendor(check, answer) as api:
        channel = make(api.url)
        api.answers = [
            PlainTextResponse("slow down", status_code=429, headers={"Retry-After": "17"}),
            PlainTextResponse("invalid_thing", status_code=400),
        ]
        with pytest.raises(TransientHttpError) as busy:
            await channel.send(OPENED, "")
        assert busy.value.after_seconds == 17
        with pytest.raises(ChannelRefusalError, match="invalid_thing") as refused:
            await channel.send(OPENED, "")
        assert SECRET not in f"{busy.value} {refused.value}"
        await channel.close()


async def test_slack_updates_one_message_and_keeps_its_history_in_a_thread() -> None:
    """One message for each alert; a message that is gone is posted again."""
    async with vendor(check_slack, slack_answer) as api:
        channel = slack(api.url)
        receipt = (await channel.send(OPENED, "")).receipt
        assert receipt == "C1 1763780645.000100"
        await channel.send(ENDED, receipt)
        paths = [path for path, _ in api.calls]
        assert paths == ["/chat.postMessage", "/chat.update", "/chat.postMessage"]
        assert api.calls[1][1]["ts"] == api.calls[2][1]["thread_ts"] == "1763780645.000100"
        assert "white_check_mark" in api.calls[1][1]["text"]
        assert api.headers[0]["authorization"] == f"Bearer {SECRET}"
        api.answers = [JSONResponse({"ok": False, "error": "message_not_found"})]
        await channel.send(ENDED, receipt)
        assert [path for path, _ in api.calls[3:]] == ["/chat.update", "/chat.postMessage"]
        api.answers = [JSONResponse({"ok": False, "error": "not_in_channel"})]
        with pytest.raises(ChannelRefusalError, match="not_in_channel"):
            await channel.send(OPENED, "")
        api.answers = [JSONResponse({"ok": False, "error": "ratelimited"})]
        with pytest.raises(TransientHttpError):
            await channel.send(OPENED, "")
        await channel.close()


async def test_pagerduty_and_opsgenie_end_what_they_began() -> None:
    """Both name the alert by the same key at its end, so the vendor ends the right one."""
    async with vendor(check_pagerduty, accepted) as api:
        channel = pagerduty(api.url)
        for each in (OPENED, ENDED):
            await channel.send(each, "")
        await channel.close()
        assert [body["event_action"] for _, body in api.calls] == ["trigger", "resolve"]
        assert len({body["dedup_key"] for _, body in api.calls}) == 1
    async with vendor(check_opsgenie, accepted) as api:
        other = opsgenie(api.url)
        for each in (OPENED, ENDED):
            await other.send(each, "")
        await other.close()
        assert api.calls[0][1]["alias"] == "health/training/n1"
        assert api.calls[1][0].startswith("/v2/alerts/health/training/n1/close")


async def test_pagerduty_and_opsgenie_acknowledge_what_they_have() -> None:
    """An alert that the vendor was not sent before is begun first: it cannot acknowledge that."""
    taken = replace(OPENED, acknowledged_by="ada", event="v-5")
    async with vendor(check_pagerduty, accepted) as api:
        channel = pagerduty(api.url)
        sent = await channel.send(OPENED, "")
        await channel.send(taken, sent.receipt)
        await channel.send(taken, "")
        await channel.close()
        actions = [body["event_action"] for _, body in api.calls]
        assert actions == ["trigger", "acknowledge", "trigger", "acknowledge"]
        assert len({body["dedup_key"] for _, body in api.calls}) == 1
    async with vendor(check_opsgenie, accepted) as api:
        other = opsgenie(api.url)
        sent = await other.send(OPENED, "")
        await other.send(taken, sent.receipt)
        await other.send(taken, "")
        await other.close()
        paths = [path.rpartition("/")[2].partition("?")[0] for path, _ in api.calls]
        assert paths == ["alerts", "acknowledge", "alerts", "acknowledge"]
        assert api.calls[1][1]["user"] == "ada"


async def test_alertmanager_ends_the_alert_with_the_labels_of_before() -> None:
    """A change of severity is another alert there; one member of a cluster is enough."""
    async with vendor(check_alertmanager, accepted) as api:
        options = AlertmanagerChannel.Options(urls=("http://127.0.0.1:9", api.url))
        channel = AlertmanagerChannel(options=options, clock=CLOCK)
        degraded = replace(OPENED, severity="warning")
        receipt = (await channel.send(degraded, "")).receipt
        sent = await channel.send(OPENED, receipt)
        await channel.close()
        assert "1 of 2" in sent.answer
        now, before = api.calls[1][1]
        assert (now["labels"]["severity"], before["labels"]["severity"]) == ("critical", "warning")
        assert before["labels"] == api.calls[0][1][0]["labels"]
        assert before["endsAt"] < now["endsAt"]


async def test_a_webhook_is_signed_and_has_one_idempotency_key() -> None:
    """The signature is over the timestamp and the exact body; as a CloudEvent too."""
    async with vendor(unchecked, accepted) as api:
        plain, cloud = webhook(api.url), webhook(api.url, format="cloudevents")
        for each in (plain, plain, cloud):
            await each.send(OPENED, "")
        await plain.close()
        await cloud.close()
        for headers in api.headers:
            signed = f"{headers['x-navarch-timestamp']}.{headers['body']}".encode()
            digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
            assert headers["x-navarch-signature"] == f"sha256={digest}"
        assert len({each["idempotency-key"] for each in api.headers}) == 1
        body = api.calls[0][1]
        assert (body["version"], body["status"], body["key"]) == (1, "firing", OPENED.key)
        event = api.calls[2][1]
        assert {"specversion": "1.0", "source": "navarch", "subject": OPENED.key}.items() <= (
            event.items()
        )
        assert event["type"] == "io.navarch.alert.v1.firing"
        assert event["data"] == body
        assert api.headers[2]["content-type"] == "application/cloudevents+json"


def command(program: str, **more: Any) -> ExecAlertChannel:
    options = ExecAlertChannel.Options(command=(sys.executable, "-c", program), **more)
    return ExecAlertChannel(options=options, clock=CLOCK)


async def test_a_command_gets_the_alert_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert is on standard input; of the environment only what is named is passed on."""
    monkeypatch.setenv("SLACK_TOKEN", SECRET)
    program = "import sys, os, json; print(json.load(sys.stdin)['key'], len(os.environ) < 6)"
    sent = await command(program).send(OPENED, "")
    assert sent.answer == "exit 0: health/training/n1 True"
    with pytest.raises(RuntimeError, match="ended with 3: no"):
        await command("print('no'); raise SystemExit(3)").send(OPENED, "")
    endless = "import time; print('x' * 100_000); time.sleep(60)"
    with pytest.raises(CommandTimeoutError, match="longer than"):
        await command(endless, timeout=Duration(0.3)).send(OPENED, "")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (SlackChannel.Options, "write `token` and `channel`"),
        (lambda: SlackChannel.Options(token="x"), "`channel` is missing"),
        (lambda: PagerDutyChannel.Options(routing_key=""), "integration key"),
        (lambda: OpsgenieChannel.Options(api_key=""), "API integration"),
        (lambda: TeamsChannel.Options(webhook_url="teams"), "not a URL"),
        (lambda: AlertmanagerChannel.Options(urls=()), "http://alertmanager:9093"),
        (lambda: AlertWebhookChannel.Options(url="http://a", secret="x"), "openssl"),
        (lambda: ExecAlertChannel.Options(command=("/no/such",)), "write its full path"),
        (lambda: EmailChannel.Options(host="h", sender="a", to=("b@c",)), "'a' is no address"),
    ],
)
def test_options_that_can_never_work_are_refused(make: Callable[[], Any], says: str) -> None:
    """The refusal says what to write instead."""
    with pytest.raises(ValueError, match=says):
        make()
