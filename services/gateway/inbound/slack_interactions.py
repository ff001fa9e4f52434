"""Reads what Slack sends when a button of an alert's message is pressed. Pure."""

from typing import Annotated, Final
from urllib.parse import parse_qs

import msgspec

from schemas.slack_actions import ACTIONS, NOTE_BLOCK, NOTE_FIELD
from services.gateway.inbound.inbound_action import InboundAction

BUTTONS: Final = "block_actions"
FIELDS_MAX: Final = 4
"""Of the form; Slack sends one."""


class Team(msgspec.Struct, frozen=True):
    """Names a workspace."""

    id: str = ""


class User(msgspec.Struct, frozen=True):
    """Names who pressed; in a shared channel it may be a member of another workspace."""

    id: str = ""
    username: str = ""
    name: str = ""
    team_id: str = ""


class Pressed(msgspec.Struct, frozen=True):
    """Names a button, and its value."""

    action_id: str = ""
    value: str | None = None


class Field(msgspec.Struct, frozen=True):
    """Holds what is written in a field."""

    value: str | None = None


class Fields(msgspec.Struct, frozen=True):
    """Holds the fields of the message: block -> field -> text."""

    values: dict[str, dict[str, Field]] = {}


class Payload(msgspec.Struct, frozen=True):
    """Holds the part of an interaction that is used."""

    type: str
    team: Team | None = None
    user: User = User()
    trigger_id: Annotated[str, msgspec.Meta(max_length=256)] = ""
    actions: tuple[Pressed, ...] = ()
    state: Fields | None = None


_payload: Final = msgspec.json.Decoder(Payload)


def payload_in(body: bytes) -> Payload:
    """Return the interaction in a form; raise ValueError where it is none."""
    fields = parse_qs(
        body.decode("ascii"), strict_parsing=True, max_num_fields=FIELDS_MAX, errors="strict"
    )
    [text] = fields.get("payload", [])
    return _payload.decode(text)


def is_of_team(payload: Payload, team: str) -> bool:
    """Return whether the message and who pressed belong to a workspace."""
    own = payload.team is not None and payload.team.id == team
    return own and payload.user.team_id in ("", team)


def action_in(payload: Payload) -> InboundAction | None:
    """Return what a person did about an alert; None: it was no button of ours."""
    if payload.type != BUTTONS or not payload.trigger_id or not payload.user.id:
        return None
    pressed = next((each for each in payload.actions if each.action_id in ACTIONS), None)
    if pressed is None or not pressed.value:
        return None
    fields = payload.state.values if payload.state is not None else {}
    written = fields.get(NOTE_BLOCK, {}).get(NOTE_FIELD, Field()).value or ""
    return InboundAction(
        source="slack",
        id=payload.trigger_id,
        person=payload.user.username or payload.user.name,
        person_id=payload.user.id,
        verb=ACTIONS[pressed.action_id],
        key=pressed.value,
        note=written.strip(),
    )
