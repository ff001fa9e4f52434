"""CoreWeave, held to its published node pool schema by a server that refuses the rest.

Proven: paths, parameters, fields and labels are such as the schema and Kubernetes know; a pool that
will get no node is removed and reported by its kind; lost answers leave one pool. Not tested:
CoreWeave itself, above all which words its conditions use today.
"""

import asyncio
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.settings import AgentConfig
from schemas.duration import Duration
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.coreweave import CoreWeaveProvider
from services.provisioner.providers.coreweave_pool import Taint
from services.saga.participant import StepFailure
from tests.provisioner import coreweave_server
from tests.provisioner.coreweave_server import TOKEN, CoreWeaveServer
from tests.provisioner.provisioner_parts import FLEET, provision, request, steps, token_of
from tests.support.self_signed import self_signed

Make = Callable[..., CoreWeaveProvider]
TYPE = "gd-8xh100ib-i128"
CREATE = "POST nodepools"


def wanted(name: str = "web-1", **changes: object):
    """Return a request for a launch."""
    return request(name, **({"instance_type": TYPE} | changes))


def only(coreweave: CoreWeaveServer):
    """Return the only node pool there is."""
    [pool] = coreweave.pools.values()
    return pool


# --- requests and answers ------------------------------------------------------------------------


async def test_a_launch_carries_all_that_finds_it_again(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """Labels, type, address, host and age come back from the launch and from the list."""
    provider = make_coreweave(market="spot", gpu_driver="580", taints=(Taint(key="gpu"),))
    made = await provider.provision(wanted(labels={"team": "vision"}))
    [listed] = await provider.list()
    for each in (made, listed):
        assert ("web-1", "web", token_of(), FLEET) == (
            *(each.name, each.pool, each.token, each.fleet),
        )
        assert (TYPE, "vision", "running") == (each.instance_type, each.tags["team"], each.status)
        assert ("10.16.0.4", "g00001", "US-EAST-04A") == (each.address, each.host, each.zone)
        assert each.created_at is not None
    spec = only(coreweave)["spec"]
    assert ("spot", 1, False) == (spec["computeClass"], spec["targetNodes"], spec["autoscaling"])
    assert spec["nodeLabels"] == only(coreweave)["metadata"]["labels"]
    assert [{"key": "gpu", "value": "", "effect": "NoSchedule"}] == spec["nodeTaints"]


@pytest.mark.parametrize(
    ("asked", "options", "expected"),
    [
        ("spot", {}, "spot"),
        ("on-demand", {"market": "spot"}, "default"),
        ("", {"market": "spot"}, "spot"),
    ],
)
async def test_a_launch_that_names_its_market_is_heard(
    coreweave: CoreWeaveServer,
    make_coreweave: Make,
    asked: str,
    options: dict[str, str],
    expected: str,
) -> None:
    """A launch's own market precedes the provider's options."""
    await make_coreweave(**options).provision(wanted(market=asked))
    assert expected == only(coreweave)["spec"]["computeClass"]


async def test_a_removal_takes_exactly_its_node(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """A removal takes no other node of the same type: each has a pool of its own."""
    provider = make_coreweave()
    one, two = [await provider.provision(wanted(f"web-{number}")) for number in (1, 2)]
    await provider.terminate(one.provider_id)
    assert [two.host] == list(coreweave.nodes)


async def test_pages_are_read_to_the_end(coreweave: CoreWeaveServer, make_coreweave: Make) -> None:
    """A list that is not whole would forget nodes."""
    provider = make_coreweave()
    for number in range(9):
        await provider.provision(wanted(f"web-{number}"))
    coreweave.calls.clear()
    assert {f"web-{n}" for n in range(9)} == {each.name for each in await provider.list()}
    assert 3 == coreweave.calls.count("GET nodepools")


async def test_a_pool_without_its_node_is_pending(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """The launch returns when it has been watched for long enough, not when the node is there."""
    coreweave.waiting = True
    made = await make_coreweave(settle=Duration(0.05)).provision(wanted())
    assert ("pending", "", "") == (made.status, made.address, made.host)
    coreweave.deliver(made.provider_id)
    [listed] = await make_coreweave().list()
    assert ("running", "10.16.0.4") == (listed.status, listed.address)


async def test_a_node_that_outlives_its_pool_is_still_listed(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """A node that is going is listed as stopping and counts as gone only when it is."""
    provider = make_coreweave()
    await provider.provision(wanted())
    coreweave.pools.clear()
    [left] = await provider.list()
    assert ("web-1", FLEET, "stopping", "g00001") == (left.name, left.fleet, left.status, left.host)


async def test_a_launch_waits_for_the_removal_of_the_pool_before(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """A pool is listed as stopping until it is gone; then a new one is made."""
    coreweave.slow_removals = 2
    provider = make_coreweave()
    first = await provider.provision(wanted())
    uid = only(coreweave)["metadata"]["uid"]
    await provider.terminate(first.provider_id)
    assert ["stopping"] == [each.status for each in await provider.list()]
    again = await provider.provision(wanted())
    assert (first.provider_id, "running") == (again.provider_id, again.status)
    assert uid != only(coreweave)["metadata"]["uid"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"zone": "US-WEST-01A"}, "add a provider"),
        ({"region": "us-east"}, "one cluster in zone US-EAST-04A"),
        ({"ssh_keys": ("ssh-ed25519 A",)}, "has `ssh_keys`"),
        ({"user_data": "#!/bin/sh"}, "run the agent as a DaemonSet"),
        ({"placement_group": "near"}, "CoreWeave has none"),
        ({"name": "Web_1"}, "Kubernetes refuses the name"),
        ({"labels": {"team": "a b"}}, "label team=a b of pool web is not valid"),
        ({"labels": {"a/b/c": "x"}}, "label a/b/c=x of pool web is not valid"),
    ],
)
async def test_what_coreweave_cannot_do_is_refused_before_it_is_asked(
    coreweave: CoreWeaveServer, make_coreweave: Make, changes: dict[str, object], says: str
) -> None:
    """INVALID names the remedy, and no request goes out."""
    with pytest.raises(ProviderError, match=says) as refused:
        await make_coreweave().provision(wanted(**changes))
    assert ("INVALID", []) == (refused.value.kind, coreweave.calls)


async def test_a_pool_of_another_launch_under_the_name_is_not_adopted(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """A pool without our labels is not ours to use or to remove."""
    await make_coreweave().provision(wanted())
    only(coreweave)["metadata"]["labels"] = {"team": "other"}
    with pytest.raises(ProviderError, match="another node pool is named"):
        await make_coreweave().provision(wanted())
    assert 1 == len(coreweave.pools)


# --- access --------------------------------------------------------------------------------------


def kubeconfig(server: str, authority: str = "", **user: Any) -> bytes:
    """Return a kubeconfig as CoreWeave's console hands it out."""
    trusted = {"certificate-authority-data": b64encode(authority.encode()).decode()}
    return msgspec.yaml.encode(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "cks", "cluster": {"server": server} | (trusted if authority else {})}
            ],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "cks", "user": "me"}}],
            "current-context": "here",
        }
    )


