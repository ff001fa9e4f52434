"""The release before reads every record and message that this one writes: services can go back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.messages import encode
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from tests.golden.catalogue import everything
from tests.support.releases import earlier_release

pytestmark = pytest.mark.real

READ: str = """
import importlib, json, sys
from schemas.messages import decoder
for module, kind, name, text in json.load(sys.stdin):
    try:
        known = getattr(importlib.import_module(module), kind)
    except (ImportError, AttributeError):
        continue  # what is new is not read
    try:
        decoder(known).decode(text.encode())
    except ValueError as error:
        print(name, error)
"""


def test_the_release_before_reads_what_this_one_writes(tmp_path: Path) -> None:
    """A pool with every default, and the goldens, which a run has written."""
    earlier = earlier_release(tmp_path / "earlier")
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=1, max_nodes=2)
    pool = encode(PoolRecord(name="p", spec=spec, desired=1)).decode()
    written = [(PoolRecord.__module__, PoolRecord.__name__, "pool", pool)]
    written += [
        (each.kind.__module__, each.kind.__name__, each.name, each.path.read_text("utf-8"))
        for each in everything()
    ]
    command = [sys.executable, "-c", READ]
    found = subprocess.run(
        command, cwd=earlier, input=json.dumps(written), capture_output=True, text=True, check=True
    )
    assert found.stdout == ""
