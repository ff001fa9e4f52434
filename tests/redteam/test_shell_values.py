"""No value of a request, a file or a provider becomes a command of a shell on any machine."""

import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.saga_params import WORKLOAD_NAME, LaunchSpec, SetupSpec
from schemas.settings import AgentSettings, NatsSettings, Settings
from services.primitives.errors import ConfigurationError, NavarchError
from services.provisioner.bootstrap.setup_plan import render_command
from services.provisioner.bootstrap.setup_plan import script as setup_script
from services.provisioner.bootstrap.user_data import BootstrapTemplates, UserDataError
from services.provisioner.instances.instance_decisions import intended_record
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_calls import usable
from services.provisioner.providers.ssh_claims import script as claim_script
from services.settings.placeholders import LONG_NAMES, USER_DATA_NAMES
from services.settings.settings_file import parse_settings, requested_pool
from tests.support.secured import NOW

OWNED: Final = "owned"
"""The file that a payload creates where it is obeyed."""
PAYLOADS: Final = (
    f"$(touch {OWNED})",
    f"$(touch${{IFS}}{OWNED})",
    f"`touch {OWNED}`",
    f"`touch${{IFS}}{OWNED}`",
    *(f"a{sign}touch {OWNED}{sign}" for sign in (";", "&", "|", "\n", "\r\n", "&&", "||")),
    *(f"a{sign}{OWNED}" for sign in (">", ">>", "<>", ">|", " > ")),
    *(f"{quote}; touch {OWNED}; {quote}" for quote in ("'", '"', "'\"'", "\\'", "\\")),
    f"a{{touch,{OWNED}}}",
    f"a\n      touch {OWNED}\n",
    f"a #\ntouch {OWNED}",
    f"<(touch {OWNED})",
    f"-a$(touch {OWNED})",
    f"a touch {OWNED}",
)
PLAIN: Final = (
    *("", "us-east-1", "gpu_1x_h100_pcie", "Standard_ND96isr_H100_v5", "rack.2/a", "a" * 255),
    *("nats://[2001:db8::1]:4222,tls://bus-2:4222", "nats://u:p%40s@bus:4222"),
    "https://example.com/navarch-1.0-py3-none-any.whl#sha256=ab",
    "navarch[credentials]~=1.0",
)
PACKAGE: Final = "navarch[credentials] @ https://example.com/navarch-0.1.0-py3-none-any.whl"
"""A value of docs/first-cloud.md, which has blanks."""
SHORT: Final = tuple(each for each in USER_DATA_NAMES if each not in LONG_NAMES)
KEYS: Final = {
    "ControlPlane": "agent.bus_url",
    "NodeID": "node",
    "Pool": "pool",
    "Provider": "provider",
    "Region": "region",
    "InstanceType": "instance_type",
    "WorkloadName": "workload_names",
    "AgentPackage": "agent.package",
}


def made(name: str, value: str, directory: Path) -> tuple[BootstrapTemplates, InstanceRecord]:
    """Return what renders a node's templates, with one variable's value where it comes from."""
    agent = {"ControlPlane": "bus_url", "AgentPackage": "package"}
    settings = AgentSettings(**{agent[name]: value}) if name in agent else AgentSettings()
    launch = LaunchSpec(fleet="f", provider="p", instance_type="p5", user_data="own.sh")
    record = intended_record("web", "web-1", launch, "saga", NOW)
    match name:
        case "NodeID":
            record = replace(record, instance=value)
        case "WorkloadName":
            record = replace(record, launch=replace(launch, labels={WORKLOAD_NAME: value}))
        case "InstanceType":
            offering = Offering(provider="p", instance_type=value)
            record = replace(record, offering=offering)
        case "Pool" | "Provider" | "Region":
            record = replace(record, **{name.lower(): value})
    nats = NatsSettings(url="nats://bus:4222")
    return BootstrapTemplates(nats, settings, directory, frozenset({"own.sh"})), record


def obeyed(text: str, directory: Path) -> bool:
    """Have a shell run a text; return whether it did what a payload in it says."""
    subprocess.run(
        ["bash"], input=text, text=True, cwd=directory, capture_output=True, check=False, timeout=20
    )
    return (directory / OWNED).exists()


def test_every_variable_is_tried() -> None:
    """A new variable has a key here, or several lines that the provisioner itself writes."""
    assert sorted(KEYS) == sorted(SHORT)


@pytest.mark.parametrize("name", SHORT)
def test_no_value_of_a_template_is_a_command(name: str, tmp_path: Path) -> None:
    """A region `$(…)` ran as root on each new machine, in user data and in setup commands."""
    template = "#!/bin/sh\n: {{.%s}}\n: '{{.%s}}'\n: \"{{.%s}}\"\nX={{.%s}}\n" % ((name,) * 4)
    (tmp_path / "own.sh").write_text(template)
    for payload in PAYLOADS:
        templates, record = made(name, payload, tmp_path)
        with pytest.raises(UserDataError, match=rf"{KEYS[name]}\b"):
            templates.user_data(record)
        if name != "AgentPackage":
            with pytest.raises(NavarchError, match=rf"{KEYS[name]}\b"):
                render_command(template, templates.values(record, frozenset({name})))
    for value in (*PLAIN, *([PACKAGE] if name == "AgentPackage" else [])):
        templates, record = made(name, value, tmp_path)
        assert not obeyed(templates.user_data(record), tmp_path)


