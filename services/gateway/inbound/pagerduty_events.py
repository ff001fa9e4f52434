"""Reads the events of PagerDuty's webhooks (v3), and remembers which incident is which alert. Pure.

An event about a note names the incident alone, and not the key under which Navarch triggered it.
"""

from collections import OrderedDict
from typing import Annotated, Final

import msgspec

from schemas.alert_records import DEDUP_CHARS_MAX
from schemas.slack_actions import Verb
from schemas.value_limits import UtcTime
from services.gateway.inbound.inbound_action import InboundAction

INCIDENTS_MAX: Final = 10_000
"""Incidents whose keys are remembered; the one that was heard of longest ago is forgotten."""
PERSON: Final = "user_reference"
"""Type of an agent that is a person; Navarch's own news come back as those of an integration."""
NOTE: Final = "incident.annotated"
VERBS: Final[dict[str, Verb]] = {
    "incident.acknowledged": "acknowledge",
    "incident.resolved": "resolve",
    NOTE: "note",
}
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class ActingAgent(msgspec.Struct, frozen=True):
    """Says who did something."""

    type: str = ""
    id: str = ""
    summary: str | None = None
    """The person's name."""


class IncidentReference(msgspec.Struct, frozen=True):
    """Names an incident."""

    id: Id


class EventData(msgspec.Struct, frozen=True):
    """Holds what an event is about: an incident, or a note to one."""

    id: str = ""
    type: str = ""
    incident_key: str | None = None
    content: str | None = None
    incident: IncidentReference | None = None


class PagerDutyEvent(msgspec.Struct, frozen=True):
    """Holds the part of an event that is used."""

    id: Id
    event_type: str
    occurred_at: UtcTime
    agent: ActingAgent | None = None
    data: EventData | None = None


class _Body(msgspec.Struct, frozen=True):
    event: PagerDutyEvent


_body: Final = msgspec.json.Decoder(_Body)


def event_in(body: bytes) -> PagerDutyEvent:
    """Return the event in a body; raise msgspec.DecodeError where it is none."""
    return _body.decode(body).event


class IncidentKeys:
    """Remembers the keys of the incidents of which there were events."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, str] = OrderedDict()

    def learn(self, data: EventData) -> None:
        """Take in the key of an incident, where an event has it."""
        key = data.incident_key or ""
        if data.type != "incident" or not 0 < len(key) <= DEDUP_CHARS_MAX:
            return
        if len(data.id) <= DEDUP_CHARS_MAX:
            self._keys[data.id] = key
            self._keys.move_to_end(data.id)
        if len(self._keys) > INCIDENTS_MAX:
            self._keys.popitem(last=False)

    def key_of(self, data: EventData) -> str:
        """Return the key of what an event is about; empty: it is not known."""
        if data.incident is not None:
            return self._keys.get(data.incident.id, "")
        return data.incident_key or ""


def action_in(event: PagerDutyEvent, key: str) -> InboundAction | None:
    """Return what a person did about the alert with a key; None: nothing is to be done."""
    verb, agent = VERBS.get(event.event_type), event.agent
    if verb is None or agent is None or agent.type != PERSON or event.data is None:
        return None
    note = (event.data.content or "").strip() if event.event_type == NOTE else ""
    if not key or (verb == "note" and not note):
        return None
    return InboundAction(
        source="pagerduty",
        id=event.id,
        person=agent.summary or "",
        person_id=agent.id,
        verb=verb,
        key=key,
        note=note,
    )
