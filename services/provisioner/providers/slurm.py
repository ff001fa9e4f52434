"""Lists the nodes of Slurm partitions, which others made: Navarch adopts them, and launches none.

The provisioner's sweep adopts each node that its partition has, whether or not an agent has joined
from it, and retires each that leaves the partition. Nothing here ends a machine or makes another.
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from schemas.duration import Duration
from schemas.names import POOL_NAME_CHARS_MAX, TOKEN, node_token
from schemas.settings import FilePath, Setting
from services.primitives.clock import SystemClock
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.request_checks import distinctly_named, invalid
from services.saga.participant import StepFailure
from services.workload_systems.slurm_client import SlurmRefusedError, SlurmUnavailableError
from services.workload_systems.slurm_output import SlurmNode
from services.workload_systems.slurm_references import slurm_reference
from services.workload_systems.slurm_rest import SlurmRestOptions, connect_slurm

PartitionName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,200}\Z")]
NAME_TAG: Final = "slurm-node"


class SlurmProvider:
    """Lists the nodes of one cluster's partitions."""

    capabilities = Capabilities(adopts=True)
    """Others made them, and none is launched."""

    class Options(Setting, frozen=True, kw_only=True):
        """Says which nodes: `providers: {cluster: {type: slurm, partitions: {training: gpu}}}`."""

        partitions: dict[str, PartitionName]
        """Pool -> partition whose nodes it has; a node of several is the first one's."""
        rest: SlurmRestOptions | None = None
        """slurmrestd, which is asked in place of Slurm's commands; None: it is not."""
        conf: FilePath = ""
        """Path of slurm.conf; empty: as Slurm's commands find it."""
        commands: FilePath = ""
        """Folder of Slurm's commands; empty: as PATH says."""
        timeout: Duration = Duration(30)
        """For one command, or one request."""

        def __post_init__(self) -> None:
            """Refuse what can never list a node."""
            if not self.partitions:
                raise ValueError("`partitions` is empty; write POOL: PARTITION")
            for pool in self.partitions:
                if not TOKEN.match(pool) or len(pool) > POOL_NAME_CHARS_MAX:
                    raise ValueError(f"partitions: {pool!r} is not the name of a pool")
            if self.timeout <= 0:
                raise ValueError("timeout must be more than 0")

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._slurm = connect_slurm(
            options.rest, options.commands, options.conf, options.timeout, SystemClock()
        )

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Raise INVALID, because others make the nodes."""
        raise invalid(
            f"provider {self.name} launches nothing: add `nodes: adopted` to pool {request.pool}"
        )

    async def terminate(self, provider_id: str) -> None:
        """Raise INVALID, because its owner alone ends a machine."""
        raise invalid(f"{provider_id} is of Slurm's partition, and not Navarch's to end")

    async def list(self) -> list[Instance]:
        """Return every node of the partitions."""
        found = [
            node_instance(node, pool)
            for pool, partition in self.options.partitions.items()
            for node in (await self._nodes(partition)).values()
        ]
        return distinctly_named(found, NAME_TAG)

    async def close(self) -> None:
        """Close the connections."""
        await self._slurm.close()

    async def _nodes(self, partition: str) -> Mapping[str, SlurmNode]:
        try:
            nodes = await self._slurm.nodes(partition)
            if not nodes:
                await self._slurm.check_partition(partition)
        except SlurmUnavailableError as error:
            raise ProviderError("TRANSIENT", str(error)) from error
        except SlurmRefusedError as error:
            raise invalid(f"partition {partition}: {error}") from error
        except StepFailure as failure:
            raise invalid(f"{failure.reason}; {failure.remedy}") from failure
        if not nodes:  # one line of slurm.conf would retire a whole pool, and its agents' keys
            raise invalid(
                f"partition {partition} has no node: give it its nodes back, or remove its pool"
            )
        return nodes


def node_instance(node: SlurmNode, pool: str) -> Instance:
    """Return a node as an instance; one that is powered down is no machine to adopt. Pure."""
    return Instance(
        name=node_token(node.name),
        provider_id=slurm_reference(node.name),
        status="stopped" if node.powered_off else "running",
        pool=pool,
        address=node.address if node.address != node.name else "",
        lasting=True,
        tags={NAME_TAG: node.name},
    )
