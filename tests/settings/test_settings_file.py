"""Configuration: what is accepted, and how every error names file, line, key and the remedy."""

from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.settings import PoolSpec, Settings
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import load_settings, parse_settings

ROOT = Path(__file__).resolve().parents[2]

BY_NAME = """
server:
  address: ":50051"
  heartbeat_interval: 30s
  health_check_interval: 60s
  autoscale_interval: 30s
  health_policy: ./health-policy.yaml
providers:
  gcp:
    type: gcp
    project: my-project
  aws:
    region: us-east-1
pools:
  training:
    provider: gcp
    instance_type: a3-highgpu-8g
    region: us-central1
    zones: [us-central1-a, us-central1-b]
    min_nodes: 2
    max_nodes: 100
    cooldown: 10m
    autoscaling:
      type: reactive
      scale_up_at: 80
      scale_down_at: 20
    health:
      unhealthy_after: 2
      auto_replace: true
  inference:
    provider: aws
    instance_type: p4d.24xlarge
    min_nodes: 4
    max_nodes: 50
"""

BY_LIST = """
providers:
  lambda:
    type: lambda
    api_key_env: LAMBDA_API_KEY
pools:
  - name: gpu-partition
    provider: lambda
    instance_type: gpu_8x_h100_sxm5
    region: us-west-2
    ssh_private_key_path: /etc/navarch/ssh-key
    setup_commands:
      - |
        echo ${NOT_OURS} {{.ControlPlane}}
    scaling:
      min_nodes: 4
      max_nodes: 64
      cooldown_period: 10m
      autoscaler:
        type: composite
        mode: max
        autoscalers:
          - type: queue
            jobs_per_node: 1
          - type: reactive
            scale_up_threshold: 90
            scale_down_threshold: 10
    health:
      unhealthy_threshold: 2
      auto_replace: true
"""

POOL = """
providers: {local: {}}
pools:
  a:
    provider: local
    instance_type: x
    min_nodes: 1
    max_nodes: 2
"""


def parse(text: str, **environment: str) -> Settings:
    return parse_settings("navarch.yaml", dedent(text), environment)


def error(text: str, **environment: str) -> str:
    """Return what is said about a configuration that is wrong."""
    with pytest.raises(ConfigurationError) as found:
        parse(text, **environment)
    return str(found.value)


def test_pools_by_name():
    """The deployment document's form, with its server section honoured."""
    settings = parse(BY_NAME)
    training = settings.pools["training"]
    assert (training.provider, training.min_nodes, training.max_nodes) == ("gcp", 2, 100)
    assert (training.zones, training.cooldown) == (("us-central1-a", "us-central1-b"), 600.0)
    assert training.autoscaling == {"type": "reactive", "scale_up_at": 80, "scale_down_at": 20}
    assert (training.health.unhealthy_after, training.health.auto_replace) == (2, True)
    assert list(settings.pools) == ["training", "inference"]
    assert settings.providers["gcp"].options == {"project": "my-project"}
    assert settings.providers["aws"].type == "aws"
    assert (settings.agent.heartbeat_interval, settings.agent.heartbeat_ttl) == (30.0, 90.0)
    assert settings.health_policy == "./health-policy.yaml"


def test_pools_as_a_list_with_older_spellings():
    """The Slurm document's form becomes the same settings, and shell text is left alone."""
    pool = parse(BY_LIST).pools["gpu-partition"]
    assert (pool.min_nodes, pool.max_nodes, pool.cooldown) == (4, 64, 600.0)
    assert pool.autoscaling == {
        "type": "composite",
        "mode": "max",
        "autoscalers": [
            {"type": "queue", "jobs_per_node": 1},
            {"type": "reactive", "scale_up_at": 90, "scale_down_at": 10},
        ],
    }
    assert pool.health.unhealthy_after == 2
    assert pool.setup_commands == ("echo ${NOT_OURS} {{.ControlPlane}}\n",)


