"""No answer of the API is a defect or is not described, whatever a caller sends.

`HYPOTHESIS_PROFILE=explore` sends far more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from schemas import subjects
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.gateway.api_description import api_description
from services.gateway.views import STREAM_TYPE
from services.primitives.clock import SystemClock
from tests.cli.begun_names import SAGA
from tests.cli.test_http_commands import CONFIG, fill
from tests.gateway.conftest import ENDPOINTS, Manager
from tests.gateway.test_gateway_process import gateway_process
from tests.support.clients import connected

pytestmark = [pytest.mark.slow, pytest.mark.timeout(480)]

ROLES: Final = ("viewer", "operator", "admin", "scoped")
NAMES: Final = {
    "/evidence": "training-9",
    "/nodes/": "training-1",
    "/pools/": "training",
    "/services/": "notifier",
    "/": SAGA,
}
"""Part of a path -> what there is."""
MODES: Final = (
    (schemathesis.GenerationMode.POSITIVE, False),
    (schemathesis.GenerationMode.POSITIVE, True),
    (schemathesis.GenerationMode.NEGATIVE, True),
)
"""What is sent is as described or is not, and whether its path names something that exists."""
SENT: Final = (
    *(("admin", *each) for each in MODES),
    *((role, *MODES[1]) for role in ROLES if role != "admin"),
)
"""Where a role makes a difference, what is sent is right."""
CHECKS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
    checks.allow_header_conformance,
]
EXAMPLES: Final = {"admin": 3}
"""Of each operation and mode, where every run sends the same; 1 of the roles that may do less."""
TIMEOUT_SECONDS: Final = 60.0
WITHOUT_TOKENS: Final = {
    key: value for key, value in api_description().items() if key != "security"
}
"""Every caller here sends its token."""
OPERATIONS: Final = {
    found.ok().label: found.ok()
    for found in schemathesis.openapi.from_dict(WITHOUT_TOKENS).get_all_operations()
}


def budget(role: str) -> settings:
    """Return the settings with the number of examples of one operation and mode."""
    profile = settings.default
    assert profile is not None
    number = EXAMPLES.get(role, 1) if profile.derandomize else profile.max_examples // 100
    return settings(
        profile,
        max_examples=number,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def named(operation: Any, *, is_real: bool) -> dict[str, Any]:
    """The parameters of the path that are given; nothing: they are generated."""
    chosen = [each.name for each in operation.path_parameters]
    if not is_real or not chosen:
        return {}
    value = next(name for part, name in NAMES.items() if part in operation.path)
    return {"path_parameters": dict.fromkeys(chosen, value)}


def send(case: Any, url: str, token: str, session: requests.Session) -> int:
    """Send a case and check its answer; of a stream, its beginning."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    prepared = case.as_transport_kwargs(base_url=url, headers=headers)
    prepared |= {"stream": True, "timeout": TIMEOUT_SECONDS}
    with session.request(**prepared) as answer:
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        if answer.ok and kind == STREAM_TYPE:
            assert STREAM_TYPE in str(case.operation.definition.raw["responses"]["200"])
            return answer.status_code
        case.validate_response(answer, checks=CHECKS, headers=headers)
        return answer.status_code


def send_all(operation: Any, url: str, session: requests.Session) -> set[int]:
    """Send what is generated of one operation, in every role; returns how it was answered."""
    found = set()
    for role, mode, is_real in SENT:
        if mode.is_negative and not takes_something(operation):
            continue
        send_one = partial(send, url=url, token=f"{role}-token", session=session)
        given_path = named(operation, is_real=is_real)
        found |= statuses(
            operation.as_strategy(generation_mode=mode, **given_path), send_one, budget(role)
        )
    return found


def statuses(strategy: Any, send_one: Callable[[Any], int], limits: settings) -> set[int]:
    """Send the examples of a strategy; returns how they were answered."""
    found = set()

    @limits
    @given(case=strategy)
    def check(case: Any) -> None:
        found.add(send_one(case))

    check()
    return found


def takes_something(operation: Any) -> bool:
    """Return whether there is anything beside an operation's path that can be wrong."""
    return bool(list(operation.query) or list(operation.body))


@pytest.fixture
async def gateway(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[str]:
    """Yield the URL of a gateway's own process, over a real server, with small services."""
    bus: NatsBus = await connected(server)
    await set_up(bus, SystemClock(), replicas=1)
    await fill(bus)
    endpoints = {subjects.query(name): each for name, each in ENDPOINTS.items()}
    await bus.serve("pool-manager", "a small one", endpoints)
    manager = Manager(bus)  # type: ignore[arg-type]
    manager.hears.set()
    answering = asyncio.create_task(manager.run())
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIG + "  requests_per_minute: 1000000\n")
    async with gateway_process(server.url, file) as ready:
        yield ready["http"]
    assert not answering.done()
    answering.cancel()
    await asyncio.wait({answering})
    await bus.close()


async def test_every_operation_answers_as_described(gateway: str) -> None:
    """An operation answers valid and invalid requests in every role as described."""
    with requests.Session() as session:
        for label, operation in OPERATIONS.items():
            found = await asyncio.to_thread(send_all, operation, gateway, session)
            # An agent may refuse a diagnosis.
            assert found & {200, 409}, (label, found)
