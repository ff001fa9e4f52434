"""Removes the machine of a Kubernetes node so that its maker makes another.

One way for each maker of nodes. A removal is repeated until the node is no longer listed, so each
way is idempotent; removing a machine that is gone succeeds.
"""

from typing import Any, Final, Literal

from services.provisioner.provider_client.provider_errors import none_if
from services.provisioner.providers.aws_clients import AwsClients, described
from services.provisioner.providers.aws_errors import ABSENT
from services.provisioner.providers.kubernetes_api import NODES, KubernetesApi
from services.provisioner.providers.provider_ids import AwsInstance, parse_provider_id
from services.provisioner.providers.request_checks import invalid

LEAVING: Final = frozenset({"shutting-down", "terminated"})
MemberState = Literal["in-service", "leaving", "ungrouped", "absent"]
"""in-service: its group has it; leaving: it is being terminated; ungrouped: no group has it."""
NODE_CLAIMS: Final = "/apis/karpenter.sh/v1/nodeclaims"


class AutoScalingGroups:
    """Removes instances from the groups of one account in one region."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients
        self.region = clients.region

    async def state_of(self, instance_id: str) -> MemberState:
        """Return whether the instance exists, and whether a group has it."""
        asked = self._clients.call("ec2", "describe_instances", InstanceIds=[instance_id])
        found = await none_if(asked, *ABSENT) or {"Reservations": []}
        states = {each["State"]["Name"] for each in described(found)}
        if states <= {"terminated"}:
            return "absent"
        if states <= LEAVING:
            return "leaving"
        answer = await self._clients.call(
            "autoscaling", "describe_auto_scaling_instances", InstanceIds=[instance_id]
        )
        grouped = answer["AutoScalingInstances"]
        if not grouped:
            return "ungrouped"
        # Terminating, Terminating:Wait, Terminating:Proceed, Terminated
        leaving = str(grouped[0]["LifecycleState"]).startswith("Terminat")
        return "leaving" if leaving else "in-service"

    async def terminate(self, instance_id: str) -> None:
        """Terminate an instance of a group, which keeps its desired capacity."""
        await self._clients.call(
            "autoscaling",
            "terminate_instance_in_auto_scaling_group",
            InstanceId=instance_id,
            ShouldDecrementDesiredCapacity=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._clients.close()


class NodeDeletion:
    """Deletes the Node object alone: the owner of the machine does the rest."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def remove(self, node: Any) -> None:
        """Delete this node, and no later one of its name."""
        about = node["metadata"]
        await self._api.delete(f"{NODES}/{about['name']}", uid=about["uid"])

    async def close(self) -> None:
        """Do nothing: there is nothing of its own to close."""


class NodeClaimDeletion:
    """Karpenter: deletes the NodeClaim, which ends machine and node; demand makes another."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def remove(self, node: Any) -> None:
        """Delete the claim that owns the node."""
        about = node["metadata"]
        owners = [
            each
            for each in about.get("ownerReferences") or ()
            if each.get("kind") == "NodeClaim"
            and str(each.get("apiVersion", "")).startswith("karpenter.sh/")
        ]
        if not owners:
            raise invalid(
                f"node {about['name']} has no NodeClaim, so Karpenter did not make it; select only "
                "nodes with the label karpenter.sh/nodepool, or set another `removal`"
            )
        await self._api.delete(f"{NODE_CLAIMS}/{owners[0]['name']}", uid=owners[0]["uid"])

    async def close(self) -> None:
        """Do nothing: there is nothing of its own to close."""


class AutoScalingRemoval:
    """AWS: terminates the instance in its auto-scaling group, which keeps its size."""

    def __init__(self, api: KubernetesApi, groups: AutoScalingGroups) -> None:
        self._deletion = NodeDeletion(api)
        self._groups = groups

    async def remove(self, node: Any) -> None:
        """Terminate the instance; once the group has it no more, delete the Node object."""
        given = str((node.get("spec") or {}).get("providerID") or "")
        found = parse_provider_id(given)
        if not isinstance(found, AwsInstance):
            raise invalid(
                f"node {node['metadata']['name']} has the providerID {given!r}, which names no EC2 "
                "instance; set another `removal`"
            )
        if not found.zone.startswith(self._groups.region):
            raise invalid(
                f"{found.instance_id} is in zone {found.zone}, not in region {self._groups.region}"
            )
        state = await self._groups.state_of(found.instance_id)
        if state == "absent":
            # Clusters without AWS's cloud controller keep the Node object.
            await self._deletion.remove(node)
        elif state == "ungrouped":
            raise invalid(
                f"{found.instance_id} is in no auto-scaling group, so nothing would replace it; "
                "attach it to one, or terminate it by hand"
            )
        elif state == "in-service":
            await self._groups.terminate(found.instance_id)

    async def close(self) -> None:
        """Close the connections to AWS."""
        await self._groups.close()


GroupRemoval = NodeDeletion | NodeClaimDeletion | AutoScalingRemoval
"""`remove` raises INVALID where nothing would replace the machine."""
