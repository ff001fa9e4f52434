"""Settings of agents that follow from the instance type: pure over record and catalogue."""

from collections.abc import Iterable
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import DRIVER_WAIT, TypeSpec
from services.provisioner.launch.launch_outcome import request_of
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.provider_client.provider import JoinsFabric
from services.provisioner.provider_client.provider_calls import Providers

OF_GPUS: Final = ("nvlinks", "nvlink_gbyte_per_second", "pcie_width", "pcie_generation")
"""Figures of a type's GPUs that their agents compare."""
OF_FABRIC: Final = ("rdma_devices", "rdma_link_layer", "rdma_gbit_per_second")
"""The same of the ports of a node that joins the fabric."""


def stated(spec: TypeSpec, names: Iterable[str]) -> dict[str, str]:
    """Return the settings that state these figures of a type; what is not known is left out."""
    known = ((name, value) for name in names if (value := getattr(spec, name)))
    return {n.upper(): value if isinstance(value, str) else f"{value:g}" for n, value in known}


class TypeSettings:
    """Reads the settings of agents that follow from the instance type."""

    def __init__(self, providers: Providers, catalogue: OfferingCatalogue) -> None:
        self._providers = providers
        self._catalogue = catalogue

    def of(self, record: InstanceRecord) -> dict[str, str]:
        """Return the settings of a new node's agent; an agent's own defaults are left out."""
        offering = record.offering
        if offering is None:
            return {}
        spec = self._catalogue.spec(offering.provider, offering.instance_type)
        if spec is None:
            return {}
        found = stated(spec, OF_GPUS)
        if spec.rdma_devices and self._joins(record, offering.provider):
            found |= stated(spec, OF_FABRIC)
        if spec.driver_wait != DRIVER_WAIT:
            found["DRIVER_WAIT"] = f"{spec.driver_wait:g}s"
        return found

    def _joins(self, record: InstanceRecord, name: str) -> bool:
        provider = self._providers.get(name).provider
        return isinstance(provider, JoinsFabric) and provider.joins_fabric(request_of(record, ""))