def test_nothing_at_all_is_a_configuration():
    """Every setting has a default."""
    assert parse("") == Settings()
    assert parse("{}") == Settings()


def test_defaults_stand_in_every_pool():
    """`defaults:` is what pools have in common; a pool's own word counts more."""
    settings = parse("""
        providers: {local: {}}
        defaults: {provider: local, instance_type: x, max_nodes: 9}
        pools:
          a: {min_nodes: 1}
          b: {min_nodes: 1, max_nodes: 3}
    """)
    assert [pool.max_nodes for pool in settings.pools.values()] == [9, 3]
    assert {pool.provider for pool in settings.pools.values()} == {"local"}


WEBHOOK = "{cordon_url: 'http://s/c', drain_status_url: 'http://s/d'}"


@pytest.mark.parametrize(
    "text",
    [
        f"notifier: {{type: webhook, webhook: {WEBHOOK}}}",
        f"notifier: {{type: webhook, {WEBHOOK[1:]}",
        f"server: {{notifier: {{type: webhook, webhook: {WEBHOOK}}}}}",
        f"server: {{coordinator: {{type: webhook, webhook: {WEBHOOK}}}}}",
    ],
)
def test_the_notifier_may_stand_in_several_places(text):
    """The options are read beside the type, below it, and under `server:` as in older files."""
    kind, options = load_plugin("navarch.notifiers", parse(text).notifier, None)
    assert kind is WebhookNotifier
    assert (options.cordon_url, options.drain_status_url) == ("http://s/c", "http://s/d")


def test_pools_name_their_notifiers():
    """Several workload systems, by name; the type is the name where none is given."""
    settings = parse_settings(
        "navarch.yaml",
        POOL + "    notifiers: [webhook, gpu-slurm]\n"
        "notifiers: {webhook: {cordon_url: 'http://a'}, gpu-slurm: {type: noop}}\n",
        {},
    )
    assert settings.pools["a"].notifiers == ("webhook", "gpu-slurm")
    assert settings.notifiers["webhook"].type == "webhook"
    assert settings.notifiers["gpu-slurm"].type == "noop"


def test_variables_come_from_the_environment():
    """Secrets stay out of the file, wherever a value is."""
    settings = parse(
        """
        notifier:
          type: webhook
          webhook:
            cordon_url: https://${HOST}/cordon
            headers: {Authorization: "Bearer ${TOKEN}"}
        """,
        HOST="scheduler",
        TOKEN="s3cret",
    )
    assert settings.notifier.options == {
        "cordon_url": "https://scheduler/cordon",
        "headers": {"Authorization": "Bearer s3cret"},
    }


def test_the_environment_names_the_bus():
    """NAVARCH_NATS_URL counts more than the file."""
    settings = parse("nats: {url: nats://a, replicas: 3}", NAVARCH_NATS_URL="nats://b")
    assert (settings.nats.url, settings.nats.replicas) == ("nats://b", 3)


