"""Slurm behind slurmrestd, as the conformance suite drives it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from starlette.responses import PlainTextResponse, Response

from schemas.duration import Duration
from services.notifier.workload.slurm_notifier import SlurmNotifier
from services.notifier.workload.workload_notifier import Notifier
from services.workload_systems.slurm_rest import SlurmRestOptions
from tests.notifier.workload_sites import CLOCK, NODES, TIMEOUT, Mode, Site
from tests.workload_systems.slurm_rest_server import (
    TOKEN,
    USER,
    StrictNode,
    StrictSlurm,
    strict_slurm,
)


class SlurmRestSite(Site):
    """A strict slurmrestd; each node has a job of the node's number at most."""

    def __init__(self) -> None:
        super().__init__()
        self._url = ""
        self._slurm = StrictSlurm(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SlurmRestSite"]:
        """Serve it on a free port."""
        async with strict_slurm(41) as (self._url, self._slurm):
            self._slurm.nodes = {each: StrictNode() for each in NODES}
            yield self

    def make(self) -> Notifier:
        rest = SlurmRestOptions(url=self._url, user=USER, token=TOKEN)
        options = SlurmNotifier.Options(
            rest=rest,
            node_name="{node}",
            timeout=TIMEOUT,
            poll=Duration(0.2),
            commands="/nonexistent",
            checkpoint_comment="",
        )
        return SlurmNotifier(options=options, clock=CLOCK)

    def place(self, node: str) -> None:
        job = {"state": ["RUNNING"], "nodes": node, "end": 0}
        self._slurm.jobs[int(node[1:])] = job
        self._slurm.nodes[node].state |= {"ALLOCATED"}

    def leave(self, node: str) -> None:
        self._slurm.jobs.pop(int(node[1:]), None)
        self._slurm.nodes[node].state -= {"ALLOCATED"}

    def is_cordoned(self, node: str) -> bool:
        return bool(self._slurm.nodes[node].state & {"DRAIN", "DOWN"})

    def cordon_by_another(self, node: str) -> bool:
        self._slurm.nodes[node] = StrictNode({"IDLE", "DRAIN"}, "ticket 12", "carol")
        return True

    def asked(self, node: str) -> int:
        return sum(each.startswith(f"job {node[1:]} USR1") for each in self._slurm.calls)

    def announce(self, node: str, at: datetime) -> bool:
        comment = f"navarch-checkpoint-at={at:%Y-%m-%dT%H:%M:%SZ}"
        self._slurm.jobs[int(node[1:])]["comment"] = comment
        return True

    def answer(self, mode: Mode, garbage: bytes | None = None) -> None:
        self._slurm.hangs_seconds = 60.0 if mode == "never" else 0.0
        fails = PlainTextResponse("busy", 503) if mode == "with-failures" else None
        self._slurm.fails = Response(garbage) if garbage is not None else fails
