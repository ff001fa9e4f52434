"""`navarch logs`: lines of a node's agent and of a service's replicas, or why there are none."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.fleet_queries import NodeView
from schemas.log_excerpts import LogExcerpt, LogLine, LogRequest
from schemas.messages import encode
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.cli.text.log_text import log_lines, statements
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.service_orders import node_logs
from services.primitives.errors import NavarchError
from tests.cli.test_commands import navarch
from tests.redteam.hostile import HOSTILE, UNSAFE
from tests.support import inprocess
from tests.support.secured import Secured
from tests.support.service_process import service_process

AT = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
OF_NODE = subjects.node_command("training", "training-1", "logs")
PROCESS_SECONDS_MAX = 120


def excerpt(source: str, *lines: tuple[int, str], **more: object) -> LogExcerpt:
    """Return an excerpt whose lines are so many seconds after AT."""
    found = tuple(
        LogLine(time=AT + timedelta(seconds=at), level="INFO", text=text) for at, text in lines
    )
    return LogExcerpt(source=source, lines=found, **more)


async def answering(bus: NatsBus, subject: str, answer: LogExcerpt) -> list[LogRequest]:
    """Answer what is asked there; what was asked."""
    asked: list[LogRequest] = []

    async def answers(data: bytes, _: Headers) -> bytes:
        asked.append(msgspec.json.decode(data, type=LogRequest))
        return encode(answer)

    await bus.answer(subject, answers)
    return asked


async def test_logs_of_a_node_are_what_its_agent_answers(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The kernel's are marked; what is left out is on stderr."""
    kernel = LogLine(time=AT, level="ERROR", text="NVRM: Xid", origin="kernel")
    drill = LogLine(time=AT, level="ERROR", text="NVRM: drill", origin="user")
    answer = LogExcerpt(source="training-1", lines=(kernel, drill), left_out=7)
    asked = await answering(manager, OF_NODE, answer)
    options = ("-n", "5", "--kernel", "--since", "2026-11-21T01:00:00Z")
    status, out, err = await navarch("logs", "training-1", *options, url=server.url)

    first, second = out.splitlines()
    assert status == 0
    assert first.endswith("ERROR  kernel: NVRM: Xid")
    assert second.endswith("ERROR  kernel log, by a process: NVRM: drill")
    assert "7 earlier lines do not fit" in err
    since = datetime(2026, 11, 21, 1, tzinfo=UTC)
    assert asked == [LogRequest(lines=5, kernel=True, since=since)]
    _, out, _ = await navarch("logs", "training-1", "-o", "json", url=server.url)
    assert msgspec.convert(json.loads(out), tuple[LogExcerpt, ...]) == (answer,)


