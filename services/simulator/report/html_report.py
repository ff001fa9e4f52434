"""A stress run's report as one self-contained HTML file, and the templates of the pages."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from services.operator_text.safe_text import escape
from services.simulator.report import node_rows, svg_charts
from services.simulator.report.node_rows import OPTIONS_MAX, Stretch, named, numbered
from services.simulator.report.report_format import (
    Named,
    RegionStory,
    RepairStage,
    Spread,
    StressReport,
)
from services.simulator.report.svg_charts import NARROW, WIDE, Band, Series, clock

BARS_MAX: Final = 12
SHOWN_SECONDS_MIN: Final = 0.1
"""Stages of repairs that are always shorter are left out."""
STATES: Final = {
    "healthy": "in service, healthy",
    "degraded": "in service, degraded",
    "starting": "starting",
    "out": "out of service",
}
STAGES: Final = {
    "detect": "failure until noticed",
    "wait": "noticed, waiting",
    "begin": "begin",
    "cordon": "cordon",
    "vacate": "drain",
    "drain": "drain",
    "terminate": "terminate",
    "provision": "launch",
    "bootstrap": "bootstrap",
    "setup": "set up",
    "register": "boot",
    "admit": "admit",
    "reset": "reset",
    "reboot": "reboot",
    "return": "come back",
    "check": "check",
    "uncordon": "uncordon",
    "cordon-gpus": "cordon",
}
"""Step -> its name on the page."""
TYPES: Final = {
    "xid_error": "XID",
    "temperature": "temperature",
    "memory_error": "memory error",
    "nvlink_error": "NVLink error",
    "backend_error": "driver does not answer",
    "boot_failure": "GPU missing",
    "network": "network, silent",
}
CAUSES: Final = {
    "chance": "by chance",
    "cascade": "cascades",
    "correlated": "correlated",
    "outage": "outages",
}
LINES_MAX: Final = 5_000
SCENARIO: Final = "the scenario"
"""What an event of the file is about."""


@cache
def template(name: str) -> Template:
    """A page's template; every text that it is given is escaped."""
    environment = Environment(
        autoescape=True,
        finalize=_escape_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(_text(name))


@cache
def style_sheet() -> Markup:
    """Return the style sheet of every page."""
    return Markup(_text("report_style.css"))  # noqa: S704 - our own file


def seconds(value: float) -> str:
    """Write `0.4 s`, `12 s` or `3 min 20 s`."""
    if value < 10:  # noqa: PLR2004 - where a tenth still matters
        return f"{value:.1f} s"
    if value < 120:  # noqa: PLR2004 - two minutes
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _escape_text(value: object) -> object:
    """What the page shows of a value: no character that hides or reorders its text."""
    return escape(value) if type(value) is str else value


@dataclass(frozen=True, slots=True)
class Bar:
    """Describes a line of a bar chart."""

    name: str
    count: int
    percent: float
    text: str = ""


def render(report: StressReport) -> str:
    """Make the page."""
    filters, lives = node_rows.rows(report.nodes, STATES, report.seconds)
    return template("report_page.html").render(
        report=report,
        summary=report.summary,
        states=STATES.items(),
        **_charts(report),
        types=_count_bars({TYPES.get(k, k): n for k, n in report.failures.by_type.items()}),
        causes=_count_bars({CAUSES.get(k, k): n for k, n in report.failures.by_cause.items()}),
        xids=_bars(report.failures.top_xids),
        rules=_bars(report.rules),
        stages=_stages(report.stage_seconds),
        stories=[(story, _parts(story.stages)) for story in report.slowest],
        outages=report.outages,
        regions=_regions(report),
        filters=filters,
        lives=lives,
        style=style_sheet(),
        configuration=json.dumps(report.configuration, indent=2, ensure_ascii=False),
        clock=svg_charts.clock,
        seconds=seconds,
    )


def _regions(report: StressReport) -> list[tuple[RegionStory, Markup | None]]:
    """Each region, and its nodes by state over time where the report has that."""
    moments = [point.at for point in report.timeline]
    found: list[tuple[RegionStory, Markup | None]] = []
    for each in report.regions:
        series = [
            Series(words, name, each.timeline[name])
            for name, words in STATES.items()
            if len(each.timeline.get(name, ())) == len(moments)
        ]
        title = f"Nodes by state over time in {escape(each.whole.name)}"
        drawn = svg_charts.areas(moments, series, (), title, NARROW) if series else None
        found.append((each, drawn))
    return found


def _charts(report: StressReport) -> dict[str, dict[str, Markup] | None]:
    """The page's charts, each in both widths."""
    timeline = report.timeline
    moments = [point.at for point in timeline]
    bands = [Band(each.name, each.at, each.at + each.seconds) for each in report.outages]

    def series(name: str, style: str, *columns: str) -> Series:
        values = [sum(getattr(point, column) for column in columns) for point in timeline]
        return Series(name, style, values)

    def chart(draw: Callable[..., Markup], *data: object) -> dict[str, Markup]:
        return {"wide": draw(moments, *data, WIDE), "narrow": draw(moments, *data, NARROW)}

    states = [series(words, name, name) for name, words in STATES.items()]
    sizes = [series("in service", "serving", "healthy", "degraded")]
    sizes.append(series("wanted", "wanted", "wanted"))
    jobs = [series("running", "running", "running"), series("waiting", "waiting", "waiting")]
    up = [series("failures", "out", "failures")]
    down = [series("passed by themselves", "degraded", "recoveries")]
    down.append(series("repaired", "healthy", "repaired"))
    draw_sizes = partial(chart, svg_charts.lines, sizes, bands)
    draw_jobs = partial(chart, svg_charts.areas, jobs, bands)
    return {
        "health": chart(svg_charts.areas, states, bands, "Nodes by state over time"),
        "sizes": draw_sizes("Nodes wanted and in service over time") if report.scaling else None,
        "jobs": draw_jobs("Jobs that run and wait over time") if report.demand else None,
        "failures": chart(
            svg_charts.mirror_columns, up, down, "Failures, recoveries and repairs over time"
        ),
    }


def _count_bars(counts: Mapping[str, int]) -> list[Bar]:
    return _bars([Named(name=name, count=count) for name, count in counts.items()])


def _bars(found: Sequence[Named]) -> list[Bar]:
    """The longest bars; the rest together in one."""
    shown, rest = list(found[:BARS_MAX]), sum(each.count for each in found[BARS_MAX:])
    most = max((each.count for each in shown), default=1) or 1
    bars = [Bar(each.name, each.count, 100 * each.count / most, each.text) for each in shown]
    if rest:
        bars.append(Bar(f"{len(found) - BARS_MAX} more", rest, min(100 * rest / most, 100)))
    return bars


def _stages(spreads: Mapping[str, Spread]) -> list[tuple[str, str, Spread]]:
    return [
        (STAGES.get(name, name), _style(name), each)
        for name, each in spreads.items()
        if each.max >= SHOWN_SECONDS_MIN
    ]


def _parts(stages: Sequence[RepairStage]) -> list[Stretch]:
    whole = sum(each.seconds for each in stages) or 1.0
    return [
        Stretch(
            STAGES.get(each.name, each.name),
            _style(each.name),
            each.seconds,
            100 * each.seconds / whole,
        )
        for each in stages
        if each.seconds / whole > 1 / 500
    ]


def _style(step: str) -> str:
    names = list(dict.fromkeys(STAGES.values()))
    return f"stage-{names.index(STAGES[step])}" if step in STAGES else "stage-other"


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


def render_scenario(run: Mapping[str, Any], description: str, notes: Sequence[str]) -> str:
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
