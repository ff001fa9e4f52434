"""Tables and texts within 80 columns: columns go, words stay whole; and how lists are chosen."""

import re
from collections.abc import Sequence
from typing import Final

import pytest
from typer.main import get_command

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli import console
from services.cli.app import app
from services.cli.commands import (
    alert_commands,
    breaker_commands,
    evidence_command,
    join_commands,
    nats_config_commands,
    plugin_commands,
    report_commands,
    saga_commands,
)
from services.cli.text import instances_text, tables
from services.cli.text.styles import BOLD, RESET, to_terminal, wrapped
from services.cli.text.table_layout import chosen, columns, fitting, name_header, sort_key
from services.primitives.errors import NavarchError
from tests.cli.test_http_commands import READS, Place, fill
from tests.support.output_shapes import overlong
from tests.support.terminals import in_terminal

HEADERS = ("node", "provider", "age", "remarks")
ROWS = [
    ("n1", "aws", "1d2h", "cordoned, saga replace-n1-1"),
    ("n20", "gcp", "59s", "-"),
    ("n3", "-", "3m", "held"),
]
TERMINAL = 80
WIDE = re.compile("-o (wide|json|yaml)")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (0, ["NODE  PROVIDER  AGE   REMARKS", "n1    aws       1d2h  cordoned, saga replace-n1-1"]),
        (
            50,
            ["NODE  PROVIDER  AGE   REMARKS", "n1    aws       1d2h  cordoned, saga replace-n1-1"],
        ),
        (36, ["NODE  AGE   REMARKS", "n1    1d2h  cordoned, saga"]),
        (32, ["NODE  AGE   REMARKS", "n1    1d2h  cordoned, saga"]),
        (20, ["NODE  AGE   REMARKS", "n1    1d2h  cordoned, saga replace-n1-1"]),
    ],
)
def test_columns_of_low_priority_go_and_words_stay_whole(width: int, expected: list[str]) -> None:
    """The last column goes on below its beginning, unless there is no room for it."""
    lines = columns(HEADERS, ROWS, colour=False, width=width).splitlines()
    assert lines[:2] == expected
    if width in (32, 36):
        assert lines[2] == f"{' ' * lines[0].index('REMARKS')}replace-n1-1"


def test_the_first_and_the_last_column_stay_in_any_terminal() -> None:
    """A terminal of one character has them, too."""
    assert fitting(("id", "price", "provider", "used by"), (20, 9, 9, 90), 1) == [0, 3]


@pytest.mark.parametrize(
    ("names", "sort_by", "expected"),
    [
        ((), "age", ["n20", "n3", "n1"]),
        ((), "-age", ["n1", "n3", "n20"]),
        ((), "provider", ["n1", "n20", "n3"]),
        ((), "-provider", ["n20", "n1", "n3"]),
        (("AGE", "Node"), "", ["1d2h", "59s", "3m"]),
        (("nodes",), "", "there is no column 'nodes'; there is: node, provider, age, remarks"),
        ((), "x", "there is no column 'x'; there is: node, provider, age, remarks"),
    ],
)
def test_columns_are_chosen_and_rows_are_sorted(
    names: tuple[str, ...], sort_by: str, expected: list[str] | str
) -> None:
    """Ages count as what they last, and rows without a value come last both ways."""
    if isinstance(expected, str):
        with pytest.raises(NavarchError, match=expected):
            chosen(HEADERS, ROWS, names=names, sort_by=sort_by)
    else:
        _, rows = chosen(HEADERS, ROWS, names=names, sort_by=sort_by)
        assert [row[0] for row in rows] == expected


def test_numbers_are_sorted_as_numbers() -> None:
    """Texts come after them."""
    cells = ["10", "9", "1,000.50", "b", "a", "0.5"]
    assert sorted(cells, key=sort_key) == ["0.5", "9", "10", "1,000.50", "a", "b"]


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (HEADERS, "node"),
        (("saga", "pool", "node"), "saga"),
        (("severity", "age", "since", "key", "title"), "key"),
        (("unhealthy since", "node", "saga"), "node"),
        (("action", "because"), "action"),
    ],
)
def test_a_row_has_a_name(headers: tuple[str, ...], name: str) -> None:
    """`-o name` prints it."""
    assert name_header(headers) == name


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("one two three", 80, "one two three"),
        ("one two three", 8, "one two\n  three"),
        ("  one two three", 9, "  one two\n    three"),
        (f"{BOLD}one{RESET} two three", 8, f"{BOLD}one{RESET} two\n  three"),
        ("a-very-long-name b", 5, "a-very-long-name\n  b"),
        ("one\ntwo", 3, "one\ntwo"),
        ("", 3, ""),
    ],
)
def test_a_line_is_broken_between_words(text: str, width: int, expected: str) -> None:
    """Styles have no width; what is longer than the terminal stays whole, to be copied."""
    assert wrapped(text, width) == expected