@pytest.mark.parametrize("user", [{"token": TOKEN}, {"tokenFile": "token"}])
async def test_a_kubeconfig_is_enough(
    coreweave: CoreWeaveServer, make_coreweave: Make, tmp_path: Path, user: dict[str, str]
) -> None:
    """A kubeconfig's current context counts, or a named one; its token, or a file beside it."""
    (tmp_path / "cks.yaml").write_bytes(kubeconfig(coreweave.url, **user))
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    for context in ("", "here"):
        provider = make_coreweave(server="", kubeconfig=str(tmp_path / "cks.yaml"), context=context)
        assert [] == await provider.list()


async def test_the_clusters_own_authority_is_what_is_trusted(
    make_coreweave: Make, tmp_path: Path
) -> None:
    """TLS trusts the certificate in the kubeconfig and no other."""
    certificate, key = self_signed()
    identity = tmp_path / "identity.pem"
    identity.write_text(certificate + key)
    async with coreweave_server.serving(str(identity)) as api:
        (tmp_path / "good.yaml").write_bytes(kubeconfig(api.url, certificate, token=TOKEN))
        good = make_coreweave(server="", kubeconfig=str(tmp_path / "good.yaml"))
        made = await good.provision(wanted())
        assert [made.provider_id] == list(api.pools)
        (tmp_path / "bad.yaml").write_bytes(kubeconfig(api.url, token=TOKEN))
        bad = make_coreweave(server="", kubeconfig=str(tmp_path / "bad.yaml"))
        with pytest.raises(ProviderError, match=r"(?i)certificate.verify.failed"):
            await bad.list()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"server": ""}, "set either kubeconfig or server"),
        ({"kubeconfig": "x"}, "set either kubeconfig or server"),
        ({"token_env": "NOWHERE"}, "variable NOWHERE is not set"),
        ({"token_file": "/nowhere/token"}, "No such file"),
        ({"token_file": "/dev/null"}, "is empty"),
        ({"server": "http://cks.example.com"}, "not an https:// address"),
        ({"ca_file": "/etc/hostname"}, "certificate authority cannot be read"),
        ({"server": "", "kubeconfig": "/nowhere/cks.yaml"}, "there is no file"),
    ],
)
def test_without_access_the_service_does_not_start(
    make_coreweave: Make, changes: dict[str, str], says: str
) -> None:
    """The error names the provider, the setting and the ways out."""
    with pytest.raises(ConfigurationError, match=says):
        make_coreweave(**changes)


