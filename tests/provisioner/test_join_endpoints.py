"""Machines that exist join a pool with one-time tokens, on a server that asks for credentials."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from agent import fleet_join
from schemas.join_tokens import (
    JOIN,
    JOIN_REVOKE,
    JOIN_TOKENS,
    LEAVE,
    JoinRequest,
    NodeOfPool,
)
from services.bus.nats.nats_accounts import bootstrap_credentials, read_agent_keys
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import SIGNING_FILE
from services.fleet_client.fleet_client import FleetClient
from services.primitives.errors import NavarchError
from services.provisioner.providers.enrolled import EnrolledProvider
from tests.provisioner.join_site import Partition, Site, join_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Serve as the provisioner and the pool-manager, each with its own credentials."""
    async with join_site(tmp_path) as found:
        yield found


async def test_a_machine_joins_the_pool_that_its_token_names(site: Site) -> None:
    """The node is recorded as no launch of this fleet, and its files are its owner's alone."""
    said = await site.join(await site.token(), "one")
    place = site.place("one")
    record = await site.store.get("gpu.gpu-01")

    assert said.startswith("joined as gpu-01 of pool gpu")
    assert record is not None
    assert ("running", "machines", "") == (record.state, record.provider, record.launch.fleet)
    assert record.agent_key
    node = await site.node()
    assert node is not None
    assert ("active", "unknown") == (node.state, node.health)
    files = [place.settings, place.credentials]
    assert {0o600} == {each.stat().st_mode & 0o777 for each in files}
    assert "NAVARCH_GPU_COUNT=8\n" in place.settings.read_text()
    assert not place.token_credentials.exists()
    [token] = await site.tokens()
    assert (token.agent_key, token.by) == (record.agent_key, "operator")


async def test_a_stolen_token_joins_no_second_machine(site: Site) -> None:
    """The second machine is refused; what joined first is shown, and leaves."""
    token = await site.token()
    await site.join(token, "thief")
    with pytest.raises(NavarchError, match=r"used already, by another machine at .* UTC: make ano"):
        await site.join(token, "owner")
    forged = msgspec.structs.replace(token, node="gpu-02")
    with pytest.raises(NavarchError, match="its credentials another node"):
        await site.join(forged, "other")

    await site.operator.order(LEAVE, NodeOfPool(pool="gpu", node="gpu-01"))
    record = await site.store.get("gpu.gpu-01")
    assert record is not None
    assert record.state == "terminated"
    node = await site.node()
    assert node is not None
    assert node.state == "terminated"
    with pytest.raises(NavarchError, match="was revoked"):
        await site.join(token, "owner")


async def test_a_revoked_token_joins_nothing(site: Site) -> None:
    """A token in whose place a later one was made joins nothing either."""
    first = await site.token()
    second = await site.token()
    with pytest.raises(NavarchError, match="a later one was made for this node: make another"):
        await site.join(first, "one")
    await site.operator.order(JOIN_REVOKE, NodeOfPool(pool="gpu", node="gpu-01"))
    with pytest.raises(NavarchError, match="was revoked"):
        await site.join(second, "one")

    assert await site.store.get("gpu.gpu-01") is None
    assert [] == await site.tokens()


async def test_a_token_that_ended_is_refused_by_the_server(site: Site) -> None:
    """The clock of the machine does not matter."""
    token, now = await site.token(), datetime.now(UTC)
    keys = read_agent_keys(site.secured.directory / SIGNING_FILE)
    ended = bootstrap_credentials(keys, "gpu", "gpu-01", "x", now, now - timedelta(minutes=1))
    token = msgspec.structs.replace(token, credentials=ended)
    with pytest.raises(NavarchError, match=r"it ended at .*make another: navarch join --print gp"):
        await site.join(token, "one", timedelta(hours=-1))


@pytest.mark.parametrize(
    ("clock", "said"), [(timedelta(hours=1), "60 min.* ahead"), (-timedelta(hours=1), "behind")]
)
async def test_a_machine_whose_clock_is_off_joins_once_it_is_set(
    site: Site, clock: timedelta, said: str
) -> None:
    """The token is not used up by the refusal."""
    token = await site.token()
    with pytest.raises(NavarchError, match=f"{said}.*set it .*same token"):
        await site.join(token, "one", clock)

    assert await site.store.get("gpu.gpu-01") is None
    assert "joined as" in await site.join(token, "one")


