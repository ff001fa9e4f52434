"""Azure's table of error codes is tested row by row."""

from collections.abc import Callable

import pytest

from schemas.launch_offers import Market
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.azure import AzureProvider
from services.provisioner.providers.azure_errors import KINDS, error_of
from tests.provisioner.azure_server import AzureServer
from tests.provisioner.http_status_table import COMMON

Make = Callable[..., AzureProvider]


def said(code: str, message: str = "m"):
    """Return the body of an error answer."""
    return {"error": {"code": code, "message": message}}


@pytest.mark.parametrize(("code", "kind"), KINDS.items())
def test_every_known_code_has_its_kind(code: str, kind: str) -> None:
    """One row each, alone and wrapped in another, of a request and of an operation."""
    wrapped = {"error": {"code": "DeploymentFailed", "details": [said(code)["error"]]}}
    for body in (said(code), wrapped):
        for status in (0, 418):
            assert kind == error_of(status, body, "on-demand").kind


@pytest.mark.parametrize(
    ("code", "message", "market", "kind"),
    [
        ("SkuNotAvailable", "", "spot", "CAPACITY"),
        ("SkuNotAvailable", "", "on-demand", "UNSUPPORTED"),
        ("OperationNotAllowed", "exceeding approved Cores quota", "on-demand", "QUOTA"),
        ("OperationNotAllowed", "LowPriorityCores Quota", "spot", "QUOTA"),
        ("OperationNotAllowed", "marked for deletion", "spot", "TRANSIENT"),
    ],
)
def test_a_code_of_several_meanings_is_classified_by_the_rest(
    code: str, message: str, market: Market, kind: str
) -> None:
    """A code of several meanings is classified by the launch's market and by its text."""
    error = error_of(409, said(code, message), market)
    assert (kind, "") == (error.kind, error.unknown)


@pytest.mark.parametrize(
    ("status", "kind", "unknown"),
    [
        *COMMON,
        (400, "INVALID", False),
        (409, "TRANSIENT", False),
        (412, "TRANSIENT", False),
        (0, "TRANSIENT", True),
    ],
)
def test_an_unknown_code_goes_by_its_status(status: int, kind: str, unknown: bool) -> None:
    """Where that says nothing either it is transient, and says so."""
    for body in (said("NewlyInvented"), {}, [], {"error": "text"}):
        error = error_of(status, body, "spot")
        assert (kind, unknown) == (error.kind, "not known here" in error.message)


async def test_a_throttled_call_says_how_long_to_wait(azure: AzureServer, make_azure: Make) -> None:
    """A throttled call gives the wait that Azure names, whatever the code is."""
    azure.refuse("networkInterfaces.list", 429, "OperationNotAllowed", wait="17")
    with pytest.raises(ProviderError) as refused:
        await make_azure().list()
    assert ("THROTTLE", 17.0) == (refused.value.kind, refused.value.retry_after)
