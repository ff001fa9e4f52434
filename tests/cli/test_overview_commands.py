"""`navarch version`, `diagnose`, `pool` and `saga list --all` are run."""

import json
import platform
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.held_conditions import ConditionView
from schemas.messages import encode
from schemas.node_events import CheckResult
from schemas.node_records import NodeRecord, node_key
from schemas.permissions import SERVICES
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
)
from schemas.saga_params import SagaParams
from schemas.settings import PoolSpec
from schemas.topology import NODES, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.cli.commands.overview_commands import Versions, topology_digest, version_rows
from services.fleet_client.saga_summaries import summaries
from services.saga.participant import append
from tests.cli.test_commands import navarch
from tests.support import inprocess
from tests.support.secured import Secured

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
PARAMS = SagaParams(pool="training", node="training-1", reason="XID 79")


async def test_version_names_every_part_of_a_fleet(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """A service that does not answer has no release; nor has a node that is not registered."""
    for number, at in ((1, NOW), (2, NOW), (3, None)):
        name = f"training-{number}"
        record = NodeRecord(
            pool="training", node=name, state="active", registered_at=at, agent_version="0.9"
        )
        await manager.put(NODES, node_key("training", name), encode(record))
    _, out, _ = await navarch("version", url=server.url)
    rows = dict(line.rsplit(maxsplit=1) for line in out.splitlines())

    assert rows["Python"] == platform.python_version()
    assert rows["pool-manager"] == rows["navarch"] == version("navarch")
    assert rows["topology"] == topology_digest()
    assert rows["agents on 2 nodes"] == "0.9"
    assert "notifier           no answer" in out


async def test_version_needs_no_fleet(tmp_path: Path) -> None:
    """The output without a fleet says why nothing is known of one."""
    status, out, _ = await navarch("version", "-o", "json", cwd=tmp_path)
    found = json.loads(out)
    assert (status, found["navarch"], found["services"]) == (0, version("navarch"), {})
    assert "no fleet is served from" in found["problem"]


def test_version_has_a_row_for_every_service() -> None:
    """Where there is a fleet; where there is none, four rows are left."""
    found = Versions(navarch="1", python="3", subjects="navarch.v1", topology="a", agents={"1": 1})
    names = [name for name, _ in version_rows(found)]
    assert names == ["navarch", "Python", "subjects", "topology", *SERVICES, "agents on 1 node"]
    assert len(version_rows(msgspec.structs.replace(found, problem="none"))) == 4


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (Diagnosis(ok=True, checks=(CheckResult(name="boot", ok=True),)), 0, "boot"),
        (
            Diagnosis(ok=False, checks=(CheckResult(name="dcgm", ok=False, detail="ECC\x1b[31m"),)),
            3,
            "ECC\\u001b[31m",
        ),
        (
            Diagnosis(ok=True, conditions=(ConditionView(name="nvml", unknown=True),)),
            0,
            "nvml is unknown since",
        ),
        (Diagnosis(ok=False, refused="a job has the GPUs"), 1, "was not tested: a job has the"),
    ],
)
async def test_diagnose_prints_what_the_agent_found(
    manager: NatsBus, server: EmbeddedServer, answer: Diagnosis, status: int, words: str
) -> None:
    """The exit code is the diagnosis's; the agent gets the checks that were asked for."""
    asked: list[DiagnoseRequest] = []

    async def diagnosed(data: bytes, _: Mapping[str, str]) -> bytes:
        asked.append(msgspec.json.decode(data, type=DiagnoseRequest))
        return encode(answer)

    await manager.answer(subjects.node_command("training", "training-1", "diagnose"), diagnosed)
    options = ("--check", "dcgm", "--check", "memory", "--level", "2")
    found, out, err = await navarch("diagnose", "training-1", *options, url=server.url)

    assert (found, words in out + err) == (status, True)
    assert asked == [DiagnoseRequest(checks=("dcgm", "memory"), level=2)]


@pytest.mark.usefixtures("manager")
async def test_diagnose_says_that_no_agent_answers(server: EmbeddedServer) -> None:
    """The error says what to look at."""
    status, _, err = await navarch("diagnose", "training-1", "--timeout", "1s", url=server.url)
    assert status == 1
    assert "the agent of training-1 has not answered" in err
    assert "`navarch why training-1`" in err


