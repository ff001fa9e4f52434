"""The list of nodes of a stress run's page: a row with a strip for each, and its filters. Pure.

The filters are radio buttons and style sheets: the page has no script.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from services.simulator.report.report_format import NodeStory

OPTIONS_MAX: Final = 12
"""Of one filter; the rest is one option together."""
GONE: Final = {"gone": "gone"}
FAILED: Final = "fails: "
"""How the text of a failure begins."""


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of a filter: which rows it shows."""

    group: str
    id: str
    name: str
    style: str = ""
    """Class of the rows that it shows; empty: all."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Describes a part of a strip, or of a bar."""

    name: str
    style: str
    seconds: float
    percent: float


@dataclass(frozen=True, slots=True)
class NodeRow:
    """Describes a node's row."""

    story: NodeStory
    styles: str
    """Classes that filters name."""
    parts: Sequence[Stretch]
    marks: Sequence[float]
    """Percent of the strip at which a failure hit it."""
    moments: Sequence[tuple[float, str]]


Filters = Sequence[tuple[str, Sequence[Option]]]


def rows(
    nodes: Sequence[NodeStory], states: Mapping[str, str], seconds: float
) -> tuple[Filters, list[NodeRow]]:
    """The filters and a row for each node; `states`: name -> words; the run lasted `seconds`."""
    words = {**states, **GONE}
    regions = numbered([each.region for each in nodes])
    providers = numbered([each.provider for each in nodes])
    filters = [
        ("Now", _options("state", words)),
        ("Had", _options("had", {"failed": "failures", "repaired": "repairs", "calm": "neither"})),
        ("Region", named("region", regions)),
        ("Provider", named("provider", providers)),
    ]
    found = []
    for each in nodes:
        had = [name for name, n in (("failed", each.failures), ("repaired", each.repairs)) if n]
        styles = [
            *(f"state-{each.state}" for _ in range(each.state in words)),
            *(f"had-{name}" for name in had or ["calm"]),
            f"region-{regions.get(each.region, OPTIONS_MAX)}",
            f"provider-{providers.get(each.provider, OPTIONS_MAX)}",
        ]
        marks = [
            100 * moment.at / (seconds or 1.0)
            for moment in each.moments
            if moment.text.startswith(FAILED)
        ]
        row = NodeRow(
            each,
            " ".join(styles),
            list(_stretches(each, words, seconds)),
            [min(at, 99.5) for at in marks],
            sorted(_moments(each, words), key=lambda moment: moment[0]),
        )
        found.append(row)
    return [each for each in filters if len(each[1]) > 2], found  # noqa: PLR2004 - all and one


def _stretches(story: NodeStory, words: Mapping[str, str], seconds: float) -> Iterator[Stretch]:
    """One for each state, and one for the time before the first."""
    marks = [(0.0, "gone"), *story.states, (seconds, "")]
    for (at, state), (until, _) in pairwise(marks):
        long = min(until, seconds) - at
        if long > 0:
            style = state if state in words else "starting"
            percent = 100 * long / (seconds or 1.0)
            yield Stretch(words.get(state, state), style, long, percent)


def _moments(story: NodeStory, words: Mapping[str, str]) -> Iterator[tuple[float, str]]:
    yield from ((at, words.get(state, state)) for at, state in story.states)
    yield from ((each.at, each.text) for each in story.moments)


def numbered(names: Sequence[str]) -> dict[str, int]:
    """Number the most frequent names, for the styles of their rows; the others have none."""
    counts = Counter(names)
    ranked = sorted(counts, key=lambda each: (-counts[each], each))
    return {name: number for number, name in enumerate(ranked[:OPTIONS_MAX])}


def named(group: str, numbers: Mapping[str, int]) -> list[Option]:
    """The filter of numbered names."""
    names = {str(number): name or "none" for name, number in numbers.items()}
    if len(numbers) == OPTIONS_MAX:
        names[str(OPTIONS_MAX)] = "others"
    return _options(group, names)


def _options(group: str, names: Mapping[str, str]) -> list[Option]:
    every = Option(group, f"{group}-of-all", "all")
    return [
        every,
        *(
            Option(group, f"{group}-of-{key}", name, f"{group}-{key}")
            for key, name in names.items()
        ),
    ]
