"""The suite that authors of providers run: each rule has a provider that breaks it."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.provisioner.conformance import ProviderConformance, environment, request_maker
from services.provisioner.conformance.suite_fixtures import FLEET
from services.provisioner.provider_client.provider import Instance, ProvisionRequest
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.fake import FakeProvider

wanted = request_maker({})


class Doubling(FakeProvider):
    """Says that it knows tokens, and does not."""

    async def provision(self, request: ProvisionRequest) -> Instance:
        other = f"{request.token} {len(self.calls('provision'))}"
        return await super().provision(wanted(request.name, token=other))


class Short(FakeProvider):
    """Shows one page."""

    async def list(self) -> list[Instance]:
        return (await super().list())[:3]


class Strict(FakeProvider):
    """Takes a removal of nothing for an error."""

    async def terminate(self, provider_id: str) -> None:
        if provider_id not in {each.provider_id for each in await self.list()}:
            raise ProviderError("INVALID", f"{provider_id} is not there")
        await super().terminate(provider_id)


class Recycling(FakeProvider):
    """Gives the ID of what is gone to the next instance."""

    async def list(self) -> list[Instance]:
        found = await super().list()
        return [replace(each, provider_id=self.named(each.provider_id)) for each in found]

    async def provision(self, request: ProvisionRequest) -> Instance:
        made = await super().provision(request)
        return replace(made, provider_id=self.named(made.provider_id))

    async def terminate(self, provider_id: str) -> None:
        for each in await super().list():
            if self.named(each.provider_id) == provider_id:
                await super().terminate(each.provider_id)

    def named(self, provider_id: str) -> str:
        return f"{self.name}-{(int(provider_id[-6:]) - 1) % 2}"


class Twice(FakeProvider):
    """Lists each instance twice."""

    async def list(self) -> list[Instance]:
        return (await super().list()) * 2


class Loose(FakeProvider):
    """Takes any case, and does not say that it is the same."""

    async def terminate(self, provider_id: str) -> None:
        await super().terminate(provider_id.lower())


class Overfull(FakeProvider):
    """Lists what is no instance."""

    async def list(self) -> list[Instance]:
        return [Instance(name="x", provider_id="x"), *await super().list()]


class Stubborn(FakeProvider):
    """Goes on when it is cancelled."""

    async def provision(self, request: ProvisionRequest) -> Instance:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await super().provision(request)


class Hasty(FakeProvider):
    """Cancelled between its two calls, it leaves what it asked for unnamed."""

    async def provision(self, request: ProvisionRequest) -> Instance:
        draft = f"draft {len(self.calls('provision'))}"
        first = await super().provision(wanted(request.name, token=draft))
        await asyncio.sleep(0)
        await super().terminate(first.provider_id)
        return await super().provision(request)


class Nameless(FakeProvider):
    """Forgets whose an instance is."""

    async def list(self) -> list[Instance]:
        return [
            Instance(name=each.name, provider_id=each.provider_id, fleet=FLEET)
            for each in await super().list()
        ]


class Boasting(FakeProvider):
    """Says that it reboots, and has nothing to do it with."""

    reboot = None  # type: ignore[assignment]


class Raw(FakeProvider):
    """Lets its client's own errors out."""

    async def provision(self, request: ProvisionRequest) -> Instance:
        raise ConnectionError(f"connection refused: {request.name}")


def made(kind: type[FakeProvider], tmp_path: Path) -> Callable[[], FakeProvider]:
    """Makes another one of its kind, whose cloud is a file."""
    options = FakeProvider.Options(file=str(tmp_path / "cloud.json"))
    return lambda: kind(options=options, environment=environment(tmp_path))


@pytest.mark.parametrize(
    ("kind", "broken", "reported"),
    [
        (Doubling, "a_repeated_launch_makes_nothing_new", "returned others"),
        (Doubling, "launches_at_once_make_one_instance", "returned"),
        (Doubling, "a_launch_whose_answer_was_lost_is_found_and_not_made_again", "token"),
        (Short, "the_list_is_whole", "3 are listed"),
        (Strict, "a_removal_repeated_or_of_nothing_is_a_success", "is not there"),
        (Recycling, "each_instance_has_one_id_and_keeps_it", "was given again"),
        (Twice, "each_instance_has_one_id_and_keeps_it", "listed"),
        (Loose, "another_form_of_an_id_is_the_same_instance_or_none", "is not canonical"),
        (Overfull, "a_list_of_nothing_is_a_success", "lists something"),
        (Stubborn, "a_launch_cancelled_at_any_await_makes_one_instance_at_most", "await 1"),
        (Hasty, "a_launch_cancelled_at_any_await_makes_one_instance_at_most", "2 exist"),
        (Nameless, "another_fleets_instances_are_distinguished", "other fleets"),
        (Nameless, "an_instance_says_what_it_was_made_for", "list returned other things"),
        (Boasting, "it_says_its_name_and_what_it_can", "there is no method reboot"),
    ],
)
async def test_a_broken_rule_is_reported(
    tmp_path: Path, kind: type[FakeProvider], broken: str, reported: str
) -> None:
    """The test of that rule fails, and says of what."""
    case = getattr(ProviderConformance(), f"test_{broken}")
    given = {"fresh": made(kind, tmp_path)}
    if not broken.startswith("it_says"):
        given["wanted"] = wanted
    with pytest.raises((AssertionError, ProviderError, ValueError), match=reported):
        await case(**given)


async def test_another_exception_is_reported(tmp_path: Path) -> None:
    """An exception of a client must have become a ProviderError."""
    with pytest.raises(AssertionError, match=r"ConnectionError.* is no ProviderError"):
        await ProviderConformance().test_silence_is_an_error_that_allows_another_try(
            made(FakeProvider, tmp_path), made(Raw, tmp_path), wanted
        )


def test_an_author_runs_it_with_pytest(tmp_path: Path) -> None:
    """The guide's example runs: one file in a package of one's own, with pytest as it comes."""
    (tmp_path / "test_acme.py").write_text(
        "import pytest\n"
        "from services.provisioner.conformance import ProviderConformance, environment\n"
        "from services.provisioner.providers.fake import FakeProvider\n"
        "class TestAcme(ProviderConformance):\n"
        "    @pytest.fixture\n"
        "    def make(self, tmp_path):\n"
        "        options = FakeProvider.Options(file=str(tmp_path / 'cloud.json'))\n"
        "        return lambda: FakeProvider(options=options, environment=environment(tmp_path))\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_acme.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert (0, True) == (ran.returncode, " passed, 1 skipped" in ran.stdout), ran.stdout
