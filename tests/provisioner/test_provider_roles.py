"""docs/providers.md: the roles for Google and Azure permit what the providers request."""

import json
from typing import Any, Final

import yaml

from tests.notifier.test_notifier_pages import blocks
from tests.provisioner import azure_models, gcp_server

PAGE: Final = "providers.md"
GOOGLE: Final = {
    "instances.aggregatedList": "compute.instances.list",
    "instances.delete": "compute.instances.delete",
    "instances.get": "compute.instances.get",
    "instances.insert": "compute.instances.create",
    "instances.reset": "compute.instances.reset",
    "machineTypes.aggregatedList": "compute.machineTypes.list",
    "projects.get": "compute.projects.get",
    "regions.get": "compute.regions.get",
    "zoneOperations.wait": "compute.zoneOperations.get",
}
"""Method -> permission."""
REPORT: Final = "instances.reportHostAsFaulty"
"""Used only where the options say so; its permission is in the text."""
OF_AN_INSERT: Final = {
    *("compute.instances.setLabels", "compute.instances.setMetadata", "compute.disks.create"),
    *("compute.images.useReadOnly", "compute.subnetworks.use", "compute.subnetworks.useExternalIp"),
}
"""What else Google wants of who inserts an instance with labels, metadata, a disk, a network."""
VERBS: Final = {
    "createOrUpdate": "write",
    "delete": "delete",
    "get": "read",
    "list": "read",
    "listAll": "read",
    "restart": "restart/action",
}
SPACES: Final = {
    "virtualMachines": "Microsoft.Compute",
    "networkInterfaces": "Microsoft.Network",
    "publicIPAddresses": "Microsoft.Network",
}
REFERRED_TO: Final = {
    "Microsoft.Compute/disks/write",
    "Microsoft.Compute/images/read",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Network/publicIPAddresses/join/action",
    "Microsoft.Network/networkSecurityGroups/join/action",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
}
"""What a machine or an interface names in its body."""


def test_googles_role_permits_each_method_and_nothing_else() -> None:
    """The methods are those that the strict server knows: it refuses all others."""
    [role] = [each for each in blocks(PAGE, "yaml") if each.startswith("title:")]
    permitted = yaml.safe_load(role)["includedPermissions"]
    assert {*GOOGLE, REPORT} == set(gcp_server.API["methods"])
    assert sorted(permitted) == sorted({*GOOGLE.values(), *OF_AN_INSERT})


def test_azures_role_permits_each_method_and_nothing_else() -> None:
    """Azure's role permits each method once, in one resource group."""
    [page] = [each for each in blocks(PAGE, "json") if '"AssignableScopes"' in each]
    role: dict[str, Any] = json.loads(page)
    methods = [name.split(".") for name in azure_models.API["methods"]]
    called = {f"{SPACES[kind]}/{kind}/{VERBS[verb]}" for kind, verb in methods}
    assert sorted(role["Actions"]) == sorted(called | REFERRED_TO)
    assert "/resourceGroups/" in role["AssignableScopes"][0]
