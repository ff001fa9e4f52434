"""Reset, reboot and the check after them: the agent is asked, and a reboot falls back."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from schemas.agent_commands import ActionResult, Diagnosis
from schemas.enums import NOT_LISTED, Action, HealthStatus
from schemas.health_records import HealthRecord, RecordedFault
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.saga_params import LaunchSpec
from schemas.step_data import CheckInputs, RebootInputs, ResetInputs
from schemas.subjects import node_command
from schemas.topology import HEALTH, INSTANCES, NODES
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.primitives.errors import Retry
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Capabilities, Environment, Instance
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.fake import FakeFault, FakeProvider
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.saga.participant import Command, StepFailure
from tests.provisioner.provisioner_parts import (
    FLEET,
    QUICK,
    command,
    fake,
    forget_instances,
    provision,
    steps,
)

HASTY = dataclasses.replace(
    QUICK,
    agent_gone_seconds=0.2,
    agent_again_seconds=0.02,
    agent_reply_seconds=0.1,
    reset_reply_seconds=1.0,
    refusals_seconds=0.2,
    agent_down_seconds=0.1,
)
LAUNCH = LaunchSpec(fleet=FLEET, provider="fake", instance_type="t")
DONE = datetime(2026, 11, 21, 1, 0, tzinfo=UTC)
STEP_VERBS = ("reset-gpu", "reboot")


class Agent:
    """Answers a command with what it is given, the last for ever, and notes what it was asked."""

    def __init__(self, bus: NatsBus, verb: str, *answers: ActionResult | Diagnosis) -> None:
        self._bus = bus
        self._verb = verb
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def listen(self) -> "Agent":
        """Answer commands for the node from now on."""
        await self._bus.answer(node_command("web", "web-1", self._verb), self._answer)
        return self

    async def _answer(self, data: bytes, _: Headers) -> bytes:
        self.asked.append(msgspec.json.decode(data))
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return encode(found)


def reset() -> Command:
    """The command to reset a GPU."""
    return command("reset-1", "reset", ResetInputs(pool="web", node="web-1", gpus=("GPU-1",)))


def reboot(boot_id: str = "b1", *, cold: bool = False) -> Command:
    """The command to end a boot."""
    inputs = RebootInputs(pool="web", node="web-1", boot_id=boot_id, cold=cold)
    return command("reboot-1", "reboot", inputs)


async def launched(bus: NatsBus, provider: FakeProvider) -> SagaStepHandlers:
    """A node whose agent speaks of boot b1."""
    made = steps(bus, provider, HASTY)
    await made.provision(provision("web-1"))
    await bus.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1", boot_id="b1")))
    return made


async def failure(action: Callable[[Command], Awaitable[object]], wanted: Command) -> StepFailure:
    """Return the failure that a step ends with."""
    with pytest.raises(StepFailure) as failed:
        await action(wanted)
    return failed.value


async def test_the_agent_resets_under_the_steps_key(bus: NatsBus) -> None:
    """The key is saga and step, and what the agent says of it is put out."""
    agent = await Agent(
        bus, "reset-gpu", ActionResult(ok=True, detail="All done.", at=DONE)
    ).listen()
    outputs = await steps(bus, fake(), HASTY).actions["reset"](reset())

    assert [{"key": "reset-1/reset", "gpus": ["GPU-1"]}] == agent.asked
    assert ("agent", DONE, "All done.") == (outputs.by, outputs.at, outputs.detail)


async def test_a_refusal_is_waited_out(bus: NatsBus) -> None:
    """The last processes leave, and the cordon comes to be known there."""
    agent = await Agent(
        bus, "reset-gpu", ActionResult(ok=False, refused="busy"), ActionResult(ok=True)
    ).listen()
    await steps(bus, fake(), HASTY).actions["reset"](reset())
    assert 2 == len(agent.asked)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (ActionResult(ok=False, refused="this node is not cordoned"), "refused", "not cordoned"),
        (ActionResult(ok=False, detail="exit status 7"), "", "exit status 7"),
    ],
)
async def test_a_reset_that_is_not_done_fails_in_the_agents_words(
    bus: NatsBus, answer: ActionResult, error: str, words: str
) -> None:
    """The agent's words are in the failure, be it a refusal to the end or a try without effect."""
    await Agent(bus, "reset-gpu", answer).listen()
    failed = await failure(steps(bus, fake(), HASTY).actions["reset"], reset())
    assert (error, True) == (failed.error, words in failed.reason)


