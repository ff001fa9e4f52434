"""The same command over the bus and over HTTP: the same output, to a byte."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from typer.main import get_command

from schemas import subjects
from schemas.fleet_events import HttpChange
from schemas.fleet_queries import FleetBudgetView, Page
from schemas.messages import encode
from schemas.node_events import Cordoned
from schemas.node_records import NodeRecord, node_key
from schemas.offering_records import OfferingView
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaDone, SagaStarted
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from schemas.topology import NODES, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.__main__ import main
from services.cli.app import app
from services.gateway.access_tokens import digest
from services.runtime.event_publisher import publish_event
from services.saga.participant import append
from tests.gateway.test_gateway_process import gateway_process

pytestmark = pytest.mark.slow

Outcome = tuple[int, str, str]
HOSTILE = '"\n\x1b[31m</script>\u202e'
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SAGA, OVER = "replace-training-2-1", "drain-training-3-1"
CONFIG = f"""
gateway:
  tokens:
    ada: {{sha256: {digest("viewer-token")}, role: viewer}}
    bob: {{sha256: {digest("operator-token")}, role: operator}}
    sue: {{sha256: {digest("scoped-token")}, role: operator, pools: [training]}}
"""
READS = [
    *("list --pool training -o wide", "list -l a=blist -l nothing"),
    *("list --all --health unhealthy -o json", "get training-2"),
    *("get goneget ../pools", "pool list"),
    *("pool status training", "pool status training -o json"),
    *("pool history training", "pool history training -o json", "offerings"),
    *("offerings --pool training -o json"),
    *("breaker show", "breaker show training -o jsonsaga list -o json"),
    *(f"saga show {SAGA}", f"saga show {OVER} -o json", "saga show gone", "saga show .."),
    *("why training-2 -o json", "why training", f"why {OVER}", "why gone", "why ../x"),
    *("timeline training-2", "timeline training-3 -o json", "timeline gone"),
    *("audit", "audit --pool training -o json", "audit --by ada"),
    *("events --since 1h --count 4 -o json", "events --since 1h --count 1 --node training-2"),
    *("events --since 1h --count 2 --pool training -o yaml"),
]
"""Commands that read."""
REFUSED = [
    *("cordon training-2 --reason x", "cordon gone", "cordon training-", "scale training 99"),
    *("hold gone --for 1h --reason x", "drain training-2 -o json", "breaker open --reason x"),
    *("drain training-1 --mode immediate --timeout 1m", "drain training-1 --mode soon"),
    *("drain training-1 --dry-run", "replace training-2 --dry-run -o json"),
    *("events --since yesterday", "scale training -1", "saga cancel gone"),
]
"""Commands that change nothing, also since they are refused; each gives the same twice."""
CHANGES = [
    *(
        "cordon training-1 training-3 --reason x",
        "uncordon training-1",
        "hold training-1 --for 1.5h --reason x",
    ),
    *("release training-1", "drain training-1 --mode deadline --timeout 90s", "replace training-3"),
    *("scale training 2", "terminate training-1"),
]
"""Commands that the small pool-manager accepts, however often."""
BUS_ONLY = [
    *(
        "status",
        "instances",
        "list --watch",
        "saga list --all",
        "scale training 2 --wait",
    ),
    *(
        "backup /tmp/x",
        "leaked",
        "top",
        "hardware list",
        "evidence training-1",
        "down training --yes",
    ),
]


def navarch(line: str, environment: Mapping[str, str]) -> Outcome:
    """Run a command in this thread, as its process would."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
    out, err = StringIO(), StringIO()
    with (
        patch.dict(os.environ, kept | environment, clear=True),
        patch.object(sys, "argv", ["navarch", *line.split()]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0), out.getvalue(), err.getvalue()
    return 0, out.getvalue(), err.getvalue()


@dataclass(frozen=True, slots=True)
class Place:
    """A fleet with a bus and a gateway."""

    bus_url: str
    http_url: str

    async def run(self, line: str, **environment: str) -> Outcome:
        """Run a command; its exit code, stdout and stderr."""
        async with asyncio.timeout(60):
            return await asyncio.to_thread(navarch, line, environment)

    async def over_bus(self, line: str) -> Outcome:
        """Over the bus."""
        return await self.run(line, NAVARCH_NATS_URL=self.bus_url)

    async def over_http(self, line: str, token: str = "operator-token") -> Outcome:
        """Over HTTP."""
        return await self.run(line, NAVARCH_SERVER=self.http_url, NAVARCH_AUTH_TOKEN=token)


async def _offerings(_: bytes, __: Mapping[str, str]) -> bytes:
    found = OfferingView(
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="p5.48xlarge",
        dollars_per_hour=98.5,
    )
    return encode(Page(items=(msgspec.Raw(encode(found)),)))


async def _budget(_: bytes, __: Mapping[str, str]) -> bytes:
    return encode(FleetBudgetView(desired=3, unavailable=1, unavailable_limit=2, disruptions=0))


async def fill(bus: NatsBus) -> None:
    """Store two pools' worth of records, sagas and events."""
    queries = {subjects.query("offerings"): _offerings, subjects.query("budget"): _budget}
    await bus.serve("provisioner", "a small one", queries)
    record = PoolRecord(
        name="training", spec=PoolSpec(min_nodes=0, max_nodes=4, labels={"a": "b"}), desired=3
    )
    await bus.put(POOLS, pool_key("training"), encode(record))
    for number in (1, 2, 3):
        name = f"training-{number}"
        node = NodeRecord(pool="training", node=name, state="active", registered_at=NOW)
        await bus.put(NODES, node_key("training", name), encode(node))
    for saga, kind, number in ((SAGA, "replace", 2), (OVER, "drain", 3)):
        params = SagaParams(pool="training", node=f"training-{number}", reason=HOSTILE)
        started = SagaStarted(id=f"{saga}-s", time=NOW, saga=saga, kind=kind, params=params)  # type: ignore[arg-type]
        at = await append(bus, started, 0, {})
    await append(bus, SagaDone(id="d", time=NOW + timedelta(1), saga=OVER), at, {})
    for node in ("training-2", "training-3"):
        event = Cordoned(id=f"c-{node}", time=NOW, pool="training", node=node, reason=HOSTILE)
        await bus.publish(f"navarch.v1.node.training.{node}.event.cordoned", encode(event))
    scaled = Scaled(id="x", time=NOW, pool="training", by="ada", previous=2, nodes=3, request="r")
    await bus.publish(subjects.pool_event("training", "scaled"), encode(scaled))
    change = HttpChange(
        id="h",
        time=NOW,
        by="eve",
        role="viewer",
        address="::1",
        change="POST /x",
        outcome="forbidden",
    )
    await publish_event(bus, change)
    await bus.publish(subjects.pool_event("training", "scaled"), b"no json \xff\x1b")


@pytest.fixture
async def place(
    manager: NatsBus,
    server: EmbeddedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Place]:
    """A fleet, its bus and its gateway."""
    # Made from the functions once, and not for each command.
    monkeypatch.setattr("services.cli.app.app", get_command(app))
    await fill(manager)
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIG)
    async with gateway_process(server.url, file) as ready:
        yield Place(server.url, ready["http"])


