"""Fixtures for every test: a real nats-server on a free port, and a bus connected to it."""

import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import hypothesis
import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from tests.support.clients import connected

# The same examples in every run, so that a red test is the change's fault; `explore` looks further.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=5_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Under `nohup` a hang-up is ignored, and would be by every program that a test starts.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = ("tests.support.secured",)

LONGEST = ("test_fuzz_seeds.py",)
"""A worker is busy with each of these for a quarter of the whole: they come before all others."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test` run a part of the long tables."""
    parser.addoption("--one-in", type=int, default=1, help="run one in N cases of a slow table")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files of slow tests, so that no worker is left with one of them at the end."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    left = _left_out(slow, config.getoption("--one-in"))
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    paths = {item.path for item in slow}
    items.sort(key=lambda item: (item.path.name not in LONGEST, item.path not in paths))


def pytest_collection_finish() -> None:
    """Keep what the collection made out of every later search for garbage: a tenth of the time."""
    _keep_out_of_searches()


def _keep_out_of_searches() -> None:
    gc.collect()
    gc.freeze()


def _left_out(slow: list[pytest.Item], one_in: int) -> set[pytest.Item]:
    """The cases of slow tables that are not run: the first of each `one_in` is."""
    tables: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in slow:
        tables.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(item)
    return {item for table in tables.values() for at, item in enumerate(table) if at % one_in != 0}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Take back what a program that a test runs in this process did to the root logger.

    Its handler writes to the standard error of that test, which is closed in the next. What the
    tests of a file leave loaded is kept out of every later search for garbage as well.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        if nextitem is not None and nextitem.path != item.path:
            _keep_out_of_searches()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """Provide a real nats-server with an empty store, up in about 30 ms."""
    embedded = EmbeddedServer(tmp_path / "nats", sync=False)
    await embedded.start()
    yield embedded
    # Its store goes with the test, so nothing need be written out first.
    await embedded.kill()


@pytest.fixture
async def bus(server: EmbeddedServer) -> AsyncIterator[NatsBus]:
    """A connection to it, with the whole topology set up."""
    client = await connected(server)
    await set_up(client, SystemClock(), replicas=1)
    yield client
    await client.close()
