"""Charts of a stress run's page, as self-contained SVG. Pure.

Colours are CSS classes, which the page defines for light and dark. Each chart is drawn for one
width; the page shows the wide or the narrow one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

WIDE: Final = 920
NARROW: Final = 380
HEIGHT: Final = 260
LEFT: Final = 46
RIGHT: Final = 10
TOP: Final = 12
BOTTOM: Final = 26
TICKS: Final = 5
COLUMNS_MAX: Final = {WIDE: 90, NARROW: 36}
NICE_STEPS: Final = (1, 1.1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
STEPS_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400)


@dataclass(frozen=True, slots=True)
class Series:
    """Holds a line of values, one for each moment."""

    name: str
    style: str
    """CSS class that gives its colour."""
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Band:
    """Describes a marked span of time."""

    name: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class _Frame:
    """Maps values to coordinates."""

    width: int
    seconds: float
    low: float
    high: float

    def x(self, at: float) -> float:
        return LEFT + (self.width - LEFT - RIGHT) * at / (self.seconds or 1.0)

    def y(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def point(self, at: float, value: float) -> str:
        return f"{self.x(at):.1f},{self.y(value):.1f}"


def areas(
    moments: Sequence[float], series: Sequence[Series], bands: Sequence[Band], name: str, width: int
) -> Markup:
    """Values stacked over time."""
    totals = [sum(each.values[i] for each in series) for i in range(len(moments))]
    frame = _Frame(width, max(moments, default=1.0), 0.0, nice(max(totals, default=1.0)))
    keep = _thin(len(moments), width)
    parts = list(_axes(frame))
    below = [0.0] * len(moments)
    for each in series:
        above = [low + value for low, value in zip(below, each.values, strict=True)]
        edge = [frame.point(moments[i], above[i]) for i in keep]
        back = [frame.point(moments[i], below[i]) for i in reversed(keep)]
        parts.append(f'<polygon class="area {each.style}" points="{" ".join(edge + back)}"/>')
        below = above
    return _svg(
        frame, name, (*parts, *_bands(frame, bands), *_hovers(frame, moments, series, keep))
    )


def lines(
    moments: Sequence[float], series: Sequence[Series], bands: Sequence[Band], name: str, width: int
) -> Markup:
    """Values side by side over time; each keeps its value until it changes."""
    high = nice(max((max(each.values, default=0.0) for each in series), default=1.0))
    frame = _Frame(width, max(moments, default=1.0), 0.0, high)
    keep = _thin(len(moments), width)
    parts = [*_axes(frame), *_bands(frame, bands)]
    for each in series:
        points: list[str] = []
        for before, i in zip([None, *keep], keep, strict=False):
            if before is not None:
                points.append(frame.point(moments[i], each.values[before]))
            points.append(frame.point(moments[i], each.values[i]))
        parts.append(f'<polyline class="line {each.style}" points="{" ".join(points)}"/>')
    return _svg(frame, name, (*parts, *_hovers(frame, moments, series, keep)))


def mirror_columns(
    moments: Sequence[float], up: Sequence[Series], down: Sequence[Series], name: str, width: int
) -> Markup:
    """Columns above the line for what fails, below it for what is repaired.

    Heights grow with the square root, so that single failures show beside an outage of hundreds.
    """
    size = max(-(-len(moments) // COLUMNS_MAX[width]), 1)
    starts = list(range(0, len(moments), size))
    ups = [_sum_columns(each, starts, size) for each in up]
    downs = [_sum_columns(each, starts, size) for each in down]
    frame = _Frame(width, max(moments, default=1.0), -_root(_tallest(downs)), _root(_tallest(ups)))
    parts = list(_times(frame))
    for most, sign in ((frame.high, 1), (-frame.low, -1)):
        parts += _root_ticks(frame, most, sign)
    room = (width - LEFT - RIGHT) / max(len(starts), 1)
    for column, start in enumerate(starts):
        x = LEFT + column * room
        parts += _column(frame, ups, column, x + room * 0.1, room * 0.8, 1)
        parts += _column(frame, downs, column, x + room * 0.1, room * 0.8, -1)
        since = moments[start - 1] if start else 0.0
        until = moments[min(start + size, len(moments)) - 1]
        words = ", ".join(f"{each.values[column]:g} {each.name}" for each in (*ups, *downs))
        parts.append(_hover(x, room, f"{clock(since)} to {clock(until)}: {words}"))
    zero = f'y1="{frame.y(0):.1f}" y2="{frame.y(0):.1f}"'
    parts.append(f'<line class="zero" x1="{LEFT}" x2="{width - RIGHT}" {zero}/>')
    return _svg(frame, name, parts)


def _column(
    frame: _Frame, group: Sequence[Series], column: int, x: float, width: float, sign: int
) -> Iterator[str]:
    base = 0.0
    for each in group:
        value = each.values[column]
        if not value:
            continue
        near, far = frame.y(sign * _root(base)), frame.y(sign * _root(base + value))
        yield (
            f'<rect class="{each.style}" x="{x:.1f}" y="{min(near, far):.1f}" '
            f'width="{width:.1f}" height="{abs(near - far):.1f}"/>'
        )
        base += value


def _tallest(group: Sequence[Series]) -> float:
    columns = zip(*(each.values for each in group), strict=True)
    return nice(max((sum(column) for column in columns), default=1.0))


def _root(value: float) -> float:
    return float(value**0.5)


def _root_ticks(frame: _Frame, most: float, sign: int) -> Iterator[str]:
    """Round numbers, far enough apart for their labels."""
    last, size = 0.0, 1.0
    apart = (frame.high - frame.low) * 22 / (HEIGHT - TOP - BOTTOM)
    while _root(size) <= most + 1e-9:
        for value in (size, 2 * size, 5 * size):
            if last + apart <= _root(value) <= most + 1e-9:
                last = _root(value)
                yield from _tick(frame, frame.y(sign * last), value)
        size *= 10
    if sign > 0:
        yield from _tick(frame, frame.y(0), 0)


def clock(seconds: float) -> str:
    """Write `12:05`, or `1:12:05`."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    text = f"{minutes}:{whole % 60:02d}"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else text


