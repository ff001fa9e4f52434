"""Containers as nodes: held to the Engine API's description by a server that knows nothing else.

What a real engine makes of it is tested in `tests/real/test_docker_provider.py`.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from schemas.duration import Duration
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import ConfigurationError
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.docker import DockerProvider
from services.provisioner.providers.docker_errors import PHRASES, error_of
from services.saga.participant import StepFailure
from tests.provisioner.docker_server import (
    BROKEN,
    NO_COMMAND,
    NO_GPU,
    NO_SPACE,
    DockerServer,
)
from tests.provisioner.faulty_transports import MortalTransport
from tests.provisioner.http_status_table import COMMON
from tests.provisioner.provisioner_parts import (
    FLEET,
    Killed,
    Life,
    provision,
    request,
    steps,
    terminate,
)

Make = Callable[..., DockerProvider]
CREATE, START = "POST /containers/create", "POST /containers/{id}/start"
UNPACK, LIST = "PUT /containers/{id}/archive", "GET /containers/json"
REMOVE = "DELETE /containers/{id}"
KEY = "ssh-ed25519 AAAAC3Nza me@laptop"
POINTS_MAX = 40


@pytest.fixture
def make(make_docker: Make) -> Make:
    """Makes the provider again, with changed options and transport where wanted."""
    return make_docker


# --- requests and answers ------------------------------------------------------------------------


async def test_a_container_is_what_was_asked_for(engine: DockerServer, make: Make) -> None:
    """Bounds, GPUs, port, keys and user data, all of it known to the API's description."""
    provider = make(
        gpus=8,
        cpus=1.5,
        memory_mib=512,
        shm_mib=128,
        environment={"B": "2", "A": "1"},
        command=("run", "me"),
        publish_address="127.0.0.1",
        ssh_port=2222,
    )
    made = await provider.provision(
        request(ssh_keys=(KEY,), labels={"team": "vision"}, user_data="#!/bin/sh\n")
    )
    [container] = engine.containers.values()
    host = container["body"]["HostConfig"]
    assert ("127.0.0.1:32770", "running") == (made.address, made.status)
    assert (f"{FLEET}.web.web-1", ["A=1", "B=2"]) == (container["name"], container["body"]["Env"])
    assert (512 * 1024**2, 1_500_000_000) == (host["Memory"], host["NanoCpus"])
    assert [["0", "1"]] == [each["DeviceIDs"] for each in host["DeviceRequests"]]
    assert ("vision", "0 1") == (made.tags["team"], made.tags["navarch-gpus"])
    assert {
        "root/.ssh/authorized_keys": f"{KEY}\n",
        "etc/navarch/user-data": "#!/bin/sh\n",
    } == container["files"]


async def test_without_a_published_port_the_address_is_the_containers_own(make: Make) -> None:
    """The address has the port where it is not SSH's usual one."""
    made = [
        await make(ssh_port=port).provision(request(f"web-{port}", gpu_count=0))
        for port in (22, 2222)
    ]
    assert ["172.17.0.2", "172.17.0.3:2222"] == [each.address for each in made]


async def test_an_engine_that_has_forgotten_our_version_is_spoken_to_in_its_own(
    engine: DockerServer, make: Make
) -> None:
    """Engines refuse what is older than they still know."""
    engine.oldest = "1.44"
    assert [] == await make().list()


async def test_a_gpu_is_given_to_one_container(make: Make) -> None:
    """Two provisioners that give them out at once share them; what is missing has its number."""
    one, two = make(gpus=4), make(gpus=4)
    made = await asyncio.gather(
        *(
            provision_again(provider, f"web-{number}-{replica}")
            for replica, provider in enumerate((one, two))
            for number in range(2)
        )
    )
    assert ["0", "1", "2", "3"] == sorted(each.tags["navarch-gpus"] for each in made)
    with pytest.raises(
        ProviderError, match=r"0 of the host's 4 GPUs are free, and 4 are requested"
    ):
        await one.provision(request("web-9", gpu_count=4))
    with pytest.raises(ProviderError, match="8 GPUs are requested, and `gpus`") as refused:
        await one.provision(request("web-9", gpu_count=8))
    assert "UNSUPPORTED" == refused.value.kind


async def provision_again(provider: DockerProvider, name: str) -> Instance:
    """Try as the launcher does, a few times: also where others hold more than they will keep."""
    for _ in range(20):
        with suppress(ProviderError):
            return await provider.provision(request(name, gpu_count=1))
    raise AssertionError(f"no GPU for {name}")


async def test_there_are_no_more_than_containers_max(engine: DockerServer, make: Make) -> None:
    """Stopped ones count: they hold their place until they are removed."""
    provider = make(containers_max=2)
    for number in range(2):
        await provider.provision(request(f"web-{number}", gpu_count=0))
    next(iter(engine.containers.values()))["State"] = "exited"
    with pytest.raises(ProviderError, match="`containers_max` of provider fake is 2") as full:
        await provider.provision(request("web-2", gpu_count=0))
    assert "CAPACITY" == full.value.kind