async def test_a_command_says_the_same_over_http(place: Place) -> None:
    """Tables, JSON, errors and exit codes: of commands that read and of those that are refused."""
    for line in (*READS, *REFUSED):
        assert await place.over_bus(line) == await place.over_http(line), line


async def test_changes_are_made_over_http(place: Place, manager: NatsBus) -> None:
    """As over the bus, in the caller's name; what needs the bus says so, and what is forbidden."""
    for line in CHANGES:
        bus, http = await place.over_bus(line), await place.over_http(line)
        assert (bus[0], *_facts(bus[1])) == (http[0], *_facts(http[1])), (line, bus, http)
        assert bus[0] == 0, (line, bus)
    status, out, err = await place.over_http("audit -o json")
    assert (status, err) == (0, "")
    by_http = [row for row in msgspec.json.decode(out) if row["where"] == "127.0.0.1"]
    assert len(by_http) == len(CHANGES) + 1

    done = SagaDone(id="done", time=NOW, saga="drain-training-1-1")
    params = SagaParams(pool="training", node="training-1")
    started = SagaStarted(id="start", time=NOW, saga=done.saga, kind="drain", params=params)
    at = await append(manager, started, 0, {})
    waits = asyncio.create_task(place.over_http("drain training-1 --wait --wait-timeout 50s"))
    await append(manager, done, at, {})
    status, out, err = await waits
    assert (status, err) == (0, ""), err
    assert "saga done" in out

    for line in BUS_ONLY:
        status, out, err = await place.over_http(line)
        assert (status, out) == (1, ""), (line, out)
        assert "needs the bus, and NAVARCH_SERVER names a gateway" in err, (line, err)
        assert len(err.splitlines()) == 1
    for token, line, said in (
        ("viewer-token", "cordon training-1", "this needs the role operator"),
        ("guess-of-a-token", "list", "navarch gateway token create"),
        ("guess-of-a-token", "events", "navarch gateway token create"),
        ("scoped-token", "breaker show", "this budget is the whole fleet's"),
    ):
        status, out, err = await place.over_http(line, token)
        assert (status, out, len(err.splitlines())) == (1, "", 1), (line, err)
        assert said in err
        assert token not in err
    # What is typed counts before the environment.
    named = f"list --nats-url {place.bus_url}"
    assert await place.over_http(named, "guess") == await place.over_bus("list")
    status, _, err = await place.over_http(f"{named} --server {place.http_url}")
    assert (status, "give one of --server and --nats-url" in err) == (2, True)
    status, out, _ = await place.run(
        f"list --server {place.http_url}", NAVARCH_AUTH_TOKEN="viewer-token"
    )
    assert (status, out) == (await place.over_bus("list"))[:2]


def _facts(text: str) -> list[list[str]]:
    """The lines of an output without times and without who asked."""
    return [[word for word in line.split() if ":" not in word] for line in text.splitlines()]
