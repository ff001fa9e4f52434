"""A provider's list, indexed once for all who share it."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from services.provisioner.provider_client.provider import Instance


class InstanceList(list[Instance]):
    """Holds what a provider listed; thousands of removals look up their instance in it."""

    @classmethod
    def of(cls, listed: Iterable[Instance]) -> "InstanceList":
        """The list itself where it is indexed, so that its index is shared."""
        return listed if isinstance(listed, cls) else cls(listed)

    @cached_property
    def by_id(self) -> dict[str, list[Instance]]:
        """Return the instances of each provider ID."""
        found = defaultdict[str, list[Instance]](list)
        for each in self:
            found[each.provider_id].append(each)
        return dict(found)

    @cached_property
    def by_name(self) -> dict[tuple[str, str], list[Instance]]:
        """Pool and name -> instances, of every fleet."""
        found = defaultdict[tuple[str, str], list[Instance]](list)
        for each in self:
            found[each.pool, each.name].append(each)
        return dict(found)

    @cached_property
    def hidden_prefixes(self) -> tuple[str, ...]:
        """Prefixes of provider IDs that the list could not cover (`Instance.may_hold`)."""
        return tuple(each.may_hold for each in self if each.may_hold)