async def test_a_viewers_refused_change_names_the_role(secured: Secured, tmp_path: Path) -> None:
    """A user who may only read learns what it takes, and not that the bus is away."""
    record = PoolRecord(name="training", spec=PoolSpec(min_nodes=0, max_nodes=9), desired=0)
    bus = await NatsBus.connect(secured.options("pool-manager"))
    await bus.put(POOLS, pool_key("training"), encode(record))
    await bus.close()
    environment = {
        "NAVARCH_NATS_URL": secured.url,
        "NAVARCH_NATS_CREDS_FILE": str(secured.file("viewer")),
    }
    status, _, err = await inprocess.navarch("scale", "training", "3", cwd=tmp_path, **environment)
    assert (status, "needs the role operator" in err) == (1, True)


async def test_a_pool_is_shown_in_numbers_and_with_its_history(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The numbers are those of the HTTP API."""
    spec = PoolSpec(min_nodes=0, max_nodes=4)
    record = PoolRecord(name="training", spec=spec, desired=3)
    await manager.put(POOLS, pool_key("training"), encode(record))
    event = Scaled(id="s", time=NOW, pool="training", previous=2, nodes=3, by="ada")
    await manager.publish(subjects.pool_event("training", "scaled"), encode(event))

    _, listed, _ = await navarch("pool", "list", url=server.url)
    _, numbers, _ = await navarch("pool", "status", "training", "-o", "json", url=server.url)
    _, table, _ = await navarch("pool", "status", "training", url=server.url)
    _, history, _ = await navarch("pool", "history", "training", url=server.url)
    _, nothing, _ = await navarch("pool", "history", "training", "--since", "0s", url=server.url)
    unknown = await navarch("pool", "status", "other", url=server.url)

    assert listed.splitlines()[1].split()[:3] == ["training", "3", "3"]
    found = json.loads(numbers)
    assert (found["total_nodes"], found["healthy_nodes"], found["cordoned_nodes"]) == (3, 2, 1)
    assert "can scale up       yes" in table
    assert "2 -> 3 nodes" in history
    assert nothing == "Nothing happened to training in that time.\n"
    assert (unknown[0], "there is no pool 'other'" in unknown[2]) == (1, True)


async def test_ended_sagas_are_listed_with_how_long_they_took(
    bus: NatsBus, server: EmbeddedServer
) -> None:
    """Ended sagas are beside the open ones; without --all only these are listed."""
    await append(bus, started("drain-training-1-1"), 0, {})
    last = await bus.last_sequence("SAGAS")
    done = SagaDone(id="d", time=NOW, saga="drain-training-1-1")
    await append(bus, done, last, {})
    await append(bus, started("reboot-training-1-2"), 0, {})
    _, out, _ = await navarch("saga", "list", "--all", url=server.url)
    _, data, _ = await navarch("saga", "list", "--all", "-o", "json", url=server.url)
    _, other, _ = await navarch("saga", "list", "--all", "--since", "0s", url=server.url)

    _, first, second = out.splitlines()
    assert first.split()[:4] == ["drain-training-1-1", "training", "training-1", "done"]
    assert second.split()[3] == "running"
    assert [each["status"] for each in json.loads(data)] == ["done", "running"]
    assert other == "No saga began in that time.\n"


def started(saga: str) -> SagaStarted:
    """Return the beginning of a saga."""
    kind = "drain" if saga.startswith("drain") else "reboot"
    return SagaStarted(id=f"{saga}-s", time=NOW, saga=saga, kind=kind, params=PARAMS)


@pytest.mark.parametrize(
    ("entries", "status", "reason", "has_ended"),
    [
        ((), "running", "XID 79", False),
        ((("done", SagaDone),), "done", "XID 79", True),
        ((("unwinding", SagaUnwinding),), "unwinding", "because", False),
        ((("unwinding", SagaUnwinding), ("unwound", SagaUnwound)), "unwound", "because", True),
        ((("stuck", SagaStuck),), "stuck", "because", False),
    ],
)
def test_a_saga_in_one_line_is_as_its_last_entry_says(
    entries: tuple[tuple[str, type[SagaEntry]], ...], status: str, reason: str, *, has_ended: bool
) -> None:
    """The reason is why it failed, else why it began; the times are the server's."""
    messages: list[tuple[str, SagaEntry]] = [("started", started("drain-n1-1"))]
    for word, kind in entries:
        more = {} if kind is SagaDone else {"step": "drain", "reason": "because"}
        messages.append((word, kind(id=word, time=NOW, saga="drain-n1-1", **more)))
    stored = [
        Stored(
            subject=subjects.saga_entry("drain-n1-1", "saga", word),
            sequence=number,
            time=NOW + timedelta(seconds=number),
            data=encode(message),
            headers={},
        )
        for number, (word, message) in enumerate(messages)
    ]
    (found,) = summaries(reversed(stored))
    assert (found.status, found.reason, found.started_at) == (status, reason, NOW)
    assert (found.ended_at is not None) == has_ended
