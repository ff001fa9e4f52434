"""compose/ on a real Docker engine moves to a next release, as docs/upgrade.md says."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.real.compose_project import (
    IMAGE,
    SERVICES,
    UP_SECONDS,
    Compose,
    break_gpu,
    build,
    nodes,
    project,
    run,
    two_nodes,
)
from tests.support.inprocess import eventually
from tests.support.releases import CHANGED, as_in_next

# The images are built, and two fleets of two nodes are started.
pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]
NEXT: Final = "navarch-next:test"
NODES_END_WITH_IT: Final = "provisioner"
"""The simulated nodes are processes of its container."""


def build_next(directory: Path) -> None:
    """Build the image of a release with a setting, a field, a bucket and a filter more."""
    bare = ("docker", "run", "--rm", IMAGE)
    package = run(*bare, "python", "-c", "import navarch; print(navarch.__path__[0])").strip()
    for file in CHANGED:
        (directory / file).parent.mkdir(parents=True, exist_ok=True)
        text = run(*bare, "cat", f"{package}/{file}")
        (directory / file).write_text(as_in_next(text, file), "utf-8")
    dockerfile = f"FROM {IMAGE}\nCOPY . {package}/\n"
    build(NEXT, "-f", "-", str(directory), dockerfile=dockerfile)


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    """The project, with the images of both releases."""
    with project() as found:
        build_next(tmp_path)
        yield found


async def exchange(compose: Compose, service: str) -> None:
    """Start a service again, of the release that is set."""
    compose("up", "-d", "--no-build", "--no-deps", service)
    await compose.healthy(service)


async def test_services_are_upgraded_one_by_one(compose: Compose) -> None:
    """While a node is replaced: it is replaced once, and each service does its work afterwards."""
    await compose.start()
    old, _ = await two_nodes(compose.listed)
    compose.variables["NAVARCH_IMAGE"] = NEXT
    compose("up", "-d", "--no-build", "--force-recreate", "credentials", "nats")
    await compose.healthy("nats")
    break_gpu(compose, old)
    for service in SERVICES:
        if service != NODES_END_WITH_IT:
            await exchange(compose, service)
    kept = await two_nodes(compose.listed, without=old)
    await exchange(compose, NODES_END_WITH_IT)
    compose("run", "--rm", "-T", "navarch", "scale", "training", "3")

    async def one_more() -> bool:
        return len(set(nodes(await asyncio.to_thread(compose.listed))) - set(kept)) == 1

    await eventually(one_more, within_seconds=UP_SECONDS, every=1.0)

    assert {NEXT} == {compose.inspect(each)["Config"]["Image"] for each in ("nats", *SERVICES)}
    assert "ermissions violation" not in compose("logs", *SERVICES)
    looked = compose("run", "--rm", "-T", "navarch", "saga", "list", "--all")
    assert 1 == looked.count(f"replace-{old}-")