async def test_only_the_agent_can_reset(bus: NatsBus) -> None:
    """Where no agent answers, the reset fails and says so."""
    failed = await failure(steps(bus, fake(), HASTY).actions["reset"], reset())
    assert ("no-agent", True) == (failed.error, "does not answer" in failed.reason)


async def test_the_agent_reboots_and_the_provider_is_left_alone(bus: NatsBus) -> None:
    """The request names the boot to end."""
    provider = fake()
    made = await launched(bus, provider)
    agent = await Agent(bus, "reboot", ActionResult(ok=True, boot_id="b1")).listen()
    outputs = await made.actions["reboot"](reboot())

    assert {"key": "reboot-1/reboot", "boot_id": "b1"} == agent.asked[0]
    assert ("agent", []) == (outputs.by, provider.calls("reboot"))


@pytest.mark.parametrize("there", [False, True])
async def test_where_the_agent_cannot_the_provider_reboots(bus: NatsBus, there: bool) -> None:
    """An agent that is gone, or that has not the means; a redelivery asks for nothing more."""
    provider = fake(faults=(FakeFault(call="reboot", kind="TRANSIENT", times=2),))
    made = await launched(bus, provider)
    if there:
        await Agent(bus, "reboot", ActionResult(ok=False, detail="not root")).listen()
    outputs = await made.actions["reboot"](reboot())
    again = await made.actions["reboot"](reboot())

    assert ("fake", "fake") == (outputs.by, again.by)
    assert 3 == len(provider.calls("reboot"))
    assert ("not root" if there else "its agent does not answer") in outputs.detail


async def test_a_host_that_does_not_go_down_is_rebooted_by_its_provider(bus: NatsBus) -> None:
    """The agent has answered that it reboots, and then says that it could not."""
    provider = fake()
    made = await launched(bus, provider)
    failed = ActionResult(ok=False, boot_id="b1", detail="systemctl reboot ends with 1: no bus")
    await Agent(bus, "reboot", ActionResult(ok=True, boot_id="b1"), failed).listen()
    outputs = await made.actions["reboot"](reboot())
    assert ("fake", 1) == (outputs.by, len(provider.calls("reboot")))
    assert "systemctl reboot ends with 1" in outputs.detail


async def test_a_host_that_is_up_again_already_is_left_alone(bus: NatsBus) -> None:
    """A host whose agent already reports another boot is not rebooted."""
    provider = fake()
    made = await launched(bus, provider)
    after = ActionResult(ok=True, boot_id="b2", detail="it has another boot already")
    agent = await Agent(bus, "reboot", ActionResult(ok=True, boot_id="b1"), after).listen()
    outputs = await made.actions["reboot"](reboot())
    assert ("agent", [], 2) == (outputs.by, provider.calls("reboot"), len(agent.asked))


async def test_an_agent_that_refuses_is_not_overruled(bus: NatsBus) -> None:
    """An agent's refusal, because work may run there, also prevents a reboot by the provider."""
    provider = fake()
    made = await launched(bus, provider)
    await Agent(bus, "reboot", ActionResult(ok=False, refused="not cordoned")).listen()
    failed = await failure(made.actions["reboot"], reboot())
    assert ("refused", []) == (failed.error, provider.calls("reboot"))


@pytest.mark.parametrize("launch", [pytest.param(LAUNCH, id="launched"), None])
async def test_a_reboot_waits_until_a_lost_record_is_there_again(
    bus: NatsBus, launch: LaunchSpec | None
) -> None:
    """A node without a launch is on no provider's instance, so that none will be recorded."""
    node = NodeRecord(pool="web", node="web-1", boot_id="b1", launch=launch)
    await bus.put(NODES, "web.web-1", encode(node))
    with pytest.raises(Retry if launch else StepFailure, match="web-1"):
        await steps(bus, fake(), HASTY).actions["reboot"](reboot())


async def test_a_reboot_waits_where_nodes_has_lost_the_node_as_well(bus: NatsBus) -> None:
    """A reboot waits for the node's record, which says whether the node was launched."""
    with pytest.raises(Retry, match="web-1"):
        await steps(bus, fake(), HASTY).actions["reboot"](reboot())


async def test_a_reboot_waits_where_the_record_is_that_of_before_the_launch(bus: NatsBus) -> None:
    """INSTANCES was set back: the sweep adopts the instance of an unfinished launch."""
    provider = fake()
    made = await launched(bus, provider)
    entry = await bus.get(INSTANCES, "web.web-1")
    assert entry is not None
    record = msgspec.json.decode(entry.value, type=InstanceRecord)
    intended = replace(record, state="intended", provider_id="")
    await bus.put(INSTANCES, "web.web-1", encode(intended))
    with pytest.raises(Retry, match="web-1"):
        await made.actions["reboot"](reboot())
    assert provider.calls("reboot") == []


