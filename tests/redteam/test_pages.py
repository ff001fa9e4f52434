"""A page and a metric obey nothing that comes from a scenario, a message or a record."""

from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from schemas.messages import encode
from schemas.metric_catalogue import METRICS
from schemas.node_records import NodeRecord
from services.metrics.fleet.fleet_metrics import gauges
from services.runtime.gauge_table import GaugeTable
from services.runtime.metric_exposition import exposition
from services.simulator.report import html_report
from services.simulator.report.report_format import StressReport
from tests.redteam.hostile import HOSTILE, UNSAFE
from tests.simulator.test_html_report import REPORT

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
ENUMS = {"outcome"}


class Elements(HTMLParser):
    """Collects the elements of a page, with the names of their attributes."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the element's name and those of its attributes."""
        self.found.append((tag, tuple(name for name, _ in attrs)))


def spoilt(value: Any, text: str) -> Any:
    """A report's JSON with the text in place of every text and of every key that is a name."""
    match value:
        case dict():
            return {
                key: each if key in ENUMS else spoilt(each, f"{text}")
                for key, each in value.items()
            }
        case list():
            return [spoilt(each, text) for each in value]
        case str():
            return text
        case _:
            return value


@pytest.mark.parametrize("name", HOSTILE)
def test_the_report_of_a_stress_run_has_no_element_of_its_texts(name: str) -> None:
    """Names, reasons and configurations are text wherever they appear."""

    def page(text: str) -> str:
        plain = spoilt(msgspec.to_builtins(REPORT), text)
        plain["configuration"] = {text: text}
        plain["failures"]["by_type"] = {text: 3}
        plain["stage_seconds"] = {text: plain["repair_seconds"]}
        return html_report.render(msgspec.convert(plain, StressReport))

    def elements(text: str) -> list[tuple[str, tuple[str, ...]]]:
        parser = Elements()
        parser.feed(page(text))
        return parser.found

    assert elements("x") == elements(HOSTILE[name])
    assert not UNSAFE.search(page(HOSTILE[name]))


@pytest.mark.parametrize("name", HOSTILE)
def test_the_page_of_a_scenario_has_no_element_of_its_texts(name: str) -> None:
    """The same of what a scenario's events, nodes and assertions say."""
    run = {
        "name": "n",
        "ok": False,
        "seed": "1",
        "simulated_seconds": 3.0,
        "history": "h",
        "steps": [{"at": 1.0, "text": "t", "ok": False, "detail": "d"}],
        "assertions": [{"text": "t", "ok": False, "found": "f"}],
        "nodes": [{"node": "n", "pool": "p", "status": "s", "health": "h", "reason": "r"}],
        "defects": ["d"],
        "violation": {"at": 1.0, "text": "t"},
        "story": [{"at": 2.0, "subject": "p/n", "title": "t", "detail": "d"}],
    }

    def page(text: str) -> str:
        return html_report.render_scenario(spoilt(run, text), text, [text])

    plain, hostile = Elements(), Elements()
    plain.feed(page("x"))
    hostile.feed(page(HOSTILE[name]))
    assert plain.found == hostile.found
    assert not UNSAFE.search(page(HOSTILE[name]))


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_metric_has_no_label_that_a_record_forged(name: str) -> None:
    """A record with such a name is not read; and a label's value cannot end its line."""
    text = HOSTILE[name]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(encode(NodeRecord(pool=text, node="n1")), type=NodeRecord)

    class Nodes(Collector):
        def collect(self) -> Any:
            for each in gauges({"k": NodeRecord(pool=text, node=text)}, {}, {}, NOW):
                yield GaugeTable(*each.spec.declared, each.values)

    registry = CollectorRegistry()
    registry.register(Nodes())
    lines, _ = await exposition(registry, "")
    found = {each.name for each in text_string_to_metric_families(lines.decode())}
    assert found <= {each.name for each in METRICS}
