"""The configuration of docs/event-sinks.md is read, and a wrong one is refused with its line."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas.event_sink_settings import EventSinkSpec
from services.notifier.event_sinks.sink_delivery import Outcome
from services.primitives.errors import ConfigurationError
from services.settings.settings_file import parse_settings
from services.settings.yaml_document import words_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "event-sinks.md").read_text(encoding="utf-8")
POOLS = """providers: {fake: {}}
pools:
  training: {provider: fake, instance_type: t, min_nodes: 1, max_nodes: 1}
"""


def test_the_configuration_of_the_page_is_read() -> None:
    """Every key of a sink is on it."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    names = re.findall(r"\$\{(\w+)\}", block)
    environment = {name: f"https://{name.lower()}.example" for name in names}
    sinks = parse_settings("navarch.yaml", POOLS + block, environment).event_sinks
    assert list(sinks) == ["audit", "lake"]
    assert sinks["audit"].batch.events == 100
    assert sinks["audit"].labels == {"team": "research"}
    assert [key for key in EventSinkSpec.__struct_fields__ if f"{key}:" not in block] == []


def test_the_catalogue_names_every_outcome() -> None:
    """The counter's help says what its label may be."""
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    (line,) = [each for each in metrics.splitlines() if "navarch_sink_events_total" in each]
    assert [each for each in words_of(Outcome) if each not in line] == []


WRONG: Mapping[str, tuple[str, str]] = {
    "type: htp": ("type", "write one of http, subject"),
    "url: ftp://x": ("url", "is no URL"),
    "url: ''": ("url", "is no URL"),
    "evnts: [verdict]": ("evnts", "did you mean `events`"),
    "events: [verdikt]": ("events.0", "did you mean 'verdict'"),
    "events: ['verdict.*']": ("events.0", "no event is called"),
    "pools: [trainig]": ("pools.0", "known: training"),
    "min_severity: hihg": ("min_severity", "info, warning, critical"),
    "secret: short": ("secret", "16 or more characters"),
    "headers: {ce-id: x}": ("headers.ce-id", "cannot be set"),
    'headers: {X: "a\\nb"}': ("headers.X", "visible ASCII"),
    "headers: {'a b': x}": ("headers.a b", "cannot be set"),
    "mode: batched": ("mode", "structured, binary, batch"),
    "batch: {events: 1}": ("batch", "set `mode`"),
    "batch: {events: 0}": ("batch.events", "1 or more"),
    "max_age: 31d": ("max_age", "from 1m to 30d"),
    "timeout: 0s": ("timeout", "from 100ms to 1m"),
    "max_bytes: 10": ("max_bytes", "1024 or more"),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_mistyped_key_is_refused_with_its_line_and_the_remedy(line: str) -> None:
    """Each wrong line is refused by itself, among lines that are right."""
    key, remedy = WRONG[line]
    known: dict[str, Any] = {"type": "type: http", "url": "url: http://x"}
    first = line.partition(":")[0]
    lines = "\n".join(f"    {each}" for name, each in known.items() if name != first)
    text = f"{POOLS}event_sinks:\n  audit:\n{lines}\n    {line}\n"
    with pytest.raises(ConfigurationError) as found:
        parse_settings("navarch.yaml", text, {})
    assert found.value.key == f"event_sinks.audit.{key}"
    assert found.value.line == text.count("\n")
    assert remedy in str(found.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("event_sinks: [a]", "must be a mapping"),
        ("event_sinks: {a: b}", "must be a mapping"),
        ("event_sinks: {A.b: {type: subject}}", "is no name"),
        (f"event_sinks: {{{'a' * 27}: {{type: subject}}}}", "is no name"),
        ("event_sinks: {a: {type: subject, url: http://x}}", "`type: http` only"),
        ("event_sinks: {" + ", ".join(f"a{n}: {{type: subject}}" for n in range(17)) + "}", "16"),
    ],
)
def test_a_section_of_another_form_is_refused(text: str, says: str) -> None:
    """A name that no subject and no durable may have is refused too."""
    with pytest.raises(ConfigurationError, match=says):
        parse_settings("navarch.yaml", text, {})
