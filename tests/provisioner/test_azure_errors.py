"""What Azure refuses and why: its tokens, and its table of error codes row by row."""

from collections.abc import Callable

import pytest

from schemas.launch_offers import Market
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.azure import AzureProvider
from services.provisioner.providers.azure_errors import KINDS, error_of
from tests.provisioner.azure_server import AzureServer
from tests.provisioner.http_status_table import COMMON

Make = Callable[..., AzureProvider]


# --- tokens --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["principal"]),
        ({"tenant": "", "client_id": ""}, ["machine system"]),
        ({"tenant": "", "client_id": "identity-7"}, ["machine identity-7"]),
    ],
)
async def test_one_token_serves_many_requests(
    azure: AzureServer, make_azure: Make, changes: dict[str, str], expected: list[str]
) -> None:
    """By a service principal, and by a machine's own identity or one that it was given."""
    provider = make_azure(**changes)
    for _ in range(3):
        await provider.list()
    assert expected == azure.tokens


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"client_secret_env": "NOWHERE"}, "variable NOWHERE is not set"),
        ({"client_secret_file": "/nowhere/secret"}, "No such file"),
        ({"client_secret_file": "/dev/null"}, "is empty"),
        ({"client_id": ""}, "client_id: must be set"),
        ({"tenant": "", "client_secret_file": "/dev/null"}, "needs tenant and client_id"),
    ],
)
def test_without_a_secret_the_service_does_not_start(
    make_azure: Make, changes: dict[str, str], says: str
) -> None:
    """The error names the provider, the setting and the ways out."""
    with pytest.raises(ConfigurationError, match=says):
        make_azure(**changes)


async def test_a_missing_token_has_its_cause(azure: AzureServer, make_azure: Make) -> None:
    """A secret that is refused is AUTH; no server is TRANSIENT and says what to set."""
    with pytest.raises(ProviderError, match="AADSTS") as refused:
        await make_azure(client_id="another").list()
    assert ("AUTH", []) == (refused.value.kind, azure.calls)
    unreachable = make_azure(tenant="", metadata_url="http://127.0.0.1:9")
    with pytest.raises(ProviderError, match="set tenant, client_id") as away:
        await unreachable.list()
    assert "TRANSIENT" == away.value.kind


# --- errors --------------------------------------------------------------------------------------


def said(code: str, message: str = "m"):
    """An error's body."""
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
    """By the market that the launch was on, and by its text."""
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
    """As Azure does, whatever code it names."""
    azure.refuse("networkInterfaces.list", 429, "OperationNotAllowed", wait="17")
    with pytest.raises(ProviderError) as refused:
        await make_azure().list()
    assert ("THROTTLE", 17.0) == (refused.value.kind, refused.value.retry_after)
