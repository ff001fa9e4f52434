"""A scenario's outcome as one self-contained HTML file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from services.simulator.report.html_report import seconds, style_sheet, template
from services.simulator.report.node_rows import OPTIONS_MAX, named, numbered
from services.simulator.report.svg_charts import clock

LINES_MAX: Final = 5_000
SCENARIO: Final = "the scenario"
"""What an event of the file is about."""


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened."""

    at: float
    about: str
    title: str
    detail: str
    ok: bool = True
    style: str = ""
    """Class that a filter names."""


def render(run: Mapping[str, Any], description: str, notes: Sequence[str]) -> str:
    """Make the page of an outcome, which is as in its JSON."""
    lines = sorted((*_steps(run["steps"]), *_facts(run["story"])), key=lambda each: each.at)
    numbers = numbered([each.about for each in lines])
    shown = [
        Line(
            *(each.at, each.about, each.title, each.detail, each.ok),
            style=f"about-{numbers.get(each.about, OPTIONS_MAX)}",
        )
        for each in lines[:LINES_MAX]
    ]
    return template("scenario_page.html").render(
        run=run,
        description=description,
        notes=notes,
        lines=shown,
        left_out=len(lines) - len(shown),
        nodes=named("about", numbers),
        style=style_sheet(),
        clock=clock,
        seconds=seconds,
    )


def _steps(steps: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for each in steps:
        yield Line(each["at"], SCENARIO, each["text"], each["detail"], ok=each["ok"])


def _facts(story: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for each in story:
        yield Line(each["at"], each["subject"].rpartition("/")[2], each["title"], each["detail"])
