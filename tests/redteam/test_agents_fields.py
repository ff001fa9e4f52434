"""Every field that an agent may write has a class in docs/security.md: what others do with it."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect

from schemas.agent_commands import EnrollRequest
from schemas.machine_identity import FixedIdentity
from schemas.messages import publisher
from schemas.node_events import FACTS_OF_AGENTS, Fault, NodeEvent, Registered, Telemetry
from schemas.node_records import HeartbeatRecord
from schemas.permissions import AGENT
from tests.redteam.test_facts_as_levers import types

DOCUMENT: Final = Path("docs/security.md")
NAME: Final = re.compile(r"`([A-Z]\w+)\.(\w+)`")
TITLE: Final = "## What an agent can make others do"
CHANGED_BY_ADMISSION: Final = {"gpus", "rack", "nvlink_domain", "machine_id", "provider_id"}


def written_by_agents() -> set[type[Any]]:
    """Return every message and record that an agent's credentials permit it to write."""
    kinds = {each for each in types().values() if publisher(each) == AGENT}
    return {*kinds, Telemetry, HeartbeatRecord, EnrollRequest}


def fields_of(kinds: set[type[Any]]) -> set[tuple[str, str]]:
    """Return the fields of structs and of what they hold, as class and name."""
    found: dict[type[Any], set[tuple[str, str]]] = {}

    def visit(kind: inspect.Type) -> None:
        if isinstance(kind, inspect.StructType) and kind.cls not in found:
            found[kind.cls] = {(kind.cls.__name__, each.name) for each in kind.fields}
            for each in kind.fields:
                visit(each.type)
        for name in ("item_type", "item_types", "types", "value_type"):
            held = getattr(kind, name, ())
            for each in held if isinstance(held, tuple) else (held,):
                visit(each)

    for each in kinds:
        visit(inspect.type_info(each))
    return set().union(*found.values())


def classed() -> list[tuple[str, str]]:
    """Return the fields that the table in the document names."""
    section = DOCUMENT.read_text("utf-8").partition(TITLE)[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [found for row in rows for found in NAME.findall(row)]


def test_every_field_of_an_agent_has_a_class() -> None:
    """A new field says in the table what it can make others do; each has one place."""
    named = classed()
    assert sorted(set(named)) == sorted(fields_of(written_by_agents()))
    assert len(named) == len(set(named))


def test_what_agents_may_publish_is_what_is_looked_at() -> None:
    """The permissions of the role name no fact whose type is missing here."""
    kinds = {each.__name__ for each in written_by_agents()}
    assert {"Fault", "ConditionEnded", "Registered", "ProviderNotice", "BootChecked"} < kinds
    assert set(FACTS_OF_AGENTS) == {"fault", "registered", "provider-notice", "boot-checked"}
    assert issubclass(Fault, NodeEvent)


@pytest.mark.parametrize("name", sorted(CHANGED_BY_ADMISSION))
def test_what_decides_about_other_machines_is_fixed_at_admission(name: str) -> None:
    """A field of this class is in the fixed identity, and no other field is."""
    fixed = {each.name for each in msgspec.structs.fields(FixedIdentity)} - {"since"}
    assert fixed == CHANGED_BY_ADMISSION
    assert name in {each.name for each in msgspec.structs.fields(Registered)}
    [row] = [
        line
        for line in DOCUMENT.read_text("utf-8").splitlines()
        if line.startswith("| **fixed at admission**")
    ]
    assert f"`Registered.{name}`" in row
