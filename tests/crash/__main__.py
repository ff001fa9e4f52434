"""`python -m tests.crash ROUNDS SEED`: kill processes at random and check the fleet afterwards.

Its last line is `rounds=n replaced=n lost=0 doubled=0 leaked=0 resume_s_max=…`; its exit code is 0
only where that line says so, with a resume of at most three seconds (on a busy machine more). With
`--destroy` it destroys what is stored instead: `rounds=n converged=n operator=n wrong=0`.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Final

from tests.crash.campaign import PAUSE_SECONDS, Campaign, Tally
from tests.crash.destroy_rounds import DestroyTally, destroy_at_random
from tests.crash.rig import Rig, Shape

NODES: Final = 3
SPAN_SECONDS: Final = {"fake": 0.5, "local": 0.8}
"""About the duration of an undisturbed replacement."""
BOOT_SECONDS: Final = 0.08
DRAIN_SECONDS: Final = 0.05

Run = Callable[[Path, Shape, random.Random, int], Coroutine[None, None, Tally | DestroyTally]]


def main() -> int:
    """Run a campaign; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("rounds", type=int, help="how many actions to perform")
    parser.add_argument("seed", type=int, help="the same seed draws the same strikes")
    parser.add_argument("--order", choices=("terminate_first", "provision_first"))
    parser.add_argument("--provider", choices=tuple(SPAN_SECONDS), default="fake")
    parser.add_argument(
        "--servers", type=int, choices=(1, 3), default=1, help="3: a cluster of nats-servers"
    )
    parser.add_argument("--spares", type=int, choices=(0, 1), help="spare nodes")
    parser.add_argument("--replicas", type=int, help="of every service (default: 1, on three 2)")
    parser.add_argument(
        "--pause", type=float, default=PAUSE_SECONDS, help="longest pause, in seconds"
    )
    parser.add_argument(
        "--destroy",
        action="store_true",
        help="destroy what is stored instead of killing: streams, buckets and durables deleted, "
        "purged or rolled back",
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and stores")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    order = given.order or chance.choice(("terminate_first", "provision_first"))
    spares = chance.choice((0, 1)) if given.spares is None else given.spares
    shape = Shape(
        nodes=NODES,
        spares=spares,
        order=order,
        replicas=given.replicas or (2 if given.servers > 1 else 1),
        servers=given.servers,
        provider=given.provider,
        boot_seconds=BOOT_SECONDS,
        drain_seconds=DRAIN_SECONDS,
    )
    directory = Path(tempfile.mkdtemp(prefix="navarch-crash-"))
    say(
        f"{NODES} nodes, {spares} spares, {order}, {given.provider} instances, "
        f"{shape.replicas} of every service, {shape.servers} nats-server, in {directory}"
    )
    if given.destroy and given.servers > 1:
        parser.error("--destroy rolls back the store of one server: without --servers 3")
    campaign: Run = _destroy if given.destroy else partial(_kill, pause_seconds=given.pause)
    tally = asyncio.run(campaign(directory, shape, chance, given.rounds))
    for problem in tally.problems:
        say(f"\n{problem}")
    if tally.status() == 0 and not given.keep:
        shutil.rmtree(directory)
    else:
        say(f"\nlogs and stores are kept in {directory}")
    say(tally.line())
    return tally.status()


async def _kill(
    directory: Path, shape: Shape, chance: random.Random, rounds: int, *, pause_seconds: float
) -> Tally:
    async with Rig(directory, shape) as rig:
        span = SPAN_SECONDS[shape.provider]
        campaign = Campaign(rig, chance, span, say, pause_seconds=pause_seconds)
        tally = await campaign.run(rounds)
        for each in rig.unexpected_ends:
            say(f"note: {each}")
        return tally


async def _destroy(
    directory: Path, shape: Shape, chance: random.Random, rounds: int
) -> DestroyTally:
    async with Rig(directory, shape) as rig:
        return await destroy_at_random(rig, chance, rounds, say)


def say(text: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
