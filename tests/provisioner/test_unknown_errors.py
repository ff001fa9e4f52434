"""An error code without a row counts as transient and is reported once."""

import asyncio
import json
from collections.abc import Callable

import pytest

from schemas import subjects
from schemas.fleet_events import FACTS, UnknownError, fleet_codec
from schemas.topology import EVENTS
from services.bus.nats.nats_bus import NatsBus
from services.notifier.alerts.alert_rules import alert_of
from services.primitives.clock import SystemClock
from services.primitives.errors import Unavailable
from services.provisioner.provider_client.provider_calls import ProviderCalls
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.provider_client.unknown_errors import UnknownErrors
from services.provisioner.providers import (
    aws_errors,
    azure_errors,
    docker_errors,
    gcp_errors,
    lambda_errors,
)
from services.provisioner.providers.fake import FakeFault
from tests.provisioner.provisioner_parts import fake

ErrorOf = Callable[[int, str], ProviderError]


def aws(status: int, code: str) -> ProviderError:
    """Return an error as EC2 words it."""
    answer = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return aws_errors.error_of(answer)


def gcp(status: int, code: str) -> ProviderError:
    """Return an error as Compute Engine words it."""
    errors = [{"reason": code}] if code else []
    return gcp_errors.error_of(status, {"error": {"errors": errors}})


def gcp_operation(status: int, code: str) -> ProviderError:
    """Return an error as a finished operation of Compute Engine words it."""
    del status
    found = gcp_errors.operation_error({"error": {"errors": [{"code": code}]}})
    assert found is not None
    return found


def azure(status: int, code: str) -> ProviderError:
    """Return an error as Azure words it."""
    return azure_errors.error_of(status, {"error": {"code": code, "message": "m"}}, "on-demand")


def lambda_cloud(status: int, code: str) -> ProviderError:
    """Return an error as Lambda words it."""
    body = json.dumps({"error": {"code": code, "message": "m", "suggestion": ""}})
    return lambda_errors.error_of(status, body.encode())


def docker(status: int, code: str) -> ProviderError:
    """The engine has no codes."""
    del code
    return docker_errors.error_of(status, b'{"message": "what is this"}')


@pytest.mark.parametrize(
    ("error_of", "status", "code", "unknown"),
    [
        (aws, 400, "InsufficientInstanceCapacity", ""),
        (aws, 400, "BrandNewLimit", "BrandNewLimit"),
        (aws, 503, "BrandNewOutage", "BrandNewOutage"),
        (gcp, 400, "quotaExceeded", ""),
        (gcp, 400, "brandNew", "brandNew"),
        (gcp, 403, "", ""),
        (gcp, 418, "", "HTTP 418"),
        (gcp, 502, "", ""),
        (gcp_operation, 0, "ZONE_RESOURCE_POOL_EXHAUSTED", ""),
        (gcp_operation, 0, "BRAND_NEW", "BRAND_NEW"),
        (azure, 409, "BrandNewConflict", "BrandNewConflict"),
        (azure, 429, "BrandNewThrottle", ""),
        (azure, 503, "", ""),
        (lambda_cloud, 400, "global/quota-exceeded", ""),
        (lambda_cloud, 400, "global/brand-new", "global/brand-new"),
        (lambda_cloud, 401, "global/brand-new", "global/brand-new"),
        (lambda_cloud, 401, "", ""),
        (lambda_cloud, 429, "global/brand-new", ""),
        (lambda_cloud, 418, "", "HTTP 418"),
        (docker, 409, "", ""),
        (docker, 418, "", "HTTP 418"),
        (docker, 500, "", ""),
    ],
)
def test_what_has_no_row_is_named(error_of: ErrorOf, status: int, code: str, unknown: str) -> None:
    """An unknown error is named by its code, or else by its status.

    A server that just fails is no news.
    """
    assert unknown == error_of(status, code).unknown


@pytest.mark.parametrize(
    ("error_of", "codes", "status"),
    [
        (aws, aws_errors.KINDS, 400),
        (gcp, gcp_errors.KINDS, 400),
        (gcp_operation, gcp_errors.KINDS, 0),
        (azure, azure_errors.KINDS, 400),
        (lambda_cloud, lambda_errors.KINDS, 400),
    ],
)
def test_every_row_is_known(error_of: ErrorOf, codes: dict[str, str], status: int) -> None:
    """No code of a table is reported."""
    assert [] == [code for code in codes if error_of(status, code).unknown]