async def test_a_record_without_a_boot_says_nothing_of_a_reboot(bus: NatsBus) -> None:
    """NODES was lost, and the node's agent has not registered again: its boot is still to end."""
    provider = fake()
    made = await launched(bus, provider)
    await bus.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1")))
    outputs = await made.actions["reboot"](reboot())
    assert ("fake", 1) == (outputs.by, len(provider.calls("reboot")))


async def test_a_boot_that_has_ended_is_not_ended_again(bus: NatsBus) -> None:
    """No request is made."""
    provider = fake()
    made = await launched(bus, provider)
    outputs = await made.actions["reboot"](reboot("b0"))
    assert ("none", []) == (outputs.by, provider.calls("reboot"))


async def test_a_provider_that_cannot_reboot_fails_the_step(bus: NatsBus) -> None:
    """The failure says what a person can do."""
    made = await launched(bus, fake(reboots=False))
    failed = await failure(made.actions["reboot"], reboot())
    assert ("no-agent", True) == (failed.error, "cannot reboot" in failed.reason)
    assert "navarch replace web-1" in failed.remedy


@pytest.mark.parametrize("kind", ["AUTH", "THROTTLE"])
async def test_a_provider_that_does_not_do_it_fails_the_step(bus: NatsBus, kind: str) -> None:
    """The step fails at once where waiting is of no use, else after a few tries."""
    provider = fake(faults=(FakeFault(call="reboot", kind=kind, times=100),))
    made = await launched(bus, provider)
    failed = await failure(made.actions["reboot"], reboot())
    assert kind == failed.error
    assert (1 if kind == "AUTH" else HASTY.reboot_tries_max) == len(provider.calls("reboot"))


class WithControllers(FakeProvider):
    """A provider that can switch its machines off and on, but for the first calls."""

    def __init__(self, refuses: int = 0, **options: Any) -> None:
        environment = Environment(
            name="fake", fleet=FLEET, nats_url="nats://127.0.0.1:1", data_dir=Path()
        )
        super().__init__(options=FakeProvider.Options(**options), environment=environment)
        self.restarts = 0
        self._refuses = refuses

    def can_restart_cold(self, instance: Instance) -> bool:
        """Return that every instance has a controller."""
        return bool(instance.provider_id)

    async def restart_cold(self, instance: Instance) -> None:
        """Count the restart, and refuse the first ones as the test has set."""
        assert instance.provider_id
        self.restarts += 1
        if self.restarts <= self._refuses:
            raise ProviderError("AUTH", "the controller refuses the login")


class MadeByOthers(WithControllers):
    """Has machines that others make and name."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of a provider that adopts."""
        return replace(super().capabilities, adopts=True)


@pytest.mark.parametrize("error", ["", NOT_LISTED])
async def test_another_machine_of_the_name_is_left_alone(bus: NatsBus, error: str) -> None:
    """The instance of which the workload system was asked is gone, and the name is given again."""
    made = await launched(bus, MadeByOthers())
    agents = [await Agent(bus, each, ActionResult(ok=True)).listen() for each in STEP_VERBS]
    await InstanceStore(bus).change(
        "web.web-1", lambda found: found and replace(found, error=error)
    )
    for action, order in (("reset", reset()), ("reboot", reboot())):
        if error:
            failed = await failure(made.actions[action], order)
            assert "is another machine" in failed.reason
        else:
            await made.actions[action](order)
    assert [bool(each.asked) for each in agents] == [not error, not error]


async def test_a_machine_is_switched_off_and_on_where_no_warm_reboot_helps(bus: NatsBus) -> None:
    """The agent is not asked, and a redelivery asks for nothing more."""
    provider = WithControllers()
    made = await launched(bus, provider)
    agent = await Agent(bus, "reboot", ActionResult(ok=True, boot_id="b1")).listen()
    first = await made.actions["reboot"](reboot(cold=True))
    again = await made.actions["reboot"](reboot(cold=True))
    assert ("fake", "fake", 1) == (first.by, again.by, provider.restarts)
    assert ([], []) == (agent.asked, provider.calls("reboot"))


async def test_where_no_controller_obeys_the_agent_reboots(bus: NatsBus) -> None:
    """A warm reboot is better than none."""
    provider = WithControllers(refuses=1)
    made = await launched(bus, provider)
    await Agent(bus, "reboot", ActionResult(ok=True, boot_id="b1")).listen()
    outputs = await made.actions["reboot"](reboot(cold=True))
    assert ("agent", 1, []) == (outputs.by, provider.restarts, provider.calls("reboot"))


