"""A fleet inside this process calls the plugins that this program registers, and no others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.fleet_queries import Query
from schemas.operator_requests import ScaleRequest
from schemas.settings import PROVIDER_PLUGINS, PluginSettings, Setting
from services.embedding.embedded_fleet import SERVICES, EmbeddedFleet
from services.pool_manager.autoscaling.autoscalers import PoolState, Recommendation
from services.primitives.errors import ConfigurationError, NavarchError
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.runtime.process import Context, Service, no_check
from services.settings.plugin_loader import load_plugin
from tests.notifier.test_notifier_pages import blocks
from tests.support.inprocess import eventually

CONFIG = """
fleet: embedded
data_dir: data
providers:
  acme: {type: acme-cloud, region: here}
pools:
  training:
    provider: acme
    instance_type: large
    gpu_count: 8
    min_nodes: 0
    max_nodes: 4
"""
AUTOSCALED = "    autoscaling: {type: always-three}\nserver: {autoscale_interval: 1s}\n"


class AcmeCloud:
    """Launches machines in this process's memory."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds what the configuration sets."""

        region: str

    machines: dict[str, Instance]

    def __init__(self, *, options: Options, environment: Environment) -> None:
        """Begin with what this program's cloud has."""
        self.name = environment.name
        self.capabilities = Capabilities(idempotency_token=True)
        self._region = options.region

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Launch a machine."""
        made = Instance(
            name=request.name,
            provider_id=f"m-{request.token}",
            fleet=request.fleet,
            pool=request.pool,
            token=request.token,
            region=self._region,
        )
        return self.machines.setdefault(made.provider_id, made)

    async def terminate(self, provider_id: str) -> None:
        """Remove a machine."""
        self.machines.pop(provider_id, None)

    async def list(self) -> Any:
        """Return every machine."""
        return [*self.machines.values()]

    async def close(self) -> None:
        """Close no connection: there is none."""


class AlwaysThree:
    """Recommends three nodes."""

    class Options(Setting, frozen=True, kw_only=True):
        """Holds no setting."""

    def __init__(self, *, options: Options) -> None:
        """Take the options."""

    def recommend(self, state: PoolState) -> Recommendation:
        """Recommend three nodes."""
        return Recommendation(target_nodes=3, reason=f"three, not {state.current_nodes}")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> dict[str, Instance]:
    """Return the machines of the cloud, by ID."""
    machines: dict[str, Instance] = {}
    monkeypatch.setattr(AcmeCloud, "machines", machines, raising=False)
    return machines


def fleet(directory: Path, more: str = "", services: Any = SERVICES) -> EmbeddedFleet:
    """Return a fleet of the configuration, whose cloud and autoscaler are this program's."""
    file = directory / "navarch.yaml"
    file.write_text(CONFIG + more, encoding="utf-8")
    made = EmbeddedFleet(file, environment={}, services=services)
    made.register("provider", "acme-cloud", AcmeCloud)
    made.register("autoscaler", "always-three", AlwaysThree)
    return made


async def test_a_request_launches_at_the_programs_own_provider(
    tmp_path: Path, cloud: dict[str, Instance]
) -> None:
    """Machines have the region of the configuration, and the plugin is shown as this program's."""
    made = fleet(tmp_path)
    async with made:
        await made.client.request("training", "scale", ScaleRequest(by="program", nodes=2))

        async def launched() -> bool:
            return len(cloud) == 2

        await eventually(launched)
        assert {each.region for each in cloud.values()} == {"here"}
        nodes = await made.client.nodes(Query(pool="training"))
        assert {each.id for each in nodes} == {each.name for each in cloud.values()}
    with pytest.raises(NavarchError, match="does not run"):
        _ = made.client
    with pytest.raises(ConfigurationError, match=r"no navarch\.providers named 'acme-cloud'"):
        load_plugin(PROVIDER_PLUGINS, PluginSettings(type="acme-cloud"), None)


