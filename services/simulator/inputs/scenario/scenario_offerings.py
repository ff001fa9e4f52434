"""What the pools of a scenario may launch, as far as its file says. Pure but for the catalogue."""

from collections.abc import Iterable

from schemas.launch_offers import Offering
from schemas.settings import Settings
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue, candidates
from services.provisioner.provider_client.provider_calls import ProviderTraits
from services.settings.instance_type_file import load_instance_types
from services.settings.provider_choices import choice_of
from services.simulator.inputs.scenario import scenario_format as f


def offered(configuration: Settings, fleet: Iterable[f.FleetNode]) -> tuple[Offering, ...]:
    """Every offering of a pool, and those of the fleet's own nodes.

    ConfigurationError where an added type does not fit the catalogue.
    """
    types = load_instance_types(configuration.instance_types, None)
    sites = {name: ProviderTraits(kind=name, spot=True) for name in configuration.providers}
    catalogue = OfferingCatalogue(types, sites)
    found = [
        each.offering
        for spec in configuration.pools.values()
        for each in candidates(choice_of(spec), catalogue)
    ]
    found += [
        Offering(
            provider=node.provider,
            region=node.region,
            zone=node.zone,
            instance_type=node.instance_type,
        )
        for node in fleet
    ]
    return tuple(dict.fromkeys(found))
