"""Single GPUs of a Kubernetes node: the API versions, what it lacks, and what notifiers refuse."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.duration import Duration
from services.notifier.conformance.notifier_suite import order
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.exec_notifier import ExecNotifier
from services.notifier.workload.kubernetes.gpu_taints import FAULTY
from services.notifier.workload.kubernetes_notifier import KubernetesNotifier
from services.notifier.workload.ray_notifier import RayNotifier
from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.notifier.workload.workload_notifier import GpuCordoningNotifier, StepFailure
from tests.notifier.device_api import DeviceApi
from tests.notifier.kubernetes_site import KubernetesSite, kubeconfig
from tests.notifier.workload_sites import CLOCK

CALL = Duration(20)
"""A call takes milliseconds; none of these tests is about one that does not end."""
PLACE = order("n1", "cordon_gpus", 3)
LIFT = order("n1", "cordon_gpus")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[KubernetesSite]:
    """A cluster whose driver publishes eight GPUs for each node."""
    async with KubernetesSite(tmp_path).running() as site:
        assert isinstance(site, KubernetesSite)
        yield site


def notifier(site: KubernetesSite, **options: object) -> KubernetesNotifier:
    """Return a notifier with these options."""
    file = site.folder / "kubeconfig"
    file.write_text(kubeconfig(site.url))
    given = KubernetesNotifier.Options(kubeconfig=str(file), timeout=CALL, **options)
    return KubernetesNotifier(options=given, clock=CLOCK)


def label(site: KubernetesSite) -> tuple[str, str]:
    """Return what the node says of its faulty GPUs: its label and its annotation."""
    about = site.objects["nodes"]["n1"]["metadata"]
    return about.get("labels", {}).get(FAULTY, ""), about.get("annotations", {}).get(FAULTY, "")


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
async def test_the_version_that_the_cluster_serves_is_used(
    site: KubernetesSite, version: str
) -> None:
    """A cluster serves one of these versions from Kubernetes 1.33 on.

    A GPU's partitions are devices, too; the node owns the rules.
    """
    site.dra = DeviceApi(version)
    tainting = notifier(site, gpu_cordon="device-taint")
    await tainting.cordon_gpus(PLACE)
    assert site.dra.tainted("uid-n1") == {3}
    assert label(site) == ("3", "GPU-n1-3")
    assert {
        (rule["apiVersion"], rule["metadata"]["ownerReferences"][0]["uid"])
        for rule in site.dra.rules.values()
    } == {(f"resource.k8s.io/{version}", "uid-n1")}
    await tainting.cordon_gpus(PLACE)
    assert site.dra.posted == len(site.dra.rules) == 3
    await tainting.cordon_gpus(LIFT)
    assert (site.dra.rules, label(site)) == ({}, ("", ""))
    await tainting.close()


@pytest.mark.parametrize(
    ("resources", "gpu", "message"),
    [
        ((), 3, "serves no DeviceTaintRule"),
        (("resourceslices",), 3, "serves no DeviceTaintRule"),
        (("devicetaintrules",), 3, "serves no DeviceTaintRule or ResourceSlice"),
        (("all",), 9, "no ResourceSlice of node n1 has a device with the UUID 'GPU-n1-9'"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_nothing_is_left(
    site: KubernetesSite, resources: tuple[str, ...], gpu: int, message: str
) -> None:
    """The refusal is final, so that the node is cordoned whole at once.

    There is nothing to lift then.
    """
    site.dra = DeviceApi(resources=resources)
    tainting = notifier(site, gpu_cordon="device-taint")
    with pytest.raises(StepFailure, match=message) as refused:
        await tainting.cordon_gpus(order("n1", "cordon_gpus", gpu))
    assert refused.value.error == "INVALID"
    assert (site.dra.rules, label(site)) == ({}, ("", ""))
    await tainting.cordon_gpus(LIFT)
    await tainting.close()


async def test_a_label_is_all_that_some_clusters_need(site: KubernetesSite) -> None:
    """The label serves a device plugin or an admission policy of the owner."""
    site.dra = DeviceApi(resources=())
    labelling = notifier(site, gpu_cordon="label")
    await labelling.cordon_gpus(order("n1", "cordon_gpus", 3, 5))
    assert label(site) == ("3_5", "GPU-n1-3,GPU-n1-5")
    await labelling.cordon_gpus(LIFT)
    assert label(site) == ("", "")
    await labelling.close()


async def test_an_unknown_node_is_refused(site: KubernetesSite) -> None:
    """The node's pods may use the GPU under another name, so no silent success is reported."""
    labelling = notifier(site, gpu_cordon="label")
    with pytest.raises(StepFailure, match="no node 'elsewhere'"):
        await labelling.cordon_gpus(order("elsewhere", "cordon_gpus", 3))
    await labelling.cordon_gpus(order("elsewhere", "cordon_gpus"))
    await labelling.close()


async def test_a_notifier_without_its_setting_refuses(site: KubernetesSite) -> None:
    """The node is cordoned whole then; to lift nothing succeeds."""
    for unset in (
        notifier(site),
        ExecNotifier(options=ExecNotifier.Options(command=("false",)), clock=CLOCK),
        WebhookNotifier(
            options=WebhookNotifier.Options(drain_status_url="http://127.0.0.1:1/s"), clock=CLOCK
        ),
    ):
        with pytest.raises(StepFailure, match="is not set") as refused:
            await unset.cordon_gpus(PLACE)
        assert refused.value.error == "INVALID"
        await unset.cordon_gpus(LIFT)
        await unset.close()


async def test_of_several_notifiers_all_must_be_able(site: KubernetesSite) -> None:
    """If one of them is not able, its workload system would go on to use the GPU."""
    able = notifier(site, gpu_cordon="label")
    unable = SlurmNotifier(options=SlurmNotifier.Options(), clock=CLOCK)
    both = CombinedNotifier([able, unable])
    with pytest.raises(StepFailure, match="not all of"):
        await both.cordon_gpus(PLACE)
    assert label(site) == ("", "")
    await both.cordon_gpus(LIFT)
    await CombinedNotifier([able, able]).cordon_gpus(PLACE)
    assert label(site) == ("3", "GPU-n1-3")
    for each in (able, unable):
        await each.close()


def test_slurm_and_ray_cordon_no_gpu() -> None:
    """Slurm refuses to change a node's GPU count, and Ray's resources have no index."""
    ray = RayNotifier(options=RayNotifier.Options(dashboard="http://127.0.0.1:1"), clock=CLOCK)
    slurm = SlurmNotifier(options=SlurmNotifier.Options(), clock=CLOCK)
    assert not isinstance(ray, GpuCordoningNotifier)
    assert not isinstance(slurm, GpuCordoningNotifier)
