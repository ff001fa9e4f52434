"""A command has the same output over the bus and over HTTP, to a byte."""

import asyncio
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from typer.main import get_command

from schemas import subjects
from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.evidence_bundles import EvidenceBundle
from schemas.fleet_events import HttpChange
from schemas.fleet_queries import CurrentFailure, FleetBudgetView, Page
from schemas.gpu_samples import GpuSample
from schemas.hardware_denylist import HardwareRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_events import CheckResult, Cordoned, Fault, Repaired, Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.offering_records import OfferingView
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import SagaDone, SagaStarted
from schemas.saga_params import LaunchSpec, SagaParams
from schemas.settings import PoolSpec
from schemas.topology import EVIDENCE, NODES, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.__main__ import main
from services.cli.app import app
from services.gateway.access_tokens import digest
from services.runtime.event_publisher import publish_event
from services.saga.participant import append
from tests.cli.begun_names import AMBIGUOUS, BEGUN_READS, OVER, SAGA
from tests.gateway.order_answers import Orders, open_alerts
from tests.gateway.test_gateway_process import gateway_process

pytestmark = pytest.mark.slow

Outcome = tuple[int, str, str]
HOSTILE = '"\n\x1b[31m</script>\u202e'
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
"""Ages since then are none."""
ASKED_AT = re.compile(r'"(since|until)": ".*"|from \S+ \S+ to \S+ \S+[;.]')
CHECK = CheckResult(name="boot", ok=False, detail=HOSTILE)
CONFIG = f"""
gateway:
  tokens:
    ada: {{sha256: {digest("viewer-token")}, role: viewer}}
    bob: {{sha256: {digest("operator-token")}, role: operator}}
    cid: {{sha256: {digest("admin-token")}, role: admin}}
    sue: {{sha256: {digest("scoped-token")}, role: operator, pools: [training]}}
"""
POLICY = Path(__file__).parents[2] / "config" / "health-policy.yaml"
READS = [
    *("list --pool training -o wide", "list -l a=b", "list -l nothing"),
    *("list --job 4711", "list --job 4711 --pool training -o json", "list --job gone"),
    *("list --all --health unhealthy -o json", "get training-2"),
    *("get gone", "get ../pools", "pool list", "policy test nowhere.yaml"),
    *("pool status training", "pool status training -o json"),
    *("pool history training", "pool history training -o json", "offerings"),
    *("offerings --pool training -o json", "why training-"),
    *("breaker show", "breaker show training -o json", "saga list -o json"),
    *(f"saga show {SAGA}", f"saga show {OVER} -o json", "saga show gone", "saga show .."),
    *("why training-2 -o json", "why training", f"why {OVER}", "why gone", "why ../x"),
    *("timeline training-2", "timeline training-3 -o json", "timeline gone"),
    *("audit", "audit --pool training -o json", "audit --by ada"),
    *("status", "status -o json", "saga list", f"watch {OVER}"),
    *("saga list --all --since 300d", "saga list --all --pool gone", "watch gone"),
    *("instances", "instances --all -o json", "instances --pool gone", "leaked", "leaked -o json"),
    *("evidence", "evidence -o json", "evidence training-9", "evidence training-9 -o json"),
    *("evidence training-9 --saga gone", "evidence gone", "evidence ../pools"),
    *("report", "report --pool training -o json", "report --pool gone", "hardware list -o json"),
    *("top --once --pool gone", "top -o json", "top --gpus --sort name -o json"),
    *("events --since 1h --count 4 -o json", "events --since 1h --count 1 --node training-2"),
    *("events --since 1h --count 2 --pool training -o yaml", "events", "events -o json"),
    *("alerts list", "alerts list -o json", "cost", "cost --pool training --since 3d -o json"),
    *("cost --label team", "cost --pool gone", "cost --since yesterday", "sweep --dry-run"),
    *("sweep --dry-run -o json", "sweep --dry-run --adopt training-2", "sweep --terminate gone"),
    *("logs training-1", "logs training-1 --kernel -n 3 -o json", "logs gone", "logs training-"),
    *("logs notifier", "logs notifier -o json", "logs notifier/gone", "logs notifier --kernel"),
    *(f"policy test {POLICY}", f"policy test {POLICY} --since 3d --pool training -o json"),
    *(f"policy test {POLICY} --since yesterday", "logs notifyer", "logs training-1 -n 0"),
]
"""Commands that read."""
REFUSED = [
    *("cordon training-2 --reason x", "cordon gone", "cordon training-", "scale training 99"),
    *("hold gone --for 1h --reason x", "drain training-2 -o json", "breaker open --reason x"),
    *("breaker close --reason x", "cordon -l zone=gone", "drain -l pool=training --dry-run"),
    *("drain training-1 --mode immediate --timeout 1m", "drain training-1 --mode soon"),
    *("drain training-1 --dry-run", "replace training-2 --dry-run -o json", "saga cancel gone"),
    *("scale training 99 --wait", "down gone --yes", "down ../x --yes"),
    *("up --name web --gpus 8 --type b200 --yes", "up --name ../x --gpus 8 --type p5.48xlarge"),
    *("up --name training --gpus 12 --type p5.48xlarge --dry-run", "saga retry ../x"),
    *("up --name web --gpus 16 --type p5.48xlarge --dry-run", "saga proceed gone"),
    *("diagnose training-1", "diagnose training-3 --check dcgm -o json", "diagnose gone"),
    *("reset-gpu training-2", "reboot training-2 --mode wait", "events --since yesterday"),
    *("resume --pool serving", "resume --dry-run", "stop --pool training --provider a --reason b"),
    *("alerts acknowledge gone", "alerts ack ''", "hardware forget gpu GPU-2"),
    *("hardware add tpu x --reason y", "incident gone", "incident", "incident x --since 1h"),
    *("hardware forget --node training-7", "hardware forget", "forget training-3", "forget gone"),
    *("readmit gone", "forget training-1 --dry-run -o json"),
    *("identity accept training-1", "identity accept gone --dry-run", "drill gone xid 79 --yes"),
    *("workload check training", "workload check training -o json", "workload check gone"),
    *("workload check training --node training-3", "workload done gone", "scale training -1"),
]
"""Commands that change nothing, also since they are refused; each gives the same twice."""
CHANGES = [
    *("cordon training-1 training-3 --reason x", "uncordon training-1"),
    *("hold training-1 --for 1.5h --reason x", "release training-1"),
    *("drain training-1 --mode deadline --timeout 90s", "replace training-3", "scale training 2"),
    *("terminate training-1", "up --name web --gpus 16 --type p5.48xlarge --yes --no-wait"),
    *("down training --yes --no-wait --mode immediate", "cordon -l health=healthy --at-most 1 -y"),
]
"""Commands that the small pool-manager accepts, however often."""
ORDERS = [
    *("alerts acknowledge silence/training-1 --reason x", "hardware add gpu GPU-1 --reason x"),
    *("alerts silence silence/t --for 2h", "hardware forget gpu GPU-1 -o json", "sweep -o json"),
    *("readmit training-1", "sweep", "alerts assign silence/t --to b", "alerts note silence/t x"),
    *("stop --reason why", "stop --pool training --running --reason why", "resume -o json"),
    *("workload done training-1", "workload done training-1 --saga drain-training-1-1 -o json"),
    "forget training-1",
]
"""Commands that small services carry out at once."""
BUS_ONLY = [
    *("mcp", "ssh training-1", "backup /tmp/x", "slurm suspend training-1"),
    *("join gpu-01 --print", "leave training-1"),
]
"""Commands whose requests no gateway relays."""
LOCAL = {
    *(
        "version",
        "alerts test",
        "policy check",
        "policy explain",
        *("init", "serve", "demo", "restore", "doctor"),
    ),
    *("config apply", "config diff", "config explain", "config schema", "config set-credentials"),
    *("config validate", "gateway token create", "nats-config agent", "nats-config certificate"),
    *("nats-config pods", "nats-config push", "nats-config region", "nats-config rotate"),
    *("nats-config user add", "nats-config user list", "nats-config user revoke"),
    *("nats-config user renew", "nats-context"),
    *("plugins new", "plugins list", "plugins enable", "plugins disable"),
    *("nats-config write", "simulator fleet", "simulator fuzz", "simulator interactive"),
    *("simulator run", "simulator validate", "slurm resume"),
}
"""Commands that manage files, keys and processes of this machine, or a bus's servers."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the name of every command."""
    inside: Mapping[str, Any] = getattr(command, "commands", {})
    if not inside:
        yield " ".join(path)
    for name, each in inside.items():
        yield from commands(each, (*path, name))


