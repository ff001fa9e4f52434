"""`spec.providerID` of Kubernetes nodes, as the clouds write it and as an attacker might."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.provisioner.providers.aws import AwsProvider
from services.provisioner.providers.azure import AzureProvider
from services.provisioner.providers.gcp import GcpProvider
from services.provisioner.providers.lambda_cloud import LambdaProvider
from services.provisioner.providers.provider_ids import (
    AwsInstance,
    AzureMachine,
    AzureScaleSetInstance,
    GoogleInstance,
    parse_provider_id,
)

SUBSCRIPTION = "0b1f6471-1bf0-4dda-aec3-cb9272f09590"
AZURE = f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/mc_gpu/providers/Microsoft.Compute"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "aws:///us-east-1a/i-0123456789abcdef0",
            AwsInstance("us-east-1a", "i-0123456789abcdef0"),
        ),
        ("aws:///us-west-2-lax-1a/i-01234567", AwsInstance("us-west-2-lax-1a", "i-01234567")),
        (
            "gce://my-project/us-central1-a/gke-gpu-1234-abcd",
            GoogleInstance("my-project", "us-central1-a", "gke-gpu-1234-abcd"),
        ),
        (
            "gce://example.com:my-project/europe-west4-b/n",
            GoogleInstance("example.com:my-project", "europe-west4-b", "n"),
        ),
        (
            f"{AZURE}/virtualMachineScaleSets/aks-gpu-1-vmss/virtualMachines/7",
            AzureScaleSetInstance(SUBSCRIPTION, "mc_gpu", "aks-gpu-1-vmss", "7"),
        ),
        (f"{AZURE}/virtualMachines/gpu-0", AzureMachine(SUBSCRIPTION, "mc_gpu", "gpu-0")),
        ("", None),
        ("aws:///us-east-1a/i-0123456789abcdef0/../i-1", None),
        ("aws:///us-east-1a/i-0123456789abcdef0\n", None),
        ("aws:///us-east-1a/i-0123456789abcdeg0", None),
        ("aws://us-east-1a/i-0123456789abcdef0", None),
        ("aws:///us-east-1a/mi-0123456789abcdef0", None),
        ("gce://p/z/../../x", None),
        ("gce://project/us-central1-a/name?alt=media", None),
        ("gce://project/us-central1-a/NAME", None),
        (f"{AZURE}/virtualMachines/../x", None),
        (f"{AZURE}/virtualMachines/x%2f..", None),
        ("azure:///subscriptions/x/resourceGroups/g/providers/Microsoft.Compute/x", None),
        ("kind://docker/kind/kind-worker", None),
        ("aws:///us-east-1a/i-" + "a" * 100_000, None),
    ],
)
def test_only_what_a_cloud_writes_is_an_instance(text: str, expected: object) -> None:
    """Each part is checked whole; anything else is no instance."""
    assert parse_provider_id(text) == expected


@given(st.text(max_size=200))
def test_no_text_is_an_error(text: str) -> None:
    """Any text is read, also after a known beginning; all that is found is harmless characters."""
    for begin in ("", "aws:///us-east-1a/", "gce://p/z/", f"{AZURE}/virtualMachines/"):
        found = parse_provider_id(begin + text)
        assert found is None or not set("/?#%\n ") & set("".join(found))


@pytest.mark.parametrize(
    ("canonical", "form", "expected"),
    [
        (AwsProvider.canonical_id, "i-0123456789abcdef0", "i-0123456789abcdef0"),
        (AwsProvider.canonical_id, "I-0123456789ABCDEF0", "i-0123456789abcdef0"),
        (AwsProvider.canonical_id, "arn:aws:ec2:eu-west-1:123:instance/i-01234567", "i-01234567"),
        (AwsProvider.canonical_id, "aws:///us-east-1a/i-01234567", "i-01234567"),
        (AwsProvider.canonical_id, "mi-0123456789abcdef0", "mi-0123456789abcdef0"),
        (GcpProvider.canonical_id, "us-central1-a/Gpu-1", "us-central1-a/gpu-1"),
        (GcpProvider.canonical_id, "gce://p-1/us-central1-a/gpu-1", "us-central1-a/gpu-1"),
        (
            GcpProvider.canonical_id,
            "https://compute.googleapis.com/compute/v1/projects/p/zones/us-central1-a/instances/g",
            "us-central1-a/g",
        ),
        (AzureProvider.canonical_id, f"{AZURE}/virtualMachines/GPU-0", "gpu-0"),
        (LambdaProvider.canonical_id, "0AB1", "0ab1"),
    ],
)
def test_each_form_of_an_id_has_one_canonical_form(
    canonical: Callable[[str], str], form: str, expected: str
) -> None:
    """IDs are compared in it, and it is its own canonical form."""
    assert (canonical(form), canonical(expected)) == (expected, expected)
