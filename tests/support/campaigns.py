"""Runs one fuzz campaign, and shows what its simulated fleet did."""

from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.inputs.fuzz.campaign_steps import Campaign
from services.simulator.inputs.fuzz.fuzz_simulation import FuzzSimulation, SeedResult


def run_campaign(seed: str, campaign: Campaign) -> tuple[SeedResult, FuzzSimulation]:
    """The result, and the simulation as it is in the end."""
    began: list[FuzzSimulation] = []

    async def simulate() -> SeedResult:
        # Made within its own time.
        began.append(FuzzSimulation(seed, campaign))
        return await began[0].run()

    with silenced():
        found = virtual_time.run(simulate)
    return found, began[0]


def saga_entries(simulation: FuzzSimulation) -> list[tuple[str, ...]]:
    """Saga, step or `saga`, and status of each entry that SAGAS has, in order."""
    stored = simulation.fleet.simulation.server.state.streams["SAGAS"].messages.values()
    return [tuple(each.subject.split(".")[3:]) for each in stored]
