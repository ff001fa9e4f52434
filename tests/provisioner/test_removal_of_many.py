"""Many removals share a provider's list: what each costs does not grow with the fleet."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.primitives.coalesce import Joined
from services.provisioner.instances import instance_decisions as decisions
from services.provisioner.provider_client.instance_list import InstanceList
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal import removal_orders as orders
from services.simulator.engine import virtual_time
from tests.provisioner.provisioner_parts import FLEET
from tests.provisioner.test_instance_decisions import NOW, instance, record

NODES = 1_000
PASSES = 2
"""Over a list: for its provider IDs and its names."""
LIST_SECONDS = 0.25
CALLERS = 1_000
BETWEEN_SECONDS = 0.02


class CountedList(InstanceList):
    """Counts how often it is gone through."""

    passes = 0

    def __iter__(self) -> Iterator[Instance]:
        """Go through it once more."""
        self.passes += 1
        return super().__iter__()


def test_a_list_is_gone_through_twice_for_any_number_of_removals() -> None:
    """A list is read as many times for the removal of a thousand nodes as for one."""
    listed = CountedList(instance(f"i-{n}", name=f"web-{n}") for n in range(NODES))
    going = [
        replace(record("terminating", provider_id=f"i-{n}"), instance=f"web-{n}")
        for n in range(NODES)
    ]
    for each in going:
        assert orders.order_of(each, "fake", listed).provider_ids == (each.provider_id,)
        assert not orders.is_absent(each, listed, NOW, timedelta())
        assert decisions.find_adoptable(each, listed) is not None
    assert listed.passes == PASSES


IDS = st.sampled_from(("", "i-1", "i-2", "i-3"))
LISTED = st.builds(
    Instance,
    name=st.sampled_from(("web-1", "web-2")),
    provider_id=IDS,
    fleet=st.sampled_from((FLEET, "another")),
    pool=st.sampled_from(("web", "db")),
    status=st.sampled_from(("running", "stopping")),
)


@given(st.lists(LISTED, max_size=8, unique_by=repr), IDS)
def test_the_index_finds_what_a_search_finds(listed: list[Instance], known: str) -> None:
    """The index agrees with a search, whatever is listed and known of the instance."""
    found = decisions.instances_of(current := record("terminating", provider_id=known), listed)
    expected = [each for each in listed if decisions.belongs_to(current, each)]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_lists_take_half_of_the_time_at_most() -> None:
    """A thousand callers, one after the other, have one list for every twenty-five of them."""
    begun = 0

    async def work(_: str) -> str:
        nonlocal begun
        begun += 1
        await asyncio.sleep(LIST_SECONDS)
        return ""

    async def run() -> float:
        joined, clock = Joined(work, rest_seconds_max=5.0), asyncio.get_running_loop().time
        asked = []
        for _ in range(CALLERS):
            asked.append(asyncio.create_task(joined("")))
            await asyncio.sleep(BETWEEN_SECONDS)
        await asyncio.gather(*asked)
        return clock()

    lasted = virtual_time.run(run)
    assert begun <= lasted / (2 * LIST_SECONDS) + 1
