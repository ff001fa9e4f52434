"""PagerDuty and Slack as their documentation shows their requests, signed as it says.

Nothing here is imported from the gateway: both sides agree because both follow the contract.
"""

import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

PAGERDUTY_SECRET: Final = "pagerduty-subscription-secret-of-64-characters"
SLACK_SECRET: Final = "8f742231b10e8888abcd99yyyzzz85a5"
TEAM: Final = "T0123456789"
JANE: Final = {
    "html_url": "https://acme.pagerduty.com/users/PLH1HKV",
    "id": "PLH1HKV",
    "self": "https://api.pagerduty.com/users/PLH1HKV",
    "summary": "Jane Doe",
    "type": "user_reference",
}
INTEGRATION: Final = {
    "html_url": None,
    "id": "PEVLH1A",
    "self": None,
    "summary": "Navarch",
    "type": "events_api_v2_inbound_integration_reference",
}
INCIDENT: Final = "Q1AAABBBCCCDDD"


def incident(key: str, id_: str = INCIDENT) -> dict[str, Any]:
    """Return the data of an event about an incident."""
    return {
        "id": id_,
        "type": "incident",
        "self": f"https://api.pagerduty.com/incidents/{id_}",
        "html_url": f"https://acme.pagerduty.com/incidents/{id_}",
        "number": 2,
        "status": "acknowledged",
        "incident_key": key,
        "created_at": "2026-11-23T08:49:09Z",
        "title": "training/n1: unhealthy",
        "service": {"id": "PF9KMXH", "summary": "API Service", "type": "service_reference"},
        "assignees": [JANE],
        "escalation_policy": None,
        "teams": [],
        "priority": None,
        "urgency": "high",
        "conference_bridge": None,
        "resolve_reason": None,
    }


def note(text: str, id_: str = INCIDENT) -> dict[str, Any]:
    """Return the data of an event about a note: it has no key."""
    return {
        "incident": {"id": id_, "summary": "training/n1: unhealthy", "type": "incident_reference"},
        "id": "P7GPVHM",
        "content": text,
        "trimmed": False,
        "type": "incident_note",
    }


def pagerduty_body(
    kind: str,
    data: dict[str, Any],
    at: datetime,
    id_: str = "01DFA1EXAMPLE",
    agent: dict[str, Any] | None = JANE,
) -> bytes:
    """Return the body of a webhook."""
    event = {
        "id": id_,
        "event_type": kind,
        "resource_type": "incident",
        "occurred_at": at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "agent": agent,
        "client": None,
        "data": data,
    }
    return json.dumps({"event": event}).encode()


def pagerduty_headers(body: bytes, *secrets: str) -> dict[str, str]:
    """Return the headers of a webhook: a signature for each of the subscription's secrets."""
    given = secrets or (PAGERDUTY_SECRET,)
    found = [hmac.new(each.encode(), body, hashlib.sha256).hexdigest() for each in given]
    return {
        "Content-Type": "application/json",
        "User-Agent": "PagerDuty-Webhook/V3.0",
        "X-Webhook-Id": "ABC1234EXAMPLE",
        "X-PagerDuty-Signature": ",".join(f"v1={each}" for each in found),
    }


def slack_body(
    action: str,
    value: str,
    text: str | None = None,
    trigger: str = "13345224609.738474920.8088930838d88f008e0",
    **more: Any,
) -> bytes:
    """Return the body of a pressed button."""
    payload: dict[str, Any] = {
        "type": "block_actions",
        "user": {"id": "UA8RXUSPL", "username": "jtorrance", "name": "jtorrance", "team_id": TEAM},
        "api_app_id": "AABA1ABCD",
        "token": "9s8d9as89d8as9d8as989",
        "container": {"type": "message", "message_ts": "1548261231.000200", "channel_id": "C1"},
        "trigger_id": trigger,
        "team": {"id": TEAM, "domain": "acme"},
        "enterprise": None,
        "is_enterprise_install": False,
        "channel": {"id": "C1", "name": "alerts"},
        "message": {"type": "message", "text": "training/n1", "ts": "1548261231.000200"},
        "state": {
            "values": {
                "navarch-note-block": {
                    "navarch-note-field": {"type": "plain_text_input", "value": text}
                }
            }
        },
        "response_url": "https://hooks.slack.com/actions/AABA1ABCD/1232321423432/D09sSasdasdAS9",
        "actions": [
            {
                "type": "button",
                "action_id": action,
                "block_id": "=qXel",
                "text": {"type": "plain_text", "text": "View", "emoji": True},
                "value": value,
                "action_ts": "1548426417.840180",
            }
        ],
    }
    return urlencode({"payload": json.dumps(payload | more)}).encode()


def slack_headers(body: bytes, at: datetime, secret: str = SLACK_SECRET) -> dict[str, str]:
    """Return the headers of an interaction."""
    timestamp = str(int(at.timestamp()))
    signed = b"v0:" + timestamp.encode() + b":" + body
    return {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": f"v0={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}",
    }
