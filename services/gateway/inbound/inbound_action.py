"""Turns what a person does about an alert elsewhere into the orders that operators have. Pure."""

import hashlib
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from schemas.alert_records import (
    NOTE_CHARS_MAX,
    Alert,
    AlertAcknowledge,
    AlertUpdate,
    OpenAlertRecord,
    dedup_key,
)
from schemas.operations import ACKNOWLEDGE_ALERT, UPDATE_ALERT, ServiceOrder
from schemas.slack_actions import Verb
from services.operator_text.safe_text import escape_line

Source = Literal["pagerduty", "slack"]
TITLES: Final[dict[Source, str]] = {"pagerduty": "PagerDuty", "slack": "Slack"}
PERSON_CHARS_MAX: Final = 100
DIGITS: Final = 32
Order = tuple[ServiceOrder[Any], msgspec.Struct]


class InboundAction(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what a person did about an alert, and where."""

    source: Source
    id: str
    """The vendor's ID of this one action."""
    person: str
    """The person's name there."""
    person_id: str
    """The person's ID there."""
    verb: Verb
    key: str
    """The alert's key, or what vendors deduplicate it by."""
    note: str = ""

    @property
    def by(self) -> str:
        """Return in whose name the orders are given; no token's or authenticator's is the same."""
        name = " ".join(self.person.split()) or self.person_id
        return f"{self.source}:{escape_line(name)[:PERSON_CHARS_MAX]}"

    @property
    def event(self) -> str:
        """Return the ID of the event about it, which is the same for a repetition."""
        text = f"{self.source}\0{self.id}".encode()
        return f"inbound-{hashlib.sha256(text).hexdigest()[:DIGITS]}"


def alert_named(key: str, records: Iterable[OpenAlertRecord]) -> Alert | None:
    """Return the open alert with a key, or with the key that vendors have in its place."""
    for each in records:
        if each.opened is not None and key in (each.alert, dedup_key(each.alert)):
            return each.opened
    return None


def orders_of(action: InboundAction, alert: Alert) -> tuple[Order, ...]:
    """Return the orders that an action becomes; none of them ends the alert, or hides it."""
    key, by = alert.key, action.by
    note = " ".join(action.note.split())
    if action.verb == "acknowledge":
        reason = _shortened(note)
        return ((ACKNOWLEDGE_ALERT, AlertAcknowledge(key=key, reason=reason, by=by)),)
    if action.verb == "note":
        return ((UPDATE_ALERT, AlertUpdate(key=key, note=_shortened(note), by=by)),)
    said = f"resolved in {TITLES[action.source]}; it lasts here until its cause has ended"
    more = f": {note}" if note else ""
    update = AlertUpdate(key=key, note=_shortened(f"{said}{more}"), by=by)
    # Without an acknowledgement the next news would page the person who has just resolved it.
    taken = () if alert.acknowledged_by else _taken(key, by)
    return (*taken, (UPDATE_ALERT, update))


def _taken(key: str, by: str) -> tuple[Order, ...]:
    return ((ACKNOWLEDGE_ALERT, AlertAcknowledge(key=key, by=by)),)


def _shortened(text: str) -> str:
    return text if len(text) <= NOTE_CHARS_MAX else f"{text[: NOTE_CHARS_MAX - 1]}…"
