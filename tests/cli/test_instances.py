"""A real provisioner with a fake cloud answers `navarch instances`, `leaked` and `sweep`."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.settings import PluginSettings, PoolSpec, Settings
from schemas.sweeps import SweepAnswer, SweepLine
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.text import instances_text
from services.operator_text import quantities
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Environment
from services.provisioner.providers.fake import FakeFault, FakeProvider
from services.provisioner.service import build
from tests.cli.test_commands import navarch
from tests.provisioner.provisioner_parts import (
    FLEET,
    answer_to,
    provision,
    request,
    start_step,
    terminate,
)
from tests.provisioner.test_instance_decisions import NOW, record
from tests.support.inprocess import Running, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
async def cloud(
    server: EmbeddedServer, bus: NatsBus, tmp_path: Path
) -> AsyncIterator[FakeProvider]:
    """Two replicas of the provisioner; one node runs, one cannot be removed."""
    await bus.put(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
    options = {"file": str(tmp_path / "cloud.sqlite"), "dollars_per_hour": 32.5}
    fake = FakeProvider(
        options=FakeProvider.Options(**options),
        environment=Environment(
            name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=tmp_path
        ),
    )
    settings = Settings(
        fleet=FLEET,
        data_dir=str(tmp_path),
        providers={"fake": PluginSettings(type="fake", options=options)},
        pools={"web": PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)},
    )
    async with AsyncExitStack() as stack:
        for replica in (1, 2):
            running = Running(server.url, "provisioner", build, settings, replica)
            await stack.enter_async_context(running)
        for node in ("web-1", "web-2"):
            sequence = await start_step(bus, provision(node))
            await answer_to(bus, f"scale-up-{node}", sequence)
        fake.inject_fault(FakeFault(call="terminate", kind="INVALID", times=1000, instance="web-2"))
        await start_step(bus, terminate("web-2"))

        async def leaked() -> bool:
            found = await InstanceStore(bus).get("web.web-2")
            return found is not None and found.state == "leaked" and found.removal_attempts > 1

        await eventually(leaked)
        yield fake
    await fake.close()


async def test_instances_leaks_and_sweeps_are_shown(
    server: EmbeddedServer, bus: NatsBus, cloud: FakeProvider
) -> None:
    """The leak is first, with its tries and price; a sweep shows its action on each instance."""
    url = server.url
    code, listed, _ = await navarch("instances", url=url)
    rows = [line.split() for line in listed.splitlines()]
    assert (0, ["web-2", "web", "fake", "fake-000002", "leaked"]) == (code, rows[1][:5])
    assert (["web-1", "web", "fake", "fake-000001", "running"], "32.50") == (
        rows[2][:5],
        rows[2][6],
    )
    assert "2 instances, $65.00 an hour." == listed.splitlines()[-1]
    code, listed, _ = await navarch("cost", "--label", "team", "-o", "json", url=url)
    assert (0, {"web"}) == (code, {each["pool"] for each in json.loads(listed)["rows"]})

    _, out, _ = await navarch("leaked", url=url)
    assert "INVALID: ordered for terminate" in out
    assert re.search(r"1 instance leaked, \$32\.50 an hour, \$\d\.\d\d so far", out)
    _, data, _ = await navarch("leaked", "-o", "json", url=url)
    assert ["web-2"] == [each["instance"] for each in msgspec.json.decode(data)]

    code, _, problem = await navarch("sweep", "--adopt", "web-9", url=url)
    assert (1, True) == (code, "there is no orphan 'web-9'; see navarch leaked" in problem)

    # It belongs to no pool; an instance this young may still be registered.
    await cloud.provision(request("web-3"))
    answers = []
    for _ in range(4):
        _, data, _ = await navarch("sweep", "--dry-run", "-o", "json", url=url)
        answers.append(msgspec.json.decode(data, type=SweepAnswer))
    assert 1 == len({each.replica for each in answers}), "one replica answers"
    lines = {each.instance: each for each in answers[-1].lines}
    assert {"web-2": "terminate", "web-3": "terminate"} == {k: v.verb for k, v in lines.items()}
    assert ("no record of it", True) == (lines["web-3"].reason, lines["web-3"].waits_seconds > 0)
    assert ["web-1", "web-2", "web-3"] == sorted(each.name for each in await cloud.list())

    code, shown, _ = await navarch("sweep", url=url)
    assert (0, True) == (code, "no record of it" in shown)
    cloud.clear_faults()

    async def gone() -> bool:
        found = await InstanceStore(bus).get("web.web-2")
        return found is not None and found.state == "terminated"

    await eventually(gone)
    assert "No instance is leaked.\n" == (await navarch("leaked", url=url))[1]
    assert "web-2" in (await navarch("instances", "--all", url=url))[1]


async def test_without_a_provisioner_the_error_names_it(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The error names the provisioner and not another service."""
    code, _, out = await navarch("sweep", "--dry-run", url=server.url)
    assert (1, True) == (code, "is the provisioner running?" in out)
    assert bus.connected