def nice(value: float, steps: Sequence[float] = NICE_STEPS) -> float:
    """The next number up that is one of `steps` times a power of ten, at least 1."""
    size = 1.0
    while size * 10 < value:
        size *= 10
    return next(size * step for step in steps if size * step >= value)


def _sum_columns(series: Series, starts: Sequence[int], size: int) -> Series:
    values = [sum(series.values[start : start + size]) for start in starts]
    return Series(series.name, series.style, values)


def _thin(count: int, width: int) -> list[int]:
    """The points to draw: no more than the width shows, and always the last."""
    step = max(count // (width // 2), 1)
    keep = list(range(0, count, step))
    return keep if not count or keep[-1] == count - 1 else [*keep, count - 1]


def _axes(frame: _Frame) -> Iterator[str]:
    step = nice((frame.high - frame.low) / TICKS, (1, 2, 5, 10))
    value = frame.low
    while value <= frame.high + 1e-9:
        yield from _tick(frame, frame.y(value), value)
        value += step
    yield from _times(frame)


def _tick(frame: _Frame, y: float, value: float) -> Iterator[str]:
    right = frame.width - RIGHT
    yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
    yield (f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')


def _times(frame: _Frame) -> Iterator[str]:
    right = frame.width - RIGHT
    most = 9 if frame.width == WIDE else 4
    gap = next((each for each in STEPS_SECONDS if frame.seconds / each <= most), frame.seconds)
    at = 0.0
    while at <= frame.seconds + 1e-9:
        x, y = frame.x(at), HEIGHT - BOTTOM
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>'
        anchor = "end" if x > right - 20 else "middle"
        yield (
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">'
            f"{clock(at)}</text>"
        )
        at += gap


def _bands(frame: _Frame, bands: Sequence[Band]) -> Iterator[str]:
    for each in bands:
        x = frame.x(each.since)
        width = max(frame.x(min(each.until, frame.seconds)) - x, 1.0)
        yield (
            f'<rect class="band" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/>'
        )


def _hovers(
    frame: _Frame, moments: Sequence[float], series: Sequence[Series], keep: Sequence[int]
) -> Iterator[str]:
    room = (frame.width - LEFT - RIGHT) / max(len(keep), 1)
    for place, i in enumerate(keep):
        words = ", ".join(f"{each.values[i]:g} {each.name}" for each in series)
        yield _hover(LEFT + place * room, room, f"{clock(moments[i])}: {words}")


def _hover(x: float, width: float, words: str) -> str:
    return (
        f'<rect class="hover" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{escape(words)}</title></rect>'
    )


def _svg(frame: _Frame, name: str, parts: Sequence[str]) -> Markup:
    # Every part is made here of numbers, names of classes and escaped words.
    return Markup(  # noqa: S704
        f'<svg viewBox="0 0 {frame.width} {HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"{''.join(parts)}</svg>"
    )
