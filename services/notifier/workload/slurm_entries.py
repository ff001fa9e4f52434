"""Slurm's entries of nodes whose machines come and go.

A node of slurm.conf (`State=CLOUD`) keeps its entry: it gets its machine's address, and is powered
down with it. A node that registered itself (`slurmd -Z`) is deleted with its machine.
"""

import logging
import re
from typing import Final

import msgspec

from services.notifier.workload.slurm_workload import checked_name
from services.notifier.workload.workload_notifier import NodeReference
from services.workload_systems.slurm_client import (
    NodeChange,
    SlurmRefusedError,
    SlurmUnavailableError,
)
from services.workload_systems.slurm_output import SlurmNode
from services.workload_systems.slurm_rest import SlurmClient

log = logging.getLogger(__name__)

ADDRESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,253}")


class SlurmEntries:
    """Changes entries; an entry that is right already is left alone."""

    def __init__(self, slurm: SlurmClient) -> None:
        self._slurm = slurm

    async def set_address(self, node: SlurmNode, reference: NodeReference) -> None:
        """Set where slurmctld reaches the machine; slurm.conf cannot know it."""
        hostname = reference.hostname or node.hostname
        wanted = (reference.address, hostname)
        if not node.cloud or not reference.address or wanted == (node.address, node.hostname):
            return
        if not all(ADDRESS.fullmatch(each) for each in wanted):
            log.warning("no address for Slurm", extra={"node": node.name, "address": wanted})
            return
        await self._update(node, NodeChange(address=wanted[0], hostname=wanted[1]))

    async def reopen(self, node: SlurmNode) -> None:
        """Resume it, if Navarch drained its earlier machine or slurmctld missed that by itself.

        SlurmUnavailableError until the slurmd of its new machine answers: when that registers,
        slurmctld sets the node DOWN ("unexpectedly rebooted"), and it has to be resumed again.
        """
        if not node.cloud or node.powered_off:
            return
        if node.cordoned or node.down:
            if not (node.ours or node.automatic):
                return
            if node.completing and not node.down:
                # Slurm waits for epilogs of the earlier machine, and starts those jobs nowhere.
                await self._update(node, NodeChange(state="DOWN", reason=node.reason))
            await self._update(node, NodeChange(state="RESUME"))
            raise SlurmUnavailableError(f"{node.name} is resumed; its slurmd has yet to answer")
        if node.silent:
            raise SlurmUnavailableError(f"the slurmd of {node.name} has not registered")

    async def close(self, node: SlurmNode) -> None:
        """Have Slurm know that there is no machine."""
        if not (node.ours or node.automatic) and (node.cordoned or node.down):
            return  # An administrator works on it.
        if node.dynamic:
            if not (node.silent or node.down):
                raise SlurmUnavailableError(f"{node.name} still responds to slurmctld")
            await self._slurm.delete_node(checked_name(node.name))
            log.info("deleted in Slurm: its machine is gone", extra={"node": node.name})
        elif node.cloud and not (node.powered_off or node.powering_up):
            await self._update(node, NodeChange(state="POWER_DOWN_FORCE"))

    async def fail(self, node: SlurmNode, reason: str) -> None:
        """Have the jobs that wait for it requeued, and the node ready to be resumed again."""
        if not node.cloud or not node.powering_up:
            return
        await self._update(node, NodeChange(state="DOWN", reason=reason))
        try:
            await self._update(node, NodeChange(state="POWER_DOWN_FORCE", reason=reason))
        except SlurmRefusedError as error:
            log.warning("a node stays DOWN in Slurm: %s", error, extra={"node": node.name})

    async def _update(self, node: SlurmNode, change: NodeChange) -> None:
        await self._slurm.change_node(checked_name(node.name), change)
        log.info("updated Slurm", extra={"node": node.name, "change": msgspec.to_builtins(change)})
