"""`navarch config diff` compares a file with the pools of the running fleet."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.messages import encode
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.settings.settings_file import parse_settings
from services.settings.stored_pools import spec_to_store
from tests.support.inprocess import navarch

WEB = {"provider": "fake", "instance_type": "x", "min_nodes": 2, "max_nodes": 4}


def text(**pools: dict[str, Any]) -> str:
    """A configuration with these pools; JSON is YAML."""
    return json.dumps({"providers": {"fake": {}}, "notifier": {"type": "noop"}, "pools": pools})


@pytest.mark.parametrize(
    ("pools", "status", "said"),
    [
        ({"web": WEB}, 0, ["are as"]),
        (
            {"web": {**WEB, "min_nodes": 3}, "new": WEB},
            3,
            [
                "pool new: is added, with a desired size of 2",
                "pool web: changed settings: 1; its desired size goes from 2 to 3",
                "  min_nodes: 2 -> 3",
                "`navarch config apply ",
            ],
        ),
        ({}, 3, ["pool web: not in the file", "`navarch down web`"]),
    ],
)
async def test_what_the_file_changes(
    server: EmbeddedServer,
    bus: NatsBus,
    tmp_path: Path,
    pools: dict[str, Any],
    status: int,
    said: list[str],
) -> None:
    """The change is shown by the exit code, and as text for people."""
    spec = spec_to_store(parse_settings("navarch.yaml", text(web=WEB), {}), "web")
    await bus.put(POOLS, pool_key("web"), encode(PoolRecord(name="web", spec=spec, desired=2)))
    file = tmp_path / "navarch.yaml"
    file.write_text(text(**pools))
    url = {"NAVARCH_NATS_URL": server.url}
    code, out, err = await navarch("config", "diff", str(file), **url)
    assert (code, err) == (status, "")
    for each in said:
        assert each in out
    code, out, _ = await navarch("config", "diff", str(file), "-o", "json", **url)
    assert (code, bool(json.loads(out))) == (status, status != 0)


async def test_an_invalid_file_is_refused_before_the_fleet_is_asked(tmp_path: Path) -> None:
    """An invalid file is refused with its line; no fleet need run."""
    file = tmp_path / "navarch.yaml"
    file.write_text("pools:\n  web: {max_nodes: many}\n")
    code, out, err = await navarch("config", "diff", str(file), cwd=tmp_path)
    assert (code, out) == (1, "")
    assert "navarch.yaml:2: pools.web.max_nodes" in err