ERRORS = {
    "unknown section": ("fleeet: x", "navarch.yaml:1: fleeet: unknown key; did you mean `fleet`?"),
    "unknown key": (
        "nats:\n  url: nats://a\n  replica: 3",
        "navarch.yaml:3: nats.replica: unknown key; did you mean `replicas`?",
    ),
    "unknown pool key": (
        POOL + "    min_node: 1\n",
        "navarch.yaml:9: pools.a.min_node: unknown key; did you mean `min_nodes`?",
    ),
    "unknown nested pool key": (
        POOL + "    health: {auto_replce: true}\n",
        "navarch.yaml:9: pools.a.health.auto_replce: unknown key; did you mean `auto_replace`?",
    ),
    "missing": (
        "providers: {local: {}}\npools:\n  a:\n    provider: local\n    instance_type: x\n",
        "navarch.yaml:3: pools.a: `min_nodes` is missing; add it",
    ),
    "wrong type": (
        POOL.replace("max_nodes: 2", "max_nodes: many"),
        "navarch.yaml:8: pools.a.max_nodes: must be a whole number, not a text",
    ),
    "out of range": (
        "nats:\n  replicas: 9",
        "navarch.yaml:2: nats.replicas: must be 5 or less",
    ),
    "no duration": (
        POOL + "    cooldown: soon\n",
        "navarch.yaml:9: pools.a.cooldown: 'soon' is not a duration: write 30s, 10m or 1h30m",
    ),
    "wrong word": (
        POOL + "    replace_order: random\n",
        "navarch.yaml:9: pools.a.replace_order: Invalid enum value 'random'",
    ),
    "minimum above maximum": (
        POOL.replace("min_nodes: 1", "min_nodes: 3"),
        "navarch.yaml:7: pools.a.min_nodes: 3 is above max_nodes 2; lower one or raise the other",
    ),
    "no budget": (
        POOL + "    budget: {max_unavailable: half}\n",
        (
            "navarch.yaml:9: pools.a.budget.max_unavailable: 'half' is neither a count nor a "
            "percentage; write 2 or 20%"
        ),
    ),
    "a budget of nothing": (
        POOL + "    budget: {max_unavailable: 0}\n",
        "navarch.yaml:9: pools.a.budget.max_unavailable: 0 lets nothing be repaired; use 1",
    ),
    "pool name": (
        POOL.replace("  a:", "  GPU_pool:"),
        "navarch.yaml:4: pools.GPU_pool: pool 'GPU_pool' is not a valid name: use 1 to 30 of a-z",
    ),
    "unknown provider": (
        POOL.replace("provider: local", "provider: lokal"),
        "navarch.yaml:5: pools.a.provider: no provider 'lokal' under `providers:` (known: local)",
    ),
    "unknown notifier": (
        POOL + "    notifiers: [slurm]\nnotifiers: {slrm: {type: noop}}\n",
        "navarch.yaml:9: pools.a.notifiers: no 'slurm' under `notifiers:` (known: slrm)",
    ),
    "unknown provider in a list": (
        (
            "providers: {}\npools:\n  - name: a\n    provider: x\n    instance_type: y\n"
            "    min_nodes: 1\n    max_nodes: 1\n"
        ),
        "navarch.yaml:4: pools.a.provider: no provider 'x' under `providers:` (known: none)",
    ),
    "list without name": (
        "pools:\n  - provider: local\n",
        "navarch.yaml:2: pools.0: a pool in a list needs a `name`; add it",
    ),
    "pool twice": (
        (
            "providers: {local: {}}\npools:\n  - {name: a, provider: local, instance_type: x, "
            "min_nodes: 0, max_nodes: 1}\n  - {name: a}\n"
        ),
        "navarch.yaml:4: pools.1: pool 'a' is there twice; rename one",
    ),
    "key twice": (
        "fleet: a\nnats: {}\nfleet: b\n",
        "navarch.yaml:3: fleet: is there twice (first on line 1); remove one",
    ),
    "syntax": ("nats: [\n", "navarch.yaml:2: not valid YAML: "),
    "tab": ("nats:\n\turl: x\n", "navarch.yaml:2: not valid YAML: "),
    "not a mapping": ("- a\n- b\n", "navarch.yaml:1: (the whole file): must be a mapping of"),
    "section is text": ("pools: training\n", "navarch.yaml:1: pools: must be a mapping of names"),
    "pool is text": (
        "pools:\n  training: big\n",
        "navarch.yaml:2: pools.training: must be a mapping of names",
    ),
    "scaling is text": (
        POOL + "    scaling: fast\n",
        "navarch.yaml:9: pools.a.scaling: must be a mapping of names",
    ),
    "in scaling": (
        (
            "providers: {local: {}}\npools:\n  - name: a\n    provider: local\n"
            "    instance_type: x\n    scaling:\n      min_nodes: 1\n      max_nodes: lots\n"
        ),
        "navarch.yaml:8: pools.a.max_nodes: must be a whole number, not a text",
    ),
    "old spelling in scaling": (
        (
            "providers: {local: {}}\npools:\n  - name: a\n    provider: local\n"
            "    instance_type: x\n    scaling:\n      min_nodes: 1\n      max_nodes: 2\n"
            "      cooldown_period: x\n"
        ),
        "navarch.yaml:9: pools.a.cooldown: 'x' is not a duration",
    ),
    "variable": (
        "nats:\n  url: nats://a\n  password: ${NATS_PASSWORD}\n",
        "navarch.yaml:3: nats.password: ${NATS_PASSWORD} is not set; export NATS_PASSWORD or",
    ),
    "alerts": ("alerts: log\n", "navarch.yaml:1: alerts: must be a list of alert channels"),
    "alert without type": (
        "alerts:\n  - type: log\n  - min_severity: info\n",
        "navarch.yaml:3: alerts.1: `type` is missing; add it",
    ),
    "notifier without type": (
        "notifier:\n  cordon_url: http://a/b\n",
        "navarch.yaml:1: notifier: `type` is missing; add it",
    ),
    "defaults is text": ("defaults: big\n", "navarch.yaml:1: defaults: must be a mapping"),
    "a number for one of some words": (
        "pools:\n  a: {nodes: 5}\n",
        "navarch.yaml:2: pools.a.nodes: must be one of launched, adopted, enrolled, not a number",
    ),
    "pools is a number": ("pools: 5\n", "navarch.yaml:1: pools: must be a mapping of names"),
    "server is text": (
        "server: here\n",
        "navarch.yaml:1: server: must be a mapping (`key: value`), not a text",
    ),
    "webhook is text": (
        "notifier: {type: webhook, webhook: fast}\n",
        "navarch.yaml:1: notifier.webhook: must be a mapping",
    ),
}


