"""Checks what a configuration would change of the stored pools."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec, Settings
from services.settings.pool_differences import (
    PoolDifference,
    SettingChange,
    changes_between,
    pool_differences,
)
from services.settings.settings_file import parse_settings
from services.settings.stored_pools import spec_to_store


def configured(mode: str = "act", **pools: dict[str, Any]) -> Settings:
    """Return a configuration with these pools."""
    base = {"provider": "local", "instance_type": "x", "min_nodes": 2, "max_nodes": 4}
    document = {
        "mode": mode,
        "providers": {"local": {}},
        "pools": {name: {**base, **more} for name, more in pools.items()},
    }
    return parse_settings("navarch.yaml", msgspec.json.encode(document).decode(), {})


def specs(settings: Settings) -> dict[str, PoolSpec]:
    """Return the configuration's pools as they would be stored."""
    return {name: spec_to_store(settings, name) for name in settings.pools}


def stored(settings: Settings, pool: str, desired: int = 3, **more: Any) -> PoolRecord:
    """A pool as its pool-manager has recorded it."""
    return PoolRecord(name=pool, spec=spec_to_store(settings, pool), desired=desired, **more)


BEFORE = configured(web={}, other={})


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        pytest.param(BEFORE, (), id="nothing"),
        pytest.param(
            configured(web={"drain_timeout": "5m"}, other={}),
            (
                PoolDifference(
                    pool="web",
                    change="changed",
                    desired=3,
                    desired_after=3,
                    settings=(SettingChange("drain_timeout", "1h", "5m"),),
                ),
            ),
            id="a value",
        ),
        pytest.param(
            configured(web={"labels": {"team": "a"}}, other={}),
            (
                PoolDifference(
                    pool="web",
                    change="changed",
                    desired=3,
                    desired_after=3,
                    settings=(
                        SettingChange("labels", {}, None),
                        SettingChange("labels.team", None, "a"),
                    ),
                ),
            ),
            id="a value that was not there",
        ),
        pytest.param(
            configured(web={"min_nodes": 4}, other={}),
            (
                PoolDifference(
                    pool="web",
                    change="changed",
                    desired=3,
                    desired_after=4,
                    settings=(SettingChange("min_nodes", 2, 4),),
                ),
            ),
            id="its size follows its limits",
        ),
        pytest.param(
            configured(web={}, other={}, third={}),
            (PoolDifference(pool="third", change="added", desired=0, desired_after=2),),
            id="added",
        ),
        pytest.param(
            configured(web={}),
            (PoolDifference(pool="other", change="unlisted", desired=3, desired_after=3),),
            id="removed",
        ),
    ],
)
def test_what_a_configuration_would_change(
    after: Settings, expected: tuple[PoolDifference, ...]
) -> None:
    """The changes of the pools `web` and `other`, of three nodes each, are as expected."""
    records = [stored(BEFORE, "web"), stored(BEFORE, "other")]
    assert pool_differences(records, specs(after)) == expected


def test_the_mode_of_the_fleet_counts() -> None:
    """The mode counts as the pool-manager records it."""
    observed = configured(mode="observe", web={})
    (difference,) = pool_differences([stored(BEFORE, "web")], specs(observed))
    assert difference.settings == (SettingChange("mode", "act", "observe"),)


def test_a_requested_pool_is_not_of_the_configuration() -> None:
    """Neither one that operators have made nor one that they remove is reported."""
    requested = stored(BEFORE, "web", applied="request-1")
    removed = stored(BEFORE, "other", removing="request-2")
    assert pool_differences([requested, removed], {}) == ()


SPECS = st.builds(
    lambda low, more, zones, labels: spec_to_store(
        configured(
            web={"min_nodes": low, "max_nodes": low + more, "zones": zones, "labels": labels}
        ),
        "web",
    ),
    st.integers(0, 3),
    st.integers(1, 3),
    st.lists(st.sampled_from(["a", "b"]), unique=True),
    st.dictionaries(st.sampled_from(["team", "tier"]), st.sampled_from(["x", "y"])),
)


@given(SPECS, SPECS)
def test_equal_settings_and_no_others_have_no_difference(old: PoolSpec, new: PoolSpec) -> None:
    """A value that changes one way is changed back the other way."""
    forth = {each.key: (each.old, each.new) for each in changes_between(old, new)}
    back = {each.key: (each.new, each.old) for each in changes_between(new, old)}
    assert forth == back
    assert (forth == {}) == (old == new)
