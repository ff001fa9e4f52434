"""`navarch simulator interactive`: a fleet in virtual time that an operator drives by hand.

Time passes only with commands. It works on a terminal, and from a pipe: one command a
line, the end of the input is the end.
"""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.cli import console
from services.cli.commands.simulator import scenario_commands
from services.cli.text import tables
from services.primitives.errors import NavarchError
from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.inputs.scenario.repl_parser import HELP, TypedError, event_of
from services.simulator.inputs.scenario.scenario_file import read_file, read_text
from services.simulator.inputs.scenario.scenario_outcome import ScenarioResult
from services.simulator.inputs.scenario.scenario_runner import SETTLE_SECONDS, ScenarioRunner

if TYPE_CHECKING:
    from services.simulator.inputs.scenario.scenario_format import Scenario

PROMPT: Final = "navarch> "
WAITING: Final = frozenset({"wait", "wait_for_status", "assert", "log", "set_load"})
AFTER_SECONDS: Final = 1.0
"""Pass after any other command, so that its first effects are shown with it."""
STEP: Final = "step 10s"
OWN: Final = """
name: interactive
pools: {{training: {{min_nodes: {nodes}, max_nodes: {most}, drain_timeout: 1m}}}}
fleet: [{fleet}]
"""


def play(file: Path | None, nodes: int, seed: str) -> int:
    """Play with a file's fleet, or with one of so many nodes."""
    if file is not None:
        scenario = read_file(file)
    else:
        named = ", ".join(f"{{id: node-{n}, pool: training}}" for n in range(1, nodes + 1))
        scenario = read_text("(own)", OWN.format(nodes=nodes, most=nodes + 2, fleet=named))
    with silenced():
        return virtual_time.run(lambda: Session(scenario, seed or str(scenario.seed)).run())


class Session:
    """One fleet and the person at it. To be used inside a virtual loop."""

    def __init__(self, scenario: "Scenario", seed: str) -> None:
        """Put the stage up."""
        self._player = ScenarioRunner(scenario, seed)
        self._pools = frozenset(scenario.configuration.pools)
        self._ids = frozenset(node.id for node in scenario.fleet)
        self._shown = 0
        self._steps = 0

    async def run(self) -> int:
        """Take commands until the end; the exit code is 1 where an assertion did not hold."""
        await self._player.fleet.open()
        if sys.stdin.isatty() and importlib.util.find_spec("readline"):
            importlib.import_module("readline")  # arrows, and what was typed before
        console.write("A simulated fleet; nothing runs before `start`. Type help, or quit.")
        while (line := self._line()) is not None and line not in ("quit", "exit"):
            await self._take(line or STEP)
        self._player.fleet.simulation.server.close()
        return 0 if all(step.ok for step in self._player.steps) else 1

    def _line(self) -> str | None:
        """What was typed; None at the end."""
        try:
            if sys.stdin.isatty():
                return input(
                    f"{scenario_commands.clock(self._player.fleet.simulation.now())} {PROMPT}"
                ).strip()
        except (EOFError, KeyboardInterrupt) as end:
            console.write("")
            if isinstance(end, KeyboardInterrupt):
                raise
            return None
        text = sys.stdin.readline()
        return text.partition("#")[0].strip() if text else None

    async def _take(self, line: str) -> None:
        colour = console.colour()
        match line:
            case "help" | "?":
                console.write(HELP)
            case "nodes":
                rows = [
                    (each.node, each.pool, each.status, each.health, each.reason)
                    for each in self._player.observed_nodes().values()
                ]
                headers = ("node", "pool", "status", "health", "reason")
                if not rows:
                    console.write("No node is recorded yet; type start, or step.")
                    return
                console.write(tables.columns(headers, rows, colour=colour))
            case "pools":
                self._say_pools(colour=colour)
            case "story":
                for text in scenario_commands.story(self._result(0, 0), colour=colour):
                    console.write(text)
            case _ if line.partition(" ")[0] == "why":
                await self._say_why(line.partition(" ")[2].strip())
            case _:
                await self._event(line, colour=colour)

    async def _event(self, line: str, *, colour: bool) -> None:
        known = self._ids | {record.node for record in self._player.fleet.records.nodes()}
        try:
            event = event_of(line, known, self._pools)
        except TypedError as error:
            console.write(f"! {error}")
            return
        free = ("start_fleet", "wait", "log")
        if not self._player.fleet.started and event.action not in free:
            console.write("! nothing runs yet; type start")
            return
        await self._player.play(event)
        await asyncio.sleep(SETTLE_SECONDS if event.action in WAITING else AFTER_SECONDS)
        for text in scenario_commands.story(self._result(self._shown, self._steps), colour=colour):
            console.write(text)
        if (violation := self._player.fleet.invariants.violation) is not None:
            console.write(f"! an invariant is violated: {violation}")
        self._shown, self._steps = len(self._player.story), len(self._player.steps)

    def _result(self, shown: int, steps: int) -> ScenarioResult:
        """What happened since."""
        fleet = self._player.fleet
        return ScenarioResult(
            name="",
            seed="",
            seconds=fleet.simulation.now(),
            digest="",
            steps=tuple(self._player.steps[steps:]),
            story=tuple(self._player.story[shown:]),
        )

    async def _say_why(self, name: str) -> None:
        fleet = self._player.fleet
        if not name:
            console.write("! name a node, a pool or a saga: why node-1")
            return
        try:
            answer = await scenario_commands.why(
                fleet.operator.bus, name, fleet.simulation.clock.now()
            )
        except NavarchError as error:
            answer = f"! {error}"
        console.write(answer)

    def _say_pools(self, *, colour: bool) -> None:
        rows = []
        for name in sorted(self._pools):
            record = self._player.fleet.records.pool(name)
            if record is not None:
                reason = record.breaker.reason
                open_ = ", ".join(record.open) or "-"
                rows.append((name, str(record.desired), record.breaker.state, open_, reason))
        headers = ("pool", "desired", "breaker", "open sagas", "")
        console.write(tables.columns(headers, rows, colour=colour))
