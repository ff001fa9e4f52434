"""Machines that exist and join a pool with a token: nothing is launched, and none is removed.

A machine exists for as long as its record says so: an agent that enrolled with a token made the
record (`services.provisioner.joins.join_endpoints`), and an operator's order ends it.
"""

from schemas.settings import Setting
from services.provisioner.provider_client.provider import (
    Capabilities,
    Environment,
    Instance,
    ProvisionRequest,
)
from services.provisioner.providers.request_checks import invalid


class EnrolledProvider:
    """The machines that joined."""

    capabilities = Capabilities(adopts=True)
    """Others made them, and none is launched."""

    class Options(Setting, frozen=True, kw_only=True):
        """Takes no option: `providers: {machines: {type: enrolled}}`."""

    def __init__(self, *, options: Options, environment: Environment) -> None:
        self.options = options
        self.name = environment.name
        self._joined = environment.joined

    async def provision(self, request: ProvisionRequest) -> Instance:
        """INVALID: machines join."""
        raise invalid(f"pool {request.pool} launches nothing: machines join it (`navarch join`)")

    async def terminate(self, provider_id: str) -> None:
        """INVALID: its owner alone ends a machine."""
        raise invalid(f"{provider_id} joined, and is not Navarch's to end: `navarch leave` it")

    async def list(self) -> list[Instance]:
        """Every machine that joined and has not left."""
        return await self._joined(self.name)

    async def close(self) -> None:
        """Close nothing, as nothing is open."""
