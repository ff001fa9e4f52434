"""Parses `spec.providerID` of a Kubernetes node: which cloud's instance it is. Pure.

The formats are those that the clouds' controllers write. Every client that can write a Node chooses
the text, so each part is checked before it is used in a request.
"""

import re
from typing import Final, NamedTuple


class AwsInstance(NamedTuple):
    """`aws:///us-east-1a/i-0123456789abcdef0`."""

    zone: str
    instance_id: str


class GoogleInstance(NamedTuple):
    """`gce://project/us-central1-a/name`."""

    project: str
    zone: str
    name: str


class AzureScaleSetInstance(NamedTuple):
    """`azure:///subscriptions/…/virtualMachineScaleSets/SET/virtualMachines/7`."""

    subscription: str
    group: str
    name: str
    """Of the scale set."""
    instance_id: str


class AzureMachine(NamedTuple):
    """`azure:///subscriptions/…/virtualMachines/NAME`: a machine of no scale set."""

    subscription: str
    group: str
    name: str


CloudInstance = AwsInstance | GoogleInstance | AzureScaleSetInstance | AzureMachine

_AWS: Final = re.compile(r"aws:///(?P<zone>[a-z0-9-]{1,40})/(?P<id>i-[0-9a-f]{8,17})", re.ASCII)
_NAME: Final = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_GOOGLE: Final = re.compile(
    rf"gce://(?P<project>([a-z0-9.-]{{1,61}}:)?{_NAME})/(?P<zone>{_NAME})/(?P<name>{_NAME})",
    re.ASCII,
)
_SUBSCRIPTION: Final = (
    r"azure:///subscriptions/(?P<subscription>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"/resourceGroups/(?P<group>[\w().-]{0,89}[\w()-])/providers/Microsoft\.Compute"
)
_SCALE_SET: Final = re.compile(
    rf"{_SUBSCRIPTION}/virtualMachineScaleSets/(?P<set>[A-Za-z0-9_-]{{1,64}})"
    r"/virtualMachines/(?P<id>[A-Za-z0-9_-]{1,64})",
    re.ASCII | re.IGNORECASE,
)
_MACHINE: Final = re.compile(
    rf"{_SUBSCRIPTION}/virtualMachines/(?P<name>[A-Za-z0-9_.-]{{1,64}})", re.ASCII | re.IGNORECASE
)


def parse_provider_id(text: str) -> CloudInstance | None:
    """Return the instance that a provider ID names; None: it names none that is known here."""
    if found := _AWS.fullmatch(text):
        return AwsInstance(found["zone"], found["id"])
    if found := _GOOGLE.fullmatch(text):
        return GoogleInstance(found["project"], found["zone"], found["name"])
    if found := _SCALE_SET.fullmatch(text):
        return AzureScaleSetInstance(
            found["subscription"], found["group"], found["set"], found["id"]
        )
    if found := _MACHINE.fullmatch(text):
        return AzureMachine(found["subscription"], found["group"], found["name"])
    return None
