"""Runs a fleet on a real control plane: `navarch serve`, and `python -m agent` for each node.

The rights are those of docs/existing-clusters.md.
"""

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from services.bus.nats.embedded_server import server_binary
from services.primitives.free_ports import free_ports
from services.provisioner.providers.local_gpus import kmsg_record
from tests.real.kubernetes_cluster import Cluster
from tests.real.test_existing_clusters import agent_variables, configuration, process
from tests.support.inprocess import eventually, navarch

XID: Final = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."


class Fleet:
    """Runs the bus, the services, and an agent on each node of a cluster."""

    def __init__(self, cluster: Cluster, started: AsyncExitStack) -> None:
        self.cluster = cluster
        (self.port,) = free_ports(1)
        self._started = started
        self._common = {
            "NAVARCH_BUS_PASSWORD": "secret",
            "NAVARCH_NATS_URL": f"nats://127.0.0.1:{self.port}",
        }

    async def start(self, **acts: str) -> None:
        """Start the bus and the services; `acts`: how nodes are removed."""
        config, bus = await configuration(self.cluster, self.port, **acts)
        self._common["NAVARCH_CONFIG"] = str(config)
        for name, command in (
            ("bus", (str(server_binary()), "-c", str(bus))),
            ("serve", (sys.executable, "-m", "services.cli", "serve")),
        ):
            log = self.cluster.folder / f"{name}.log"
            await self._started.enter_async_context(process(*command, log=log, **self._common))

    async def join(self, instance: str) -> str:
        """Register an instance as its kubelet does, and start an agent there; return the node."""
        name = f"ip-{instance[2:]}.ec2.internal"
        await self.register(name, instance)
        self._kmsg(name).write_bytes(b"")
        await self._started.enter_async_context(
            process(
                *(sys.executable, "-m", "agent"),
                log=self.cluster.folder / f"{name}.log",
                **agent_variables(self.port, name, self._kmsg(name)),
            )
        )
        return name

    async def register(self, name: str, instance: str) -> None:
        """Create the Node object of an instance."""
        labels = {"pool": "gpu", "nvidia.com/gpu.present": "true"}
        spec = {"providerID": f"aws:///us-east-1a/{instance}"}
        about = {"name": name, "labels": labels}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": spec}
        await self.cluster.create(node)

    def write_fault(self, name: str) -> None:
        """Write XID 79 to the kernel log of a node."""
        with self._kmsg(name).open("ab") as log:
            log.write(kmsg_record(1, 1, XID))

    async def shows(self, command: str, *texts: str) -> str:
        """Wait until a command's output has these texts; return it."""
        said = ""

        async def shown() -> bool:
            nonlocal said
            status, said, _ = await navarch(*command.split(), **self._common)
            return status == 0 and all(each in said for each in texts)

        try:
            await eventually(shown, within_seconds=90, every=0.5)
        except AssertionError as error:
            raise AssertionError(f"{command} says no {texts}: {said}") from error
        return said

    def _kmsg(self, name: str) -> Path:
        return self.cluster.folder / f"{name}.kmsg"


def known(name: str) -> str:
    """Return a node's name in Navarch."""
    return name.replace(".", "-")