def test_every_command_is_compared_or_said_to_need_the_bus() -> None:
    """A new one fails this until it is in one of the lists."""
    lines = [*READS, *REFUSED, *CHANGES, *ORDERS, *BUS_ONLY]

    def is_run(name: str) -> bool:
        return any(f"{line} ".startswith(f"{name} ") for line in lines)

    found = {*commands(get_command(app))}
    assert {each for each in found if not is_run(each)} == LOCAL


def navarch(line: str, environment: Mapping[str, str]) -> Outcome:
    """Run a command in this thread, as its process would."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
    out, err = StringIO(), StringIO()
    with (
        patch.dict(os.environ, kept | environment, clear=True),
        patch.object(sys, "argv", ["navarch", *shlex.split(line)]),
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
    """Holds the URLs of a fleet with a bus and a gateway."""

    bus_url: str
    http_url: str

    async def run(self, line: str, **environment: str) -> Outcome:
        """Run a command; its exit code, stdout and stderr."""
        async with asyncio.timeout(60):
            return await asyncio.to_thread(navarch, line, environment)

    async def over_bus(self, line: str) -> Outcome:
        """Run a command over the bus."""
        return await self.run(line, NAVARCH_NATS_URL=self.bus_url)

    async def over_http(self, line: str, token: str = "operator-token") -> Outcome:
        """Run a command over HTTP, with a token."""
        return await self.run(line, NAVARCH_SERVER=self.http_url, NAVARCH_AUTH_TOKEN=token)


async def _offerings(_: bytes, __: Mapping[str, str]) -> bytes:
    found = OfferingView(
        provider="aws",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="p5.48xlarge",
        gpus=8,
        gpu="H100",
        plugin="aws",
        dollars_per_hour=98.5,
    )
    return encode(Page(items=(msgspec.Raw(encode(found)),)))


async def _instances(_: bytes, __: Mapping[str, str]) -> bytes:
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="p5", region="us-east-1")
    items = []
    for number, state in enumerate(("running", "leaked", "orphaned", "terminating")):
        found = InstanceRecord(
            pool="training",
            instance=f"training-{number}",
            state=state,  # type: ignore[arg-type]
            provider="aws",
            provider_id="i-1",
            token="secret-of-the-launch",
            launch=launch,
            error=HOSTILE,
            intended_at=FAR,
        )
        items.append(msgspec.Raw(encode(found)))
    return encode(Page(items=tuple(items)))


async def _hardware(_: bytes, __: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(
        [HardwareRecord(kind="gpu", value="GPU-1", since=NOW, reason=HOSTILE, node="training-1")]
    )


async def _failures(_: bytes, __: Mapping[str, str]) -> bytes:
    about = CurrentFailure(failure="expires-soon", about="training", reason=HOSTILE, remedy="call")
    return msgspec.json.encode([about])


async def _diagnose(data: bytes, _: Mapping[str, str]) -> bytes:
    if msgspec.json.decode(data, type=DiagnoseRequest).checks == ("boot",):
        return msgspec.json.encode(Diagnosis(ok=False, checks=(CHECK,)))
    return msgspec.json.encode(Diagnosis(ok=False, refused="a job has its GPUs"))


async def _budget(_: bytes, __: Mapping[str, str]) -> bytes:
    return encode(FleetBudgetView(desired=3, unavailable=1, unavailable_limit=2, disruptions=0))


async def fill(bus: NatsBus) -> None:
    """Store two pools' worth of records, sagas and events."""
    queries = {subjects.query("offerings"): _offerings, subjects.query("budget"): _budget}
    queries |= {subjects.query("instances"): _instances, subjects.query("hardware"): _hardware}
    queries |= {subjects.failures_query("notifier"): _failures}
    for number in (1, 3):
        queries[subjects.node_command("training", f"training-{number}", "diagnose")] = _diagnose
    queries |= Orders().endpoints("training-1")
    await bus.serve("provisioner", "a small one", queries)
    await open_alerts(bus)
    about = {"pool": "training", "node": "training-9", "outcome": "replaced"}
    bundle = EvidenceBundle(**about, unhealthy_at=NOW)  # type: ignore[arg-type]
    about |= {"lost_gpu_hours": "2"}
    about |= {"unhealthy_at": NOW.isoformat(), "restored_at": FAR.isoformat(), "saga": OVER}
    await bus.put_object(EVIDENCE, "t.9", encode(bundle), metadata=about, revision=0)
    for node, use in (("training-1", 80), ("training-3", 20)):
        gpus = tuple(GpuSample(index=index, utilization_percent=use) for index in (0, 1))
        sample = Telemetry(id=f"t-{node}", time=NOW, pool="training", node=node, gpus=gpus)
        await bus.publish(subjects.telemetry("training", node), encode(sample))
    repaired = Repaired(
        id="r",
        time=NOW,
        pool="training",
        node="training-3",
        saga=OVER,
        outcome="replaced",
        fault_signature=HOSTILE,
        unhealthy_at=NOW,
        restored_at=NOW + timedelta(hours=1),
    )
    await bus.publish(subjects.node_event("training", "training-3", "repaired"), encode(repaired))
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
    about = {"pool": "training", "node": "training-3", "time": NOW}
    fault = Fault(id="f", kind="xid", code=79, gpu_index=3, message=HOSTILE, **about)
    await bus.publish(subjects.node_event("training", "training-3", "fault"), encode(fault))
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
    """Serve a fleet, its bus and its gateway."""
    # Made from the functions once, and not for each command.
    command = get_command(app)
    monkeypatch.setattr("services.cli.command_table.command_line", lambda *_: command)
    await fill(manager)
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIG)
    async with gateway_process(server.url, file) as ready:
        yield Place(server.url, ready["http"])


