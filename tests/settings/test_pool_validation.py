"""The configuration is checked for what a pool's nodes are given: file, line and key."""

from pathlib import Path

import pytest

from services.primitives.errors import ConfigurationError
from services.settings.packaged_files import resource
from services.settings.placeholders import TEMPLATE_BYTES_MAX
from services.settings.provider_choices import with_defaults
from services.settings.settings_file import load_settings, parse_settings
from services.settings.setup_validation import template_problem

CONFIGURATION = """\
providers:
  fake: {}
pools:
  web:
    provider: fake
    instance_type: t
    min_nodes: 1
    max_nodes: 1
"""


def load(directory: Path, more: str, template: str = "") -> str:
    """The configuration's error with this at the end of the pool; empty where there is none."""
    (directory / "own.yaml").write_text(template)
    file = directory / "navarch.yaml"
    file.write_text(f"{CONFIGURATION}    {more}\n")
    try:
        load_settings(file, {})
    except ConfigurationError as error:
        return str(error).removeprefix(f"{directory}/")
    return ""


@pytest.mark.parametrize(
    ("more", "template", "says"),
    [
        (
            "market: resrved",
            "",
            "navarch.yaml:9: pools.web.market: Invalid enum value 'resrved'; write one of on-dem",
        ),
        (
            'setup_commands: ["true", "echo {{.Sekret}}"]',
            "",
            "navarch.yaml:9: pools.web.setup_commands.1: the command asks for {{.Sekret}}, which ",
        ),
        (
            'setup_commands: ["true"]',
            "",
            "navarch.yaml:9: pools.web.setup_commands: they run over SSH, and the pool has no",
        ),
        ("user_data: none.yaml", "", "navarch.yaml:9: pools.web.user_data: {0}/none.yaml cannot"),
        (
            "user_data: own.yaml",
            "#!/bin/sh\necho {{.NodeID}}\necho {{ .Zone }}\n",
            "navarch.yaml:9: pools.web.user_data: {0}/own.yaml:3: {{ .Zone }} is not there",
        ),
        ("user_data: own.yaml", "echo\n", "navarch.yaml:9: pools.web.user_data: {0}/own.yaml:1: c"),
        (
            "user_data: own.yaml",
            "#cloud-config\na: b: c\n",
            "navarch.yaml:9: pools.web.user_data: {0}/own.yaml: is not YAML when it is filled in",
        ),
        (
            "user_data: own.yaml",
            "#cloud-config\n- {{.Pool}}\n",
            "navarch.yaml:9: pools.web.user_data: {0}/own.yaml: is no mapping",
        ),
        (
            "user_data: own.yaml",
            "#!/bin/sh\n" + "x" * TEMPLATE_BYTES_MAX,
            "navarch.yaml:9: pools.web.user_data: {0}/own.yaml is longer than",
        ),
    ],
)
def test_what_cannot_be_filled_in_is_an_error_of_the_configuration(
    tmp_path: Path, more: str, template: str, says: str
) -> None:
    """A template that cannot be filled in is refused before any machine is requested."""
    assert load(tmp_path, more, template).startswith(says.replace("{0}", str(tmp_path)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "user_data: auto",
            "navarch.yaml:9: pools.web.user_data: `auto` gives the agent no client",
        ),
        ("user_data: own.yaml", ""),
        (
            "user_data: auto\n    ssh_private_key_path: own.yaml\n    setup_commands: [put-there]",
            "",
        ),
    ],
)
def test_nodes_of_a_server_that_verifies_clients_need_a_certificate(
    tmp_path: Path, more: str, says: str
) -> None:
    """Agents without a certificate could not connect, so the pool is refused."""
    nats = "nats: {url: tls://bus, tls_cert_file: /x.pem}"
    assert load(tmp_path, f"{more}\n{nats}", "#!/bin/sh\n").startswith(says)
    assert bool(says) == bool(load(tmp_path, f"{more}\n{nats}", "#!/bin/sh\n"))


@pytest.mark.parametrize(
    ("more", "template"),
    [
        ("user_data: auto", ""),
        ("user_data: own.yaml", "#!/bin/sh\necho '{{.Credentials}}' > /x\n"),
        ("user_data: own.yaml", "#cloud-config\nx: |\n  {{.Credentials}}\ny: '{{.Region}}'\n"),
    ],
)
def test_what_can_be_filled_in_is_taken(tmp_path: Path, more: str, template: str) -> None:
    """Scripts and cloud-config, and our own."""
    assert "" == load(tmp_path, more, template)


def test_our_own_template_passes_the_same_check() -> None:
    """The template that the package ships passes the check."""
    assert "" == template_problem(resource("cloud-init-agent.yaml"))
    assert resource("navarch-agent.service").is_file()


def test_a_pool_that_says_where_its_nodes_come_from_says_it_alone() -> None:
    """Defaults about places are not added to a pool that names its own, and all others are."""
    defaults = {"provider": "a", "region": "r", "zones": ["z"], "spares": 1}
    several = {"providers": [{"name": "b"}]}

    assert {"spares": 1, **several} == with_defaults(defaults, several)
    assert {**defaults, "provider": "b"} == with_defaults(defaults, {"provider": "b"})
    assert {"provider": "b"} == with_defaults(several, {"provider": "b"})
    assert defaults == with_defaults(defaults, {})


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("kubernetes", "nodes: adopted, mode: observe", ""),
        ("kubernetes", "mode: observe", "launches nothing: add `nodes: adopted`"),
        ("kubernetes", "nodes: adopted", "has no `removal`"),
        ("acme:Group", "nodes: adopted, mode: observe", ""),
        ("slurm", "nodes: adopted, mode: observe", ""),
        ("slurm", "nodes: adopted", ""),
        ("slurm", "mode: observe", "launches nothing: add `nodes: adopted`"),
        ("slurm", "nodes: enrolled", "belong together"),
        ("slurm", "nodes: adopted, expire_after: 1d", "is of launches"),
        ("slurm", "nodes: adopted, drift: replace", "is of launches"),
        ("slurm", "nodes: adopted, spares: 1", "is of launches"),
        ("fake", "nodes: adopted, mode: observe", "launches its nodes"),
        ("enrolled", "nodes: enrolled", ""),
        ("enrolled", "nodes: adopted", "belong together"),
        ("enrolled", "mode: observe", "belong together"),
        ("kubernetes", "nodes: enrolled, mode: observe", "belong together"),
        ("enrolled", "nodes: enrolled, expire_after: 1d", "is of launches"),
        ("enrolled", "nodes: enrolled, drift: replace", "is of launches"),
        ("kubernetes", "nodes: adopted, mode: observe, spares: 1", "is of launches"),
        ("kubernetes", "nodes: adopted, mode: observe, setup_commands: [ls]", "is of launches"),
    ],
)
def test_pools_of_adopted_nodes_launch_nothing(kind: str, more: str, expected: str) -> None:
    """Settings that do not fit together are refused with the remedy, before anything runs."""
    options = ", partitions: {gpu: gpu}" * (kind == "slurm")
    text = (
        f"providers: {{eks: {{type: '{kind}'{options}}}}}\n"
        f"pools: {{gpu: {{provider: eks, instance_type: x, min_nodes: 0, max_nodes: 9, {more}}}}}\n"
    )
    said = ""
    try:
        parse_settings("navarch.yaml", text, {})
    except ConfigurationError as error:
        said = str(error)
    assert expected in said
    assert bool(expected) == bool(said)