async def test_one_that_another_is_making_just_now_is_waited_for(
    engine: DockerServer, make: Make
) -> None:
    """The engine refuses the name before it shows the container."""
    engine.create_seconds = 0.1
    made = await asyncio.gather(*(make().provision(request(gpu_count=0)) for _ in range(4)))
    assert list(engine.containers) == sorted({each.provider_id for each in made})


async def test_states_are_mapped_to_the_contract(engine: DockerServer, make: Make) -> None:
    """One that was created and never started is not running: the next try goes on with it."""
    provider = make()
    for number, state in enumerate(("created", "exited", "paused", "removing", "hibernating")):
        await provider.provision(request(f"web-{number}", gpu_count=0))
        list(engine.containers.values())[-1]["State"] = state
    assert ["stopped", "stopped", "running", "stopping", "running"] == [
        each.status for each in await provider.list()
    ]
    again = await provider.provision(request("web-0", gpu_count=0))
    assert ("running", 5) == (again.status, len(engine.containers))


@pytest.mark.parametrize(
    ("changes", "asked", "kind", "says"),
    [
        ({"image": "nowhere"}, {}, "INVALID", "No such image: nowhere"),
        ({"network": "none-such"}, {}, "INVALID", "network none-such not found"),
        ({}, {"ssh_keys": ("laptop",)}, "INVALID", "must be complete public keys"),
    ],
)
async def test_what_cannot_be_leaves_nothing_behind(
    engine: DockerServer, make: Make, changes: Any, asked: Any, kind: str, says: str
) -> None:
    """A container that can never start would exist for ever."""
    with pytest.raises(ProviderError, match=says) as refused:
        await make(**changes).provision(request(gpu_count=0, **asked))
    assert (kind, {}) == (refused.value.kind, engine.containers)


async def test_a_name_of_another_container_is_reported(engine: DockerServer, make: Make) -> None:
    """The refusal names the command that frees it; nothing of theirs is touched."""
    await make().provision(request(gpu_count=0))
    [container] = engine.containers.values()
    container["Labels"] = {}
    with pytest.raises(ProviderError, match=r"docker rm -f fleet-one\.web\.web-1") as refused:
        await make().provision(request(gpu_count=0))
    assert ("INVALID", 1) == (refused.value.kind, len(engine.containers))


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("phrase", "kind"), PHRASES.items())
def test_every_known_phrase_has_its_kind(phrase: str, kind: str) -> None:
    """One row each, whatever the status."""
    error = error_of(500, f'{{"message": "oops: {phrase.upper()}!"}}'.encode())
    assert kind == error.kind


@pytest.mark.parametrize(
    ("status", "kind", "unknown"),
    [
        *COMMON,
        (400, "INVALID", False),
        (409, "TRANSIENT", False),
    ],
)
def test_an_unknown_answer_goes_by_its_status(status: int, kind: str, unknown: bool) -> None:
    """Where that says nothing either it is transient, and says so."""
    for body, text in (
        (b'{"message": "no"}', "no"),
        (b"\xff", "1 bytes that are not the provider's JSON"),
    ):
        error = error_of(status, body)
        note = " (not known here)" if unknown else ""
        assert (kind, f"HTTP {status}: {text}{note}") == (error.kind, error.message)
        assert (f"HTTP {status}" if unknown else "") == error.unknown


@pytest.mark.parametrize(
    ("call", "answer", "kind"),
    [
        (CREATE, NO_SPACE, "CAPACITY"),
        (START, NO_GPU, "UNSUPPORTED"),
        (START, NO_COMMAND, "INVALID"),
        (START, BROKEN, "TRANSIENT"),
        (LIST, BROKEN, "TRANSIENT"),
    ],
)
async def test_a_refused_launch_has_its_kind(
    engine: DockerServer, make: Make, call: str, answer: tuple[int, str], kind: str
) -> None:
    """A final refusal leaves nothing; what is not leaves at most what the next try goes on with."""
    engine.order(call, answer)
    with pytest.raises(ProviderError) as refused:
        await make().provision(request(gpu_count=0))
    assert kind == refused.value.kind
    again = await make().provision(request(gpu_count=0))
    assert [again.provider_id] == list(engine.containers)


async def test_no_engine_is_said_with_its_socket(make: Make) -> None:
    """The failure is one that may pass."""
    with pytest.raises(ProviderError, match=r"Docker engine at /nowhere/d\.sock") as refused:
        await make(socket="/nowhere/d.sock").list()
    assert "TRANSIENT" == refused.value.kind


def test_keys_that_cannot_be_read_are_a_configuration_error(make: Make) -> None:
    """The error names the option and the file."""
    with pytest.raises(ConfigurationError, match="authorized_keys_file: /nowhere: No such file"):
        make(authorized_keys_file="/nowhere")


# --- containers and secrets of others ---


