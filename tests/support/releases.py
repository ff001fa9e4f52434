"""The code of other releases: an earlier one as `git archive` has it, and a next one made here."""

import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
EARLIER: Final = "7a2ba9e4"
"""No release has been made yet: the last commit whose agents' facts were stored in EVENTS."""
SET_UP: Final = """
import asyncio, sys
from schemas.settings import NatsSettings
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
async def main(url, replicas):
    settings = NatsSettings(url=url, replicas=replicas)
    bus = await NatsBus.connect(ConnectOptions(settings=settings, name="set-up"))
    await set_up(bus, SystemClock(), replicas=replicas)
    await bus.close()
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
FOLDERS: Final = ("agent", "config", "schemas", "services")
CHANGES: Final = (
    (
        "schemas/settings.py",
        "class PoolSpec(Setting, frozen=True, kw_only=True):\n",
        '    added_later: str = "by the next release"\n',
    ),
    (
        "schemas/pool_records.py",
        "class OpenSaga(SagaTraits, Record, frozen=True, kw_only=True, omit_defaults=True):\n",
        "    added_later: tuple[str, ...] = ()\n",
    ),
    ("schemas/topology.py", 'description="Events about nodes, pools', " and more"),
    (
        "schemas/topology.py",
        "filters=(subjects.NODE_EVENTS, subjects.POOL_EVENTS",
        ", subjects.FLEET_EVENTS",
    ),
    (
        "schemas/topology.py",
        "BUCKETS: Final = (\n",
        '    BucketSpec(name="LATER", description="New", writer="metrics", ends="never"),\n',
    ),
)
"""File, a place in it, and what the next release has there."""
CHANGED: Final = tuple(dict.fromkeys(file for file, _, _ in CHANGES))


def earlier_release(directory: Path) -> Path:
    """Write its code to a directory; skip the test where the history does not have it."""
    try:
        archive = subprocess.run(
            ["git", "archive", EARLIER, *FOLDERS], cwd=ROOT, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no commit {EARLIER} here: {error}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as packed:
        packed.extractall(directory, filter="data")
    return directory


def set_up_by(code: Path, url: str, replicas: int) -> None:
    """Have the server set up as that release does it."""
    command = [sys.executable, "-c", SET_UP, url, str(replicas)]
    subprocess.run(command, cwd=code, check=True, timeout=60)


def next_release(directory: Path) -> Path:
    """Write this code with a setting, a field, a bucket, a filter and a description more."""
    for each in FOLDERS:
        shutil.copytree(ROOT / each, directory / each, ignore=shutil.ignore_patterns("__pycache__"))
    for file in CHANGED:
        (directory / file).write_text(as_in_next((directory / file).read_text("utf-8"), file))
    return directory


def as_in_next(text: str, file: str) -> str:
    """The text of a file of `CHANGED`, as the next release has it."""
    for changed, place, more in CHANGES:
        if changed == file:
            assert text.count(place) == 1, (file, place)
            text = text.replace(place, place + more)
    return text
