"""CoreWeave's tables of reasons, conditions and events are tested row by row."""

import pytest

from services.provisioner.providers.coreweave_errors import (
    CONDITIONS,
    DENIED,
    EVENTS,
    is_settled,
    pool_error,
)
from services.provisioner.providers.kubernetes_errors import REASONS, error_of
from tests.provisioner.http_status_table import COMMON


@pytest.mark.parametrize(("reason", "kind"), REASONS.items())
def test_every_known_reason_has_its_kind(reason: str, kind: str) -> None:
    """Each known reason has one row, which gives its kind."""
    error = error_of(418, reason, "m")
    assert (kind, "") == (error.kind, error.unknown)


@pytest.mark.parametrize(
    ("status", "kind", "unknown"),
    [
        *COMMON,
        (400, "INVALID", False),
        (409, "TRANSIENT", False),
        (422, "INVALID", False),
    ],
)
def test_an_unknown_reason_goes_by_its_status(status: int, kind: str, unknown: bool) -> None:
    """Where that says nothing either it is transient, and says so."""
    for reason in ("New", ""):
        error = error_of(status, reason, "")
        assert (kind, unknown) == (error.kind, "not known here" in error.message)
    unknown_code = error_of(status, "New", "").unknown
    assert ("" if kind == "THROTTLE" else "New") == unknown_code


def test_a_quota_of_the_clusters_own_is_no_missing_right() -> None:
    """Kubernetes calls both Forbidden."""
    said = "pods is forbidden: exceeded quota: pools"
    assert "QUOTA" == error_of(403, "Forbidden", said).kind


def pool_of(name: str, reason: str, status: str = "True"):
    """Return a pool with one condition."""
    return {"status": {"conditions": [{"type": name, "reason": reason, "status": status}]}}


@pytest.mark.parametrize(("condition", "kind"), CONDITIONS.items())
def test_every_known_condition_has_its_kind(condition: tuple[str, str], kind: str | None) -> None:
    """One row each, whatever status it comes with."""
    for status in ("True", "False", "Unknown"):
        error = pool_error(pool_of(*condition, status), [])
        assert kind == (error and error.kind)


@pytest.mark.parametrize(("name", "kind"), DENIED.items())
def test_a_condition_that_is_denied_for_an_unknown_reason_has_its_types_kind(
    name: str, kind: str
) -> None:
    """A condition that is denied has its type's kind; one that is not denied decides nothing."""
    denied = pool_error(pool_of(name, "NewlyInvented", "False"), [])
    assert denied is not None
    assert (kind, f"{name}=NewlyInvented") == (denied.kind, denied.unknown)
    for open_ in ("True", "Unknown"):
        assert pool_error(pool_of(name, "NewlyInvented", open_), []) is None
        assert not is_settled(pool_of(name, "NewlyInvented", open_))


def test_a_condition_under_its_newer_name_means_the_same() -> None:
    """`Valid` is what operators see; whether the reasons changed with it is not known."""
    denied = pool_error(pool_of("Valid", "InternalError", "False"), [])
    assert denied is not None
    assert ("INVALID", "Valid=InternalError") == (denied.kind, denied.unknown)
    good = [("Valid", "Valid"), ("Capacity", "Sufficient"), ("Quota", "Under")]
    conditions = [{"type": name, "reason": reason, "status": "True"} for name, reason in good]
    assert is_settled({"status": {"conditions": conditions}})


@pytest.mark.parametrize(("reason", "kind"), EVENTS.items())
def test_every_known_event_has_its_kind(reason: str, kind: str) -> None:
    """One row each; any other event says nothing."""
    error = pool_error({}, [{"reason": "CWNodeAssigned"}, {"reason": reason, "message": "m"}])
    assert error is not None
    assert kind == error.kind
    assert pool_error({}, [{"reason": "CWNodeAssigned"}]) is None
