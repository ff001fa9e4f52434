"""compose/ is complete and names only files and modules that exist. No container is run."""

import importlib.util
import re
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.topology import SERVER_VERSION_MIN
from services.cli.supervisor import SERVICES
from services.settings.settings_file import load_settings

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text())


def test_every_service_has_its_container_and_its_program() -> None:
    """The containers are nats and the services of `navarch serve`, each running its own module."""
    services = dict(COMPOSE["services"])
    services.pop("nats")
    assert sorted(services) == sorted(SERVICES)
    for name, service in services.items():
        module = f"services.{name.replace('-', '_')}"
        assert service["command"] == ["python", "-m", module]
        assert importlib.util.find_spec(module) is not None


def test_the_server_is_new_enough_and_keeps_its_store() -> None:
    """JetStream on a volume, in a version that has the features that the topology uses."""
    nats = COMPOSE["services"]["nats"]
    found = re.search(r":-nats:(\d+)\.(\d+)-alpine}$", nats["image"])
    assert found is not None
    assert tuple(map(int, found.groups())) >= SERVER_VERSION_MIN[:2]
    assert "--jetstream" in nats["command"]
    assert nats["volumes"] == [
        f"{volume}:/data" for volume in COMPOSE["volumes"] if "nats" in volume
    ]


def test_services_find_the_bus_and_their_configuration() -> None:
    """Both are in each service's environment, and the mounted file is valid."""
    for name in SERVICES:
        service = COMPOSE["services"][name]
        assert service["environment"] == {
            "NAVARCH_NATS_URL": "nats://nats:4222",
            "NAVARCH_CONFIG": "/etc/navarch/navarch.yaml",
        }
        assert "./navarch.yaml:/etc/navarch/navarch.yaml:ro" in service["volumes"]
    settings = load_settings(ROOT / "compose" / "navarch.yaml", {})
    assert settings.http.port == 8080


def test_everything_that_the_image_copies_exists() -> None:
    """Every path that the Dockerfile copies exists."""
    text = (ROOT / "compose" / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    copied = [word for line in lines for word in line.split()]
    assert "services" in copied
    assert [each for each in copied if not (ROOT / each).exists()] == []


def test_the_example_configurations_are_valid() -> None:
    """The example files in config/ load without warnings."""
    for name in ("navarch.yaml", "demo.yaml"):
        assert load_settings(ROOT / "config" / name, {}).pools.keys() == {"training"}


def test_containers_run_with_least_privilege() -> None:
    """Read-only, without capabilities or ways to gain them; the image does not run as root."""
    for name, service in COMPOSE["services"].items():
        assert (True, ["ALL"]) == (service["read_only"], service["cap_drop"]), name
        assert ["no-new-privileges:true"] == service["security_opt"], name
        assert "unless-stopped" == service["restart"], name
        assert service["healthcheck"]["test"], name
    assert "\nUSER 10001\n" in (ROOT / "compose" / "Dockerfile").read_text()


def test_each_service_is_given_its_own_credentials_and_no_others() -> None:
    """secure.yaml mounts into each service the files that `navarch nats-config` wrote for it."""
    secure = yaml.safe_load((ROOT / "compose" / "secure.yaml").read_text())["services"]
    for name in SERVICES:
        mounted = [each for each in secure[name]["volumes"] if "/creds/" in each]
        assert [f"./bus/creds/{name}.creds:/run/navarch/nats.creds:ro"] == mounted
        signing = [each for each in secure[name]["volumes"] if "signing" in each]
        assert (name == "provisioner") == bool(signing)
