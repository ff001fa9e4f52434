"""A running fleet exposes on /metrics what the catalogue declares."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from schemas.metric_catalogue import METRICS
from tests.whole_fleet.fleet import serving_fleet

pytestmark = pytest.mark.slow

OURS = "navarch_"
PUSHES = "navarch_metric_pushes_total"
"""Where metrics are sent as well: tests/runtime/test_metric_push.py."""
POOLS = """
  traced:
    min_nodes: 1
    max_nodes: 2
"""


async def test_each_exposed_name_is_declared(tmp_path: Path) -> None:
    """Names, types and labels of all services; every declared metric but the gateway's is there."""
    declared = {each.name: each for each in METRICS}
    seen: set[str] = set()
    async with serving_fleet(tmp_path, POOLS, role="operator") as fleet:
        await fleet.active("traced", 1)
        bodies = (await fleet.get("/metrics")).values()
    for body in bodies:
        for family in text_string_to_metric_families(body.text):
            name = family.name + ("_total" if family.type == "counter" else "")
            if not name.startswith(OURS) or name.endswith("_created"):
                continue
            assert name in declared, f"{name} is not in schemas/metric_catalogue.py"
            assert family.type == declared[name].type, name
            seen.add(name)
            for sample in family.samples:
                assert set(sample.labels) - {"le"} == set(declared[name].labels), name
    lines = "".join(body.text for body in bodies)
    assert 'navarch_pool_desired_nodes{pool="traced"} 1.0' in lines
    assert 'navarch_spend_dollars_per_hour{pool="traced"}' in lines
    declared_elsewhere = {each.name for each in METRICS if each.exporter == "gateway"}
    assert set(declared) - declared_elsewhere - {PUSHES} <= seen