async def _place(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Place:
    command = get_command(app)
    monkeypatch.setattr("services.cli.command_table.command_line", lambda *_: command)
    await fill(manager)
    return Place(server.url, "")


@pytest.mark.slow
async def test_nothing_breaks_inside_a_word_at_80_columns(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of any command that reads is no longer than the terminal, unless it is one word."""
    place = await _place(manager, server, monkeypatch)
    monkeypatch.setattr(console, "width", lambda: TERMINAL)  # no terminal is in the way of output
    for line in READS:
        if WIDE.search(line):
            continue
        _, out, _ = await place.run(line, NAVARCH_NATS_URL=server.url)
        titles = [each for each in out.splitlines() if each.strip().isupper()]
        assert not any(each.startswith(" ") for each in titles), line
        assert overlong(out, TERMINAL) == [], line


AGED: Final = {
    **dict.fromkeys(("list", "instances", "leaked", "evidence", "hardware list"), "age"),
    **dict.fromkeys(("saga list --all --since 300d", "alerts list", "breaker show"), "age"),
    "status": "open alert  age",
}
"""Lists of what has a beginning -> what their heading has."""


@pytest.mark.slow
async def test_what_has_a_beginning_has_an_age_at_80_columns(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of its beginning goes first where there is no room; `-o wide` has both."""
    place = await _place(manager, server, monkeypatch)
    monkeypatch.setattr(console, "width", lambda: TERMINAL)
    for line, heading in AGED.items():
        _, out, err = await place.over_bus(line)
        titles = [each for each in out.splitlines() if each.isupper()]
        assert any(heading.upper() in each for each in titles), (line, out, err)
    for line in ("alerts list", "leaked", "hardware list", "breaker show"):
        _, out, _ = await place.over_bus(f"{line} -o wide")
        assert {"AGE", "SINCE"} <= {*out.split()}, line


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        (tables.POOL_HEADERS, ("pool", "desired", "healthy", "unhealthy", "breaker")),
        (saga_commands.HEADERS, ("saga", "status", "step", "age", "waiting for")),
        (saga_commands.ALL_HEADERS, ("saga", "status", "age", "reason")),
        (breaker_commands.HEADERS, ("pool", "breaker", "age", "unhealthy, waiting", "why")),
        (alert_commands.HEADERS, ("severity", "age", "key", "title")),
        (evidence_command.HEADERS, ("unhealthy since", "age", "node", "fault", "saga")),
        (instances_text.LEAKED_HEADERS, ("instance", "age", "$/hour", "so far", "last error")),
        (join_commands.HEADERS, ("node", "state", "age", "ends")),
        (plugin_commands.HEADERS, ("name", "state", "failures", "last error")),
        (report_commands.HEADERS, ("pool", "fault", "count", "repaired in: median")),
        (nats_config_commands.USER_HEADERS, ("name", "role", "state", "age", "until (utc)")),
    ],
)
def test_what_matters_stays_in_a_narrow_terminal(
    headers: Sequence[str], kept: Sequence[str]
) -> None:
    """Cells are as wide as a long name, and still the columns that say what is wrong are there."""
    width = TERMINAL + sum(map(len, kept))
    places = fitting(headers, [max(len(each), TERMINAL // 6) for each in headers], width)
    assert {*kept} <= {headers[each] for each in places}
    one_character = fitting(headers, [1_000 for _ in headers], 1)
    assert not {"since", "began", "deadline", "p95"} & {headers[each] for each in one_character}


LISTED = [
    ("list -o name", "training-1\ntraining-2\ntraining-3\n"),
    ("list --columns node,gpus --no-headers", "training-1  8\ntraining-2  8\ntraining-3  8\n"),
    ("list --sort-by -node --columns node --no-headers", "training-3\ntraining-2\ntraining-1\n"),
    ("list --columns node,zone", "NODE        ZONE\ntraining-1  -\ntraining-2  -\ntraining-3  -\n"),
    ("list -o jsonpath={[*].id}", "training-1\ntraining-2\ntraining-3\n"),
    ("get training-2 -o jsonpath=.health_events[0].code", "79\n"),
    ("get training-2 -o jsonpath=$.nothing", ""),
    ("""list -o 'jsonpath=$[?(@.health=="unhealthy")].id'""", "training-2\n"),
    ("pool list -o name", "training\n"),
    ("saga list --all --since 300d -o name", "replace-training-2-1\ndrain-training-3-1\n"),
    ("alerts list -o name", "silence/training-1\nsilence/serving-1\n"),
    ("instances -o name", "training-1\ntraining-3\ntraining-0\ntraining-2\n"),
    ("list --health unknown -o name", ""),
    ("list --pool training --health unknown --no-headers", ""),
]
WRONG = [
    ("list --columns size", 1, "there is no column 'size'; there is: node, pool, status"),
    ("list --sort-by size", 1, "there is no column 'size'"),
    ("list -o xml", 2, "'xml' is none of table, wide, json, yaml, name, jsonpath=EXPRESSION"),
    ("get training-1 -o name", 2, "'name' is none of table, wide, json, yaml, jsonpath=EXPRESS"),
    ("list -o jsonpath=[", 2, "is no JSONPath"),
    ("list -o jsonpath", 2, "'jsonpath' is none of"),
    ("list -o json=x", 2, "'json=x' is none of"),
]


@pytest.mark.slow
async def test_lists_are_printed_as_scripts_want_them(
    manager: NatsBus, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names alone, chosen columns, a JSONPath; and what cannot be is one sentence."""
    place = await _place(manager, server, monkeypatch)
    for line, printed in LISTED:
        code, out, err = await place.over_bus(line)
        assert (code, err) == (0, ""), (line, err)
        assert _rows(out) == _rows(printed), line
    for line, expected, said in WRONG:
        code, out, err = await place.over_bus(line)
        assert (code, out, said in " ".join(err.split())) == (expected, "", True), (line, err)


def _rows(text: str) -> list[str]:
    return sorted(text.splitlines())


async def test_errors_are_broken_between_words_too(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """A terminal has no line that is longer than it is wide."""
    assert manager.connected
    code, shown = await in_terminal("list", "--columns", "size", url=server.url, columns=60)
    assert (code, shown.startswith("navarch: there is no column 'size'")) == (1, True)
    assert max(map(len, shown.splitlines())) <= 60


def test_a_style_is_no_text() -> None:
    """A wrapped line keeps its colours to its end."""
    assert to_terminal(wrapped(f"{BOLD}a b{RESET}", 1)) == "\x1b[1ma\n  b\x1b[0m"
