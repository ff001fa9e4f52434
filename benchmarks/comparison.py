"""Pure functions compare what a figure costs with its floor, and report which costs have grown.

The floor is the least that the same machine needs, in the same run, for the same messages with no
logic between. Times of two machines differ by two and more, so the ratio of a figure to its floor
is what is kept and compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

WORSE_MIN: Final = 1.25
"""A ratio that is this many times the worst of the committed rounds is worse."""
FLOOR_WORSE_MIN: Final = 1.15
"""A floor that has grown by this factor, the machine's own speed taken out, is a defect."""
RATES: Final = ("per_second", "per_cpu_second")
"""Ends of the names of figures of which more is better."""
FLOOR: Final = "_floor"
RATIO: Final = "_ratio"
WORST: Final = "_ratio_worst"
"""Of the rounds of one measurement: two rounds of one program differ by a third and more."""
DIGITS: Final = 4
"""Significant ones, of figures and ratios."""
COMMANDS: Final = {
    "start": "list --help",
    "status": "status",
    "why": "why training-0",
    "get": "get training-0",
    "events": "events --since 1h",
    "sagas": "saga list",
}
"""Name of the figure -> the command of which the start is measured."""


def command_figure(name: str) -> str:
    """Return the whole name of a command's figure."""
    return f"command_{name}_cpu_seconds"


QUICK: Final = (
    "kmsg_to_cordon_ms_p50",
    "join_500_seconds",
    *(
        f"wave_{count}_{what}_seconds"
        for count in (200, 600)
        for what in ("last_cordon", "last_replacement_started")
    ),
    "telemetry_ingest_samples_per_cpu_second",
    "listing_medium_bus_seconds",
    *map(command_figure, COMMANDS),
)
"""The figures of the hot paths, whose ratios may not become worse."""

Figures = Mapping[str, Any]


def is_rate(name: str) -> bool:
    """Return whether more of a figure is better."""
    return name.endswith(RATES)


def rounded(value: float) -> float:
    """Round to the significant digits; a whole number is an integer."""
    found = float(f"{value:.{DIGITS}g}")
    return int(found) if found.is_integer() else found


def beside_floor(name: str, measured: float, floor: float) -> dict[str, float]:
    """Return a figure, its floor, and how many times the floor's cost the figure's is."""
    ratio = floor / measured if is_rate(name) else measured / floor
    return {name: measured, f"{name}{FLOOR}": floor, f"{name}{RATIO}": rounded(ratio)}


def worst(name: str, rounds: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Return the worst ratio of rounds, each a figure and its floor."""
    ratios = (beside_floor(name, *each)[f"{name}{RATIO}"] for each in rounds)
    return {f"{name}{WORST}": max(ratios)}


def medians(rounds: Sequence[tuple[Figures, Figures]]) -> dict[str, float]:
    """Return the medians of rounds, each of which measured the figures and then their floors.

    A figure that has no floor in the rounds is returned alone. Of several rounds the worst ratio
    is returned, too.
    """
    found: dict[str, float] = {}
    for name in rounds[0][0]:
        measured = rounded(median(figures[name] for figures, _ in rounds))
        if name in rounds[0][1]:
            floor = rounded(median(floors[name] for _, floors in rounds))
            found |= beside_floor(name, measured, floor)
            if len(rounds) > 1:
                found |= worst(name, [(each[name], floors[name]) for each, floors in rounds])
        else:
            found[name] = measured
    return found


def ratios(figures: Figures) -> dict[str, float]:
    """Return the ratios among figures."""
    return {name: value for name, value in figures.items() if name.endswith(RATIO)}


class Verdict(NamedTuple):
    """One compared figure, and what its ratio is beside the committed one."""

    name: str
    measured: float
    floor: float
    ratio: float
    committed: float | None
    """None: the committed figures lack it."""
    worst: float | None = None
    """Ratio of the worst committed round; None: there was one round."""

    @property
    def worse(self) -> bool:
        """Return whether the ratio is a quarter above that of the worst committed round."""
        if self.committed is None:
            return False
        return self.ratio >= WORSE_MIN * max(self.committed, self.worst or 0.0)

    @property
    def text(self) -> str:
        """Return the verdict in a word or two."""
        if self.committed is None:
            return "new"
        return f"{'worse' if self.worse else 'ok'} ({self.ratio / self.committed - 1:+.0%})"


def verdicts(figures: Figures, committed: Figures) -> list[Verdict]:
    """Compare every figure that has a floor with the committed one of the same name."""
    names = [each.removesuffix(RATIO) for each in ratios(figures)]
    return [
        Verdict(
            *(each, figures[each], figures[f"{each}{FLOOR}"], figures[f"{each}{RATIO}"]),
            committed.get(f"{each}{RATIO}"),
            committed.get(f"{each}{WORST}"),
        )
        for each in names
    ]


def worse(figures: Figures, committed: Figures) -> list[str]:
    """Return the figures of the hot paths whose ratio is worse than the committed one."""
    return [each.name for each in verdicts(figures, committed) if each.worse and each.name in QUICK]


def confirmed(first: Sequence[str], again: Figures, committed: Figures) -> list[str]:
    """Return which of the figures that were worse are worse again, measured once more alone."""
    return [each for each in worse(again, committed) if each in first]


def loop_ms(part: Mapping[str, Any]) -> float:
    """Return how slow the machine was during a part: its `machine_floor` at its least."""
    return min(float(each["loop_ms_min"]) for each in part["machine_floor"].values())


def floor_defects(
    figures: Figures, loop: float, committed: Figures, committed_loop: float
) -> list[str]:
    """Name the floors that are worse than the committed ones on a machine of equal speed.

    Nothing of the product is in a floor: one that has grown is a defect of the benchmark.
    """
    found = []
    for name in (each.removesuffix(RATIO) for each in ratios(figures)):
        floor, before = figures[f"{name}{FLOOR}"], committed.get(f"{name}{FLOOR}")
        if not before:
            continue
        growth = before / floor if is_rate(name) else floor / before
        growth *= committed_loop / loop
        if growth >= FLOOR_WORSE_MIN:
            found.append(f"{name}{FLOOR}: {growth - 1:+.0%}")
    return found


def history_line(
    part: str, figures: Figures, before: Figures, commit: str, date: str
) -> dict[str, Any] | None:
    """Return the line that history.jsonl gets for a part; None where no ratio has changed."""
    found = ratios(figures)
    if all(before.get(name) == value for name, value in found.items()):
        return None
    return {"commit": commit, "date": date, "part": part, "ratios": found}
