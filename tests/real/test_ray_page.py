"""Every command of docs/ray.md, run against a real Ray."""

import os
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.notifier.conformance.notifier_suite import order
from services.notifier.workload.ray_notifier import RayNotifier
from services.primitives.clock import SystemClock
from tests.real.ray_cluster import MARK, RayCluster, missing, until

PAGE = Path(__file__).parents[2] / "docs/ray.md"
pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]


@pytest.fixture
def cluster(public_folder: Path) -> Iterator[RayCluster]:
    """Nothing runs yet."""
    if reason := missing():
        pytest.skip(reason)
    made = RayCluster(public_folder)
    try:
        yield made
    finally:
        made.close()


def run(cluster: RayCluster, script: str) -> str:
    """Run a block as an operator does on the machine that it is about."""
    home = str(cluster.folder)
    values = {
        "RAY_PORT": str(cluster.gcs_port),
        "RAY_DASHBOARD_PORT": str(cluster.dashboard_port),
        "RAY_HEAD": "127.0.0.1",
        "NODE": "n1",
        "RAY_TMPDIR": home,
        "PATH": f"{Path(cluster.python).parent}:{os.environ['PATH']}",
        MARK: f"{home}/page",
    }
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=os.environ | values,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, (script, ended.stdout, ended.stderr)
    return ended.stdout


async def test_the_page_connects_a_cluster(cluster: RayCluster) -> None:
    """A head, a node with its label, what the notifier sees, a drain, and the way back."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^ *```bash\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    head, node, look, again = [textwrap.dedent(each) for each in found]
    run(cluster, head)
    run(cluster, node)
    until(lambda: "n1" in run(cluster, look), "the node has its label")
    options = RayNotifier.Options(dashboard=cluster.url, python=cluster.python)
    ray = RayNotifier(options=options, clock=SystemClock())
    checks = [*await ray.self_check(), *await ray.check_order(order("n1", "cordon"))]
    assert [each.passed for each in checks] == [True] * 4, checks
    await ray.drain(order("n1", "drain"))
    until(lambda: sum(each["state"] == "ALIVE" for each in cluster.nodes()) == 1, "n1 has ended")
    run(cluster, again)
    until(lambda: sum(each["state"] == "ALIVE" for each in cluster.nodes()) == 2, "n1 is back")
    await ray.uncordon(order("n1", "uncordon"))
    await ray.close()
