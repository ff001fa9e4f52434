"""`python -m tests.crash.recorded_store NAME`: records what a release has stored, in STORES.

A node is being drained and every service was killed; later releases must go on from there
(`test_recorded_stores.py`). Each release adds one. `--code DIRECTORY`: of another release's code.
"""

import argparse
import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from tests.crash.fleet_shape import TOOK_EFFECT, Moment, Shape
from tests.crash.replica_process import ROOT
from tests.crash.rig import Rig

STORES: Final = Path(__file__).parent / "stores"
STORY: Final = "story.json"
KEPT: Final = ("nats/js", "provider.db", STORY)


class Story(msgspec.Struct, frozen=True):
    """Records what was happening when the store was recorded."""

    node: str
    """It is broken, and its work has not left."""


async def record(directory: Path, target: Path, code: Path) -> None:
    """Run a fleet of this code, and write what it has stored to a file."""
    async with Rig(directory, Shape(), code=code) as rig:
        rig.workload.holding = True
        draining = rig.arm(Moment("drain", TOOK_EFFECT), lambda: None)
        node = await rig.break_a_node()
        async with asyncio.timeout(60):
            await draining.wait()
        for replica in rig.replicas:
            replica.kill()
        await asyncio.gather(*(each.gone() for each in rig.replicas))
        await rig.server.stop()
        (directory / STORY).write_bytes(msgspec.json.encode(Story(node)))
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(target, "w:xz") as packed:
            for each in KEPT:
                packed.add(directory / each, each)


def unpack(store: Path, directory: Path) -> Story:
    """Write a recorded store to a fleet's directory."""
    with tarfile.open(store) as packed:
        packed.extractall(directory, filter="data")
    return msgspec.json.decode((directory / STORY).read_bytes(), type=Story)


def main() -> None:
    """Record the store that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.recorded_store")
    parser.add_argument("name")
    parser.add_argument("--code", type=Path, default=ROOT)
    arguments = parser.parse_args()
    target = STORES / f"{arguments.name}.tar.xz"
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(record(Path(directory), target, arguments.code))
    sys.stdout.write(f"wrote {target}, {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
