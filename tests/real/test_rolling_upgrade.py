"""A fleet moves from an earlier release to this one and back, service by service, in two orders.

The earlier release is the code of a commit, started from a directory of its own with the packages
of this environment.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from schemas.topology import INTAKE
from tests.crash.replica_process import ROOT
from tests.crash.rig import Rig
from tests.crash.rounds import exchange_service
from tests.crash.test_next_release import MOMENTS, ORDERS, SHAPE, exchanged
from tests.support.releases import earlier_release

pytestmark = [pytest.mark.real, pytest.mark.slow]


@ORDERS
async def test_services_are_upgraded_one_by_one_and_taken_back(
    tmp_path: Path, order: Sequence[str]
) -> None:
    """Each in the middle of a replacement: nothing is lost, doubled or leaked.

    On the way back notifier and pool-manager are first, without INTAKE, as docs/upgrade.md says.
    """
    earlier = earlier_release(tmp_path / "earlier")
    async with Rig(tmp_path / "fleet", SHAPE, code=earlier) as rig:
        await exchanged(rig, [(each, ROOT) for each in order])

        notifier, coordinator = rig.replica("notifier"), rig.replica("pool-manager")

        async def without_intake() -> None:
            notifier.terminate()
            await notifier.gone()
            await rig.bus.admin(f"STREAM.DELETE.{INTAKE.name}", {})
            notifier.code = earlier
            await notifier.start()

        outcome = await exchange_service(rig, coordinator, earlier, MOMENTS[0], without_intake)
        assert not outcome.differences, outcome.report
        first = (notifier.service, coordinator.service)
        await exchanged(rig, [(each, earlier) for each in order if each not in first])
