"""The shipped dashboards use only metrics that are declared."""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from schemas.metric_catalogue import METRICS
from tests.house.modules import ROOT

DASHBOARDS: Final = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
NAME: Final = re.compile(r"\bnavarch[a-z_:]+")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_query_uses_declared_names(path: Path) -> None:
    """A renamed metric would leave its panel empty; `$pool` and labels are no names."""
    body = json.loads(path.read_text("utf-8"))
    queries = [target["expr"] for panel in body["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in body["templating"]["list"]]
    known = {name for each in METRICS for name in each.series}
    assert len(queries) > 1
    assert {name for query in queries for name in NAME.findall(query)} <= known


def test_dashboards_are_known_by_distinct_names() -> None:
    """Grafana keeps one dashboard for each uid."""
    uids = [json.loads(path.read_text("utf-8"))["uid"] for path in DASHBOARDS]
    assert len(set(uids)) == len(uids) == 6
