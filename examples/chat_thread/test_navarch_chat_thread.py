"""Runs Navarch's suite for alert channels against a chat, and reads its threads."""

import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from msgspec.structs import replace
from navarch.schemas.alert_records import Alert
from navarch.services.notifier.alerts.alert_channel import ChannelRefusalError
from navarch.services.notifier.conformance import ChannelConformance
from navarch.services.primitives.clock import SystemClock
from navarch_chat_thread import TEXT_CHARS_MAX, ChatThread

ALERT = Alert(
    severity="critical",
    title="two nodes are unhealthy",
    text="Nothing is to be done.",
    kind="breaker-opened",
    key="breaker/training",
    event="e-1",
    time=datetime(2030, 1, 7, tzinfo=UTC),
)
END = replace(ALERT, event="e-2", resolved=True)


class Chat(ThreadingHTTPServer):
    """Serves a chat in a thread of this process."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Webhook)
        self.threads: dict[str, list[str]] = {}
        self.status = 201
        self.ids = itertools.count(1)

    @property
    def url(self) -> str:
        """Return the webhook's address."""
        return f"http://127.0.0.1:{self.server_port}/hooks/secret"

    def post(self, message: dict[str, str | None]) -> tuple[int, dict[str, str]]:
        """Take a message; return the status and the answer."""
        text, thread = message["text"] or "", message["thread"] or f"t-{next(self.ids)}"
        if self.status != 201:
            return self.status, {"error": "no such room"}
        if len(text) > TEXT_CHARS_MAX:
            return 413, {"error": "too long"}
        if message["thread"] and thread not in self.threads:
            return 404, {"error": "no such thread"}
        self.threads.setdefault(thread, []).append(text)
        return 201, {"thread": thread}


class Webhook(BaseHTTPRequestHandler):
    """Passes each message to the chat."""

    server: Chat

    def do_POST(self) -> None:
        """Answer one message."""
        body = self.rfile.read(int(self.headers["content-length"]))
        status, answer = self.server.post(json.loads(body))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Write nothing into the output of the tests."""


@pytest.fixture
def chat() -> Iterator[Chat]:
    """Serve an empty chat."""
    with Chat() as served:
        thread = Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def channel(url: str) -> ChatThread:
    """Return the channel into a room of the chat."""
    options = ChatThread.Options(url=url, room="gpu-fleet")
    return ChatThread(options=options, clock=SystemClock())


class TestChatThread(ChannelConformance):
    """Sends alerts to a side that answers, and to one that is away."""

    @pytest.fixture
    def make(self, chat: Chat) -> Callable[[], ChatThread]:
        """Return what makes the channel, whose other side answers."""
        return lambda: channel(chat.url)

    @pytest.fixture
    def unreachable(self) -> Callable[[], ChatThread]:
        """Return what makes the channel, whose other side is away."""
        return lambda: channel("http://127.0.0.1:1")


async def test_an_alert_and_its_end_are_one_thread(chat: Chat) -> None:
    """The receipt is the thread, and another alert begins another one."""
    found = channel(chat.url)
    begun = await found.send(ALERT, "")
    await found.send(replace(ALERT, key="breaker/other"), "")
    ended = await found.send(END, begun.receipt)
    await found.close()
    assert ended.receipt == begun.receipt == "t-1"
    assert [each.partition(":")[0] for each in chat.threads["t-1"]] == ["CRITICAL", "Over"]
    assert len(chat.threads) == 2


async def test_a_thread_that_was_deleted_is_begun_again(chat: Chat) -> None:
    """An operator who deletes the thread hears of the end none the less."""
    found = channel(chat.url)
    assert (await found.send(END, "t-deleted")).receipt == "t-1"
    await found.close()


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, ChannelRefusalError), (429, ConnectionError), (503, ConnectionError)],
)
async def test_a_refusal_is_no_outage(chat: Chat, status: int, error: type[Exception]) -> None:
    """Only what no repetition helps is a refusal; no error has the webhook's secret address."""
    chat.status = status
    found = channel(chat.url)
    with pytest.raises(error, match=f"{status}: .*no such room") as raised:
        await found.send(ALERT, "")
    assert "secret" not in str(raised.value)
    await found.close()
