"""A process answers with the newest lines of its log, bounded, redacted and escaped."""

import json
import logging
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import log_excerpts
from schemas.log_excerpts import (
    AGENT_EXCERPT_BYTES_MAX,
    LINE_CHARS_MAX,
    LINES_MAX,
    LogExcerpt,
    LogRequest,
)
from schemas.messages import encode
from schemas.permissions import AGENT_BYTES_MAX
from schemas.stream_specs import MESSAGE_BYTES_MAX
from services.primitives.clock import SystemClock
from services.primitives.redaction import register_secret
from services.runtime.log_answers import (
    AGE_SECONDS_MAX,
    OVERHEAD_CHARS,
    KeptLine,
    LogAnswers,
    LogMemory,
    LogMemoryHandler,
    excerpt,
    remembered,
)
from tests.redteam.hostile import HOSTILE, UNSAFE

NOW = 1_800_000_000.0


class Clock(SystemClock):
    """A clock that does not go."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(NOW, UTC)


def line(text: str, seconds: float = NOW, origin: str = "") -> KeptLine:
    """Return a kept line."""
    return KeptLine(seconds, "INFO", text, origin)


def memory_of(*lines: KeptLine) -> LogMemory:
    """Return a memory of the lines whose limits they do not reach."""
    memory = LogMemory(100_000, 100_000_000, NOW - 100)
    for each in lines:
        memory.add(each)
    return memory


def shown(
    kept: list[KeptLine], request: LogRequest | None = None, bytes_max: int = 1 << 20
) -> LogExcerpt:
    """Return what is handed out of the kept lines."""
    return excerpt("n1", request or LogRequest(), kept, NOW - 100, NOW, bytes_max)


def texts(found: LogExcerpt) -> list[str]:
    """Return the texts of an excerpt's lines."""
    return [each.text for each in found.lines]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=300), max_size=60), st.integers(1, 50), st.integers(300, 5_000))
def test_an_excerpt_keeps_both_limits_and_has_the_newest_lines(
    given_texts: list[str], lines: int, bytes_max: int
) -> None:
    """An excerpt of any text keeps both limits, and counts the lines that do not fit."""
    kept = [line(text, NOW - 60 + number) for number, text in enumerate(given_texts)]
    found = shown(kept, LogRequest(lines=lines), bytes_max)
    envelope = len(encode(msgspec.structs.replace(found, lines=())))
    assert len(encode(found)) <= bytes_max + envelope
    assert len(found.lines) + found.left_out == min(lines, len(kept))
    everything = shown(kept, LogRequest(lines=LINES_MAX))
    assert texts(found) == texts(everything)[len(kept) - len(found.lines) :]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_one_line_of_visible_characters(text: str) -> None:
    """The worst text that an answer can hold stays within its limits, too."""
    (found,) = texts(shown([line(text)]))
    assert not UNSAFE.search(found)
    assert "\n" not in found
    full = shown(
        [line((text * 8_192)[:8_192]) for _ in range(LINES_MAX)], bytes_max=AGENT_EXCERPT_BYTES_MAX
    )
    assert full.left_out > 0
    assert len(encode(full)) < AGENT_BYTES_MAX
    assert all(len(each) <= LINE_CHARS_MAX for each in texts(full))


def test_a_surrogate_and_a_huge_line_are_answered() -> None:
    """JSON has no lone surrogates, and a line of a megabyte would be the whole answer."""
    found = texts(shown([line("\ud800"), line("x" * 1_000_000)]))
    assert found[0] == "\\ud800"
    assert found[1].endswith("… (cut)")


def test_lines_are_from_the_time_asked_for_and_none_is_old() -> None:
    """Sources are merged in the order of their times."""
    since = datetime.fromtimestamp(NOW - 10, UTC)
    old = AGE_SECONDS_MAX + 1
    kept = [line("b", NOW - 5), line("c", NOW - 1), line("old", NOW - old), line("a", NOW - 11)]
    assert texts(shown(kept, LogRequest(since=since))) == ["b", "c"]
    assert texts(shown(kept)) == ["a", "b", "c"]
    assert texts(shown(kept, LogRequest(lines=1))) == ["c"]
    assert texts(shown(kept, LogRequest(since=since + timedelta(days=1)))) == []


