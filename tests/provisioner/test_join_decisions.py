"""Tokens let one machine join, and are made for free names and private buses alone."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.agent_commands import EnrollRequest
from schemas.join_tokens import JoinRecord, JoinRequest, digest_of
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec
from services.provisioner.instances.instance_decisions import intended_record
from services.provisioner.joins import join_decisions

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MINE, OTHER = f"U{'A' * 55}", f"U{'B' * 55}"
TOKEN = JoinRecord(
    pool="gpu",
    node="gpu-01",
    digest=digest_of("secret"),
    made_at=NOW,
    expires_at=NOW + timedelta(hours=1),
)
USED = replace(TOKEN, agent_key=OTHER, used_at=NOW)
LATE = NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    ("token", "changes", "now", "refused"),
    [
        (TOKEN, {}, NOW, ""),
        (TOKEN, {"clock": NOW + timedelta(minutes=4)}, NOW, ""),
        # Its answer was lost: it asks again, also after the end of the token.
        (replace(USED, agent_key=MINE), {}, LATE, ""),
        (None, {}, NOW, "was revoked, .*make another"),
        (TOKEN, {"join_secret": "guessed"}, NOW, "was revoked, .*make another"),
        (USED, {}, NOW, "used already, by another machine at 2026-11-29 12:00:00 UTC: make an"),
        (USED, {}, LATE, "used already.*navarch leave gpu-01"),
        (TOKEN, {}, LATE, r"ended at 2026-11-29 13:00:00 UTC: make another \(`navarch join"),
        (TOKEN, {"clock": NOW + timedelta(hours=1)}, NOW, "clock is 60 minutes ahead of .*set it"),
        (TOKEN, {"clock": NOW - timedelta(hours=1)}, NOW, "clock is 60 minutes behind .*set it"),
    ],
)
def test_who_joins_with_a_token(
    token: JoinRecord | None, changes: dict[str, Any], now: datetime, refused: str
) -> None:
    """The first machine, and that one again; each other is refused with the remedy."""
    request = replace(EnrollRequest(key=MINE, join_secret="secret", clock=now), **changes)
    said = join_decisions.why_not_joined(token, request, now)

    assert bool(said) == bool(refused)
    assert re.search(refused, said)


@pytest.mark.parametrize(
    ("nodes", "state", "key", "again", "said"),
    [
        ("enrolled", None, "", False, ""),
        ("enrolled", "terminated", MINE, False, ""),
        ("enrolled", "running", MINE, True, ""),
        ("enrolled", "running", MINE, False, "--again"),
        ("enrolled", "leaked", MINE, False, "--again"),
        ("adopted", None, "", False, "machines lists no machine gpu-01 for pool gpu"),
        ("adopted", "terminated", MINE, True, "machines lists no machine gpu-01 for pool gpu"),
        ("adopted", "running", "", False, ""),
        ("adopted", "running", MINE, False, "--again"),
        ("adopted", "running", MINE, True, ""),
    ],
)
def test_for_whom_a_token_is_made(nodes: Any, state: Any, key: str, again: bool, said: str) -> None:
    """A free name gets one, or where others list machines one of these.

    A name that has joined gets one only where its operator says so.
    """
    launch = LaunchSpec(fleet="", provider="machines", instance_type="")
    record = replace(intended_record("gpu", "gpu-01", launch, "", NOW), state=state or "running")
    record = replace(record, agent_key=key)
    asked = JoinRequest(pool="gpu", nodes=("gpu-01",), again=again)
    spec = PoolSpec(provider="machines", min_nodes=0, max_nodes=9, nodes=nodes)
    pool = PoolRecord(name="gpu", spec=spec, desired=0)
    found = join_decisions.why_not_made(asked, "gpu-01", record if state else None, pool)

    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("nodes", "removing", "said"),
    [
        ("enrolled", False, ""),
        ("enrolled", True, "being removed"),
        ("adopted", False, ""),
        ("adopted", True, "being removed"),
        ("launched", False, "nodes: enrolled"),
    ],
)
def test_pools_that_machines_join(nodes: Any, removing: bool, said: str) -> None:
    """A pool that launches its nodes takes none: a machine would count as launched."""
    spec = PoolSpec(provider="machines", min_nodes=0, max_nodes=9, nodes=nodes)
    pool = PoolRecord(name="gpu", spec=spec, desired=0, removing=removing)

    assert said in join_decisions.why_no_pool(pool, "gpu")
    assert bool(said) == bool(join_decisions.why_no_pool(pool, "gpu"))
    assert "there is no pool web" in join_decisions.why_no_pool(None, "web")


@pytest.mark.parametrize(
    ("url", "encrypted", "private"),
    [
        ("nats://bus.example.com:4222", False, False),
        ("nats://bus.example.com:4222", True, True),
        ("tls://bus.example.com:4222", False, True),
        ("nats://127.0.0.1:4222", False, True),
        ("nats://127.0.0.1.example.com:4222", False, False),
        ("nats://10.0.0.1:4222,tls://10.0.0.2:4222", False, False),
    ],
)
def test_no_token_is_made_for_a_bus_that_others_could_be(
    url: str, encrypted: bool, private: bool
) -> None:
    """A machine would send its secret to whatever answers, where nothing is encrypted."""
    assert private == (not join_decisions.why_not_private(url, encrypted=encrypted))