async def test_logs_of_a_service_are_those_of_every_replica(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Lines of every replica are in the order of their times, the newest of all.

    One replica's lines are shown where it is named.
    """
    subject = subjects.service_logs("notifier")
    await answering(manager, subject, excerpt("notifier-1-ab", (0, "one"), (2, "three")))
    await answering(manager, subject, excerpt("notifier-2-cd", (1, "two"), (3, "four")))
    _, out, _ = await navarch("logs", "notifier", "-n", "3", url=server.url)
    _, one, _ = await navarch("logs", "notifier/notifier-2", url=server.url)
    status, _, err = await navarch("logs", "notifier/notifier-3", url=server.url)

    assert [line.split()[-2:] for line in out.splitlines()] == [
        ["notifier-2-cd", "two"],
        ["notifier-1-ab", "three"],
        ["notifier-2-cd", "four"],
    ]
    assert [line.split()[-1] for line in one.splitlines()] == ["two", "four"]
    assert status == 1
    assert "no replica 'notifier-3'; there are: notifier-1-ab, notifier-2-cd" in err


async def test_a_replica_that_does_not_answer_is_counted(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """A silent replica is counted, as one that was asked too often; no lines are no error."""
    subject = subjects.service_logs("notifier")
    for _ in range(2):
        await manager.serve("notifier", "one of two", {})
    await answering(manager, subject, excerpt("notifier-1"))
    status, out, err = await navarch("logs", "notifier", url=server.url)
    assert (status, out) == (0, "There are no such lines.\n")
    assert "navarch: 1 of 2 replicas of the notifier answered" in err


UNSHOWN = [
    (("notifier",), "no replica of the notifier answers: does it run?"),
    (("pool-manager",), "runs, and does not answer this request: it"),
    (("gateway",), "no replica of the gateway answers: does it run?"),
    (("pool-manger",), "no node 'pool-manger'; see navarch list. The service is called pool-m"),
    (("training-9",), "there is no node 'training-9'; see navarch list\n"),
    (("training",), "'training' is the beginning of several nodes"),
    (("training-1",), "the agent of training-1 does not answer: it has ended, or its"),
    (("notifier", "--kernel"), "only nodes have kernel lines"),
    (("training-1", "-n", "0"), "not in the range 1<=x<=1000"),
    (("training-1", "-n", "1001"), "not in the range 1<=x<=1000"),
    (("training-1", "--since", "yesterday"), "neither a duration"),
    (("",), "there is no node ''"),
    (("../../x",), "there is no node '../../x'"),
    (("notifier/*.>",), "no replica of the notifier answers"),
]


@pytest.mark.usefixtures("manager")
async def test_what_cannot_be_shown_is_one_sentence(server: EmbeddedServer) -> None:
    """The sentence names the cause, and what to do."""
    few = asyncio.Semaphore(3)

    async def run(arguments: tuple[str, ...]) -> tuple[int, str, str]:
        async with few:
            return await navarch("logs", *arguments, url=server.url)

    found = await asyncio.gather(*(run(each) for each, _ in UNSHOWN))
    for (arguments, words), (status, out, err) in zip(UNSHOWN, found, strict=True):
        assert (status in (1, 2), out) == (True, ""), arguments
        assert words in err, arguments


async def test_an_agent_of_an_older_release_is_named_as_such(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """An agent of an older release answers other requests, so the error says that it runs."""

    async def ping(_: bytes, __: Headers) -> bytes:
        return b"{}"

    await manager.answer(subjects.node_command("training", "training-1", "ping"), ping)
    status, _, err = await navarch("logs", "training-1", url=server.url)
    assert status == 1
    assert "runs, and does not answer this request: it" in err


async def test_a_node_without_a_living_agent_is_named_as_such(bus: NatsBus) -> None:
    """A node without a living agent is named without a wait."""
    cases: tuple[tuple[dict[str, object], str], ...] = (
        ({"status": "launching"}, "is launching"),
        ({"status": "terminated"}, "`navarch evidence training-1`"),
        ({"status": "active", "lost": True}, "is lost: its heartbeats stopped"),
    )
    about = {"id": "training-1", "pool": "training", "health": "unknown"}
    for fields, words in cases:
        view = msgspec.convert(about | fields, NodeView)
        with pytest.raises(NavarchError, match=words):
            await node_logs(FleetClient(bus), view, LogRequest())


@pytest.mark.parametrize(
    "answer", [b"", b"[" * 9_999, b'{"error": "invalid-request", "reason": "x"}']
)
async def test_an_answer_that_is_none_is_one_sentence(
    manager: NatsBus, server: EmbeddedServer, answer: bytes
) -> None:
    """A node's root can answer anything, and the error is one sentence."""

    async def answers(_: bytes, __: Headers) -> bytes:
        return answer

    await manager.answer(OF_NODE, answers)
    status, out, err = await navarch("logs", "training-1", url=server.url)
    assert (status, out) == (1, "")
    assert err.startswith("navarch: the agent of training-1 answered with no log lines")
    assert err.count("\n") == 1


async def test_a_refusal_is_shown(manager: NatsBus, server: EmbeddedServer) -> None:
    """A refusal of an agent is shown, and that of one of several replicas."""
    refused = excerpt("x", refused="it is asked too often\x1b[31m")
    await answering(manager, OF_NODE, refused)
    status, _, err = await navarch("logs", "training-1", url=server.url)
    assert (status, "refuses: it is asked too often\\u001b[31m" in err) == (1, True)
    subject = subjects.service_logs("notifier")
    await answering(manager, subject, excerpt("a", (0, "one")))
    await answering(manager, subject, refused)
    status, out, err = await navarch("logs", "notifier", url=server.url)
    assert (status, "one" in out, "x refuses: it is asked too often" in err) == (0, True, True)


@pytest.mark.parametrize(
    ("lines", "since", "said"), [(3, None, True), (2, None, False), (3, 60, False), (3, -60, True)]
)
def test_where_earlier_lines_are_is_said_if_some_are_wanted(
    lines: int, since: int | None, said: bool
) -> None:
    """Not where there are enough, or all that was asked for."""
    found = [excerpt("n-1", (0, "a"), kept_since=AT), excerpt("n-2", (0, "b"))]
    start = None if since is None else AT + timedelta(seconds=since)
    shown = statements(found, LogRequest(lines=lines, since=start))
    assert [each.startswith("n-1 keeps its lines since") for each in shown] == [True] * said


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_forged_answer_is_shown_as_text(text: str) -> None:
    """A node's root may forge every field, and each is shown as text."""
    line = LogLine(time=AT, level=text, text=text, origin=text)
    forged = [LogExcerpt(source=text, lines=(line,), refused=text), excerpt(text, left_out=3)]
    shown = [log_lines(forged, 10, colour=False), *statements(forged, LogRequest())]
    assert not UNSAFE.search("".join(shown))
    assert all("\n" not in each for each in shown)


async def test_a_viewer_learns_which_role_it_takes(secured: Secured, tmp_path: Path) -> None:
    """A viewer is refused with the role to have, and an operator is answered."""
    notifier = await NatsBus.connect(secured.options("notifier"))
    await answering(notifier, subjects.service_logs("notifier"), excerpt("notifier-1", (0, "one")))
    found = []
    for role in ("viewer", "operator"):
        environment = {
            "NAVARCH_NATS_URL": secured.url,
            "NAVARCH_NATS_CREDS_FILE": str(secured.file(role)),
        }
        found.append(await inprocess.navarch("logs", "notifier", cwd=tmp_path, **environment))
    await notifier.close()
    (refused, _, err), (status, out, _) = found
    assert (refused, "reading logs needs the role operator" in err) == (1, True)
    assert (status, out.split()[-1]) == (0, "one")


async def test_a_real_service_answers(server: EmbeddedServer, bus: NatsBus) -> None:
    """A service that runs as a process answers from its start on."""
    subject = subjects.service_logs("notifier")
    async with service_process("services.notifier", server.url, seconds_max=PROCESS_SECONDS_MAX):
        while not any('"http": "' in each.text for each in await asked(bus, subject)):
            await asyncio.sleep(0.5)  # not so often that it refuses
        status, out, _ = await navarch("logs", "notifier", url=server.url)
    assert (status, "INFO   ready {" in out) == (0, True)


async def asked(bus: NatsBus, subject: str) -> list[LogLine]:
    """Return the lines of every replica."""
    answers = await bus.request_all(subject, b"", 0.2, 5)
    found = [msgspec.json.decode(each, type=LogExcerpt) for each in answers]
    return [line for each in found for line in each.lines]
