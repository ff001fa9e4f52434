"""New nodes get the same user data each time, with no secret where people look."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from schemas.instance_records import InstanceRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import AgentSettings, NatsSettings
from schemas.topology import OFFERINGS
from services.bus.nats.credentials_file import claims_of
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import SIGNING_FILE
from services.primitives.errors import SetupError
from services.provisioner.bootstrap.user_data import (
    REDACTED,
    BootstrapTemplates,
    UserDataError,
    redact,
)
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance, ProvisionRequest
from services.saga.participant import StepFailure
from services.settings.placeholders import USER_DATA_BYTES_MAX, fill
from tests.provisioner.provisioner_parts import fake, provision, steps
from tests.support.secured import NOW, nats_config

TEMPLATES = frozenset({"own.yaml", "none.yaml", "~/own.yaml"})
"""Files that the configuration names."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the agents' signing key."""
    return nats_config(tmp_path_factory.mktemp("keys")) / SIGNING_FILE


def templates(directory: Path, keys: Path | None = None, **agent: Any) -> BootstrapTemplates:
    """Return a provisioner's templates, with the signing key or on an open bus."""
    nats = NatsSettings(url="nats://bus:4222", agent_signing_file=str(keys or ""))
    return BootstrapTemplates(nats, AgentSettings(**agent), directory, TEMPLATES)


def record(user_data: str = "auto", node: str = "web-1") -> InstanceRecord:
    """A node that is being launched."""
    launch = LaunchSpec(
        fleet="f", provider="aws", instance_type="p5", region="r", gpu_count=8, user_data=user_data
    )
    return instance_decisions.intended_record("web", node, launch, "saga", NOW)


def test_the_same_launch_has_the_same_user_data(tmp_path: Path, keys: Path) -> None:
    """A provider that is asked again with its token must be asked for the same machine."""
    first = templates(tmp_path, keys).user_data(record())

    assert first == templates(tmp_path, keys).user_data(record())
    assert first != templates(tmp_path, keys).user_data(record(node="web-2"))


def test_user_data_is_cloud_config_with_everything_an_agent_needs(
    tmp_path: Path, keys: Path
) -> None:
    """User data has the agent's settings, short-lived credentials, its unit, and its start."""
    user_data = templates(tmp_path, keys, package="https://example.com/navarch.whl").user_data(
        record()
    )
    files = {each["path"]: each["content"] for each in yaml.safe_load(user_data)["write_files"]}
    claims = claims_of(files["/etc/navarch/bootstrap.creds"])

    assert user_data.startswith("#cloud-config\n")
    assert (
        "NAVARCH_NATS_URL=nats://bus:4222\nNAVARCH_POOL=web\nNAVARCH_NODE=web-1\n"
        in (files["/etc/navarch/agent.env"])
    )
    assert "NAVARCH_GPU_COUNT=8" in files["/etc/navarch/agent.env"]
    assert ("bootstrap web/web-1", NOW.timestamp() + 3600) == (claims["name"], claims["exp"])
    assert ["pool:web", "node:web-1"] == claims["nats"]["tags"]
    assert "[Service]\n" in files["/etc/systemd/system/navarch-agent.service"]
    assert "pip install -q 'https://example.com/navarch.whl'" in user_data
    assert "{{" not in user_data


@pytest.mark.parametrize(
    ("urls", "url"),
    [({"r": "tls://r:4222"}, "tls://r:4222"), ({"other": "tls://o:4222"}, "tls://bus:4222")],
)
def test_a_node_connects_to_the_server_of_its_region(
    tmp_path: Path, urls: dict[str, str], url: str
) -> None:
    """A node connects to its region's server where there is one, else to the fleet's own."""
    made = templates(tmp_path, bus_url="tls://bus:4222", region_bus_urls=urls)

    assert f"NAVARCH_NATS_URL={url}\n" in made.user_data(record())