def test_a_memory_keeps_both_limits_and_says_since_when() -> None:
    """The oldest lines make room, also for one that is as large as all."""
    memory = LogMemory(3, 1_000, NOW)
    for number in range(5):
        memory.add(line(str(number), NOW + number))
    kept, since = memory.kept()
    assert ([each.text for each in kept], since) == (["2", "3", "4"], NOW + 1)
    memory.add(line("x" * (1_000 - OVERHEAD_CHARS), NOW + 9))
    assert [len(each.text) for each in memory.kept()[0]] == [1_000 - OVERHEAD_CHARS]
    memory.add(line("x" * 1_000, NOW + 10))
    assert memory.kept() == ([], NOW + 10)


def test_the_handler_keeps_message_fields_and_the_end_of_a_traceback() -> None:
    """Lines are kept as the log has them; one that cannot be written fails no caller."""
    with remembered(10, 100_000, Clock().now) as memory:
        log = logging.getLogger("test_log_answers")
        log.warning("disk %d", 7, extra={"http": "http://x"})
        log.error("failed", exc_info=ValueError("z" * 5_000 + "the end"))
        raising, logging.raiseExceptions = logging.raiseExceptions, False
        log.warning("%d", "no number")
        logging.raiseExceptions = raising
    logging.getLogger("test_log_answers").warning("afterwards")
    kept, since = memory.kept()
    assert [each.level for each in kept] == ["WARN", "ERROR"]
    assert kept[0].text == 'disk 7 {"http": "http://x"}'
    assert kept[1].text.startswith("failed ")
    assert kept[1].text.endswith("the end")
    assert len(kept[1].text) < 2_000
    assert since == NOW


def test_a_secret_is_in_no_line() -> None:
    """Not where the line is cut, nor in a field or a traceback, nor if it was read afterwards."""
    secret, later = "s3cret-" + "k" * 40, "l4ter-" + "m" * 40
    register_secret(secret)
    memory = memory_of()
    handler = LogMemoryHandler(memory)
    for pad in range(1_990, 2_060):
        record = logging.LogRecord("n", logging.INFO, "", 1, "%s", ("p" * pad + secret,), None)
        record.url = "q" * (pad - 1_030) + secret
        handler.handle(record)
    made = logging.LogRecord("n", logging.INFO, "", 1, later, (), None)
    made.exc_info = (ValueError, ValueError(secret + "e" * 1_000), None)
    handler.handle(made)
    register_secret(later)
    kept, since = memory.kept()
    every = encode(excerpt("n1", LogRequest(lines=LINES_MAX), kept, since, NOW * 2, 1 << 20))
    every += encode(
        excerpt("n1", LogRequest(lines=LINES_MAX), kept, since, kept[0].seconds, 1 << 20)
    )
    assert b"[secret]" in every
    for each in (secret, later):
        assert each[:9].encode() not in every


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b"[",
        b"[" * 100_000,
        b'{"lines": 0}',
        b'{"lines": 100000}',
        b'{"since": "9999-12-31T23:59:59Z"}',
        b'{"since": "2026-01-01T00:00:00"}',
        b'{"%s": 1}' % (b"x" * 200_000),
        b'{"replica": "%s"}' % (b"x" * 200_000),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_in_a_sentence(data: bytes) -> None:
    """A short one: an agent's answer of more than 64 KiB would end its connection."""
    answer = await LogAnswers("n1", memory_of(line("a")), Clock(), 1_000).answer(data, {})
    found = msgspec.json.decode(answer, type=LogExcerpt)
    assert "cannot be read" in found.refused
    assert found.lines == ()
    assert len(answer) < 1_000


async def test_only_what_is_asked_for_is_answered() -> None:
    """The kernel's lines alone, or one replica's; others say who they are."""
    own, kernel = memory_of(line("own")), memory_of(line("NVRM", origin="kernel"))
    answers = LogAnswers("p-1", own, Clock(), 1_000, kernel)
    plain = LogAnswers("p-2", own, Clock(), 1_000)

    async def asked(of: LogAnswers, **request: object) -> LogExcerpt:
        return msgspec.json.decode(
            await of.answer(json.dumps(request).encode(), {}), type=LogExcerpt
        )

    assert texts(await asked(answers)) == ["own", "NVRM"]
    assert texts(await asked(answers, kernel=True)) == ["NVRM"]
    assert texts(await asked(plain, kernel=True)) == []
    assert texts(await asked(plain, replica="p-2")) == ["own"]
    other = await asked(plain, replica="p-1")
    assert (other.source, other.lines, other.refused) == ("p-2", (), "")


def test_every_answer_fits_one_message() -> None:
    """The limits leave room for what is around the lines."""
    assert log_excerpts.AGENT_EXCERPT_BYTES_MAX < AGENT_BYTES_MAX - 4_096
    assert log_excerpts.SERVICE_EXCERPT_BYTES_MAX < MESSAGE_BYTES_MAX - 4_096
