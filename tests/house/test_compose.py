"""compose/ is complete and names only files and modules that exist. No container is run."""

import importlib.util
import re
from pathlib import Path
from typing import Any, Final

import yaml

from schemas.topology import SERVER_VERSION_MIN
from services.bus.nats.embedded_server import GOGC
from services.cli.supervisor import SERVICES
from services.settings.settings_file import load_settings

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "compose"
FILE: Final = FOLDER / "fleet" / "navarch.yaml"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
CONTAINERS: Final[dict[str, Any]] = COMPOSE["services"]
CONNECTED: Final = (*SERVICES, "gateway", "navarch")
"""Containers that use the bus."""
OUTSIDE: Final = ("nats", "prometheus", "grafana", "collector", "traces")
"""Containers of other images."""
CLUSTER: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
SERVERS: Final = ("nats", "nats-2", "nats-3")


def test_every_service_has_its_container_and_its_program() -> None:
    """Each service of `navarch serve`, and the gateway, runs its own module in its container."""
    assert {*CONNECTED, *OUTSIDE, "credentials"} == set(CONTAINERS)
    for name in (*SERVICES, "gateway"):
        module = f"navarch.services.{name.replace('-', '_')}"
        assert " ".join(CONTAINERS[name]["command"]).endswith(f"python -m {module}")
        assert importlib.util.find_spec(module) is not None


def test_the_server_is_new_enough_and_keeps_its_store() -> None:
    """JetStream on a volume, in a version that has the features that the topology uses."""
    nats = CONTAINERS["nats"]
    found = re.search(r":-nats:(\d+)\.(\d+)-alpine}$", nats["image"])
    assert found is not None
    assert tuple(map(int, found.groups())) >= SERVER_VERSION_MIN[:2]
    assert ["nats-conf:/etc/nats:ro", "nats-data:/data"] == nats["volumes"]


def test_services_find_the_bus_and_their_configuration() -> None:
    """Both are in each service's environment, and the mounted file is valid."""
    for name in CONNECTED:
        service = CONTAINERS[name]
        expected = {
            "NAVARCH_NATS_URL": "nats://nats:4222",
            "NAVARCH_NATS_CREDS_FILE": "/run/navarch/nats.creds",
            "NAVARCH_CONFIG": "/etc/navarch/navarch.yaml",
        }
        assert expected.items() <= service["environment"].items()
        # The folder: of a file that is mounted alone an editor's replacement is never seen.
        assert "./fleet:/etc/navarch:ro" in service["volumes"]
    settings = load_settings(FILE, {})
    assert (8080, 8080) == (settings.http.port, settings.gateway.port)


def test_the_gateways_probes_are_apart_from_its_callers() -> None:
    """The probe and Prometheus ask at a port of its container that is published nowhere."""
    gateway, prometheus = CONTAINERS["gateway"], (FOLDER / "prometheus.yaml").read_text()
    port = gateway["environment"]["NAVARCH_GATEWAY_PROBES_PORT"]
    assert f":{port}/readyz" in gateway["healthcheck"]["test"][-1]
    assert f"gateway:{port}" in prometheus
    assert not [each for each in gateway["ports"] if each.endswith(f":{port}")]


def test_everything_that_the_image_copies_exists() -> None:
    """Every path that the Dockerfile copies exists."""
    text = (FOLDER / "Dockerfile").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    copied = [word for line in lines for word in line.split()]
    assert "services" in copied
    assert [each for each in copied if not (ROOT / each).exists()] == []


def test_the_image_carries_no_compiler_and_names_its_base_once() -> None:
    """Both stages have the base of the argument; what compiles is in the first stage alone."""
    text = (FOLDER / "Dockerfile").read_text()
    assert ["${BASE} AS build", "${BASE}"] == re.findall(r"^FROM (.+)$", text, re.MULTILINE)
    assert "apt-get" not in text.rpartition("\nFROM ")[2]


def test_the_example_configurations_are_valid() -> None:
    """The example files in config/ load without warnings."""
    for name in ("navarch.yaml", "demo.yaml"):
        assert load_settings(ROOT / "config" / name, {}).pools.keys() == {"training"}


def test_containers_run_with_least_privilege() -> None:
    """Read-only, without capabilities or ways to gain them; the image does not run as root."""
    for name, service in CONTAINERS.items():
        assert (True, ["ALL"]) == (service["read_only"], service["cap_drop"]), name
        assert ["no-new-privileges:true"] == service["security_opt"], name
        assert not {"privileged", "cap_add", "devices"} & service.keys(), name
    for name in (*SERVICES, "gateway", *OUTSIDE):
        assert "unless-stopped" == CONTAINERS[name]["restart"], name
        # The collector's image has no program that could ask.
        assert ("healthcheck" in CONTAINERS[name]) == (name != "collector"), name
    assert "10001" == CONTAINERS["nats"]["user"]
    assert "\nUSER 10001\n" in (FOLDER / "Dockerfile").read_text()


def test_each_container_is_given_its_own_credentials_and_no_others() -> None:
    """Each container mounts its own volume of those that `credentials` fills, only to read."""
    for name in CONNECTED:
        volumes = CONTAINERS[name]["volumes"]
        mounted = [each for each in volumes if "-creds:" in each or "bus-keys" in each]
        role = "operator" if name == "navarch" else name
        assert [f"{role}-creds:/run/navarch:ro"] == mounted
        signing = "NAVARCH_NATS_AGENT_SIGNING_FILE" in CONTAINERS[name]["environment"]
        assert (name == "provisioner") == signing
    for name in OUTSIDE:
        assert not [each for each in CONTAINERS[name].get("volumes", ()) if "creds" in each]


