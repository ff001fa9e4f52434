"""The steps that recover a node in place: reset, reboot.

The node's agent acts on request. The request is repeated under the same key until the agent
answers; the agent performs each key once. An agent that does not answer for a while counts as gone:
then a reboot is requested from the provider, and a reset fails. Where a GPU is off the bus the
provider comes first if it can switch the machine off and on, and last where nothing else reboots
it.
"""

import logging
from typing import Final

import msgspec

from schemas.agent_commands import ActionResult, RebootRequest, ResetRequest
from schemas.enums import NO_AGENT, NOT_LISTED, REFUSED
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import NodeRecord, node_key
from schemas.step_data import ActionOutputs, RebootInputs, ResetInputs
from schemas.subjects import node_command
from schemas.topology import NODES
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import Retry, Unavailable
from services.provisioner.instances.instance_decisions import instance_of
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.time_limits import TimeLimits
from services.saga.participant import Action, Command, StepFailure

log = logging.getLogger(__name__)

DETAIL_CHARS_MAX: Final = 500

_nodes = decoder(NodeRecord)


class NodeRecovery:
    """Performs these steps."""

    def __init__(
        self, bus: Bus, clock: Clock, store: InstanceStore, providers: Providers, limits: TimeLimits
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._store = store
        self._providers = providers
        self._limits = limits

    @property
    def actions(self) -> dict[str, Action]:
        """Step -> action."""
        return {"reset": self.reset, "reboot": self.reboot}

    # --- reset ----------------------------------------------------------------------------------

    async def reset(self, command: Command) -> ActionOutputs:
        """Have the agent reset the GPUs."""
        inputs = command.inputs_as(ResetInputs)
        self._refuse_successor(await self._store.get(node_key(inputs.pool, inputs.node)))
        request = encode(ResetRequest(key=command.key, gpus=inputs.gpus))
        acted = await self._ask(inputs, "reset-gpu", request, self._limits.reset_reply_seconds)
        if acted is None:
            raise StepFailure(
                f"the agent of {inputs.node} does not answer, and only it can reset the GPUs; "
                f"reboot the node instead: navarch reboot {inputs.node}",
                error=NO_AGENT,
            )
        return _outputs(acted)

    # --- reboot ---------------------------------------------------------------------------------

    async def reboot(self, command: Command) -> ActionOutputs:
        """Have the agent reboot its host, or the provider if the agent is gone."""
        inputs = command.inputs_as(RebootInputs)
        if await self._another_boot(inputs):
            return ActionOutputs(by="none", detail="it has rebooted already")
        record = await self._store.get(node_key(inputs.pool, inputs.node))
        if record is not None and record.last_reboot == command.key:
            return ActionOutputs(by=record.provider, detail="the provider accepted it before")
        self._refuse_successor(record)
        if inputs.cold and record is not None and self._can_restart_cold(record):
            try:
                return await self._by_provider(command, inputs, record, "for a cold restart")
            except StepFailure as failure:
                log.warning("no cold restart: %s", failure.reason, extra={"node": inputs.node})
        request = encode(RebootRequest(key=command.key, boot_id=inputs.boot_id))
        acted = await self._ask(inputs, "reboot", request, self._limits.agent_reply_seconds)
        if acted is not None and acted.ok:
            failed = await self._confirm_shutdown(inputs, request)
            if failed is None:
                return _outputs(acted)
            acted = failed
        if await self._another_boot(inputs):
            # It shut down before its answer arrived.
            return ActionOutputs(by="agent", detail="it has rebooted already")
        if acted is not None and acted.refused:
            raise StepFailure(acted.refused, error=REFUSED)
        why = "its agent does not answer" if acted is None else f"its agent failed: {acted.detail}"
        return await self._by_provider(command, inputs, record, why)

    async def _confirm_shutdown(self, inputs: RebootInputs, request: bytes) -> ActionResult | None:
        """Wait until the host goes down; return the agent's answer if the reboot failed."""
        subject = node_command(inputs.pool, inputs.node, "reboot")
        until = self._clock.monotonic() + self._limits.agent_down_seconds
        while self._clock.monotonic() < until:
            await self._clock.sleep(self._limits.agent_again_seconds)
            try:
                reply = await self._bus.request(
                    subject, request, timeout_seconds=self._limits.agent_reply_seconds
                )
            except Unavailable:
                return None
            answer = _decode(reply.data)
            if answer.boot_id not in ("", inputs.boot_id):
                return None
            if not answer.ok and not answer.refused:
                return answer
        return None

    async def _another_boot(self, inputs: RebootInputs) -> bool:
        node = await self._node(inputs.pool, inputs.node)
        # A record that NODES had lost has no boot before its agent has registered again.
        boots = {inputs.boot_id, node.boot_id if node is not None else ""}
        return "" not in boots and len(boots) > 1

    async def _is_launched(self, inputs: RebootInputs) -> bool:
        """Whether the node is on a provider's instance; else it has no record there.

        Of one that NODES has lost as well that is known once it is recorded again.
        """
        node = await self._node(inputs.pool, inputs.node)
        return node is None or node.launch is not None

    async def _node(self, pool: str, node: str) -> NodeRecord | None:
        entry = await self._bus.get(NODES, node_key(pool, node))
        return _nodes.decode(entry.value) if entry is not None else None

    async def _by_provider(
        self, command: Command, inputs: RebootInputs, record: InstanceRecord | None, why: str
    ) -> ActionOutputs:
        """Request it from the provider, and record the acceptance; retry after a lost answer."""
        is_lost = record is None and await self._is_launched(inputs)
        if is_lost or (record is not None and record.state == "intended"):
            # INSTANCES is lost or was set back: to fail would replace a node that a reboot
            # can recover.
            raise Retry(f"INSTANCES lacks {inputs.node} as it is; the sweep records it again")
        if record is None or record.state != "running":
            raise StepFailure(f"{why}, and there is no running instance {inputs.node}", NO_AGENT)
        tries = 0
        while True:
            tries += 1
            try:
                await self._restart(record, why, cold=inputs.cold)
            except ProviderError as error:
                if not error.rule.retry_in_step or tries >= self._limits.reboot_tries_max:
                    reason = f"{why}, and {record.provider} did not reboot it: {error.message}"
                    raise StepFailure(reason, error=error.kind) from error
                await self._clock.sleep(self._limits.retry_seconds(tries, error.retry_after))
            else:
                break

        def accepted(now: InstanceRecord | None) -> InstanceRecord | None:
            return now and msgspec.structs.replace(now, last_reboot=command.key)

        await self._store.change(node_key(inputs.pool, inputs.node), accepted)
        log.info("rebooted by its provider", extra={"node": inputs.node, "reason": why})
        return ActionOutputs(by=record.provider, at=self._clock.now(), detail=why)

    async def _restart(self, record: InstanceRecord, why: str, *, cold: bool) -> None:
        """Reboot it, or switch its machine off and on: as asked for, or as a last try."""
        calls, instance = self._providers.get(record.provider), instance_of(record)
        can_restart_cold = calls.can_restart_cold(instance)
        if not (calls.can_reboot or can_restart_cold):
            raise StepFailure(
                f"{why}, and provider {record.provider} cannot reboot an instance",
                NO_AGENT,
                remedy=f"reboot {record.instance} by hand, or navarch replace {record.instance}",
            )
        if calls.can_reboot and not (cold and can_restart_cold):
            try:
                await calls.reboot(instance)
            except ProviderError as error:
                if not can_restart_cold:
                    raise
                log.info("not rebooted, so switched off and on", extra={"reason": str(error)})
            else:
                return
        seconds = self._limits.cold_restart_seconds
        await calls.restart_cold(instance, timeout_seconds=seconds)

    def _can_restart_cold(self, record: InstanceRecord) -> bool:
        calls = self._providers.calls.get(record.provider)
        return calls is not None and calls.can_restart_cold(instance_of(record))

    def _refuse_successor(self, record: InstanceRecord | None) -> None:
        """Fail where the instance is gone: others give its name again, and its drain was its own.

        Of what Navarch launches no name is given again, and an agent that answers is its own.
        """
        calls = self._providers.calls.get(record.provider) if record is not None else None
        if record is None or calls is None or not calls.provider.capabilities.adopts:
            return
        if record.state == "terminated" or record.error == NOT_LISTED:
            raise StepFailure(
                f"{record.provider} does not list the instance {record.provider_id} of "
                f"{record.instance} any more; what has its name now is another machine",
                NO_AGENT,
            )

    # --- the agent ------------------------------------------------------------------------------

    async def _ask(
        self, about: ResetInputs | RebootInputs, verb: str, request: bytes, reply_seconds: float
    ) -> ActionResult | None:
        """Repeat the request until the agent answers; None if it is gone.

        A refusal may be temporary: work is still leaving, or the cordon has not arrived yet.
        """
        limits = self._limits
        subject = node_command(about.pool, about.node, verb)
        node = await self._node(about.pool, about.node)
        lost = node is not None and node.lost
        patience = limits.agent_lost_seconds if lost else limits.agent_gone_seconds
        gone_at = self._clock.monotonic() + patience
        patient_until = self._clock.monotonic() + limits.refusals_seconds
        while True:
            try:
                reply = await self._bus.request(subject, request, timeout_seconds=reply_seconds)
                answer = _decode(reply.data)
            except Unavailable as error:
                log.info("the agent does not answer", extra={"reason": str(error)})
                if self._clock.monotonic() >= gone_at:
                    return None
            else:
                if not answer.refused or self._clock.monotonic() >= patient_until:
                    return answer
                log.info("the agent refuses", extra={"reason": answer.refused})
                gone_at = self._clock.monotonic() + limits.agent_gone_seconds
            await self._clock.sleep(limits.agent_again_seconds)


def _decode(data: bytes) -> ActionResult:
    try:
        return msgspec.json.decode(data, type=ActionResult)
    except msgspec.DecodeError as error:
        text = data[:DETAIL_CHARS_MAX].decode("utf-8", "replace")
        raise StepFailure(f"the agent's answer cannot be read: {text}", "INVALID") from error


def _outputs(acted: ActionResult) -> ActionOutputs:
    """Return what was done, or raise StepFailure."""
    if acted.refused:
        raise StepFailure(acted.refused, error=REFUSED)
    if not acted.ok:
        raise StepFailure(acted.detail or "the agent reports a failure without detail")
    return ActionOutputs(by="agent", at=acted.at, detail=acted.detail[:DETAIL_CHARS_MAX])