def test_no_package_is_taken_by_a_name_that_no_operator_wrote(tmp_path: Path) -> None:
    """A machine without an agent installs none without `agent.package`, and says so."""
    user_data = templates(tmp_path).user_data(record())
    command = yaml.safe_load(user_data)["runcmd"][0]

    assert "navarch[" not in user_data
    done = subprocess.run(
        [*command[:-1], command[-1].replace("/opt/navarch", str(tmp_path / "navarch"))],
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert (1, []) == (done.returncode, list(tmp_path.iterdir()))
    assert "agent.package" in done.stderr


def test_on_an_open_bus_there_are_no_credentials(tmp_path: Path) -> None:
    """The file is empty, and the agent expects none."""
    user_data = templates(tmp_path).user_data(record())
    files = {each["path"]: each["content"] for each in yaml.safe_load(user_data)["write_files"]}

    assert not files["/etc/navarch/bootstrap.creds"].strip()
    assert "CREDS" not in files["/etc/navarch/agent.env"]


def test_a_template_in_the_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is read as every other of the configuration."""
    (tmp_path / "own.yaml").write_text("#!/bin/sh\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert templates(tmp_path / "elsewhere").user_data(record("~/own.yaml")) == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "own.yaml"),
        ("#!/bin/sh\necho {{.Secret}}\n", r"asks for {{\.Secret}} \(line 2 of it\)"),
        ("#!/bin/sh\n" + "x" * USER_DATA_BYTES_MAX, "let it fetch long parts"),
    ],
)
def test_user_data_that_cannot_be_made_fails_the_launch(
    tmp_path: Path, template: str | None, says: str
) -> None:
    """The launch fails as INVALID, for an operator to correct; no machine is launched."""
    if template is not None:
        (tmp_path / "own.yaml").write_text(template)
    with pytest.raises(UserDataError, match=says):
        templates(tmp_path).user_data(record("own.yaml"))


def test_a_bus_that_asks_for_credentials_needs_the_signing_key(tmp_path: Path, keys: Path) -> None:
    """A missing signing key, or one of an older release, is an error that says what to do."""
    nats = NatsSettings(creds_file="provisioner.creds")
    with pytest.raises(SetupError, match=r"nats\.agent_signing_file is not set"):
        BootstrapTemplates(nats, AgentSettings(), tmp_path).credentials(record())
    old = tmp_path / "old.json"
    known = msgspec.json.decode(keys.read_bytes())
    old.write_bytes(msgspec.json.encode({k: known[k] for k in ("account", "seed")}))
    with pytest.raises(SetupError, match="older release: run `navarch nats-config` again"):
        templates(tmp_path, old).credentials(record())


def test_credentials_are_redacted_everywhere(tmp_path: Path, keys: Path) -> None:
    """Token and seed, in the middle of other words too."""
    secret = templates(tmp_path, keys).credentials(record())
    token, seed = (each for each in secret.splitlines() if each and not each.startswith("--"))
    text = f"+ printf {token}\nwrote '{seed}' to file"

    assert f"+ printf {REDACTED}\nwrote '{REDACTED}' to file" == redact(text, secret)
    assert "nothing" == redact("nothing", "")


def test_long_values_are_indented_as_their_placeholder_is() -> None:
    """Only where it begins its line."""
    values = {"Many": "one\ntwo\n", "One": "1"}

    assert "a:\n  one\n  two\nb: 1" == fill("a:\n  {{.Many}}\nb: {{ .One }}", values)
    assert "x one\ntwo" == fill("x {{.Many}}", values)


async def test_a_launch_hands_over_what_its_record_says(
    bus: NatsBus, tmp_path: Path, keys: Path
) -> None:
    """User data is that of the chosen place, and no record contains the secret."""
    provider, store = fake(), InstanceStore(bus)
    asked: list[ProvisionRequest] = []
    ask = provider.provision

    async def noting(wanted: ProvisionRequest) -> Instance:
        asked.append(wanted)
        return await ask(wanted)

    provider.provision = noting  # type: ignore[method-assign]
    handing = templates(tmp_path, keys)
    made = steps(bus, provider, templates=handing)
    await made.provision(provision("web-1", user_data="auto"))
    kept = await store.get("web.web-1")
    assert kept is not None
    seed = asked[0].user_data.split("-----BEGIN USER NKEY SEED-----")[1].split()[0]

    assert handing.user_data(kept) == asked[0].user_data
    assert seed.startswith("SU")
    assert seed not in repr(kept)


async def test_a_launch_that_cannot_hand_over_asks_no_provider(
    bus: NatsBus, tmp_path: Path
) -> None:
    """The launch fails with the reason, and holds nothing against the provider."""
    provider = fake()
    made = steps(bus, provider, templates=templates(tmp_path))
    with pytest.raises(StepFailure, match=r"user_data of pool web: .*none\.yaml") as failed:
        await made.provision(provision("web-1", user_data="none.yaml"))
    kept = await InstanceStore(bus).get("web.web-1")

    assert ("INVALID", []) == (failed.value.error, await provider.list())
    assert kept is not None
    assert "terminated" == kept.state
    assert [] == await bus.entries(OFFERINGS)