def leak(**changes: object) -> InstanceRecord:
    """A record that has been leaked for two hours."""
    return replace(
        record(
            "leaked",
            provider_id="i-1",
            dollars_per_hour=10.0,
            removal_attempts=7,
            removal_tried_at=NOW,
        ),
        **({"terminating_at": NOW - timedelta(hours=2)} | changes),
    )


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "No instance is leaked."),
        ([record("terminating")], "No instance is leaked. 1 more instance is being terminated."),
        ([leak()], "1 instance leaked, $10.00 an hour, $20.00 so far. "),
        ([leak(dollars_per_hour=0.0)], "1 instance leaked, no price known. "),
        (
            [leak(), leak(instance="web-2", dollars_per_hour=0.0)],
            "2 instances leaked, $10.00 an hour, 1 of them without a known price, $20.00 so far. ",
        ),
    ],
)
def test_the_cost_of_leaks_as_far_as_it_is_known(records: list[InstanceRecord], said: str) -> None:
    """An unknown price does not count as zero."""
    assert instances_text.leaks_summary(records, NOW).startswith(said)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (59, "59s"), (61, "1m1s"), (7200, "2h0m"), (90_061, "1d1h"), (-1, "0s")],
)
def test_an_age_has_two_units(seconds: float, said: str) -> None:
    """The two largest; a clock that is behind gives no negative age."""
    assert said == quantities.age(seconds)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, ["Providers and records agree."]),
        ({"unlisted": {"aws": "AUTH: no"}}, ["aws could not be listed, and is left out"]),
        ({"fleet_known": False}, ["The fleet ID is not known yet"]),
    ],
)
def test_a_sweep_names_providers_that_it_could_not_list(
    answer: dict[str, object], words: list[str]
) -> None:
    """Providers that could not be listed are named, or an empty table would look like agreement."""
    said = SweepAnswer(**({"replica": "p-1", "at": NOW, "performed": False} | answer))
    lines = instances_text.sweep_notes(said)
    assert [True] * len(words) == [
        line.startswith(word) for line, word in zip(lines, words, strict=True)
    ]


@pytest.mark.parametrize(
    ("line", "performed", "when"),
    [
        ({}, False, "now"),
        ({"waits_seconds": 45.0}, False, "in 45.0 s"),
        ({"held_back": "observes"}, False, "-"),
        ({"outcome": "done"}, True, "done"),
        ({"waits_seconds": 45.0}, True, "in 45.0 s"),
    ],
)
def test_a_sweep_shows_when_an_action_is_performed(
    line: dict[str, object], performed: bool, when: str
) -> None:
    """A line has the due time before a sweep, and the outcome after it."""
    plain = {"verb": "terminate", "pool": "web", "instance": "web-1", "provider": "fake"}
    lines = (SweepLine(**(plain | {"reason": "no record of it"} | line)),)
    answer = SweepAnswer(replica="p-1", at=NOW, performed=performed, lines=lines)
    [row] = instances_text.sweep_rows(answer)
    assert when == row[7]


def test_a_machine_that_is_held_back_shows_its_authority_gate_age_and_price() -> None:
    """The row has the command that removes the machine all the same."""
    line = SweepLine(
        verb="terminate",
        pool="web",
        instance="web-1",
        provider="fake",
        provider_id="i-1",
        reason="no record of it",
        held_back="breaker: it is open",
        dollars_per_hour=2.5,
        authority="proof",
        gate="breaker",
        since=NOW - timedelta(minutes=12),
    )
    answer = SweepAnswer(replica="p-1", at=NOW, performed=False, lines=(line,))
    held = instances_text.held_lines(answer)
    [row] = instances_text.sweep_rows(answer)
    assert row[5:7] == ("2.50", "proof")
    assert row[8] == "no record of it; not done for 12m0s: breaker: it is open"
    note = "1 machine is held back, $2.50 an hour; `navarch sweep --terminate i-1` removes one"
    assert instances_text.held_note(held).startswith(note)


def test_leaks_come_first_then_the_most_expensive() -> None:
    """Leaked instances, then by price."""
    records = [
        record("running", instance="web-3", dollars_per_hour=1.0),
        record("running", instance="web-2", dollars_per_hour=2.0),
        leak(),
    ]
    rows = instances_text.instance_rows(records, NOW)
    assert ["web-1", "web-2", "web-3"] == [row[0] for row in rows]
    assert "1h0m" == rows[1][5]
