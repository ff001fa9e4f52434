"""Checks which `workload_names` a pool may have."""

import msgspec
import pytest

from schemas.settings import AdmissionSpec, PoolSpec
from services.settings.workload_name_validation import workload_names_problem

SPEC = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=3)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"workload_names": ""}, None, ""),
        ({"workload_names": "train-[001-064],big-1"}, None, ""),
        ({"workload_names": "train-[3-1]"}, "workload_names", "no list of"),
        ({"workload_names": "train-[1-9999]"}, "workload_names", "1 to 2000 names"),
        ({"workload_names": "train-[1-99999999]"}, "workload_names", "1 to 2000 names"),
        ({"workload_names": "train-[1"}, "workload_names", "no list of"),
        ({"workload_names": "Train-1"}, "workload_names", "a-z, 0-9"),
        ({"workload_names": "other-2"}, "workload_names", "another pool"),
        ({"workload_names": "t-1", "min_nodes": 1}, "min_nodes", "excludes"),
        ({"workload_names": "t-1", "spares": 1}, "spares", "excludes"),
        ({"workload_names": "t-1", "autoscaling": {"type": "queue"}}, "autoscaling", "excludes"),
        (
            {"workload_names": "t-1", "admission": AdmissionSpec(diagnostic="dcgm-1")},
            "admission",
            "before slurmd",
        ),
    ],
)
def test_problems(changes: dict[str, object], key: str | None, words: str) -> None:
    """Each names its key and what to write instead."""
    spec = msgspec.structs.replace(SPEC, **changes)
    other = msgspec.structs.replace(SPEC, workload_names="other-[1-3]")
    problem = workload_names_problem(spec, (spec, other))
    if key is None:
        assert problem is None
    else:
        assert problem is not None
        assert (problem[0][0], words in problem[1]) == (key, True), problem
