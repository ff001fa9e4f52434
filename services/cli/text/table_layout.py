"""Lays out tables: which columns, in which order, and within the width of the terminal. Pure.

Columns are aligned with spaces, as in `ps`: fast for ten thousand nodes, and easy to `cut`.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from services.cli.text.styles import BOLD, COLOURS, RESET
from services.operator_text.safe_text import escape_line
from services.primitives.errors import NavarchError

CELL_CHARS_MAX: Final = 140
"""Long enough for every ID: operators copy them."""
LAST_CHARS_MIN: Final = 16
"""The last column is broken between words where it has at least this width."""
GAP: Final = "  "
BAD_CELLS: Final = frozenset(
    {
        *("degraded", "unhealthy", "warning", "critical", "failing", "failed"),
        *("stuck", "leaked", "open", "half-open"),
    }
)
"""Cells of rows that are painted in red."""
BAD_COUNTS: Final = frozenset({"unhealthy", "unhealthy, waiting"})
"""Headers of columns whose rows are painted where they count something."""
LOW_PRIORITY: Final = (
    *("since", "began", "the longest was", "p95", "longest", "applies to", "slowest", "calls"),
    *("registered", "address", "rack", "service", "pcie", "load %", "memory °C", "memory used"),
    *("package", "used for", "place", "used by", "price", "market", "sent to", "from", "last try"),
    *("tries", "resets", "min", "max", "authority", "instance type", "provider", "last change"),
    *("gpus", "zone", "region", "id", "name", "disruptions", "deadline", "kind", "new_node"),
    *("gpu-hours", "ended", "serial", "out of service", "nodes", "cordoned", "rule", "gpu"),
    *("public key", "made by", "decided", "time", "took", "saga", "pool"),
)
"""Headers of the columns that go where a table is wider than the terminal, the first one first."""
NAMES: Final = frozenset(
    {"node", "pool", "saga", "instance", "key", "identity", "name", "type", "plugin", "about"}
)
"""Headers of columns that name what a row is about."""
_NUMBER: Final = re.compile(r"-?[\d,]+(?:\.\d+)?")
_AGE: Final = re.compile(r"(?:\d+[dhms])+")
_UNIT_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}

Rows = Sequence[Sequence[str]]


def columns(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    colour: bool,
    width: int = 0,
    titled: bool = True,
) -> str:
    """Return a table, whose last column is not shortened.

    `width`: of the terminal, in characters; columns of low priority go until the table fits, and
    the last one is broken between words. 0: it has no limit.
    """
    headers = [escape_line(each) for each in headers]
    cells = _escaped([*rows])
    widths = _widths(headers, cells)
    bad = _are_bad(headers, cells) if colour else []
    if width:
        kept = fitting(headers, widths, width)
        headers, widths = [headers[i] for i in kept], [widths[i] for i in kept]
        cells = [[row[i] for i in kept] for row in cells]
    if any(each > CELL_CHARS_MAX for each in widths[:-1]):
        cells = [(*map(_short, row[:-1]), row[-1]) for row in cells]
        widths = [min(each, CELL_CHARS_MAX) for each in widths]
    line = GAP.join(f"%-{each}s" for each in widths)
    lines = [(line % tuple(row)).rstrip() for row in cells]
    if width:
        lines = [_within(text, widths, width) for text in lines]
    if colour:
        red = COLOURS["bad"]
        lines = [
            f"{red}{text}{RESET}" if is_bad else text
            for text, is_bad in zip(lines, bad, strict=True)
        ]
    if titled:
        head = (line % tuple(header.upper() for header in headers)).rstrip()
        lines.insert(0, f"{BOLD}{head}{RESET}" if colour else head)
    return "\n".join(lines)


def fitting(headers: Sequence[str], widths: Sequence[int], width: int) -> list[int]:
    """Return the places of the columns that stay, of a table for a terminal of this width.

    The first column stays, and so does the last, which may be broken between words.
    """
    kept = list(range(len(headers)))
    going = [headers.index(each) for each in LOW_PRIORITY if each in headers]
    for place in going:
        last = min(widths[-1], 2 * LAST_CHARS_MIN)
        if sum(widths[i] + len(GAP) for i in kept[:-1]) + last <= width:
            break
        if place not in (0, len(headers) - 1):
            kept.remove(place)
    return kept


def chosen(
    headers: Sequence[str], rows: Rows, *, names: Sequence[str] = (), sort_by: str = ""
) -> tuple[Sequence[str], Rows]:
    """Return the columns that are named, in that order, and the rows sorted by one of all columns.

    A header of several words is named with hyphens; `-age` sorts the other way round. Rows without
    a value come last.
    """
    if sort_by:
        place = _place(headers, sort_by.removeprefix("-"))
        known = [row for row in rows if row[place] != "-"]
        known.sort(key=lambda row: sort_key(row[place]), reverse=sort_by.startswith("-"))
        rows = [*known, *(row for row in rows if row[place] == "-")]
    if not names:
        return headers, rows
    places = [_place(headers, each) for each in names]
    return [headers[i] for i in places], [[row[i] for i in places] for row in rows]


def name_header(headers: Sequence[str]) -> str:
    """Return the header of the column that names what a row is about."""
    return next((each for each in headers if each in NAMES), headers[0])


def sort_key(cell: str) -> tuple[float, str]:
    """Return a key by which numbers and ages are in their order, and texts after them."""
    if found := _NUMBER.match(cell):
        if _AGE.fullmatch(cell):
            parts = re.findall(r"(\d+)([dhms])", cell)
            return float(sum(int(count) * _UNIT_SECONDS[unit] for count, unit in parts)), ""
        return float(found[0].replace(",", "") or 0), cell
    return float("inf"), cell


def _place(headers: Sequence[str], name: str) -> int:
    slugs = [_slug(each) for each in headers]
    if _slug(name) in slugs:
        return slugs.index(_slug(name))
    raise NavarchError(f"there is no column {name!r}; there is: {', '.join(slugs)}")


def _slug(header: str) -> str:
    return re.sub(r"[ _]+", "-", header.strip().lower())


def _widths(headers: Sequence[str], cells: Rows) -> list[int]:
    return [max(map(len, column)) for column in zip(headers, *cells, strict=True)]


def _within(text: str, widths: Sequence[int], width: int) -> str:
    """Break the last column of a line between words, each further line below its beginning."""
    start = sum(each + len(GAP) for each in widths[:-1])
    if len(text) <= width or width - start < LAST_CHARS_MIN:
        return text
    last = textwrap.wrap(
        text[start:], width - start, break_long_words=False, break_on_hyphens=False
    )
    return f"\n{' ' * start}".join([text[:start] + last[0], *last[1:]])


def _escaped(rows: Rows) -> Rows:
    """Return the rows with every cell escaped; of thousands nearly always none needs it."""
    text = "".join(chain.from_iterable(rows))
    if escape_line(text) == text:
        return rows
    return [[*map(escape_line, row)] for row in rows]


def _short(cell: str) -> str:
    return cell if len(cell) <= CELL_CHARS_MAX else cell[: CELL_CHARS_MAX - 1] + "…"


def _are_bad(headers: Sequence[str], rows: Rows) -> list[bool]:
    """Return of each row whether it is about something wrong."""
    counts = [place for place, header in enumerate(headers) if header in BAD_COUNTS]
    return [
        not BAD_CELLS.isdisjoint(row) or any(row[place] not in ("0", "-") for place in counts)
        for row in rows
    ]
