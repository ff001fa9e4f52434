"""Errors in a budget are reported with their place and the remedy."""

import pytest

from services.primitives.errors import ConfigurationError
from services.settings.settings_file import parse_settings

POOL = """providers:
  local: {}
pools:
  a:
    provider: local
    instance_type: x
    min_nodes: 1
    max_nodes: 2
"""
ERRORS = {
    "no rate": (
        POOL + "    budget: {max_replacements: many}\n",
        (
            "navarch.yaml:9: pools.a.budget.max_replacements: 'many' is neither a count nor a "
            "percentage; write 10, 50% or unlimited"
        ),
    ),
    "a rate of nothing": (
        POOL + "    budget: {max_replacements: 0}\n",
        "navarch.yaml:9: pools.a.budget.max_replacements: 0 lets nothing be repaired; use 1",
    ),
    "resets of nothing": (
        POOL + "    budget: {max_resets: 0}\n",
        "navarch.yaml:9: pools.a.budget.max_resets: 0 lets nothing be repaired; use 1",
    ),
    "a window too short": (
        POOL + "    budget: {window: 10s}\n",
        "navarch.yaml:9: pools.a.budget.window: 10s is too short to count repairs in; write 1m",
    ),
    "no fleet budget": (
        POOL + "budget:\n  max_unavailable: 0%\n",
        "navarch.yaml:10: budget.max_unavailable: '0%' is neither a count nor a percentage",
    ),
}


@pytest.mark.parametrize(("text", "said"), ERRORS.values(), ids=ERRORS)
def test_a_wrong_budget_names_file_line_key_and_remedy(text: str, said: str) -> None:
    """A wrong budget of a pool or of the fleet is named by file, line and key, with the remedy."""
    with pytest.raises(ConfigurationError) as found:
        parse_settings("navarch.yaml", text, {})
    assert str(found.value).startswith(said)


def test_a_budget_may_be_lifted() -> None:
    """`unlimited`, and a fleet of which all may go."""
    lifted = "budget: {max_unavailable: 100%, max_replacements: unlimited, window: 2h}"
    settings = parse_settings("navarch.yaml", f"{POOL}    {lifted}\n{lifted}\n", {})

    for budget in (settings.budget, settings.pools["a"].budget):
        assert ("100%", "unlimited", 7200) == (
            budget.max_unavailable,
            budget.max_replacements,
            budget.window,
        )
