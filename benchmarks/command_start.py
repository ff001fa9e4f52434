"""The time that commands take from the shell until they end, in a fleet of two nodes.

`start` is what a command needs before it does anything: its help. The others ask the pool-manager
over the bus, or read what is stored. Processor time is compared, as what they wait for is not
theirs. The floor of each run is the start of the interpreter, which runs nothing, right after it.
The pool-manager is real; the nodes are records.
"""

from typing import Any, Final

from benchmarks import node_listing
from benchmarks.comparison import COMMANDS, command_figure, medians
from benchmarks.node_listing import configured, settled
from benchmarks.served import Effort, service, serving, timed

EFFORT: Final = Effort(9, 60.0)
NODES: Final = 2
DEVIATIONS: Final = node_listing.DEVIATIONS


async def measure(effort: Effort = EFFORT) -> dict[str, Any]:
    """Run every command in turn, round after round, each with its floor."""
    async with serving(sync=False) as (server, bus, place):
        config = await configured(bus, place, NODES)
        async with service("services.pool_manager", server.url, config):
            environment = {"NAVARCH_NATS_URL": server.url}
            await settled(environment, NODES)
            return medians([await _round(environment) for _ in effort.numbers()])


async def _round(environment: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """Return what each command took, and the interpreter's start after each."""
    took: dict[str, float] = {}
    floors: dict[str, float] = {}
    for name, line in COMMANDS.items():
        figure = command_figure(name)
        ran = await timed("-m", "services.cli", *line.split(), environment=environment)
        took[figure] = ran.cpu_seconds
        floors[figure] = (await timed("-c", "pass")).cpu_seconds
    return took, floors