async def test_a_command_says_the_same_over_http(place: Place) -> None:
    """Tables, JSON, errors and exit codes: of commands that read and of those that are refused."""
    different = {}
    for line in (*READS, *REFUSED, *BEGUN_READS, *AMBIGUOUS):
        bus, http = await place.over_bus(line), await place.over_http(line, "admin-token")
        if _steady(bus) != _steady(http):
            different[line] = bus, http
        assert "Traceback" not in bus[2], line
    assert different == {}


def _steady(outcome: Outcome) -> Outcome:
    """An outcome without the moment at which it was asked for, which a report has."""
    code, out, err = outcome
    return code, ASKED_AT.sub("", out), err


async def test_changes_are_made_over_http(place: Place, manager: NatsBus) -> None:
    """A change is made in the caller's name; one that needs the bus, or is forbidden, says so."""
    for line in (*ORDERS, *CHANGES):
        token = "admin-token" if line.split()[0] in ("up", "down") else "operator-token"
        bus, http = await place.over_bus(line), await place.over_http(line, token)
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
        assert "needs the bus, and NAVARCH_SERVER" in err, (line, err)
        assert len(err.splitlines()) == 1
    for token, line, said in (
        ("viewer-token", "cordon training-1", "this needs the role operator"),
        ("viewer-token", "scale training 2 --wait", "this needs the role operator"),
        ("viewer-token", "diagnose training-1", "this needs the role operator"),
        ("scoped-token", "up --name web --gpus 8 --type h100 --yes", "name one of them"),
        ("scoped-token", "hardware list", "this list is the whole fleet's"),
        ("scoped-token", "evidence serving-9", "no evidence about a node"),
        ("guess-of-a-token", "status --watch", "navarch gateway token create"),
        ("guess-of-a-token", "list", "navarch gateway token create"),
        ("guess-of-a-token", "events", "navarch gateway token create"),
        ("scoped-token", "breaker show", "this budget is the whole fleet's"),
        ("viewer-token", "logs training-1", "this needs the role operator"),
        ("viewer-token", "logs notifier", "this needs the role operator"),
        ("viewer-token", "logs gateway", "this needs the role operator"),
        ("viewer-token", "sweep --dry-run", "this needs the role operator"),
        ("viewer-token", "alerts acknowledge silence/training-1", "this needs the role operator"),
        ("viewer-token", "workload check training", "this needs the role operator"),
        ("viewer-token", "workload done training-1", "this needs the role operator"),
        ("scoped-token", "workload done serving-1", "no node"),
        ("scoped-token", "sweep", "sweeps are the whole fleet's"),
        ("scoped-token", "logs notifier", "services' logs are the whole fleet's"),
        ("scoped-token", "alerts acknowledge silence/serving-1", "no open alert"),
    ):
        status, out, err = await place.over_http(line, token)
        assert (status, out, len(err.splitlines())) == (1, "", 1), (line, err)
        assert said in err
        assert token not in err
    # After the plan, which an operator may read.
    status, out, err = await place.over_http("up --name web --gpus 8 --type h100 --yes")
    assert (status, "needs the role admin" in err) == (1, True)
    status, _, err = await place.over_http("list --server ftp://host")
    assert (status, "is no address" in err) == (1, True)
    status, _, err = await place.run(f"mcp --server {place.http_url}")
    assert (status, "this command needs the bus" in err) == (1, True)
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
    lines = [line.partition(" by ")[0].split() for line in text.splitlines()]
    return [[word for word in line if ":" not in word] for line in lines]
