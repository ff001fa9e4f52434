"""AWS auto-scaling groups: terminates an instance whose group then launches another."""

from typing import Final, Literal

from services.provisioner.provider_client.provider_errors import none_if
from services.provisioner.providers.aws_clients import AwsClients
from services.provisioner.providers.aws_errors import ABSENT

LEAVING: Final = frozenset({"shutting-down", "terminated"})
MemberState = Literal["in-service", "leaving", "ungrouped", "absent"]
"""in-service: its group has it; leaving: it is being terminated; ungrouped: no group has it."""


class AutoScalingGroups:
    """The groups of one account in one region."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients
        self.region = clients.region

    async def state_of(self, instance_id: str) -> MemberState:
        """Whether the instance exists, and whether a group has it."""
        described = self._clients.call("ec2", "describe_instances", InstanceIds=[instance_id])
        found = await none_if(described, *ABSENT) or {"Reservations": []}
        states = {
            each["State"]["Name"] for all_ in found["Reservations"] for each in all_["Instances"]
        }
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
