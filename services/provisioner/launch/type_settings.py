"""Settings of agents that follow from the instance type: pure over record and catalogue."""

from schemas.instance_records import InstanceRecord
from schemas.instance_type_catalogue import DRIVER_WAIT
from services.provisioner.launch.launch_outcome import request_of
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.provider_client.provider import JoinsFabric
from services.provisioner.provider_client.provider_calls import Providers


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
        found = {}
        if spec.rdma_devices and self._joins(record, offering.provider):
            found["RDMA_DEVICES"] = str(spec.rdma_devices)
        if spec.driver_wait != DRIVER_WAIT:
            found["DRIVER_WAIT"] = f"{spec.driver_wait:g}s"
        return found

    def _joins(self, record: InstanceRecord, name: str) -> bool:
        provider = self._providers.get(name).provider
        return isinstance(provider, JoinsFabric) and provider.joins_fabric(request_of(record, ""))