async def test_a_join_that_was_killed_is_begun_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same token ends it whole, whichever file was the last to be written."""
    token, place = await site.token(), site.place("one")
    kept = fleet_join.write_secret
    for step in range(1, 6):
        left = [step]

        def dying(file: Path, text: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            kept(file, text)

        monkeypatch.setattr(fleet_join, "write_secret", dying)
        with suppress(KeyboardInterrupt):
            await site.join(token, "one")
    monkeypatch.setattr(fleet_join, "write_secret", kept)
    await site.join(token, "one")

    assert place.settings.exists()
    assert [False, False] == [each.exists() for each in (place.token_credentials, place.token)]
    assert "had joined already" in await site.join(token, "one")


async def test_a_machine_of_another_node_is_refused(site: Site) -> None:
    """The machine would report under two names; its owner says which it leaves."""
    await site.join(await site.token("gpu-01"), "one")
    with pytest.raises(NavarchError, match=r"is gpu/gpu-01 of this fleet already: .*agent leave"):
        await site.join(await site.token("gpu-02"), "one")

    fleet_join.leave(site.place("one"))
    assert "joined as gpu-02" in await site.join(await site.token("gpu-02"), "one")


async def test_a_machine_whose_disk_was_wiped_joins_again(site: Site) -> None:
    """The new key takes the place of the old where its operator says so."""
    await site.join(await site.token(), "one")
    before = await site.store.get("gpu.gpu-01")
    with pytest.raises(NavarchError, match=r"is a machine of pool gpu already: .*--again"):
        await site.token()
    await site.join(await site.token(again=True), "wiped")
    after = await site.store.get("gpu.gpu-01")

    assert before is not None
    assert after is not None
    assert (before.agent_key, before.provider_id) != (after.agent_key, after.provider_id)
    assert before.agent_key != after.agent_key
    node = await site.node()
    assert node is not None
    assert node.state == "active"


async def test_a_token_for_a_pool_of_another_kind_is_not_made(site: Site) -> None:
    """A pool that does not exist gets none either."""
    for pool, said in (("web", "nodes: enrolled"), ("none", "there is no pool none")):
        with pytest.raises(NavarchError, match=said):
            await site.operator.order(JOIN, JoinRequest(pool=pool, nodes=("gpu-01",)))


async def test_only_operators_make_tokens(site: Site) -> None:
    """A viewer sees them, without their secrets."""
    await site.token()
    bus = await NatsBus.connect(site.secured.options("viewer"))
    viewer = FleetClient(bus, user="viewer")
    with pytest.raises(NavarchError):
        await viewer.order(JOIN, JoinRequest(pool="gpu", nodes=("gpu-01",)), timeout_seconds=1)
    data = await viewer.query(JOIN_TOKENS, msgspec.defstruct("Nothing", ())())
    await bus.close()

    assert b"gpu-01" in data
    assert b"secret" not in data


async def test_a_sweep_leaves_machines_that_joined(site: Site) -> None:
    """The records are the list: no machine is taken for one that others removed."""
    await site.join(await site.token(), "one")
    provider = EnrolledProvider.__new__(EnrolledProvider)
    provider.name, provider._joined = "machines", site.store.joined
    async with site.sweeping(provider) as sweeper:
        for _ in range(2):
            await sweeper.sweep()
    record = await site.store.get("gpu.gpu-01")

    assert record is not None
    assert record.state == "running"
    assert record.launch.lasting


async def test_an_agent_joins_the_node_that_slurm_lists(site: Site) -> None:
    """The node is there before, its record stays, and what leaves is listed without an agent."""
    partition = Partition()
    with pytest.raises(NavarchError, match="machines lists no machine gpu-01 for pool slurm"):
        await site.token(pool="slurm")
    async with site.sweeping(partition) as sweeper:
        await sweeper.sweep()
        before = await site.store.get("slurm.gpu-01")
        token = await site.token(pool="slurm")
        assert "joined as gpu-01" in await site.join(token, "one")
        with pytest.raises(NavarchError, match="used already, by another machine"):
            await site.join(token, "thief")
        joined = await site.store.get("slurm.gpu-01")
        with pytest.raises(NavarchError, match="--again"):
            await site.token(pool="slurm")

        await site.operator.order(LEAVE, NodeOfPool(pool="slurm", node="gpu-01"))
        left = await site.store.get("slurm.gpu-01")
        await sweeper.sweep()
        after = await site.store.get("slurm.gpu-01")
        partition.nodes.remove("gpu-02")
        await sweeper.sweep()
        gone = await site.store.get("slurm.gpu-02")

    assert None not in (before, joined, left, after, gone)
    assert ["", "slurm://gpu-01", True] == [
        *(before.agent_key, before.provider_id, before.launch.lasting),
    ]
    assert joined == msgspec.structs.replace(before, agent_key=joined.agent_key)
    assert joined.agent_key
    assert ("terminated", joined.agent_key) == (left.state, left.agent_key)
    assert ("running", "") == (after.state, after.agent_key)
    assert gone.state == "terminated"
    node = await site.node("gpu-01", "slurm")
    assert node is not None
    assert ("active", False, None) == (node.state, node.lost, node.registered_at)
