"""An open saga ends, because a release goes on from what earlier ones have stored."""

from pathlib import Path

import pytest

from tests.crash.consistency import ExpectedSaga
from tests.crash.fleet_shape import Shape
from tests.crash.recorded_store import STORES, unpack
from tests.crash.rig import Rig

pytestmark = pytest.mark.slow

RECORDED = sorted(STORES.iterdir())


@pytest.mark.parametrize("store", RECORDED, ids=lambda each: each.name.partition(".")[0])
async def test_an_open_saga_of_an_earlier_release_ends(tmp_path: Path, store: Path) -> None:
    """The node is terminated, another is in service, and no process ended by itself."""
    story = unpack(store, tmp_path)
    rig = Rig(tmp_path, Shape())
    rig.broken.append(story.node)
    # Logs of sagas that have ended are removed after 30 days.
    rig.expected_sagas = [ExpectedSaga("replace", story.node)]
    async with rig:
        seen = await rig.settled()
        assert seen.dead == ()
        assert len(rig.provider.names()) == rig.shape.nodes
        assert story.node not in rig.provider.names()
        assert rig.unexpected_ends == []
