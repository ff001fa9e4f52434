"""Lets one decision ask a remediator from outside.

A decision is pure and asks its remediator as it goes on. One from outside cannot be waited for
there: it answers from memory, and what it does not know yet is asked before the decision is
made again.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.node_records import NodeRecord, RemediationAttempt
from schemas.plugin_kinds import REMEDIATOR
from services.pool_manager.planner.remediator import Remediator, RemedyChoice, by_hand
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract

CONTRACT: Final = PluginContract(kind=REMEDIATOR, protocols=(Remediator,))
ROUNDS_MAX: Final = 4
"""Times that one decision asks a remediator from outside; what is new then is left to the next."""
UNASKED: Final = RemedyChoice(remedy="alert", reason="the pool's remediator has not been asked yet")

_Question = tuple[NodeRecord, tuple[RemediationAttempt, ...]]


class AskedRemediator:
    """Answers for a remediator from outside within one decision."""

    def __init__(self, plugin: GuardedPlugin) -> None:
        self._plugin = plugin
        self.plugin = plugin.plugin
        self._known: dict[str, tuple[_Question, RemedyChoice]] = {}
        self._asked: dict[str, tuple[_Question, datetime]] = {}
        self._rounds = 0

    def choose(
        self, node: NodeRecord, attempts: Sequence[RemediationAttempt], now: datetime
    ) -> RemedyChoice:
        """Return what it has answered; else remember the question."""
        question = (node, tuple(attempts))
        known = self._known.get(node.node)
        if known is not None and known[0] == question:
            return known[1]
        self._asked[node.node] = (question, now)
        return UNASKED

    async def ask(self) -> bool:
        """Ask what is not known yet; return whether there was anything, and a decision is due."""
        asked, self._asked = self._asked, {}
        if not asked or self._rounds == ROUNDS_MAX:
            return False
        self._rounds += 1
        problem = ""
        for name, (question, now) in asked.items():
            node, attempts = question
            if not problem:
                try:
                    choice = await self._plugin.call("choose", node, attempts, now)
                except PluginFailedError as error:
                    # One failure is enough for one decision, which other work waits for.
                    problem = str(error)
            if problem:
                choice = RemedyChoice(remedy="alert", reason=f"{problem}. {by_hand(node)}")
            self._known[name] = (question, choice)
        return True
