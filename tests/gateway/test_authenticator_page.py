"""The example of docs/write-an-authenticator.md passes the suite, and a configuration loads it."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from services.gateway.authenticators.chain import AuthenticatorChain, make_authenticators
from services.primitives.clock import SystemClock
from services.settings.settings_file import load_settings
from tests.gateway.conftest import MakeGateway

PAGE = Path(__file__).parents[2] / "docs" / "write-an-authenticator.md"


def block(language: str, number: int) -> str:
    """Return one of the page's blocks."""
    found = re.findall(
        rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return str(found[number])


acme = types.ModuleType("acme_navarch")
exec(block("python", 0), acme.__dict__)
sys.modules["acme_navarch"] = acme
_suite: dict[str, Any] = {"__name__": __name__}
exec(block("python", 1), _suite)
TestProxy = _suite["TestProxy"]
"""The suite as the page has it, which pytest collects here."""


async def test_the_configuration_of_the_page_loads_the_plugin(
    tmp_path: Path, make_gateway: MakeGateway
) -> None:
    """The name in the configuration begins those of its callers; other addresses are refused."""
    file = tmp_path / "navarch.yaml"
    file.write_text(block("yaml", 0).replace("10.0.0.5", "127.0.0.1"))
    settings = load_settings(file, {})
    others = make_authenticators(settings.authenticators, file, SystemClock())
    gateway = make_gateway(others=others)
    headers = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "team-ml, staff"}
    answer = (await gateway.client("", **headers).get("/api/v1/caller")).json()
    assert (answer["name"], answer["role"], answer["pools"]) == (
        "proxy:ada",
        "operator",
        ["train*"],
    )
    assert (await gateway.client("").get("/api/v1/caller")).status_code == 401
    far = make_authenticators(load_settings(_far(tmp_path), {}).authenticators, file, SystemClock())
    refused = await make_gateway(others=far).client("", **headers).get("/api/v1/caller")
    assert (401, "the request does not come from the proxy") == (
        refused.status_code,
        refused.json()["detail"],
    )


def _far(directory: Path) -> Path:
    file = directory / "far.yaml"
    file.write_text(block("yaml", 0))
    return file


class _Broken:
    """A plugin with a defect."""

    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    async def authenticate(self, _: Any) -> Any:
        """Fail."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    async def close(self) -> None:
        """Fail as well."""
        raise RuntimeError("not again")


@pytest.mark.parametrize(
    "outcome", [RuntimeError("secret-of-the-plugin"), ValueError(), "admin", True, object()]
)
async def test_a_plugin_with_a_defect_lets_no_caller_in(
    make_gateway: MakeGateway, outcome: Any
) -> None:
    """Neither it nor what comes after it, and its text is not the caller's; tokens go on."""
    gateway = make_gateway(others={"broken": _Broken(outcome), "after": _Broken(None)})
    answer = await gateway.client("no-token").get("/api/v1/caller")
    assert answer.status_code == 500
    assert "secret-of-the-plugin" not in answer.text
    assert (await gateway.client().get("/api/v1/caller")).status_code == 200
    chain = AuthenticatorChain({}, {"broken": _Broken(outcome)}, SystemClock().now)
    await chain.close()
