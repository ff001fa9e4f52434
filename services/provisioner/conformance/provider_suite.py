"""Tests the contract of a provider, with one test for each rule."""

import asyncio
from contextlib import suppress
from typing import Final, get_args

import pytest

from services.provisioner.conformance.suite_fixtures import (
    FLEET,
    OTHER_FLEET,
    MakeProvider,
    MakeRequest,
    Refusal,
    SuiteFixtures,
    record_of,
)
from services.provisioner.instances import instance_decisions
from services.provisioner.provider_client.provider import InstanceStatus, Provider, Reboots
from services.provisioner.provider_client.provider_calls import ProviderCalls
from services.provisioner.provider_client.provider_errors import ProviderError

AWAITS_MAX: Final = 1_000
"""Of one call; more are not tried one by one."""
NEVER_WAS: Final = "never-was"
AT_ONCE: Final = 3
ROUNDS: Final = 5


class ProviderConformance(SuiteFixtures):
    """Inherit, name the class `Test…`, and write the fixture `make`."""

    # --- declarations ----------------------------------------------------------------------------

    async def test_it_says_its_name_and_what_it_can(self, fresh: MakeProvider) -> None:
        """Each one has the same name, and its capabilities match its methods."""
        one, two = fresh(), fresh()
        assert one.name, "its name is empty"
        assert one.name == two.name, "a second one has another name"
        can = one.capabilities
        assert can.list_lag_seconds >= 0, f"list_lag_seconds is {can.list_lag_seconds}"
        assert can.reboot == isinstance(one, Reboots), (
            f"capabilities say reboot={can.reboot}, and there is "
            f"{'a' if isinstance(one, Reboots) else 'no'} method reboot"
        )

    async def test_an_instance_says_what_it_was_made_for(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """Name, fleet, pool, token, type and place come back from `provision` and from `list`."""
        provider, asked = fresh(), wanted()
        made = await self._launch(provider, asked)
        [listed] = await self._listed(provider)
        for what, each in (("provision", made), ("list", listed)):
            expected = (asked.name, asked.fleet, asked.pool, asked.token, asked.instance_type)
            actual = (each.name, each.fleet, each.pool, each.token, each.instance_type)
            assert expected == actual, f"{what} returned other things than were asked for"
            assert each.region in {"", asked.region} or asked.zone.startswith(each.region), (
                f"{what}: region {each.region!r}, and {asked.region!r} was asked for"
            )
            assert each.zone in {"", asked.zone} or not asked.zone, (
                f"{what}: zone {each.zone!r}, and {asked.zone!r} was asked for"
            )
        assert made.provider_id, "an instance without an id"
        assert made.provider_id == listed.provider_id, "provision and list name it differently"

    async def test_a_new_instance_is_pending_or_running(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """Every status is one of the four; a terminated instance is not listed."""
        provider = fresh()
        made = await self._launch(provider, wanted())
        [listed] = await self._listed(provider)
        for each in (made, listed):
            assert each.status in get_args(InstanceStatus), f"{each.status!r} is no status"
            assert each.status in instance_decisions.ADOPTABLE_STATUSES, (
                f"a new instance is {each.status}"
            )

    # --- launches --------------------------------------------------------------------------------

    async def test_a_repeated_launch_makes_nothing_new(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """A repetition after a restart makes none, nor one while others repeat it."""
        first = await self._launch(fresh(), wanted())
        again = await self._again(fresh(), wanted())
        crowd = await asyncio.gather(*(self._launch(fresh(), wanted()) for _ in range(AT_ONCE)))
        ids = {each.provider_id for each in (first, again, *crowd)}
        assert {first.provider_id} == ids, f"a repeated launch returned others: {ids}"
        assert len(await self._listed(fresh())) == 1, "a repeated launch made another instance"

    async def test_launches_at_once_make_one_instance(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """A declared idempotency token works across replicas."""
        providers = [fresh() for _ in range(AT_ONCE)]
        if not providers[0].capabilities.idempotency_token:
            pytest.skip("it declares no idempotency token: one replica at a time asks for a launch")
        crowd = await asyncio.gather(*(self._launch(each, wanted()) for each in providers))
        ids = {each.provider_id for each in crowd}
        assert len(ids) == 1, f"{AT_ONCE} launches of one token at once returned {ids}"
        assert len(await self._listed(fresh())) == 1, f"{AT_ONCE} launches at once made several"

    async def test_a_launch_whose_answer_was_lost_is_found_and_not_made_again(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """The list of a cloud without tokens must show it once its lag is over."""
        asked = wanted()
        provider = fresh()
        await self._launch(provider, asked)
        can = provider.capabilities
        await asyncio.sleep(0.0 if can.idempotency_token else can.list_lag_seconds)
        found = instance_decisions.find_adoptable(record_of(asked), await self._listed(provider))
        if found is None:
            assert can.idempotency_token, f"the list does not show {asked.name}, which was launched"
        else:
            assert asked.token == found.token, f"the list shows it with token {found.token!r}"
        again = await self._launch(provider, asked)
        [listed] = await self._listed(provider)
        assert again.provider_id == listed.provider_id, "called again, it launched another"

    async def test_a_launch_cancelled_at_any_await_makes_one_instance_at_most(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """Repeated after that, it makes one instance, and a removal leaves none."""
        provider = fresh()
        for point in range(1, AWAITS_MAX):
            asked = wanted(f"web-{point}")
            cut = await self._cut(provider.provision(asked), point)
            made = await self._again(provider, asked)
            left = [each for each in await self._listed(provider) if each.name == asked.name]
            assert [made.provider_id] == [each.provider_id for each in left], (
                f"cancelled at its await {point} and called again, {len(left)} exist"
            )
            await self._remove(provider, made.provider_id)
            if not cut:
                break

    # --- removals --------------------------------------------------------------------------------

    async def test_a_removal_repeated_or_of_nothing_is_a_success(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """An instance that is gone, or never was, can be removed again."""
        provider = fresh()
        made = await self._launch(provider, wanted())
        for _ in range(3):
            await self._bounded(provider.terminate(made.provider_id))
        await self._bounded(fresh().terminate(made.provider_id))
        await self._bounded(provider.terminate(NEVER_WAS))
        await self._until_gone(provider)

    async def test_removals_at_once_are_a_success(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """None fails because of another."""
        made = await self._launch(fresh(), wanted())
        await asyncio.gather(
            *(self._bounded(fresh().terminate(made.provider_id)) for _ in range(AT_ONCE))
        )
        await self._until_gone(fresh())

    async def test_a_launch_and_a_removal_at_once_leave_one_or_none(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """The list shows what exists in either order, and it can be removed."""
        one, two = fresh(), fresh()
        for number in range(ROUNDS):
            asked = wanted(f"web-{number}")
            made = await self._launch(one, asked)
            await asyncio.gather(
                self._launch(one, asked), self._bounded(two.terminate(made.provider_id))
            )
            left = [each for each in await self._listed(two) if each.name == asked.name]
            alive = [each for each in left if each.status in instance_decisions.ADOPTABLE_STATUSES]
            assert len(alive) <= 1, f"one launch has {len(alive)} instances"
            for each in left:
                await self._bounded(one.terminate(each.provider_id))
        await self._until_gone(two)

    async def test_a_removal_cancelled_at_any_await_can_be_asked_again(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """The removal took effect or not; repeated, it does."""
        provider = fresh()
        for point in range(1, AWAITS_MAX):
            made = await self._launch(provider, wanted(f"web-{point}"))
            cut = await self._cut(provider.terminate(made.provider_id), point)
            await self._remove(provider, made.provider_id)
            if not cut:
                break
        await self._until_gone(provider)

    # --- identity ---------------------------------------------------------------------------------

    async def test_each_instance_has_one_id_and_keeps_it(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """Answers and lists name each by one ID, in its canonical form, once, until it is gone.

        An ID is not given again: what is made later in its place has another one.
        """
        provider = fresh()
        one = await self._launch(provider, wanted("web-1"))
        two = await self._launch(provider, wanted("web-2"))
        ids = [each.provider_id for each in await self._listed(fresh())]
        assert sorted(ids) == sorted({one.provider_id, two.provider_id}), f"listed: {ids}"
        for each in ids:
            assert canonical(provider, each) == each, f"{each} is listed, and is not canonical"
        await self._remove(provider, one.provider_id)
        [left] = await self._listed(fresh())
        assert left.provider_id == two.provider_id, "the removal of one took another"
        again = await self._launch(provider, wanted("web-3"))
        assert again.provider_id != one.provider_id, f"{again.provider_id} was given again"

    async def test_another_form_of_an_id_is_the_same_instance_or_none(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """A form that `canonical_id` knows ends the instance; any other one ends nothing."""
        provider = fresh()
        made = await self._launch(provider, wanted())
        other = await self._launch(provider, wanted("web-2"))
        for number, form in enumerate(forms_of(made.provider_id), 3):
            same = canonical(provider, form) == made.provider_id
            with suppress(*(() if same else (ProviderError,))):  # it may be refused as none
                await self._bounded(provider.terminate(canonical(provider, form)))
            left = {each.provider_id for each in await self._listed(provider)}
            assert other.provider_id in left, f"{form} ended {other.provider_id}"
            if same:
                assert made.provider_id not in left, f"{form} is canonical, and ended nothing"
                made = await self._launch(provider, wanted(f"web-{number}"))
            else:
                assert made.provider_id in left, f"{form} is not canonical, and ended the instance"

    async def test_a_list_of_nothing_is_a_success(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """An empty account lists nothing, before and after; an error is never an empty list."""
        provider = fresh()
        assert await self._bounded(provider.list()) == [], "an empty account lists something"
        made = await self._launch(provider, wanted())
        await self._remove(provider, made.provider_id)

    # --- the list --------------------------------------------------------------------------------

    async def test_the_list_is_whole(self, fresh: MakeProvider, wanted: MakeRequest) -> None:
        """Every instance that was made and not removed is listed, once, however many there are."""
        provider = fresh()
        made = [await self._launch(provider, wanted(f"web-{n}")) for n in range(self.many)]
        gone = made[len(made) // 2].provider_id
        await self._remove(provider, gone)
        expected = sorted(each.provider_id for each in made if each.provider_id != gone)
        actual = sorted(each.provider_id for each in await self._listed(fresh()))
        assert expected == actual, f"{len(expected)} exist, and {len(actual)} are listed: {actual}"

    async def test_another_fleets_instances_are_distinguished(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """Two fleets share the account, and each instance names its own."""
        provider = fresh()
        ours = await self._launch(provider, wanted("web-1"))
        theirs = await self._launch(provider, wanted("web-2", fleet=OTHER_FLEET))
        expected = {(ours.provider_id, FLEET), (theirs.provider_id, OTHER_FLEET)}
        actual = {(each.provider_id, each.fleet) for each in await self._listed(fresh())}
        assert expected == actual, f"the list says other fleets: {actual}"

    async def test_a_list_cancelled_at_any_await_is_whole_the_next_time(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """A cancelled list does not affect the next one."""
        provider = fresh()
        made = await self._launch(provider, wanted())
        for point in range(1, AWAITS_MAX):
            cut = await self._cut(provider.list(), point)
            [listed] = await self._listed(provider)
            assert made.provider_id == listed.provider_id, f"after a cut at await {point}"
            if not cut:
                break

    # --- errors ----------------------------------------------------------------------------------

    async def test_what_cannot_be_is_refused_by_its_kind(
        self,
        fresh: MakeProvider,
        refused: tuple[Refusal, ...],
        wanted: MakeRequest,
    ) -> None:
        """The ProviderError has a readable message, and no instance exists afterwards."""
        for changes, kind in refused:
            with pytest.raises(ProviderError) as caught:
                await self._launch(fresh(), wanted(**changes))
            assert kind == caught.value.kind, f"{dict(changes)}: {caught.value}"
            _check_message(caught.value)
        assert await self._listed(fresh()) == [], "a refused launch has an instance"

    async def test_silence_is_an_error_that_allows_another_try(
        self, fresh: MakeProvider, make_unreachable: MakeProvider | None, wanted: MakeRequest
    ) -> None:
        """Every call fails without a server, above all `list`."""
        if make_unreachable is None:
            pytest.skip("the suite has no fixture `make_unreachable`")
        made = await self._launch(fresh(), wanted())
        provider = make_unreachable()
        calls = {
            "provision": provider.provision(wanted("web-2")),
            "terminate": provider.terminate(made.provider_id),
            "list": provider.list(),
        }
        try:
            said = await asyncio.gather(
                *(self._bounded(each) for each in calls.values()), return_exceptions=True
            )
        finally:
            await provider.close()
        for what, error in zip(calls, said, strict=True):
            assert isinstance(error, ProviderError), f"{what}: {error!r} is no ProviderError"
            assert error.rule.retry_in_step, f"{what}: {error} allows no other try"
            _check_message(error)

    # --- reboots ---------------------------------------------------------------------------------

    async def test_a_reboot_keeps_the_instance(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """Once, twice or at the same time: the instance is unchanged."""
        provider = fresh()
        if not isinstance(provider, Reboots):
            pytest.skip("it cannot reboot")
        made = await self._launch(provider, wanted())
        await self._bounded(provider.reboot(made))
        others = [each for each in (fresh(), fresh()) if isinstance(each, Reboots)]
        await asyncio.gather(*(self._bounded(each.reboot(made)) for each in others))
        [listed] = await self._listed(provider)
        expected, actual = (made.provider_id, made.token), (listed.provider_id, listed.token)
        assert expected == actual, f"after a reboot it is another: {actual}"

    async def test_a_reboot_of_nothing_is_refused(
        self, fresh: MakeProvider, wanted: MakeRequest
    ) -> None:
        """A reboot does not bring back a removed instance."""
        provider = fresh()
        if not isinstance(provider, Reboots):
            pytest.skip("it cannot reboot")
        made = await self._launch(provider, wanted())
        await self._remove(provider, made.provider_id)
        with pytest.raises(ProviderError) as caught:
            await self._bounded(provider.reboot(made))
        assert caught.value.kind == "INVALID", str(caught.value)
        assert await self._listed(provider) == [], "a reboot brought back what was removed"

    async def test_it_can_be_closed_twice(self, fresh: MakeProvider, wanted: MakeRequest) -> None:
        """Instances stay when their provider is closed."""
        provider = fresh()
        await self._launch(provider, wanted())
        for _ in range(2):
            await self._bounded(provider.close())
        assert len(await self._listed(fresh())) == 1, "its instance went when it was closed"


def _check_message(error: ProviderError) -> None:
    assert error.message.strip(), "an error without a message"
    assert error.message.isprintable(), f"{error.message!r} is not one printable line"


def canonical(provider: Provider, provider_id: str) -> str:
    """Return the form in which the provisioner compares an ID."""
    return ProviderCalls(provider, call_timeout_seconds=1.0).canonical_id(provider_id)


def forms_of(provider_id: str) -> tuple[str, ...]:
    """Return other ways to write an ID: its case, and what APIs put before it."""
    return tuple(
        each
        for each in (
            provider_id.swapcase(),
            f"instance/{provider_id}",
            f"arn:aws:ec2:eu-west-1:123456789012:instance/{provider_id}",
        )
        if each != provider_id
    )
