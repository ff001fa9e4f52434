"""The chart and the kustomization: the same objects, valid, and refused where a value is wrong."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from services.cli.supervisor import SERVICES
from services.settings.settings_file import load_settings
from tests.real.kustomize_base import BASE, KUBERNETES, ROOT, files, rendered, run, tool

TOOLS: Final = ("helm", "kustomize", "kubeconform")
EXAMPLE: Final = ROOT / "deploy/kustomize/example"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not all(tool(each) for each in TOOLS),
        reason="no helm, kustomize and kubeconform here: with Go 1.26, run "
        "tests/real/kubernetes/install-tools.sh",
    ),
]
ACTS: Final = (
    *("--set", "config.mode=act", "--set", "config.providers.cluster.removal=node-object"),
    *("--set", "config.notifier.checkpoint_pods=true", "--set", "agents.reboots=true"),
    *("--set", "config.notifier.gpu_cordon=device-taint"),
)
SCALES: Final = (
    *("--set", "config.pools.gpu.metrics.type=kubernetes"),
    *("--set-json", "config.pools.gpu.metrics.kueue={}"),
)
EXTRA: Final = (
    *("--set-json", 'services.notifier.extraVolumes=[{"name":"k","secret":{"secretName":"k"}}]'),
    *("--set-json", 'services.notifier.extraVolumeMounts=[{"name":"k","mountPath":"/etc/k"}]'),
    *("--set", "defaults.priorityClassName=high,defaults.podLabels.team=ml"),
    *("--set", "defaults.podAnnotations.a=b,agents.podAnnotations.a=b,agents.podLabels.team=ml"),
    *("--set-json", 'services.metrics.extraEgress=[{"ports":[{"port":9999}]}]'),
    *("--set", "config.tracing.otlp_endpoint=http://collector:4318/v1/traces"),
    *("--set", "config.authenticators.people.type=oidc", *SCALES),
)
OPEN: Final = (
    *("--set", "nats.url=nats://bus:4222", "--set", "nats.ownAuthority=false"),
    *("--set", "nats.credentialsPrefix="),
)
OUTSIDE: Final = (
    *("--set", "gateway.ingress.host=navarch.example.com,gateway.ingress.tlsSecret=navarch-tls"),
    *("--set", "gateway.ingress.className=nginx"),
    *("--set-json", 'gateway.route.parentRefs=[{"name":"web","namespace":"gateways"}]'),
    *("--set-json", 'gateway.route.hostnames=["navarch.example.com"]'),
    *("--set", "serviceMonitor.enabled=true,serviceMonitor.labels.release=prometheus"),
)
FOREIGN: Final = "ServiceMonitor,HTTPRoute"
"""Kinds that others define: Kubernetes has no schema of them."""
OTHERS: Final = {
    "outside": OUTSIDE,
    "acts": ACTS,
    "scales": SCALES,
    "extra": EXTRA,
    "open bus": OPEN,
    "library of the host": ("--set", "agents.driverLibrary=/usr/lib/libnvidia-ml.so.1"),
    "own runtime": ("--set", "agents.runtimeClassName=nvidia", "--set", "agents.hostNetwork=true"),
    "no agents": ("--set", "agents.enabled=false", "--set", "networkPolicy.enabled=false"),
    "one pod each": ("--set", "defaults.replicas=1", "--set", "defaults.spreadOverNodes=false"),
    "by digest": ("--set", f"image.digest=sha256:{'0' * 64}", "--set", "gateway.tokenSecret=t"),
}


def objects(text: str) -> dict[tuple[str, str], Any]:
    """Manifests by kind and name."""
    found = [each for each in yaml.safe_load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def conforms(text: str) -> str:
    """Return what kubeconform says of manifests; empty if nothing is wrong."""
    found = ""
    for version in ("1.30.0", KUBERNETES):
        folder = Path(tool("kubeconform")).parent / "schemas" / version
        names = f"{folder}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
        done = subprocess.run(
            (tool("kubeconform"), "-strict", "-skip", FOREIGN, "-schema-location", names, "-"),
            input=text,
            capture_output=True,
            check=False,
            text=True,
            timeout=120,
        )
        found += done.stdout + done.stderr
        assert bool(found) == bool(done.returncode), found
    return found


def test_the_kustomization_is_the_chart_rendered() -> None:
    """No one has edited one of the two alone: `python -m tests.real.kustomize_base` writes it."""
    for name, text in files().items():
        assert (BASE / name).read_text() == text, name


def configuration_of(deployment: Any) -> dict[str, Any]:
    """Return which ConfigMap its pods mount, as it can be changed."""
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    found = next(each for each in volumes if each["name"] == "config")["configMap"]
    assert isinstance(found, dict)
    return found


def test_both_make_the_same_objects() -> None:
    """The namespaces, the test's pod and the configuration's name are what is not compared."""
    chart, base = objects(rendered("--no-hooks")), objects(run("kustomize", "build", str(BASE)))
    made = chart.pop(("ConfigMap", "navarch-config"))
    [hashed] = [key for key in base if key[0] == "ConfigMap"]
    texts = [each["data"]["navarch.yaml"] for each in (made, base.pop(hashed))]
    assert yaml.safe_load(texts[0]) == yaml.safe_load(texts[1])
    for name in ("navarch", "navarch-agents"):
        del base["Namespace", name]
    for found, name in ((chart, "navarch-config"), (base, hashed[1])):
        for each in (each for (kind, _), each in found.items() if kind == "Deployment"):
            assert configuration_of(each).pop("name") == name
            each["spec"]["template"]["metadata"].pop("annotations", None)
    assert chart == base


@pytest.mark.parametrize("name", ["as it is", *OTHERS])
def test_manifests_conform(name: str) -> None:
    """Strictly: no field that Kubernetes does not know, whatever is switched on."""
    assert conforms(rendered(*OTHERS.get(name, ()))) == ""


def test_the_other_manifests_conform() -> None:
    """The overlay, and what is applied by hand."""
    texts = [run("kustomize", "build", str(EXAMPLE))]
    texts += [each.read_text() for each in (ROOT / "deploy/kubernetes").glob("*.yaml")]
    for each in texts:
        assert conforms(each) == ""
    wrong = rendered().replace("imagePullPolicy", "imagePolicy")
    assert "'imagePolicy' not allowed" in conforms(wrong)


def test_every_service_has_its_program_and_its_configuration(tmp_path: Path) -> None:
    """Each Deployment runs its own module, and what is mounted is a valid configuration."""
    found = objects(rendered())
    parts = {key[1].removeprefix("navarch-") for key in found if key[0] == "Deployment"}
    assert parts == {*SERVICES, "gateway"}
    for part in parts:
        spec = found["Deployment", f"navarch-{part}"]["spec"]["template"]["spec"]
        module = spec["containers"][0]["command"][-1]
        assert importlib.util.find_spec(module) is not None
        (container,) = spec["containers"]
        named = {each["name"] for each in container["ports"]}
        own = "probes" if part == "gateway" else "http"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == own
            assert own in named
    file = tmp_path / "navarch.yaml"
    for text in (
        found["ConfigMap", "navarch-config"]["data"]["navarch.yaml"],
        (EXAMPLE / "navarch.yaml").read_text(),
    ):
        file.write_text(text)
        settings = load_settings(file, {})
        assert (8080, "0.0.0.0") == (settings.gateway.port, settings.http.host)


def rules(found: dict[tuple[str, str], Any], name: str) -> Any:
    """Return what a ClusterRole permits."""
    return found["ClusterRole", name]["rules"]


def test_rights_follow_from_the_configuration() -> None:
    """Observing it reads; acting it has what docs/kubernetes.md grants, and no more."""
    observes, acts = objects(rendered()), objects(rendered(*ACTS))
    verbs = {verb for each in rules(observes, "navarch-navarch-notifier") for verb in each["verbs"]}
    assert verbs == {"list", "watch"}
    by_hand = [
        objects((ROOT / "deploy/kubernetes" / name).read_text())
        for name in (
            *("notifier-rbac.yaml", "notifier-checkpoint-rbac.yaml"),
            "notifier-gpu-rbac.yaml",
        )
    ]
    granted = rules(by_hand[0], "navarch-notifier")
    granted += rules(by_hand[1], "navarch-notifier-checkpoint")
    granted += rules(by_hand[2], "navarch-notifier-gpus")
    assert rules(acts, "navarch-navarch-notifier") == granted
    nodes = [each["verbs"] for each in rules(acts, "navarch-navarch-provisioner")]
    assert nodes == [["list"], ["create"], ["delete"]]
    outside = ("--set", "config.notifier.kubeconfig=/etc/a", "--set", "config.notifier.type=noop")
    assert ("ClusterRole", "navarch-navarch-notifier") not in objects(rendered(*outside))


def test_a_metrics_source_in_the_cluster_has_its_rights() -> None:
    """The manifests by hand grant the same; a source in another cluster needs none here."""
    role = ("ClusterRole", "navarch-navarch-pool-manager")
    found = objects(rendered(*SCALES))
    by_hand = [
        objects((ROOT / "deploy/kubernetes" / name).read_text())
        for name in ("pool-manager-rbac.yaml", "kueue-rbac.yaml")
    ]
    granted = rules(by_hand[0], "navarch-pool-manager") + rules(by_hand[1], "navarch-kueue")
    assert found[role]["rules"] == granted
    account = {"kind": "ServiceAccount", "name": "navarch-pool-manager", "namespace": "navarch"}
    assert found["ClusterRoleBinding", role[1]]["subjects"] == [account]
    assert by_hand[1]["ClusterRoleBinding", "navarch-kueue"]["subjects"] == [account]
    pod = found["Deployment", "navarch-pool-manager"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    parts = '{"type":"combined","sources":[{"type":"http"},{"type":"kubernetes"}]}'
    assert role in objects(rendered("--set-json", f"config.pools.gpu.metrics={parts}"))
    elsewhere = ("--set", "config.pools.gpu.metrics.kubeconfig=/etc/a")
    assert role not in objects(rendered(*SCALES, *elsewhere))


def test_services_reach_what_the_configuration_uses() -> None:
    """Metrics sources, issuers of tokens and collectors; and what `extraEgress` adds for one."""

    def egress(name: str, *more: str) -> list[Any]:
        found: list[Any] = objects(rendered(*more))["NetworkPolicy", f"navarch-{name}"]["spec"][
            "egress"
        ]
        return found

    for name in ("pool-manager", "gateway"):
        assert {} not in egress(name)
        assert {} in egress(name, *EXTRA)
    collector = {"ports": [{"port": 4318, "protocol": "TCP"}]}
    assert egress("health-monitor", *EXTRA) == [*egress("health-monitor"), collector]
    added = {"ports": [{"port": 9999}]}
    assert egress("metrics", *EXTRA) == [*egress("metrics"), collector, added]


def test_pods_have_what_the_values_add() -> None:
    """Volumes of one service; priority, labels and annotations of all of them."""
    found = objects(rendered(*EXTRA))
    pod = found["Deployment", "navarch-notifier"]["spec"]["template"]
    assert "k" in {each["name"] for each in pod["spec"]["volumes"]}
    assert "/etc/k" in {e["mountPath"] for e in pod["spec"]["containers"][0]["volumeMounts"]}
    assert pod["spec"]["priorityClassName"] == "high"
    for each in (pod, found["DaemonSet", "navarch-agent"]["spec"]["template"]):
        assert each["metadata"]["labels"]["team"] == "ml"
        assert each["metadata"]["annotations"]["a"] == "b"


def test_the_gateway_is_reached_and_all_are_measured() -> None:
    """Encrypted alone from outside; each Service is in one job, by the names of the rules."""
    found = objects(rendered(*OUTSIDE))
    ingress = found["Ingress", "navarch-gateway"]["spec"]
    assert ingress["tls"] == [{"hosts": ["navarch.example.com"], "secretName": "navarch-tls"}]
    (path,) = ingress["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "navarch-gateway", "port": {"name": "http"}}
    (rule,) = found["HTTPRoute", "navarch-gateway"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "navarch-gateway", "port": 8080}]
    alerts = (ROOT / "deploy/prometheus/navarch-rules.yaml").read_text()
    chosen: list[str] = []
    for job in ("fleet", "services"):
        monitor = found["ServiceMonitor", f"navarch-{job}"]
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (relabelled,) = monitor["spec"]["endpoints"][0]["relabelings"]
        assert relabelled == {"targetLabel": "job", "replacement": f"navarch-{job}"}
        assert f'job="navarch-{job}"' in alerts
        chosen += selected(monitor["spec"]["selector"], found)
    assert sorted(chosen) == sorted(f"navarch-{each}" for each in (*SERVICES, "gateway"))
    assert not {"Ingress", "HTTPRoute", "ServiceMonitor"} & {
        kind for kind, _ in objects(rendered())
    }


def selected(selector: Any, found: dict[tuple[str, str], Any]) -> list[str]:
    """Return the Services that a selector of labels chooses."""
    (rule,) = selector["matchExpressions"]
    chosen = []
    for (kind, name), each in found.items():
        labels = each["metadata"]["labels"]
        matches = selector["matchLabels"].items() <= labels.items()
        has = labels[rule["key"]] in rule["values"]
        if kind == "Service" and matches and has == (rule["operator"] == "In"):
            chosen.append(name)
    return chosen


def test_agents_of_a_system_class_have_a_quota() -> None:
    """Where another class is set there is none, as nothing would need it."""
    quota = ("ResourceQuota", "navarch-agent")
    (rule,) = objects(rendered())[quota]["spec"]["scopeSelector"]["matchExpressions"]
    assert rule["values"] == ["system-node-critical"]
    for given in ("agents.priorityClassName=high", "agents.priorityQuotaPods=0"):
        assert quota not in objects(rendered("--set", given))


def test_only_who_asks_the_cluster_has_a_token_for_it() -> None:
    """The provisioner and the notifier have one; no agent, no other service, no test."""
    found = objects(rendered())
    specs = {
        key[1]: each["spec"].get("template", each)["spec"]
        for key, each in found.items()
        if key[0] in ("Deployment", "DaemonSet", "Pod")
    }
    has = {name for name, spec in specs.items() if spec["automountServiceAccountToken"]}
    assert has == {"navarch-provisioner", "navarch-notifier"}
    assert all(each["enableServiceLinks"] is False for each in specs.values())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("nats.url=nats://bus:4222", "nats.url is not encrypted"),
        ("nats.url=tls://user:secret@bus:4222", "does not match pattern"),
        ("nats.url=", "does not match pattern"),
        ("replicas=3", "additional properties 'replicas' not allowed"),
        ("services.pool-manger.replicas=3", "additional properties 'pool-manger' not allowed"),
        ("services.pool-manager.replica=3", "additional properties 'replica' not allowed"),
        ("defaults.replicas=0", "minimum"),
        ("config.http.port=9090", "/config/http"),
        ("config.nats.creds_file=/a", "/config/nats/creds_file"),
        ("config.fleet=null", "/config/fleet"),
        ("agents.pool=training", "no provider gives the agents credentials"),
        ("agents.namespace=other", "no provider gives the agents credentials"),
        ("image.digest=0.1.0", "does not match pattern"),
        ("agents.maxUnavailable=0", "minimum"),
        ("agents.priorityQuotaPods=-1", "minimum"),
        ("gateway.ingress.host=navarch.example.com", "gateway.ingress.tlsSecret"),
        ("serviceMonitor.interval=often", "does not match pattern"),
    ],
)
def test_a_wrong_value_is_refused(given: str, why: str) -> None:
    """The error names its place before anything is installed."""
    with pytest.raises(subprocess.CalledProcessError) as raised:
        rendered("--set", given)
    assert why in raised.value.stderr


def test_the_chart_passes_helms_own_check(tmp_path: Path) -> None:
    """`helm lint --strict`, and a package can be made of it."""
    chart = shutil.copytree(ROOT / "deploy/helm/navarch", tmp_path / "navarch")
    values = ("--values", str(ROOT / "deploy/helm/example-values.yaml"))
    run("helm", "lint", "--strict", str(chart), *values, "--kube-version", KUBERNETES)
    run("helm", "package", str(chart), "--destination", str(tmp_path))
    assert [*tmp_path.glob("navarch-*.tgz")]
