"""Checks that what is declared of each event can be used: its texts, its alerts and their ends."""

import re
from typing import Any, Final

import msgspec
import pytest

from schemas import subjects
from schemas.event_alerts import ALERTS, ENDS, QUIET_SECONDS, AlertRule
from schemas.event_subjects import FACTS
from schemas.event_texts import ABOUT, EVENT_TEXTS, EventWording
from schemas.fleet_events import FleetEvent
from schemas.messages import Message
from schemas.node_events import NodeEvent, Telemetry
from schemas.pool_events import PoolRemoved
from schemas.saga_log_entries import STATUSES
from schemas.topology import NOTIFIER_ALERTS
from services.operator_text.event_text import DETAILS, FIELD, FILTERS

TEXTS: Final = [(kind, each) for kind, found in EVENT_TEXTS.items() for each in found]
RULES: Final = [(kind, each) for kind, found in ALERTS.items() for each in found if each.severity]


def fields(kind: Any, path: str) -> bool:
    """Return whether a type has the field that a path names."""
    first, _, rest = path.partition(".")
    found = {each.name: each.type for each in msgspec.structs.fields(kind)}
    return first in found and (not rest or fields(found[first], rest))


def test_every_event_and_entry_has_texts() -> None:
    """An event without one would be shown by the name of its class."""
    assert {*FACTS, *STATUSES} - {Telemetry} == EVENT_TEXTS.keys()


@pytest.mark.parametrize(("kind", "text"), TEXTS)
def test_a_text_names_what_its_event_has(kind: type[Message], text: EventWording) -> None:
    """Each field, filter and function exists, and the last text of an event needs nothing."""
    for template in (text.title, text.detail, text.remedy):
        if template.startswith("="):
            assert template[1:] in DETAILS
            continue
        for found in FIELD.finditer(template):
            assert fields(kind, found["name"]), template
            assert found["filter"] is None or found["filter"] in FILTERS
        assert not set("{}[]") & set(FIELD.sub("", re.sub(r"\[([^\]]*)\]", r"\1", template)))
    assert all(fields(kind, name) for name in text.when)
    assert EVENT_TEXTS[kind][-1].when == {}
    assert {each.tone for each in EVENT_TEXTS[kind]} <= {"good", "bad", "plain"}


def test_every_family_says_what_it_is_about() -> None:
    """A subject is a field of every class of the family."""
    for kind in EVENT_TEXTS:
        about = next((ABOUT[each] for each in kind.__mro__ if each in ABOUT), "")
        assert about
        assert all(fields(kind, found["name"]) for found in FIELD.finditer(about)), kind


@pytest.mark.parametrize(("kind", "rule"), RULES)
def test_an_alert_ends(kind: type[Message], rule: AlertRule) -> None:
    """An event ends it, or it ends after a time that is declared for its key."""
    assert not rule.node or fields(kind, rule.node)
    named = rule.key.replace("{node}", f"{{{rule.node or 'node'}}}")
    assert all(fields(kind, found["name"]) for found in FIELD.finditer(named))
    ended = any(rule.key in each.keys for each in ENDS)
    assert ended or rule.key.partition("/")[0] in QUIET_SECONDS


def test_the_notifier_is_delivered_what_begins_and_ends_alerts() -> None:
    """The notifier also gets all events about services, which are few, and removals of pools."""
    wanted = {subjects.FLEET_EVENTS, subjects.pool_event_wildcard(FACTS[PoolRemoved])}
    for kind in {*ALERTS, *(each.event for each in ENDS)}:
        if not issubclass(kind, FleetEvent):
            of_node = issubclass(kind, NodeEvent)
            named = subjects.node_event_wildcard if of_node else subjects.pool_event_wildcard
            wanted.add(named(FACTS[kind]))
    assert wanted == set(NOTIFIER_ALERTS.filters)
