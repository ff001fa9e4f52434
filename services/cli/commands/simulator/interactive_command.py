"""`navarch simulator interactive`: a fleet in virtual time that an operator drives by hand.

Time passes only with commands. Commands come from a terminal or, one a line, from a pipe.
"""

import asyncio
import importlib.util
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Final

from services.cli import console
from services.cli.commands.simulator import scenario_commands
from services.primitives.errors import NavarchError
from services.runtime.logs import silenced
from services.simulator.engine import virtual_time
from services.simulator.inputs.scenario.repl_parser import HELP, TypedError, event_of
from services.simulator.inputs.scenario.scenario_file import read_file, read_text
from services.simulator.inputs.scenario.scenario_format import Scenario
from services.simulator.inputs.scenario.scenario_runner import SETTLE_SECONDS, ScenarioRunner

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


def run(file: Path | None, nodes: int, seed: str) -> int:
    """Drive a file's fleet, or one of so many nodes."""
    if file is not None:
        scenario = read_file(file)
    else:
        named = ", ".join(f"{{id: node-{n}, pool: training}}" for n in range(1, nodes + 1))
        scenario = read_text("(own)", OWN.format(nodes=nodes, most=nodes + 2, fleet=named))
    with silenced():
        return virtual_time.run(lambda: Session(scenario, seed or str(scenario.seed)).run())


class Session:
    """Connects one simulated fleet with its operator. To be used inside a virtual loop."""

    def __init__(self, scenario: Scenario, seed: str) -> None:
        self._runner = ScenarioRunner(scenario, seed)
        self._fleet = self._runner.fleet
        self._pools = frozenset(scenario.configuration.pools)
        self._ids = frozenset(node.id for node in scenario.fleet)
        self._shown = (0, 0)
        """How many steps and facts were written."""

    async def run(self) -> int:
        """Read commands until the end; the exit code is 1 where an assertion did not hold."""
        await self._fleet.open()
        if sys.stdin.isatty() and importlib.util.find_spec("readline"):
            importlib.import_module("readline")  # arrow keys, and the commands typed before
        console.write("A simulated fleet; nothing runs before `start`. Type help, or quit.")
        while (line := self._line()) is not None and line not in ("quit", "exit"):
            await self._execute(line or STEP)
        self._fleet.simulation.server.close()
        return 0 if all(step.ok for step in self._runner.steps) else 1

    def _line(self) -> str | None:
        """What was typed; None at the end."""
        try:
            if sys.stdin.isatty():
                now = scenario_commands.clock(self._fleet.simulation.now())
                return input(f"{now} {PROMPT}").strip()
        except (EOFError, KeyboardInterrupt) as end:
            console.write("")
            if isinstance(end, KeyboardInterrupt):
                raise
            return None
        text = sys.stdin.readline()
        return text.partition("#")[0].strip() if text else None

    async def _execute(self, line: str) -> None:
        match line:
            case "help" | "?":
                console.write(HELP)
            case "nodes":
                nodes = self._runner.observed_nodes().values()
                empty = "No node is recorded yet; type start, or step."
                rows = [astuple(each) for each in nodes]
                console.write_table(scenario_commands.NODE_COLUMNS, rows, empty)
            case "pools":
                self._write_pools()
            case "story":
                self._write_story((0, 0))
            case _ if line.partition(" ")[0] == "why":
                await self._write_why(line.partition(" ")[2].strip())
            case _:
                await self._play(line)

    async def _play(self, line: str) -> None:
        known = self._ids | {record.node for record in self._fleet.records.nodes()}
        try:
            event = event_of(line, known, self._pools)
        except TypedError as error:
            console.write(f"! {error}")
            return
        if not self._fleet.started and event.action not in ("start_fleet", "wait", "log"):
            console.write("! nothing runs yet; type start")
            return
        await self._runner.play(event)
        await asyncio.sleep(SETTLE_SECONDS if event.action in WAITING else AFTER_SECONDS)
        self._write_story(self._shown)
        self._shown = (len(self._runner.steps), len(self._runner.story))
        if (violation := self._fleet.invariants.violation) is not None:
            console.write(f"! an invariant is violated: {violation}")

    def _write_story(self, since: tuple[int, int]) -> None:
        """Write what happened since so many steps and facts."""
        steps, facts = self._runner.steps[since[0] :], self._runner.story[since[1] :]
        for text in scenario_commands.story(steps, facts, colour=console.colour()):
            console.write(text)

    async def _write_why(self, name: str) -> None:
        if not name:
            console.write("! name a node, a pool or a saga: why node-1")
            return
        now = self._fleet.simulation.clock.now()
        try:
            answer = await scenario_commands.why(self._fleet.operator.bus, name, now)
        except NavarchError as error:
            answer = f"! {error}"
        console.write(answer)

    def _write_pools(self) -> None:
        found = filter(None, map(self._fleet.records.pool, sorted(self._pools)))
        rows = [
            (
                pool.name,
                str(pool.desired),
                pool.breaker.state,
                ", ".join(pool.open) or "-",
                pool.breaker.reason,
            )
            for pool in found
        ]
        console.write_table(("pool", "desired", "breaker", "open sagas", ""), rows)
