"""XID 79 on a fleet of real processes: the evidence that outlives the instance."""

import asyncio
import json
import os
import signal
import tarfile
from contextlib import aclosing
from pathlib import Path

import pytest

from schemas import subjects
from schemas.node_events import Repaired
from schemas.topology import EVENTS, NODES, TELEMETRY
from tests.support.inprocess import command, eventually
from tests.whole_fleet.fleet import WAIT_SECONDS, Fleet, serving_fleet

pytestmark = pytest.mark.slow

POOLS = """
  training:
    min_nodes: 2
    max_nodes: 3
"""


async def sampled(fleet: Fleet, node: str) -> None:
    """Wait until a node's first sample is stored."""
    follow = fleet.bus.follow(TELEMETRY.name, [subjects.telemetry("training", node)], "all")
    async with asyncio.timeout(WAIT_SECONDS), aclosing(follow) as following:
        async for _ in following:
            return


async def test_evidence_outlives_the_replaced_node(tmp_path: Path) -> None:
    """Raw line, earlier samples, serials, and every step up to the replacement's admission.

    Read with the command line after the instance is gone and the node's record removed; the
    collector was killed meanwhile.
    """
    async with serving_fleet(tmp_path, POOLS) as fleet:
        old = (await fleet.active("training", 2))[0]
        await sampled(fleet, old.node)
        after = (await fleet.last_sequences())[EVENTS.name]
        line = fleet.break_gpu(old, gpu=3).partition(";")[2]
        # The collector is killed as it begins, and started again.
        os.kill(fleet.pids["metrics"], signal.SIGKILL)
        replaced = await fleet.replaced(old.node, after)
        repaired = await fleet.first(
            EVENTS.name,
            subjects.node_event("training", old.node, "repaired"),
            after,
            lambda message: isinstance(message, Repaired),
        )
        await fleet.active("training", 2)
        await fleet.bus.delete(NODES, f"training.{old.node}")

        listed = json.loads(await command(fleet.url, "evidence", "-o", "json"))
        text = await command(fleet.url, "evidence", old.node)
        bundle = json.loads(await command(fleet.url, "evidence", old.node, "-o", "json"))
        same = await command(fleet.url, "evidence", old.node, "--saga", replaced.saga, "-o", "json")
        archive = tmp_path / "ticket.tar.gz"
        await command(fleet.url, "evidence", old.node, "--save", str(archive))
        report = json.loads(await command(fleet.url, "report", "--since", "1h", "-o", "json"))
        hours = await eventually(lambda: fleet.counters("navarch_lost_gpu_hours_total"))
        why = await command(fleet.url, "why", f"{replaced.saga}")

    assert json.loads(same) == bundle
    (kept,) = listed
    assert (kept["node"], kept["outcome"], kept["new_node"]) == (
        old.node,
        "replaced",
        replaced.new_node,
    )
    assert line in text
    assert all(gpu.serial in text and gpu.uuid in text for gpu in old.gpus)
    assert [each["line"] for each in bundle["kernel_lines"]] == [line]
    (fault,) = bundle["faults"]
    assert (fault["fault"]["gpu_serial"], fault["result"]) == (old.gpus[3].serial, "unhealthy")
    assert any(each["time"] < fault["fault"]["time"] for each in bundle["samples"])
    assert bundle["verdict"]["rule"] != ""
    assert len(bundle["verdict"]["policy"]) == 12
    assert [bundle["driver_version"], bundle["hostname"]] == [old.driver_version, old.hostname]
    assert bundle["provider_id"] != ""
    messages = [each["message"]["id"] for each in bundle["timeline"]]
    assert {f"{replaced.saga}.admit.succeeded", fault["fault"]["id"], replaced.id} <= set(messages)
    assert sorted(each["time"] for each in bundle["timeline"]) == [
        each["time"] for each in bundle["timeline"]
    ]
    with tarfile.open(archive) as saved:
        names = {Path(name).name for name in saved.getnames()}
        kernel = next(name for name in saved.getnames() if name.endswith("kernel.log"))
        extracted = saved.extractfile(kernel)
        assert extracted is not None
        assert line in extracted.read().decode()
    assert {"README.txt", "samples.jsonl", "timeline.txt", "bundle.json"} <= names
    assert repaired.subject.endswith(f"{old.node}.event.repaired")
    assert f"navarch evidence {old.node}" in why
    (row,) = [each for each in report["rows"] if each["fault"] == "xid-79"]
    assert (row["count"], row["lost_gpu_hours"] > 0) == (1, True)
    assert hours["xid-79", "training"] == pytest.approx(row["lost_gpu_hours"])
