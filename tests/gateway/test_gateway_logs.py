"""`navarch logs gateway`: what the gateways keep of their logs, over the bus and over HTTP."""

from pathlib import Path

import pytest

from services.bus.nats.embedded_server import EmbeddedServer
from tests.cli.test_http_commands import CONFIG, Place
from tests.gateway.test_gateway_process import gateway_process

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("bus")
async def test_the_gateways_log_is_read_over_the_bus_and_over_http(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """The log has every replica's lines, whichever is asked; a token is in none of them."""
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIG)
    async with gateway_process(server.url, file) as first, gateway_process(server.url, file) as two:
        places = [Place(server.url, each["http"]) for each in (first, two)]
        for line in ("logs gateway", "logs gateway/gateway- -n 100 -o json"):
            outcomes = [
                await places[0].over_bus(line),
                *[await each.over_http(line) for each in places],
            ]
            for status, out, err in outcomes:
                assert status == 0, err
                assert first["http"] in out
                assert two["http"] in out
                assert "operator-token" not in out
        status, _, err = await places[0].over_bus("logs gateway/gone")
        assert (status, "the gateway has no replica 'gone'; there are: gateway-" in err) == (
            1,
            True,
        )
