"""A fleet moves from an earlier release to this one, service by service, in two orders.

The earlier release is the code of a commit, started from a directory of its own with the packages
of this environment.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.replica_process import ROOT
from tests.crash.rig import Rig
from tests.crash.test_next_release import ORDERS, SHAPE, exchanged
from tests.support.releases import earlier_release

pytestmark = [pytest.mark.real, pytest.mark.slow]


@ORDERS
async def test_services_are_upgraded_one_by_one(tmp_path: Path, order: Sequence[str]) -> None:
    """Each in the middle of a replacement: nothing is lost, doubled or leaked."""
    earlier = earlier_release(tmp_path / "earlier")
    async with Rig(tmp_path / "fleet", SHAPE, code=earlier) as rig:
        await exchanged(rig, [(each, ROOT) for each in order])
