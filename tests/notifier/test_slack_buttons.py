"""Buttons of alerts in Slack, against a local server that checks Block Kit's published limits."""

from typing import Any

from msgspec.structs import replace

from services.notifier.alerts.channels.slack_channel import SlackChannel
from tests.notifier.test_alert_channels import (
    CLOCK,
    ENDED,
    LONG,
    OPENED,
    SECRET,
    check_slack,
    slack_answer,
    vendor,
)

TAKEN = replace(OPENED, acknowledged_by="ada", event="v-5")


def check(path: str, body: Any) -> None:
    """Check the blocks that only messages with buttons have, and the others as in all messages."""
    blocks = body.get("blocks", [])
    for block in blocks:
        if block["type"] == "input":
            check_input(block)
        elif block["type"] == "actions":
            check_buttons(block["elements"])
    rest = [each for each in blocks if each["type"] not in ("input", "actions")]
    check_slack(path, body | {"blocks": rest})


def check_input(block: Any) -> None:
    """Check a field: block_id 255, label 2,000, max_length 3,000."""
    assert len(block["block_id"]) <= 255
    assert block["label"]["type"] == "plain_text"
    assert 1 <= len(block["label"]["text"]) <= 2_000
    assert block["element"]["type"] == "plain_text_input"
    assert len(block["element"]["action_id"]) <= 255
    assert 1 <= block["element"]["max_length"] <= 3_000


def check_buttons(buttons: Any) -> None:
    """Check the buttons: 25 of them, action_id 255 and once each, text 75, value 2,000."""
    assert 1 <= len(buttons) <= 25
    assert len({each["action_id"] for each in buttons}) == len(buttons)
    for each in buttons:
        assert each["type"] == "button"
        assert 1 <= len(each["action_id"]) <= 255
        assert each["text"]["type"] == "plain_text"
        assert 1 <= len(each["text"]["text"]) <= 75
        assert 1 <= len(each["value"]) <= 2_000


def buttons_of(body: Any) -> list[Any]:
    """Return the buttons of a message."""
    parts = [each["elements"] for each in body["blocks"] if each["type"] == "actions"]
    return [button for part in parts for button in part]


async def test_only_alerts_that_last_have_buttons() -> None:
    """Buttons are off by default; an acknowledged alert has none for that; the value is the key."""
    async with vendor(check, slack_answer) as api:
        given = {"token": SECRET, "channel": "C1", "api_url": api.url}
        plain = SlackChannel(options=SlackChannel.Options(**given), clock=CLOCK)
        options = SlackChannel.Options(**given, buttons=True)
        channel = SlackChannel(options=options, clock=CLOCK)
        await plain.send(OPENED, "")
        for each in (OPENED, TAKEN, LONG, ENDED):
            await channel.send(each, "")
        await plain.close()
        await channel.close()
    found = [[each["action_id"] for each in buttons_of(body)] for _, body in api.calls]
    others = ["navarch-resolve", "navarch-note"]
    every = ["navarch-acknowledge", *others]
    assert found == [[], every, others, every, []]
    assert {each["value"] for each in buttons_of(api.calls[1][1])} == {OPENED.key}
    assert {each["value"] for each in buttons_of(api.calls[3][1])} == {LONG.key}