async def test_the_programs_autoscaler_is_asked(tmp_path: Path, cloud: dict[str, Instance]) -> None:
    """Pools grow as it recommends."""
    async with fleet(tmp_path, AUTOSCALED):

        async def launched() -> bool:
            return len(cloud) == 3

        await eventually(launched)


async def test_a_fleet_goes_on_where_it_was(tmp_path: Path, cloud: dict[str, Instance]) -> None:
    """The store below `data_dir` outlives the program."""
    async with fleet(tmp_path) as first:
        await first.client.request("training", "scale", ScaleRequest(by="program", nodes=1))

        async def launched() -> bool:
            return len(cloud) == 1

        await eventually(launched)
    async with fleet(tmp_path) as second:
        (record,) = await second.client.pool_records()
    assert record.desired == 1
    assert len(cloud) == 1


async def test_the_program_of_the_page_runs(tmp_path: Path, cloud: dict[str, Instance]) -> None:
    """docs/plugins.md shows it."""
    page: dict[str, Any] = {}
    (program,) = (each for each in blocks("plugins.md", "python") if "EmbeddedFleet" in each)
    exec(program, page)
    file = tmp_path / "navarch.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    assert await page["grow"](file, AcmeCloud, 2) == 2
    assert len(cloud) <= 2


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("cloud", "no service here calls a plugin of kind 'cloud': provider, scheduler"),
        ("authenticator", "no service here calls a plugin of kind 'authenticator'"),
    ],
)
def test_a_kind_that_no_service_calls_is_refused(tmp_path: Path, kind: str, problem: str) -> None:
    """The answer names the kinds."""
    with pytest.raises(ConfigurationError, match=problem):
        fleet(tmp_path).register(kind, "acme", AcmeCloud)


async def test_a_wrong_configuration_starts_nothing(tmp_path: Path) -> None:
    """The error has file and line; the server never ran, and the name is free again."""
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"navarch\.yaml:\d+: .*regions"):
            await _wrong(tmp_path)
    assert not (tmp_path / "data" / "nats").exists()


async def _wrong(directory: Path) -> None:
    made = fleet(directory)
    file = directory / "navarch.yaml"
    file.write_text(CONFIG.replace("region: here", "regions: here"), encoding="utf-8")
    async with made:
        raise AssertionError("it started")


async def test_a_name_has_one_meaning(tmp_path: Path, cloud: dict[str, Instance]) -> None:
    """A second fleet of the process registers the name only once the first has ended."""
    async with fleet(tmp_path):
        with pytest.raises(ConfigurationError, match="'acme-cloud' already"):
            await fleet(tmp_path).__aenter__()
    assert cloud == {}


@pytest.mark.parametrize("after_seconds", [0.0, 1.0])
async def test_a_service_that_ends_by_itself_ends_the_block(
    tmp_path: Path, cloud: dict[str, Instance], after_seconds: float
) -> None:
    """The program is not left to wait for what nothing does any more."""

    async def failing(context: Context) -> Service:
        async def end() -> None:
            await context.clock.sleep(after_seconds)
            raise OSError("of the service")

        if not after_seconds:
            await end()
        return Service(description="ends", tasks=(end,))

    made = fleet(tmp_path, services={**SERVICES, "metrics": (failing, no_check)})
    with pytest.raises(OSError, match="of the service"):
        async with asyncio.timeout(60), made:
            await asyncio.Event().wait()
    assert cloud == {}


async def test_an_error_of_the_program_stops_the_fleet(
    tmp_path: Path, cloud: dict[str, Instance]
) -> None:
    """The program's own error comes out of the block, and no task is left."""
    before = len(asyncio.all_tasks())
    with pytest.raises(LookupError, match="of the program"):
        async with fleet(tmp_path):
            raise LookupError("of the program")
    assert len(asyncio.all_tasks()) == before
    assert cloud == {}
