"""Parses IDs of instances: `spec.providerID` of a Kubernetes node, and a cloud's own forms. Pure.

The formats are those that the clouds' controllers write. Every client that can write a Node chooses
the text, so each part is checked before it is used in a request.
"""

import re
from typing import Final, NamedTuple


class AwsInstance(NamedTuple):
    """Holds the parts of `aws:///us-east-1a/i-0123456789abcdef0`."""

    zone: str
    instance_id: str


class GoogleInstance(NamedTuple):
    """Holds the parts of `gce://project/us-central1-a/name`."""

    project: str
    zone: str
    name: str


class AzureScaleSetInstance(NamedTuple):
    """Holds the parts of a machine's ID in a scale set.

    `azure:///subscriptions/…/virtualMachineScaleSets/SET/virtualMachines/7`.
    """

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


_AWS_FORMS: Final = re.compile(r"(?:.*[/:])?(i-[0-9a-f]{8,17})", re.ASCII | re.IGNORECASE)
_GOOGLE_FORMS: Final = re.compile(
    rf"(?:.*/)?(?!instances/)(?P<zone>{_NAME})/(?:instances/)?(?P<name>{_NAME})",
    re.ASCII | re.IGNORECASE,
)


def aws_instance_id(text: str) -> str:
    """Return `i-0123…` of an ARN, a Kubernetes ID, or another case; else the text."""
    found = _AWS_FORMS.fullmatch(text)
    return found[1].lower() if found else text


def azure_machine_name(text: str) -> str:
    """Return the name of a machine or of its resource ID, which Azure compares without case."""
    return text.rstrip("/").rpartition("/")[2].lower()


def google_instance_id(text: str) -> str:
    """Return `zone/name` of a self link, a Kubernetes ID, or another case; else the text."""
    found = _GOOGLE_FORMS.fullmatch(text)
    return f"{found['zone']}/{found['name']}".lower() if found else text
