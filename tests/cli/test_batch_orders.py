"""Orders about many nodes, by a selector or a file: planned, limited, answered one by one."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.operator_requests import batch_of
from schemas.pool_events import RequestAccepted, RequestRefused
from schemas.topology import EVENTS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.node_timeline import audit_rows
from tests.support import inprocess

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
BATCH = "batch-0123456789abcdef"


async def navarch(*arguments: str, url: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    return await inprocess.navarch(*arguments, cwd=ROOT, NAVARCH_NATS_URL=url)


async def answered(bus: NatsBus) -> list[tuple[str, str]]:
    """Return verb and node of every accepted request, in order."""
    stored = await bus.read(EVENTS.name, "navarch.v1.pool.*.event.request-accepted")
    found = [json.loads(each.data) for each in stored]
    return [(each["verb"], each["node"]) for each in found]


@pytest.mark.parametrize(
    ("options", "nodes", "refused", "left"),
    [
        (("-l", "pool=training"), "training-1 training-3", 1, 0),
        (("-l", "health=healthy", "-l", "pool=training"), "training-1 training-3", 0, 0),
        (("-l", "health=healthy", "--at-most", "1"), "training-1", 0, 1),
        (("-l", "pool=training", "--at-most", "2"), "training-1 training-3", 1, 0),
        (("training-1", "training-3", "--at-most", "1"), "training-1", 0, 1),
    ],
)
async def test_an_order_is_about_what_is_selected(
    manager: NatsBus,
    server: EmbeddedServer,
    options: tuple[str, ...],
    nodes: str,
    refused: int,
    left: int,
) -> None:
    """Every selected node is asked for in turn, until so many were accepted; none is kept back."""
    status, out, err = await navarch("drain", *options, "--yes", url=server.url)
    names = nodes.split()
    assert await answered(manager) == [("drain", each) for each in names], err
    assert f"{len(names)} accepted, {refused} refused, {left} not asked for" in err
    assert (status, "training-2: refused (saga-open)" in err) == (int(refused > 0), refused > 0)
    assert all(f"{each} " in out for each in names)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-l", "zone=nowhere"), "no node is zone=nowhere: keys are pool, provider, region"),
        (("-l", "zone="), "--selector: zone= has no value"),
        (("-l", "zone"), "--selector: label 'zone' is not KEY=VALUE"),
        (("-l", "pool=training", "-l", "pool=serving"), "a key is given twice"),
        (("-l", "zonee=a"), "no node is zonee=a"),
        (("training-1", "-l", "pool=training"), "one of the three"),
        ((), "name the nodes, or select them"),
        (("--at-most", "2"), "name the nodes, or select them"),
        (("--from-file", "/no/such/file"), "--from-file /no/such/file: "),
        (
            ("-l", "pool=training"),
            "so nothing can be confirmed: give --yes",
        ),
    ],
)
async def test_a_mistyped_selection_orders_nothing(
    manager: NatsBus, server: EmbeddedServer, options: tuple[str, ...], says: str
) -> None:
    """The error names the key or the option, and no node is asked for."""
    status, _, err = await navarch("drain", *options, url=server.url)
    assert (status, await answered(manager)) == (1, [])
    assert says in " ".join(err.split())


async def test_a_plan_comes_first_and_a_dry_run_is_the_plan_alone(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """Each node has its line; as JSON they are the dry runs."""
    status, out, err = await navarch("replace", "-l", "pool=training", "--dry-run", url=server.url)
    assert (status, await answered(manager)) == (0, []), err
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "training-1",
        "training-2",
        "training-3",
    ]
    assert err.count("alice: job 1") == 1  # which runs on two of them
    _, out, _ = await navarch(
        "replace", "-l", "pool=training", "--dry-run", "-o", "json", url=server.url
    )
    assert [each["node"] for each in json.loads(out)] == ["training-1", "training-2", "training-3"]


async def test_names_come_from_a_file_with_comments(
    manager: NatsBus, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Blank lines and comments name nothing; a name of no node orders nothing."""
    names = tmp_path / "names"
    names.write_text("# rack 7\ntraining-1\n\n  training-3  # the loud one\n")
    status, _, err = await navarch("cordon", "--from-file", str(names), "-y", url=server.url)
    assert (status, len(await answered(manager))) == (0, 2), err
    names.write_text("training-1\nno-such-node\n")
    status, _, err = await navarch("drain", "--from-file", str(names), "-y", url=server.url)
    assert (status, len(await answered(manager))) == (1, 2)
    assert "no-such-node" in err
    names.write_text("# none\n")
    status, _, err = await navarch("drain", "--from-file", str(names), "-y", url=server.url)
    assert "it names no node" in err


def row(kind: type, node: str, by: str, request: str, **more: str) -> RequestAccepted:
    """Make an answer to a request about a node."""
    made: RequestAccepted = kind(
        id=f"{node}-{request}",
        time=NOW,
        pool="p",
        verb="drain",
        node=node,
        by=by,
        request=request,
        **more,
    )
    return made


def test_an_order_about_many_nodes_is_one_audit_entry() -> None:
    """The entry counts each outcome; another user's requests with its ID are another entry."""
    refused = {"refusal": "budget", "reason": "2 of 2 are out"}
    rows = audit_rows(
        [
            row(RequestAccepted, "n1", "ann", f"{BATCH}-0", saga="drain-1"),
            row(RequestAccepted, "n9", "ann", "cli-0123456789abcdef"),
            row(RequestAccepted, "n2", "ann", f"{BATCH}-1", saga="drain-2"),
            row(RequestRefused, "n3", "ann", f"{BATCH}-2", **refused),
            row(RequestAccepted, "n4", "eve", f"{BATCH}-3"),
        ],
        pool="",
        by="",
    )
    assert [(each.about, each.outcome, each.by) for each in rows] == [
        ("3 nodes: p/n1, p/n2, p/n3", "2 accepted, 1 refused (budget)", "ann"),
        ("p/n9", "accepted", "ann"),
        ("1 node: p/n4", "1 accepted", "eve"),
    ]
    assert (rows[0].saga, rows[0].reason) == ("drain-1, drain-2", "2 of 2 are out")


@pytest.mark.parametrize(
    ("request_id", "batch"),
    [
        (f"{BATCH}-0", BATCH),
        (f"{BATCH}-9f-77", BATCH),
        (BATCH, ""),
        ("batch-xyz-0", ""),
        (f"http-{BATCH}-0", ""),
        ("", ""),
    ],
)
def test_only_a_whole_beginning_is_a_batchs(request_id: str, batch: str) -> None:
    """An ID of another form is about one thing."""
    assert batch_of(request_id) == batch
