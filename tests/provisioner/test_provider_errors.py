"""Errors of providers: what each kind allows, and how long an answer can make a launch wait."""

import httpx
import pytest

from services.provisioner.provider_client.provider_errors import RULES, ProviderError
from services.provisioner.providers.provider_http import retry_after

HEADERS = [
    ("", None),
    ("0", None),
    ("7", 7.0),
    ("-7", None),
    ("nan", None),
    ("²", None),
    ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ("86400", 3600.0),
    ("9" * 400, None),
]


@pytest.mark.parametrize(("header", "seconds"), HEADERS)
def test_a_header_asks_for_an_hour_at_most(header: str, seconds: float | None) -> None:
    """Text that is no number of seconds asks for nothing."""
    headers = [(b"Retry-After", header.encode("latin-1"))]
    assert retry_after(httpx.Response(429, headers=headers)) == seconds


def test_an_error_never_keeps_more() -> None:
    """A longer wait is cut, whichever provider made the error."""
    assert ProviderError("THROTTLE", "later", retry_after=86_400.0).retry_after == 3600.0


def test_every_kind_of_error_has_a_rule() -> None:
    """Each kind declares whether it is tried again within a step, and whether it leaves a doubt."""
    assert {kind for kind, rule in RULES.items() if rule.retry_in_step} == {
        "NETWORK",
        "THROTTLE",
        "TRANSIENT",
    }
    assert {kind for kind, rule in RULES.items() if rule.in_doubt} == {"NETWORK", "TRANSIENT"}