@pytest.mark.parametrize("name", ["ControlPlane", "AgentPackage"])
def test_no_value_of_the_packaged_template_is_a_command(name: str, tmp_path: Path) -> None:
    """A quote in it would end the word, and a line would be a line of YAML."""
    for payload in PAYLOADS:
        templates, record = made(name, payload, tmp_path)
        with pytest.raises(UserDataError, match=KEYS[name]):
            templates.user_data(replace(record, launch=replace(record.launch, user_data="auto")))
    plain = PACKAGE if name == "AgentPackage" else PLAIN[-1]
    templates, record = made(name, plain, tmp_path)
    text = templates.user_data(replace(record, launch=replace(record.launch, user_data="auto")))
    assert plain in str(yaml.safe_load(text))


def test_the_scripts_of_machines_quote_what_they_are_given(tmp_path: Path) -> None:
    """A token or a folder is one word; what a pool's settings call a command is one."""
    home = f"HOME={tmp_path}\n"
    spec = SetupSpec(commands=("true",), user="root", private_key_path="key")
    for payload in PAYLOADS:
        assert not obeyed(home + setup_script("true", 1, payload, spec), tmp_path), payload
        for folder in (f"~/{payload}", f"{tmp_path}/x{payload}"):
            for order in ("look", "take", "drop"):
                text = claim_script(order, folder, token=payload)
                assert not obeyed(home + text, tmp_path), (order, payload)


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"region": "VALUE"}, "region"),
        ({"zones": ["a", "VALUE"]}, "zones.1"),
        ({"instance_type": "VALUE"}, "instance_type"),
        ({"labels": {WORKLOAD_NAME: "VALUE"}}, f"labels.{WORKLOAD_NAME}"),
        ({"providers": [{"name": "p", "instance_type": "VALUE"}]}, "providers.0.instance_type"),
        ({"providers": [{"name": "p", "regions": ["VALUE"]}]}, "providers.0.regions.0"),
        ({"providers": [{"name": "p", "zones": ["VALUE"]}]}, "providers.0.zones.0"),
        ({"providers": [{"name": "VALUE"}]}, "providers"),
        ({"provider": "VALUE"}, "provider"),
        ({"workload_names": "VALUE"}, "workload_names"),
    ],
    ids=str,
)
def test_settings_and_requests_refuse_such_values(
    spec: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """A file, the bus, the HTTP API and assistants all have their pools read by these two."""
    known = {"providers": {"p": {"type": "fake"}}}
    settings = parse_settings("navarch.yaml", yaml.safe_dump(known), {})
    for payload in PAYLOADS:
        sizes = {"max_nodes": 1, "min_nodes": 0, "instance_type": "p5"}
        whole = {**sizes, **_with(spec, payload)}
        if not {"provider", "providers"} & spec.keys():
            whole["provider"] = "p"
        text = yaml.safe_dump(known | {"pools": {"web": whole}})
        with pytest.raises(ConfigurationError) as of_file:
            parse_settings("navarch.yaml", text, {})
        with pytest.raises(ConfigurationError) as of_request:
            requested_pool("web", whole, settings, tmp_path)
        for each in (of_file, of_request):
            assert f"pools.web.{key}" in str(each.value), payload


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"agent": {"bus_url": "VALUE"}}, "agent.bus_url"),
        ({"agent": {"region_bus_urls": {"r": "VALUE"}}}, "agent.region_bus_urls"),
        ({"agent": {"package": "VALUE"}}, "agent.package"),
        ({"providers": {"VALUE": {"type": "fake"}}}, "providers"),
    ],
    ids=str,
)
def test_the_fleets_own_settings_refuse_such_values(section: dict[str, Any], key: str) -> None:
    """Every node is given the bus's address and the agent's package."""
    for payload in PAYLOADS:
        with pytest.raises(ConfigurationError, match=key):
            parse_settings("navarch.yaml", yaml.safe_dump(_with(section, payload)), {})


@pytest.mark.parametrize("field", ["region", "zone"])
def test_what_a_provider_answers_counts_as_not_reported(field: str) -> None:
    """A provider's answer reaches templates with the instance's record."""
    for payload in PAYLOADS:
        instance = Instance(name="web-1", provider_id="i-1", **{field: payload})
        assert not getattr(usable(instance, "p"), field)
    for value in PLAIN:
        instance = Instance(name="web-1", provider_id="i-1", **{field: value})
        assert usable(instance, "p") == instance


def test_plain_settings_are_read() -> None:
    """A value is refused for its signs alone: a plain one is read as it is written."""
    pool = {"provider": "p", "instance_type": "p5", "max_nodes": 1, "min_nodes": 0}
    pool["region"] = "us-east-1"
    text = {"providers": {"p": {"type": "fake"}}, "agent": {"package": PACKAGE}}
    found = parse_settings("navarch.yaml", yaml.safe_dump(text | {"pools": {"web": pool}}), {})
    assert isinstance(found, Settings)
    assert found.pools["web"].region == "us-east-1"


def _with(value: Any, payload: str) -> Any:
    """Return a part of a configuration with the payload in its place."""
    if isinstance(value, dict):
        return {_with(key, payload): _with(each, payload) for key, each in value.items()}
    if isinstance(value, list):
        return [_with(each, payload) for each in value]
    return payload if value == "VALUE" else value