async def test_a_machine_that_nothing_else_reboots_is_switched_off_and_on(bus: NatsBus) -> None:
    """A machine without an agent that does not answer its provider is switched off and on."""
    provider = WithControllers(faults=(FakeFault(call="reboot", kind="NETWORK"),))
    made = await launched(bus, provider)
    outputs = await made.actions["reboot"](reboot())
    assert ("fake", 1, 1) == (outputs.by, len(provider.calls("reboot")), provider.restarts)


async def test_a_launch_says_whether_its_machine_can_be_switched(bus: NatsBus) -> None:
    """The node's record has it from there."""
    with_, without = WithControllers(), fake()
    assert (await steps(bus, with_).provision(provision("web-1"))).restarts_cold
    await forget_instances(bus)
    assert not (await steps(bus, without).provision(provision("web-2"))).restarts_cold


UNHEALTHY = RecordedFault(id="f1", time=DONE, kind="xid", code=95, result="unhealthy", boot_id="b2")


@pytest.mark.parametrize(
    ("changes", "since", "boot_id", "again"),
    [
        ({}, DONE - timedelta(seconds=1), "", True),
        ({}, DONE + timedelta(seconds=1), "", False),
        ({}, None, "b2", True),
        ({}, None, "b3", False),
        ({}, None, "", False),
        ({"result": "degraded"}, None, "b2", False),
        ({"boot_id": ""}, None, "b2", False),
    ],
)
async def test_what_was_reported_since_speaks_against_a_node(
    bus: NatsBus, changes: dict[str, Any], since: datetime | None, boot_id: str, again: bool
) -> None:
    """An unhealthy fault after the reset, or of the new boot, though every test passes."""
    record = HealthRecord(pool="web", node="web-1", recent=(replace(UNHEALTHY, **changes),))
    await bus.put(HEALTH, "web.web-1", encode(record))
    await bus.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1")))
    await Agent(bus, "diagnose", Diagnosis(ok=True)).listen()
    inputs = CheckInputs(pool="web", node="web-1", since=since, boot_id=boot_id)
    check = steps(bus, fake(), HASTY).actions["check"]
    wanted = command("reset-1", "check", inputs)
    if not again:
        assert await check(wanted)
        return
    failed = await failure(check, wanted)
    assert ("not-admitted", True) == (failed.error, "xid 95 again" in failed.reason)


@pytest.mark.parametrize(
    ("health", "action", "worse"),
    [
        ("unhealthy", "reset_gpu", False),
        ("unhealthy", "reboot", True),
        ("unhealthy", "replace", True),
        ("unhealthy", "none", False),
        ("degraded", "replace", False),
        ("unknown", "replace", False),
    ],
)
async def test_a_node_that_has_become_worse_is_not_given_work(
    bus: NatsBus, health: HealthStatus, action: Action, worse: bool
) -> None:
    """A reset was begun for less than the node's fault now: the next rung is for that."""
    record = NodeRecord(pool="web", node="web-1", health=health, health_action=action)
    await bus.put(NODES, "web.web-1", encode(record))
    await Agent(bus, "diagnose", Diagnosis(ok=True)).listen()
    inputs = CheckInputs(pool="web", node="web-1", since=DONE, action="reset_gpu")
    check = steps(bus, fake(), HASTY).actions["check"]
    wanted = command("reset-1", "check", inputs)
    if not worse:
        assert await check(wanted)
        return
    failed = await failure(check, wanted)
    assert ("not-admitted", True) == (failed.error, f"demands {action}" in failed.reason)


async def test_a_request_repeated_after_a_cut_is_performed_once(bus: NatsBus) -> None:
    """A provisioner that died while the agent was at it: the key is the same."""
    agent = await Agent(bus, "reset-gpu", ActionResult(ok=True, at=DONE)).listen()
    first, second = (steps(bus, fake(), HASTY).actions["reset"] for _ in range(2))
    await asyncio.gather(first(reset()), second(reset()))
    assert {"reset-1/reset"} == {each["key"] for each in agent.asked}


async def test_a_lost_record_does_not_say_that_a_node_is_no_worse(bus: NatsBus) -> None:
    """NODES was lost after the reset: what the policy demands now is known when it is back."""
    await Agent(bus, "diagnose", Diagnosis(ok=True)).listen()
    inputs = CheckInputs(pool="web", node="web-1", since=DONE, action="reset_gpu")
    with pytest.raises(Retry, match="NODES lacks web-1"):
        await steps(bus, fake(), HASTY).actions["check"](command("reset-1", "check", inputs))