@pytest.mark.parametrize(
    ("written", "context", "says"),
    [
        (b"[]", "", "is not a kubeconfig"),
        (kubeconfig("https://a", token="t"), "there", "name there in kube-config/contexts"),
        (kubeconfig("ftp://a", token="t"), "", "not an https:// address"),
        (
            kubeconfig("https://a", token="t").replace(b"cluster: cks", b"cluster: other"),
            *("", "name other in kube-config/clusters"),
        ),
        (
            kubeconfig("https://a", token="t").replace(
                b"server:", b"insecure-skip-tls-verify: true\n    server:"
            ),
            *("", "sets insecure-skip-tls-verify"),
        ),
    ],
)
def test_a_kubeconfig_that_does_not_serve_says_why(
    make_coreweave: Make, tmp_path: Path, written: bytes, context: str, says: str
) -> None:
    """The refusal of a kubeconfig names its file."""
    (tmp_path / "cks.yaml").write_bytes(written)
    with pytest.raises(ConfigurationError, match=says):
        make_coreweave(server="", kubeconfig=str(tmp_path / "cks.yaml"), context=context)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"type": "Capacity", "reason": "NoneAvailable", "status": "False"}, "CAPACITY"),
        ({"type": "Quota", "reason": "Over", "status": "False"}, "QUOTA"),
        ({"type": "Validated", "reason": "NewlyInvented", "status": "False"}, "INVALID"),
        ({"kind": "event", "reason": "CWInsufficientCapacity"}, "CAPACITY"),
        ({"kind": "event", "reason": "CWOverQuota"}, "QUOTA"),
    ],
)
async def test_a_pool_that_will_get_no_node_is_reported_and_removed(
    coreweave: CoreWeaveServer, make_coreweave: Make, said: dict[str, str], kind: str
) -> None:
    """Otherwise it would wait, and take a node later."""
    coreweave.conditions = [said]
    with pytest.raises(ProviderError) as refused:
        await make_coreweave().provision(wanted())
    assert (kind, {}) == (refused.value.kind, coreweave.pools)
    assert ["uid-1"] == coreweave.removals


