"""Slack: one message for each alert, updated and marked resolved, with its history as a thread.

With a bot token and a channel; an incoming webhook can only post, so each news is a message.
"""

from typing import Any, Final

import msgspec

from schemas.alert_records import NOTE_CHARS_MAX, Alert, Severity
from schemas.duration import Duration
from schemas.secret_text import SecretText
from schemas.settings import Setting
from schemas.slack_actions import ACTIONS, LABELS, NOTE_BLOCK, NOTE_FIELD
from services.notifier.alerts.alert_channel import AlertDelivery, ChannelRefusalError
from services.notifier.alerts.channels.vendor_http import (
    VendorChannel,
    VendorHttp,
    answer_text,
    shorten,
)
from services.primitives.clock import Clock
from services.runtime.http_caller import TransientHttpError, check_url

HEADER_CHARS_MAX: Final = 150
SECTION_CHARS_MAX: Final = 3_000
TEXT_CHARS_MAX: Final = 3_000
GONE: Final = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
"""The message cannot be updated any more: a new one takes its place."""
BUSY: Final = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"}
)
SIGNS: Final[dict[Severity, str]] = {
    "critical": ":red_circle:",
    "warning": ":large_yellow_circle:",
    "info": ":large_blue_circle:",
}
RESOLVED_SIGN: Final = ":white_check_mark:"


class _Answer(msgspec.Struct):
    ok: bool
    error: str = ""
    ts: str = ""
    channel: str = ""


class SlackChannel(VendorChannel):
    """Sends alerts to Slack."""

    name = "slack"

    class Options(Setting, frozen=True, kw_only=True):
        """Configures the channel by a token and a channel's ID, or by `webhook_url`."""

        token: SecretText = ""
        """A bot token with the scope `chat:write`; the bot is a member of the channel."""
        channel: str = ""
        """Id of the channel, with `token`."""
        webhook_url: SecretText = ""
        """An incoming webhook, in place of `token` and `channel`."""
        mention: str = ""
        """Put before critical alerts: `<!subteam^S0123456789>`, `<!here>`."""
        buttons: bool = False
        """Buttons that acknowledge, resolve and annotate; they need `gateway.inbound.slack_secret`,
        and that the webhook or bot is of the app which calls the gateway."""
        api_url: SecretText = "https://slack.com/api"
        """Address of Slack's API."""
        timeout: Duration = Duration(10)
        """Time limit of one request."""

        def __post_init__(self) -> None:
            """Refuse what can never be sent."""
            check_url("webhook_url", self.webhook_url)
            check_url("api_url", self.api_url)
            if bool(self.webhook_url) == bool(self.token):
                raise ValueError("write `token` and `channel`, or `webhook_url` alone")
            if self.token and not self.channel:
                raise ValueError("`channel` is missing; write the channel's ID: C0123456789")

    def __init__(self, *, options: Options, clock: Clock) -> None:
        self._options = options
        self._http = VendorHttp(clock, options.timeout)

    async def send(self, alert: Alert, receipt: str) -> AlertDelivery:
        """Post, or update the message that `receipt` names and add to its thread."""
        body = slack_message(alert, self._options.mention, has_buttons=self._options.buttons)
        if self._options.webhook_url:
            answer = await self._http.post("webhook_url", self._options.webhook_url, body)
            return AlertDelivery(answer=f"{answer.status_code} {answer_text(answer)}")
        channel, _, ts = receipt.partition(" ")
        if ts:
            updated = await self._call("chat.update", {**body, "channel": channel, "ts": ts})
            if updated.ok:
                news = {"channel": channel, "thread_ts": ts, "text": body["text"]}
                posted = await self._call("chat.postMessage", news)
                return AlertDelivery(receipt, f"{_said(updated)}, {_said(posted)} in its thread")
        posted = await self._call("chat.postMessage", {**body, "channel": self._options.channel})
        return AlertDelivery(f"{posted.channel} {posted.ts}", _said(posted))

    async def _call(self, method: str, body: dict[str, Any]) -> _Answer:
        headers = {
            "Authorization": f"Bearer {self._options.token}",
            "Content-Type": "application/json; charset=utf-8",
        }
        url = f"{self._options.api_url.rstrip('/')}/{method}"
        response = await self._http.post("api_url", url, body, headers)
        try:
            answer = msgspec.json.decode(response.content, type=_Answer)
        except msgspec.DecodeError as error:
            text = f"{method}: not an answer of Slack: {answer_text(response)}"
            raise TransientHttpError(text) from error
        if answer.ok or (method == "chat.update" and answer.error in GONE):
            return answer
        if answer.error in BUSY:
            raise TransientHttpError(f"{method}: {answer.error}")
        raise ChannelRefusalError(f"{method}: {answer_text(response)}")


def slack_message(alert: Alert, mention: str = "", *, has_buttons: bool = False) -> dict[str, Any]:
    """Return the text and blocks of an alert."""
    sign = RESOLVED_SIGN if alert.resolved else SIGNS[alert.severity]
    state = "resolved" if alert.resolved else alert.severity
    is_urgent = alert.severity == "critical" and not alert.resolved
    called = f"{mention} " if mention and is_urgent else ""
    at = f"{alert.began:%Y-%m-%d %H:%M:%S} UTC"
    since = f"<!date^{int(alert.began.timestamp())}^{{date_short_pretty}} {{time_secs}}|{at}>"
    about = [f"*{state}*", f"`{_escaped(alert.key)}`", f"since {since}"]
    blocks: list[dict[str, Any]] = [
        {
            "type": "header",
            "text": {
                "type": "plain_text",
                "text": shorten(f"{sign} {alert.title}", HEADER_CHARS_MAX),
                "emoji": True,
            },
        }
    ]
    if text := f"{called}{_escaped(alert.text)}".strip():
        section = {"type": "mrkdwn", "text": shorten(text, SECTION_CHARS_MAX)}
        blocks.append({"type": "section", "text": section})
    context = shorten(" · ".join(about), SECTION_CHARS_MAX)
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": context}]})
    if has_buttons and not alert.resolved:
        blocks += button_blocks(alert)
    fallback = f"{called}{sign} {_escaped(alert.title)}: {_escaped(alert.text)}"
    return {"text": shorten(fallback, TEXT_CHARS_MAX), "blocks": blocks}


def button_blocks(alert: Alert) -> list[dict[str, Any]]:
    """Return a field for a note, and the buttons by which a person answers an alert that lasts."""
    field = {
        "type": "plain_text_input",
        "action_id": NOTE_FIELD,
        "max_length": NOTE_CHARS_MAX,
    }
    buttons = [
        {
            "type": "button",
            "action_id": action,
            "text": {"type": "plain_text", "text": LABELS[verb]},
            "value": alert.key,
        }
        for action, verb in ACTIONS.items()
        if verb != "acknowledge" or not alert.acknowledged_by
    ]
    label = {"type": "plain_text", "text": "Note"}
    return [
        {
            "type": "input",
            "block_id": NOTE_BLOCK,
            "optional": True,
            "label": label,
            "element": field,
        },
        {"type": "actions", "elements": buttons},
    ]


def _escaped(text: str) -> str:
    """Return a text without what Slack reads as markup: a node's name must mention no one."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _said(answer: _Answer) -> str:
    return f"ok, message {answer.ts} in {answer.channel}"
