"""A gateway whose slots strangers fill goes on answering probes and authenticated callers."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.runtime.connection_slots import FILES_WANTED, ConnectionSlots, site
from services.runtime.process_http import allow_open_files
from tests.gateway.test_gateway_process import gateway_process
from tests.support.busyness import allowed

FLOOD: Final = 4_300
AT_ONCE: Final = 200
ANSWER_SECONDS_MAX: Final = 2.0
"""An answer takes milliseconds; the liveness probe of a deployment waits 5 s."""
MANY: Final = [f"127.0.1.{each}" for each in range(1, 44)]
TOKEN: Final = "a-token-of-sixteen-or-more"
PIPELINED: Final = 20
METRICS: Final = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
UNFINISHED: Final = b"GET /api/v1/pools HTTP/1.1\r\nHost: x\r\nX-Long: "


@asynccontextmanager
async def flood(port: int, hosts: list[str], sent: bytes) -> AsyncIterator[None]:
    """Open that many connections from these addresses, each with a part of a request."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(host: str) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        writer.write(sent)
        writers.append(writer)

    # A process that may open fewer files has fewer slots, too.
    many = min(FLOOD, allow_open_files() - 2 * AT_ONCE)
    turns = itertools.islice(itertools.cycle(hosts), many)
    try:
        while some := list(itertools.islice(turns, AT_ONCE)):
            await asyncio.gather(*map(connect, some))
        yield
    finally:
        for each in writers:
            each.transport.abort()


@pytest.mark.slow
@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize(
    ("hosts", "sent"),
    [
        pytest.param(["127.0.0.1"], UNFINISHED, id="one-address"),
        pytest.param(MANY, UNFINISHED, id="many-addresses"),
        pytest.param(MANY, b"", id="nothing-sent"),
        pytest.param(MANY, METRICS * PIPELINED, id="metrics-of-many"),
        pytest.param(["127.0.0.1"], METRICS * PIPELINED, id="metrics-of-one"),
    ],
)
async def test_callers_are_answered_under_a_flood(
    server: EmbeddedServer, tmp_path: Path, hosts: list[str], sent: bytes
) -> None:
    """4,300 requests without an end had the gateway answer 503 to all, and to its probes."""
    file = tmp_path / "navarch.yaml"
    file.write_text("gateway: {probes_port: 0}\n")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with gateway_process(server.url, file, NAVARCH_AUTH_TOKEN=TOKEN) as ready:
        url = httpx.URL(ready["http"])
        assert url.port is not None
        wait = allowed(ANSWER_SECONDS_MAX)
        follow = "/api/v1/events/stream"
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(base_url=url, headers=headers, timeout=wait) as early,
            early.stream("GET", follow, timeout=None) as stream,
            flood(url.port, hosts, sent),
        ):
            for address in (url, ready["probes"]):
                async with httpx.AsyncClient(base_url=address, timeout=wait) as probe:
                    for path in ("/livez", "/readyz", "/metrics"):
                        assert (await probe.get(path)).status_code == 200
            async with httpx.AsyncClient(base_url=url, timeout=wait) as late:
                assert (await late.get("/api/v1/caller")).status_code == 401
                assert (await late.get("/api/v1/caller", headers=headers)).status_code == 200
            assert (await early.get("/api/v1/caller")).status_code == 200
            assert stream.status_code == 200
            assert not stream.is_closed


def slots() -> ConnectionSlots[str]:
    """Return few slots: four of strangers, two for each address, and two of known callers."""
    return ConnectionSlots(strangers_max=4, of_address_max=2, known_max=8)


@pytest.mark.parametrize(
    ("opened", "ended"),
    [
        ("a1 a2", ""),
        ("a1 a2 a3", "a1"),
        ("a1 b1 a2 a3", "a1"),
        ("b1 a1 a2 a3 a4", "a1 a2"),
        ("a1 b1 c1 d1 e1", "a1"),
        ("a1 b1 c1 d1 e1 f1 a2 a3", "a1 b1 c1 d1"),
        ("a1 a2 -a1 a3", ""),
        ("a1 +a1 a2 a3 a4", "a2"),
        ("a1 +a1 +a1 b1 c1 d1 e1", ""),
        ("a1 +a1 a2 +a2 a3 a4 a5 +a9", "a3"),
    ],
)
def test_the_oldest_connection_of_a_stranger_ends(opened: str, ended: str) -> None:
    """The oldest of an address ends for one of it; `+`: its caller is known, `-`: it has ended."""
    made, found = slots(), []
    for each in opened.split():
        if each[0] == "+":
            made.know(each[1:], each)
        elif each[0] == "-":
            made.remove(each[1:])
        elif (other := made.add(each, each[0])) is not None:
            found.append(other)
    assert found == ended.split()


def test_known_callers_have_slots_of_their_own() -> None:
    """One beyond them is refused, and is served once another has ended; none counts twice."""
    made: ConnectionSlots[str] = ConnectionSlots(known_max=2)
    for each in ("a", "b", "c"):
        made.add(each, each)
    assert [made.know(each, each) for each in ("a", "b", "c", "a", "stranger")] == [
        *(True, True, False, True, False)
    ]
    made.remove("a")
    assert made.know("c", "c")


def test_one_caller_has_a_share_of_them() -> None:
    """Later connections count as strangers' until others of the same caller have ended."""
    made = slots()
    for each in ("a1", "a2", "a3", "b1"):
        made.add(each, each)
        assert made.know(each, each[0]) == (each != "a3")
    assert made.is_stranger("a3")
    made.remove("a1")
    assert made.know("a3", "a")


@pytest.mark.parametrize(
    ("files", "strangers", "of_address"),
    [(FILES_WANTED, 4_096, 1_024), (1_024, 256, 64), (256, 64, 16), (8, 2, 1)],
)
def test_a_process_with_fewer_files_has_fewer_slots(
    files: int, strangers: int, of_address: int
) -> None:
    """A process that runs out of files accepts no connection, also of a caller or a probe."""
    made: ConnectionSlots[int] = ConnectionSlots.within(files)
    ended = [made.add(each, f"host-{each}") for each in range(strangers + 1)]
    assert ended == [None] * strangers + [0]
    made = ConnectionSlots.within(files)
    assert [made.add(each, "host") for each in range(of_address + 1)] == [None] * of_address + [0]


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_machine_is_one_address(address: str, place: str) -> None:
    """A machine has more addresses of IPv6 than there are connections."""
    assert site(address) == place
