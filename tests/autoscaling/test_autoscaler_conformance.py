"""The conformance suite of autoscalers: ours and a plugin pass it; a stateful one fails."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from schemas.settings import Setting
from services.pool_manager.autoscaling.autoscaler_conformance import AutoscalerConformance
from services.pool_manager.autoscaling.autoscaler_plugins import autoscaler_of
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation

MODULE = Path(__file__).resolve().parents[2] / "examples/office_hours/navarch_office_hours.py"
NIGHT = {"start": "0 22 * * *", "duration": "8h", "nodes": 9}
PARTS = [{"type": "queue"}, {"type": "reactive"}]


def plugin() -> Any:
    """Return the plugin's class, from its own package."""
    spec = importlib.util.spec_from_file_location("navarch_office_hours", MODULE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OfficeHours


class TestBuiltin(AutoscalerConformance):
    """The five built-in autoscalers pass the conformance suite."""

    @pytest.fixture(
        params=[
            {"type": "reactive"},
            {"type": "queue", "jobs_per_node": 2},
            {"type": "scheduled", "schedule": [NIGHT]},
            {"type": "predictive"},
            {"type": "composite", "autoscalers": PARTS},
        ],
        ids=lambda raw: raw["type"],
    )
    def make(self, request):
        return lambda: autoscaler_of(request.param, "pools.a.autoscaling", None)


class TestOfficeHours(AutoscalerConformance):
    """The plugin passes the conformance suite."""

    @pytest.fixture
    def make(self):
        kind = plugin()
        return lambda: kind(options=kind.Options())


class StatefulAutoscaler:
    """Counts how often it was called."""

    class Options(Setting, frozen=True, kw_only=True):
        """Offers no options."""

    def __init__(self) -> None:
        self._asked = 0

    def recommend(self, state: PoolState) -> Recommendation:
        self._asked += 1
        return Recommendation(target_nodes=state.current_nodes + self._asked, reason="more")


def test_stateful_autoscaler_fails_the_suite():
    """Earlier calls must not matter: another replica did not receive them."""
    with pytest.raises(AssertionError, match="remembers"):
        AutoscalerConformance().test_the_same_state_has_the_same_answer(StatefulAutoscaler)
