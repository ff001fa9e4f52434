"""`navarch up` and `down` say what a request would be refused for, before a plan is believed."""

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.cli.test_commands import navarch
from tests.pool_manager.fleet import settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

UP = ("up", "--gpus", "8", "--type", "p5.48xlarge", "--name")
CONFIGURED = "refused (wrong-state)"


async def test_a_plan_that_would_be_refused_is_not_shown(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The plan for a pool of the configuration was printed, and then refused."""
    url = server.url
    async with Peers(bus), Running(url, "pool-manager", build, settings()):
        names = await eventually(settled(bus, 3))
        for command in (("down", "training", "-y"), (*UP, "training", "-y")):
            code, out, err = await navarch(*command, "--no-wait", url=url)
            assert (code, out, CONFIGURED in err) == (1, "", True), (command, out, err)

        code, out, err = await navarch("down", "train", "--dry-run", url=url)
        assert (code, err) == (0, "")
        assert all(name in out for name in names)
        assert "remove training would be refused (wrong-state)" in out

        code, out, err = await navarch(*UP, "training", "--dry-run", url=url)
        assert (code, "apply training would be refused (wrong-state)" in out) == (0, True), out

        # Of a provider that this fleet has not: the dry run and the command say the same.
        code, out, _ = await navarch(*UP, "web", "--dry-run", url=url)
        assert (code, "apply web would be refused (invalid-request)" in out) == (0, True)
        code, out, err = await navarch(*UP, "web", "-y", "--no-wait", url=url)
        assert (code, out, "no provider 'local'" in err) == (1, "", True)
