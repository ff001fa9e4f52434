"""How many RDMA devices a new node must have up: pure over its record, options and catalogue."""

from schemas.instance_records import InstanceRecord
from services.provisioner.launch.launch_outcome import request_of
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.provider_client.provider import JoinsFabric
from services.provisioner.provider_client.provider_calls import Providers


class FabricDevices:
    """What the boot checks of new nodes are to count."""

    def __init__(self, providers: Providers, catalogue: OfferingCatalogue) -> None:
        self._providers = providers
        self._catalogue = catalogue

    def of(self, record: InstanceRecord) -> int:
        """Return how many; 0: its launch joins no fabric, or the catalogue does not know."""
        offering = record.offering
        if offering is None:
            return 0
        spec = self._catalogue.spec(offering.provider, offering.instance_type)
        if spec is None or not spec.rdma_devices:
            return 0
        provider = self._providers.get(offering.provider).provider
        joins = isinstance(provider, JoinsFabric) and provider.joins_fabric(request_of(record, ""))
        return spec.rdma_devices if joins else 0