def test_the_folders_of_credentials_belong_to_the_images_user() -> None:
    """Each folder that `credentials` writes is made by the Dockerfile, or its volume is root's."""
    made = (FOLDER / "Dockerfile").read_text().partition("for each in ")[2].partition(";")[0]
    folders = {f"/bus/{each}" for each in made.replace("\\", " ").split()}
    every = (CONTAINERS["credentials"], CLUSTER["services"]["credentials"])
    mounted = [each.split(":") for one in every for each in one["volumes"]]
    volumes = {*COMPOSE["volumes"], *CLUSTER["volumes"]}
    assert folders == {target for volume, target, *_ in mounted if volume in volumes}


def test_no_secret_is_written_into_the_files() -> None:
    """No file of the folder holds a seed, a token or a password."""
    for file in (each for each in FOLDER.rglob("*") if each.is_file()):
        text = file.read_text()
        assert not re.search(r"\bS[UAOC][A-Z2-7]{40,}|eyJ[\w-]{20,}|(?i:password)\s*[:=]", text)


def test_published_ports_are_of_this_host_alone() -> None:
    """Every published port listens on the loopback address."""
    ports = [port for each in CONTAINERS.values() for port in each.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_open_file_takes_the_credentials_from_every_container() -> None:
    """open.yaml empties each variable that names a file of credentials, and the server's too."""
    changed = yaml.safe_load((FOLDER / "open.yaml").read_text())["services"]
    assert {*CONNECTED, "nats"} == set(changed)
    for name in CONNECTED:
        named = {each for each in CONTAINERS[name]["environment"] if each.endswith("_FILE")}
        assert dict.fromkeys(named, "") == changed[name]["environment"]
    [mount] = changed["nats"]["volumes"]
    host, inside, _ = mount.split(":")
    assert changed["nats"]["command"] == ["--config", inside]
    assert "accounts" not in (FOLDER / host).read_text()


def test_three_servers_are_each_as_the_one() -> None:
    """The servers differ in their volumes alone; every container on the bus knows all of them."""
    changed = CLUSTER["services"]
    assert {*CONNECTED, *SERVERS, "credentials"} == set(changed)
    assert " ".join(SERVERS) == changed["credentials"]["environment"]["NAVARCH_SERVERS"]
    for name in SERVERS[1:]:
        server = changed[name] | {"ports": CONTAINERS["nats"]["ports"]}
        volumes = [f"{name}-conf:/etc/nats:ro", f"{name}-data:/data"]
        assert CONTAINERS["nats"] | {"volumes": volumes} == server
        assert set(volumes) == {f"{each}" for each in changed[name]["volumes"]}
    # A store of one server does not become one of a cluster.
    assert ["nats-1-data:/data"] == changed["nats"]["volumes"]
    urls, replicas = ",".join(f"nats://{each}:4222" for each in SERVERS), 3
    given = {"NAVARCH_NATS_URL": urls, "NAVARCH_NATS_REPLICAS": replicas}
    for name in CONNECTED:
        assert given == changed[name]["environment"]
    replicated = load_settings(FILE, {"NAVARCH_NATS_REPLICAS": str(replicas)})
    assert replicated.nats.replicas == replicas == len(SERVERS)


def test_every_container_has_limits_of_its_own() -> None:
    """Memory, processor, processes, files and log: one that runs wild takes no other with it."""
    every = CONTAINERS | {name: CLUSTER["services"][name] for name in SERVERS[1:]}
    for name, service in every.items():
        for limit in ("mem_limit", "cpus", "pids_limit"):
            assert service.get(limit), (name, limit)
        files = re.sub(r"\$\{\w+:-(\d+)\}", r"\1", str(service["ulimits"]["nofile"]))
        assert int(files) > 4096, name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name


def test_the_operators_container_depends_on_no_other() -> None:
    """`run navarch` neither starts nor changes a container, whichever files are named."""
    assert "depends_on" not in CONTAINERS["navarch"]
    assert "depends_on" not in CLUSTER["services"]["navarch"]


def test_the_collector_passes_on_what_the_services_send() -> None:
    """The collector listens where the header of compose.yaml says, and knows the trace store."""
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert (
        f"NAVARCH_TRACES=http://collector:{port}/v1/traces" in (FOLDER / "compose.yaml").read_text()
    )
    assert collector["exporters"]["otlphttp"]["endpoint"].startswith("http://traces:")


def test_the_servers_collect_less_until_three_quarters_of_their_memory_are_in_use() -> None:
    """Compose and the chart give their servers what `navarch serve` does, for their limits."""
    values = yaml.safe_load((ROOT / "deploy/helm/nats-values.yaml").read_text())["container"]
    servers = [
        (CONTAINERS["nats"]["environment"], CONTAINERS["nats"]["mem_limit"]),
        *((CLUSTER["services"][name]["environment"], "1g") for name in SERVERS[1:]),
        (values["env"], values["merge"]["resources"]["limits"]["memory"]),
    ]
    for environment, limit in servers:
        found = re.search(r"(\d+)MiB", environment["GOMEMLIMIT"])
        gib = re.search(r"(\d+)(g|Gi)", limit)
        assert environment["GOGC"] == GOGC
        assert found is not None
        assert gib is not None
        assert int(found[1]) == 768 * int(gib[1])
