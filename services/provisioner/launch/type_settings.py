"""Settings of agents that follow from the instance type: pure over record and catalogue."""

from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import DRIVER_WAIT, TypeSpec
from services.provisioner.launch.launch_outcome import request_of
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.provider_client.provider import JoinsFabric
from services.provisioner.provider_client.provider_calls import Providers

OF_GPUS: Final = ("nvlinks", "nvlink_gbyte_per_second", "pcie_width", "pcie_generation")
"""Figures of a type's GPUs that their agents compare; what is not known is left out."""


def of_gpus(spec: TypeSpec) -> dict[str, str]:
    """Return the settings that state what is known of a type's GPUs."""
    return {name.upper(): f"{figure:g}" for name in OF_GPUS if (figure := getattr(spec, name))}


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
        found = of_gpus(spec)
        if spec.rdma_devices and self._joins(record, offering.provider):
            found["RDMA_DEVICES"] = str(spec.rdma_devices)
            if spec.rdma_link_layer:
                found["RDMA_LINK_LAYER"] = spec.rdma_link_layer
            if spec.rdma_gbit_per_second:
                found["RDMA_GBIT_PER_SECOND"] = f"{spec.rdma_gbit_per_second:g}"
        if spec.driver_wait != DRIVER_WAIT:
            found["DRIVER_WAIT"] = f"{spec.driver_wait:g}s"
        return found

    def _joins(self, record: InstanceRecord, name: str) -> bool:
        provider = self._providers.get(name).provider
        return isinstance(provider, JoinsFabric) and provider.joins_fabric(request_of(record, ""))