async def reports(bus: NatsBus) -> list[tuple[str, str, str]]:
    """Return provider, code and call of each report."""
    stored = await bus.read(EVENTS.name, subjects.fleet_event(FACTS[UnknownError]))
    events = [fleet_codec.decode(each.data) for each in stored]
    return [(e.provider, e.code, e.call) for e in events if isinstance(e, UnknownError)]


class Odd:
    """A provider that answers with unknown codes, and raises unexpected exceptions."""

    name = "odd"

    def __init__(self, *codes: str) -> None:
        self._codes = list(codes)

    async def list(self) -> list[object]:
        """Fail once of each code, and then of a defect."""
        if self._codes:
            raise ProviderError("TRANSIENT", "HTTP 400: on hold.", unknown=self._codes.pop(0))
        raise KeyError("instances")


async def test_each_code_is_reported_once_by_any_replica(bus: NatsBus) -> None:
    """Again, at the same time, at another replica or after a restart: it is reported already."""
    first, second = UnknownErrors(bus, SystemClock()), UnknownErrors(bus, SystemClock())
    calls = [
        ProviderCalls(
            Odd("new", "new", "other"), call_timeout_seconds=60, report_unknown=each.report
        )
        for each in (first, second)
    ]
    for _ in range(5):
        results = await asyncio.gather(
            *(each.list_instances() for each in calls), return_exceptions=True
        )
        assert [True, True] == [isinstance(each, ProviderError) for each in results]
    await UnknownErrors(bus, SystemClock()).report(
        "odd", "list", ProviderError("TRANSIENT", "m", unknown="new")
    )
    expected = [("odd", "KeyError", "list"), ("odd", "new", "list"), ("odd", "other", "list")]
    assert expected == sorted(await reports(bus))


class Away:
    """A bus that is away."""

    async def read(self, *_: object) -> list[object]:
        """No server answers."""
        raise Unavailable("no responders")


async def test_a_bus_that_is_away_hides_no_error(bus: NatsBus) -> None:
    """The call fails as it failed, and the code is reported when the bus is back."""
    reporter = UnknownErrors(Away(), SystemClock())
    calls = ProviderCalls(Odd("new"), call_timeout_seconds=60, report_unknown=reporter.report)
    with pytest.raises(ProviderError, match="on hold"):
        await calls.list_instances()
    reporter._bus = bus
    await reporter.report("odd", "list", ProviderError("TRANSIENT", "m", unknown="new"))
    assert [("odd", "new", "list")] == await reports(bus)


async def test_known_codes_are_not_reported(bus: NatsBus) -> None:
    """A fault that was ordered has its kind."""
    provider = fake(faults=(FakeFault(call="list", kind="THROTTLE"),))
    reporter = UnknownErrors(bus, SystemClock())
    with pytest.raises(ProviderError):
        await ProviderCalls(
            provider, call_timeout_seconds=60, report_unknown=reporter.report
        ).list_instances()
    assert [] == await reports(bus)


@pytest.mark.parametrize(
    ("treated_as", "says"),
    [
        ("TRANSIENT", "It is treated as TRANSIENT; "),
        ("AUTH", "It is treated as AUTH, judged by its HTTP status alone; "),
    ],
)
def test_the_alert_says_how_the_error_is_treated(treated_as: str, says: str) -> None:
    """Provider, code and what the provider said; and that it is reported once."""
    event = UnknownError(
        id="e1",
        time="2026-01-02T03:04:05Z",
        provider="lambda",
        code="global/new",
        call="provision",
        message="HTTP 400: on hold.",
        treated_as=treated_as,
    )
    alert = alert_of(event)
    assert alert is not None
    assert ("warning", "unknown-error/lambda/global/new") == (alert.severity, alert.key)
    assert "lambda: unknown error" == alert.title
    assert f"Provision failed with global/new: HTTP 400: on hold. {says}" in alert.text