async def test_a_container_of_another_is_not_removed(engine: DockerServer, make: Make) -> None:
    """The engine takes names and beginnings of IDs, and removes what no fleet has made, too."""
    provider = make()
    made = await provider.provision(request("web-1"))
    other = "ab" * 32
    engine.containers[other] = {
        **engine.containers[made.provider_id],
        "Id": other,
        "name": "database",
        "Labels": {"navarch-node": "web-2", "com.docker.compose.project": "shop"},
    }
    with pytest.raises(ProviderError) as refused:
        await provider.terminate(other)
    assert refused.value.kind == "INVALID"
    for each in ("database", f"{FLEET}.web.web-1", made.provider_id[:12], "", "../images/x", "*"):
        await provider.terminate(each)
    assert {other, made.provider_id} == set(engine.containers)
    await provider.terminate("cd" * 32)
    await provider.terminate(made.provider_id)
    assert {other} == set(engine.containers)


async def test_what_an_inspection_shows_has_no_secret(engine: DockerServer, make: Make) -> None:
    """User data, with a node's first credentials, and keys are files of the container alone."""
    provider = make(environment={"A": "1"})
    secret = "-----BEGIN USER NKEY SEED-----"
    await provider.provision(
        request(user_data=f"#!/bin/sh\n{secret}\n", ssh_keys=(KEY,), labels={"navarch-token": "x"})
    )
    [container] = engine.containers.values()
    assert container["files"]["etc/navarch/user-data"].count(secret) == 1
    shown = str({k: v for k, v in container.items() if k != "files"})
    assert secret not in shown
    assert KEY.split()[1] not in shown
    assert {"Privileged", "Binds", "Mounts", "CapAdd", "PidMode"}.isdisjoint(
        container["body"]["HostConfig"]
    )
    assert container["Labels"]["navarch-token"] != "x"


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "a b", "$(id)", "../../x"])
async def test_an_image_is_no_option(engine: DockerServer, make: Make, image: str) -> None:
    """No command line is built: it is a field of a request, which the engine does not know."""
    with pytest.raises(ProviderError, match="No such image"):
        await make(image=image).provision(request())
    assert engine.containers == {}


# --- through the provisioner ---------------------------------------------------------------------


async def test_a_launch_killed_between_any_two_calls_makes_one_container(
    bus: NatsBus, engine: DockerServer, make: Make
) -> None:
    """Begun again by another process, it goes on with what container, and that has its keys."""
    for point in range(1, POINTS_MAX):
        node = f"web-{point}"
        command = provision(node, ssh_keys=(KEY,))
        mortal = make(MortalTransport(Life(point), uds=engine.socket), containers_max=99)
        try:
            await steps(bus, mortal).provision(command)
        except Killed:
            outputs = await steps(bus, make(containers_max=99)).provision(command)
            made = [each for each in engine.containers.values() if each["body"]["Hostname"] == node]
            assert [outputs.provider_id] == [each["Id"] for each in made]
            assert "running" == made[0]["State"]
            assert made[0]["files"]["root/.ssh/authorized_keys"]
        else:
            assert point > 12
            break
    else:
        pytest.fail("the launch has more points than this test tries")


async def test_a_removal_killed_between_any_two_calls_is_completed(
    bus: NatsBus, engine: DockerServer, make: Make
) -> None:
    """No container is left in the end."""
    for point in range(1, POINTS_MAX):
        node = f"web-{point}"
        await steps(bus, make()).provision(provision(node))
        mortal = make(MortalTransport(Life(point), uds=engine.socket))
        try:
            await steps(bus, mortal).terminate(terminate(node))
        except Killed:
            await steps(bus, make()).terminate(terminate(node))
            assert {} == engine.containers
        else:
            break
    else:
        pytest.fail("the removal has more points than this test tries")


@pytest.mark.parametrize("call", ["GET /version", LIST, CREATE, UNPACK, START])
@pytest.mark.parametrize("lost", ["answer", "silence"])
async def test_a_call_whose_answer_is_lost_makes_one_container(
    bus: NatsBus, engine: DockerServer, make: Make, call: str, lost: str
) -> None:
    """A 500 after the fact, or no answer at first: one container, and it runs."""
    engine.latency_seconds = 0.01
    if lost == "answer":
        engine.order(call, BROKEN, after_success=True)
    else:
        engine.silent.add(call)
        asyncio.get_running_loop().call_later(0.25, engine.silent.clear)
    outputs = await steps(bus, make(timeout=Duration(0.2))).provision(provision("web-1"))
    assert [(outputs.provider_id, "running")] == [
        (each["Id"], each["State"]) for each in engine.containers.values()
    ]


async def test_a_removal_whose_answer_is_lost_is_a_removal(
    bus: NatsBus, engine: DockerServer, make: Make
) -> None:
    """Asked again it finds nothing, which is what was wanted."""
    await steps(bus, make()).provision(provision("web-1"))
    engine.order(REMOVE, BROKEN, after_success=True)
    await steps(bus, make()).terminate(terminate("web-1"))
    assert {} == engine.containers


@pytest.mark.usefixtures("hopeless")
async def test_no_capacity_fails_the_step_with_its_kind(
    bus: NatsBus, engine: DockerServer, make: Make
) -> None:
    """Another offering is tried then; nothing is left behind."""
    engine.order(START, NO_SPACE)
    with pytest.raises(StepFailure) as failed:
        await steps(bus, make()).provision(provision("web-1"))
    assert ("CAPACITY", {}) == (failed.value.error, engine.containers)