@pytest.mark.parametrize(("text", "expected"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_names_file_line_key_and_remedy(text, expected):
    """A person goes to the line and knows what to write."""
    assert error(text.lstrip("\n") if text.startswith("---") else text).startswith(expected)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda _: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "is not UTF-8"),
        (lambda path: path.write_bytes(b"#" * (4 * 1_048_576 + 1)), "larger than 4194304 bytes"),
    ],
    ids=["missing", "directory", "binary", "huge"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, make, expected):
    """An unreadable file is named before anything of it is used."""
    file = tmp_path / "navarch.yaml"
    make(file)
    with pytest.raises(ConfigurationError, match=expected) as found:
        load_settings(file, {})
    assert str(file) in str(found.value)


SHIPPED = [
    file
    for file in sorted((ROOT / "config").glob("*.yaml"))
    if {"pools", "nats", "fleet"} & set(yaml.safe_load(file.read_text()))
]


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_the_shipped_configurations_load(file):
    """The configurations that the README names work unchanged."""
    assert load_settings(file, {}).pools


@given(st.text(max_size=200))
@example("=")
@example("fleet: 2026-99-99")
def test_no_text_breaks_the_loader(text):
    """Any text gives settings, or an error with a line."""
    try:
        parse_settings("f.yaml", text, {})
    except ConfigurationError as found:
        assert str(found).startswith("f.yaml:")  # noqa: PT017 - either outcome is right


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "x", "5m", "local"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["name", "type", "scaling", "health", "webhook", "notifier", "budget", "a",
             *PoolSpec.__struct_fields__]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*Settings.__struct_fields__, "defaults"]), VALUES))
def test_no_shape_breaks_the_loader(value):
    """Sections of any shape give settings or an error with a line, and never a traceback."""
    try:
        parse_settings("f.yaml", yaml.safe_dump(value), {})
    except ConfigurationError as found:
        assert str(found).startswith("f.yaml:")  # noqa: PT017 - either outcome is right
