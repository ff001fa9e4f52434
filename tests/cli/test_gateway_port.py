"""The port of a served dashboard: the same after every start, and a remark where it is taken."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from schemas.gateway_settings import GatewaySettings
from schemas.settings import Settings
from services.cli import served_bus
from services.cli.served_bus import gateway_port
from services.gateway.gateway_start import PORT_VARIABLE
from services.primitives.errors import ConfigurationError

SETTINGS = Settings()


@contextmanager
def taken(port: int = 0) -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", port)) as other:
        yield int(other.getsockname()[1])


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> int:
    """A usual port that is free here, whatever else runs on this machine."""
    with taken() as port:
        monkeypatch.setattr(served_bus, "USUAL_PORT", port)
    return port


def configured(port: int) -> Settings:
    """Return settings with a port for the gateway."""
    return msgspec.structs.replace(SETTINGS, gateway=GatewaySettings(port=port))


def test_the_dashboard_has_the_usual_port(usual: int) -> None:
    """Start after start, so that a link to it stays valid."""
    assert [gateway_port(SETTINGS, {}) for _ in range(3)] == [(str(usual), "")] * 3


def test_where_the_usual_port_is_taken_a_free_one_is_named(usual: int) -> None:
    """The fleet starts, and the remark has both ports and the setting."""
    with taken(usual):
        found = gateway_port(SETTINGS, {})
    assert found.port not in ("0", str(usual))
    for part in (f"port {usual} of 127.0.0.1 is taken", f"has port {found.port}", "gateway.port"):
        assert part in found.remark


def test_a_configured_port_that_is_taken_is_refused_with_its_key() -> None:
    """No other port takes the place of one that the configuration names."""
    with taken() as port, pytest.raises(ConfigurationError) as refused:
        gateway_port(configured(port), {})
    assert "gateway.port" in str(refused.value)
    assert f"127.0.0.1:{port} cannot be used" in str(refused.value)


def test_the_environment_may_ask_for_any_free_port(usual: int) -> None:
    """Two fleets at once, as tests have them, ask for no port in common."""
    found = gateway_port(SETTINGS, {PORT_VARIABLE: "0"})
    assert (found.port != str(usual), found.remark) == (True, "")