async def test_a_pool_that_cannot_be_removed_stays_in_doubt(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """Then it is listed, and the next try removes it and asks once more."""
    coreweave.conditions = [{"type": "Capacity", "reason": "NoneAvailable", "status": "False"}]
    coreweave.refuse("DELETE nodepool", 500, "InternalError")
    with pytest.raises(ProviderError, match=r"NoneAvailable.*could not be removed") as doubtful:
        await make_coreweave().provision(wanted())
    assert doubtful.value.rule.in_doubt
    assert ["pending"] == [each.status for each in await make_coreweave().list()]
    with pytest.raises(ProviderError) as again:
        await make_coreweave().provision(wanted())
    assert ("CAPACITY", {}) == (again.value.kind, coreweave.pools)
    assert "running" == (await make_coreweave().provision(wanted())).status


async def test_a_throttled_call_says_how_long_to_wait(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """A throttled call gives the wait that the cluster names."""
    coreweave.refuse(CREATE, 429, "TooManyRequests", wait=7)
    with pytest.raises(ProviderError) as refused:
        await make_coreweave().provision(wanted())
    assert ("THROTTLE", 7.0) == (refused.value.kind, refused.value.retry_after)


async def test_a_refused_token_is_reported(make_coreweave: Make, monkeypatch) -> None:
    """AUTH: only a person can put it right."""
    monkeypatch.setenv("COREWEAVE_API_TOKEN", "another")
    with pytest.raises(ProviderError) as refused:
        await make_coreweave().list()
    assert "AUTH" == refused.value.kind


# --- through the provisioner ---------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["answer", "silence"])
async def test_a_launch_that_is_accepted_and_not_answered_is_adopted(
    bus: NatsBus, coreweave: CoreWeaveServer, make_coreweave: Make, lost: str
) -> None:
    """A 504 after the fact, or no answer ever: one pool, and it is ours; the network is slow."""
    coreweave.latency = 0.005
    if lost == "answer":
        coreweave.refuse(CREATE, 504, "Timeout", after_success=True)
    else:
        coreweave.silent.add(CREATE)
    provider = make_coreweave(timeout=Duration(0.3))
    outputs = await steps(bus, provider).provision(provision("web-1", instance_type=TYPE))
    assert [outputs.provider_id] == list(coreweave.pools)
    assert (1, 1) == (coreweave.made, coreweave.calls.count(CREATE))


@pytest.mark.usefixtures("hopeless")
async def test_without_capacity_the_step_fails_with_its_kind(
    bus: NatsBus, coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """The step fails, so that the pool waits or another offering is tried.

    Nothing is left behind.
    """
    coreweave.conditions = [{"type": "Capacity", "reason": "NoneAvailable", "status": "False"}]
    with pytest.raises(StepFailure) as failed:
        await steps(bus, make_coreweave()).provision(provision("web-1", instance_type=TYPE))
    assert ("CAPACITY", {}) == (failed.value.error, coreweave.pools)


# --- agents in pods ------------------------------------------------------------------------------

AGENTS = {"agent_account": "navarch-agents/navarch-agent"}
MANIFEST = Path(__file__).resolve().parents[2] / "deploy/kubernetes/coreweave-agents.yaml"


async def test_a_pods_token_proves_the_node_of_its_host(
    coreweave: CoreWeaveServer, make_coreweave: Make
) -> None:
    """The label that the launch gave the host proves the node; another fleet's proves nothing."""
    provider = make_coreweave(**AGENTS)
    await provider.provision(wanted())
    assert "web-1" == await provider.node_of_pod("pod on g00001")
    for token, why in (("stolen", "does not know"), ("pod on elsewhere", "has not launched")):
        with pytest.raises(ProviderError, match=why):
            await provider.node_of_pod(token)
    coreweave.nodes["g00001"]["metadata"]["labels"]["navarch-fleet"] = "another"
    with pytest.raises(ProviderError, match="has not launched"):
        await provider.node_of_pod("pod on g00001")
    with pytest.raises(ProviderError, match="agent_account names no agents"):
        await make_coreweave().node_of_pod("pod on g00001")
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        CoreWeaveProvider.Options(agent_account="navarch-agent")


async def test_the_agents_manifest_names_the_node_by_its_label(
    coreweave: CoreWeaveServer, make_coreweave: Make, tmp_path: Path
) -> None:
    """The manifest's init container asks the cluster, with the manifest's account alone."""
    await make_coreweave().provision(wanted())
    found = {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}
    pod = found["DaemonSet"]["spec"]["template"]
    [init], [agent] = pod["spec"]["initContainers"], pod["spec"]["containers"]
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    place = {"CLUSTER": coreweave.url, "ACCOUNT": str(tmp_path), "HOST": "g00001"}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *init["command"][1:]),
        env=place | {"NAME_FILE": str(tmp_path / "name")},
    )
    assert 0 == await process.wait()
    assert "web-1" == (tmp_path / "name").read_text()
    assert "GET node" == coreweave.calls[-1]
    assert [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}] == (
        found["ClusterRole"]["rules"]
    )
    variables = {each["name"]: each.get("value") for each in agent["env"]}
    selector = pod["spec"]["nodeSelector"]
    assert {"navarch-pool": variables["NAVARCH_POOL"]} == selector
    about = found["ServiceAccount"]["metadata"]
    assert AGENTS["agent_account"] == f"{about['namespace']}/{about['name']}"
    assert pod["spec"]["serviceAccountName"] == about["name"]
    names = {"NAVARCH_NODE" if each == "node" else f"NAVARCH_{each.upper()}" for each in fields()}
    assert variables.keys() <= names | {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}


def fields() -> tuple[str, ...]:
    """Return the names of an agent's settings."""
    return AgentConfig.__struct_fields__
