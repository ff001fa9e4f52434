"""`navarch events` and `logs` end with what there is, and follow what comes with --follow."""

from datetime import timedelta

import pytest

from schemas.log_excerpts import LINES_MAX, LogExcerpt, LogRequest
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.log_follow import OVERLAP_SECONDS, LinesShown, follow_lines
from services.primitives.errors import NavarchError
from tests.cli.test_commands import navarch
from tests.cli.test_logs import AT, excerpt
from tests.support.terminals import in_terminal


async def test_events_of_a_terminal_end_and_say_how_they_go_on(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The command had waited without --follow; programs get no such line."""
    assert manager.connected
    code, out, err = await navarch("events", url=server.url)
    assert (code, out, err) == (0, "Nothing happened since 15m.\n", "")
    code, shown = await in_terminal("events", url=server.url)
    assert (code, shown.count("--follow goes on")) == (0, 1)


LATE = excerpt("n1", (-9, "kernel"), (1, "b"), (1, "b"), (2, "c"))
POLLS = [
    # answers, in turn; the lines that are shown of each
    ([excerpt("n1", (0, "a"), (1, "b")), excerpt("n1", (0, "a"), (1, "b"))], ["a b", ""]),
    ([excerpt("n1", (0, "a"), (1, "b")), LATE], ["a b", "kernel b c"]),
    ([excerpt("n1", (0, "a")), excerpt("n2", (0, "a"))], ["a", "a"]),
    ([excerpt("n1"), excerpt("n1", (0, "a")), excerpt("n1")], ["", "a", ""]),
    ([excerpt("n1", (0, "a")), excerpt("n1", (99, "b")), excerpt("n1", (99, "b"))], ["a", "b", ""]),
]


@pytest.mark.parametrize(("answers", "expected"), POLLS)
def test_a_line_is_shown_once_however_often_it_is_answered(
    answers: list[LogExcerpt], expected: list[str]
) -> None:
    """Equal lines of one moment are several; a line that is kept late is shown late."""
    shown = LinesShown()
    found = [" ".join(line.text for line in shown.unshown([each])[0].lines) for each in answers]
    assert found == expected


async def test_followed_logs_go_on_over_a_restart(capsys: pytest.CaptureFixture[str]) -> None:
    """Later questions ask from the newest lines on; a process that is away is named once."""
    asked: list[LogRequest] = []
    answers = iter((excerpt("n1", (60, "a")), None, None, excerpt("n1", (61, "b"))))

    async def ask(request: LogRequest) -> tuple[LogExcerpt, ...]:
        asked.append(request)
        if (found := next(answers)) is None:
            raise NavarchError("the agent of n1 does not answer")
        return (found,)

    following = follow_lines(ask, LogRequest(lines=5, kernel=True), poll_seconds=0.0)
    found = [await anext(following) for _ in range(2)]
    await following.aclose()

    assert [[line.text for line in each.lines] for (each,) in found] == [["a"], ["b"]]
    since = AT + timedelta(seconds=60 - OVERLAP_SECONDS)
    first, *later = asked
    assert first == LogRequest(lines=5, kernel=True)
    assert later == [LogRequest(lines=LINES_MAX, kernel=True, since=since)] * 3
    assert capsys.readouterr().err.count("does not answer; it is asked again") == 1
