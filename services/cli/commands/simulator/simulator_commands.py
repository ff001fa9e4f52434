"""Implements `navarch simulator`: a fleet in one process, in virtual time, under faults.

It needs no server: the real services run on the in-memory bus.
"""

import os
import subprocess
from pathlib import Path
from typing import Annotated, Final

import typer

from services.cli import console
from services.cli.command_options import Config, NatsUrl, Output

commands = typer.Typer(
    help="Whole fleets in virtual time, under every fault.", no_args_is_help=True
)

GIT_SECONDS: Final = 5.0


@commands.callback()
def simulator() -> None:
    """Run whole fleets in virtual time, under every fault."""


@commands.command("fuzz")
def fuzz(
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=1_000_000, help="How many seeds.")
    ] = 100,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 1,
    seed: Annotated[str, typer.Option("--seed", help="Replay this seed only.")] = "",
    minutes: Annotated[
        float,
        typer.Option("--minutes", min=0.1, max=1_440, help="Virtual time with faults, per seed."),
    ] = 3.0,
    only: Annotated[
        str, typer.Option("--only", metavar="2,5", help="Only these of the seed's steps.")
    ] = "",
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, max=256, help="Processes; 0: one per processor.")
    ] = 0,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="A line for each seed, with its history's hash.")
    ] = False,
) -> None:
    """Simulate random faults and check the invariants.

    Exit code 1: one was violated.
    """
    from services.simulator.inputs.fuzz import fuzz_runner  # noqa: PLC0415 - heavy

    options = fuzz_runner.FuzzOptions(
        seeds=[seed] if seed else [str(first + number) for number in range(seeds)],
        minutes=minutes,
        only=_numbers(only),
        jobs=jobs or len(os.sched_getaffinity(0)),
        commit=_commit(),
        verbose=verbose,
    )
    tally = fuzz_runner.fuzz(options, console.write)
    console.write(tally.line())
    if tally.violations:
        raise typer.Exit(1)


Files = Annotated[
    list[Path], typer.Argument(help="Scenario files.", show_default=False, metavar="FILE...")
]


@commands.command("run")
def run(
    files: Files,
    seed: Annotated[str, typer.Option("--seed", help="Instead of the file's seed.")] = "",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only failures, and a line per scenario.")
    ] = False,
    only: Annotated[
        str, typer.Option("--only", metavar="2,5", help="Only these of a stress run's failures.")
    ] = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the log of the run, on stderr.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show and log every message that is stored, too.")
    ] = False,
    compat: Annotated[
        str,
        typer.Option(
            "--compat",
            metavar="original|navarch",
            help="How to read the files; original is without breaker and budget, too.",
        ),
    ] = "",
    runs: Annotated[Path, typer.Option("--runs", help="Where each run gets its directory.")] = Path(
        "sim-runs"
    ),
    output: Output = console.Format.TABLE,
) -> None:
    """Run scenarios; exit code 1: an assertion or invariant fails."""
    from services.cli.commands.simulator import scenario_commands  # noqa: PLC0415
    from services.cli.commands.simulator.run_options import RunOptions  # noqa: PLC0415

    options = RunOptions(
        seed=seed,
        only=_numbers(only),
        quiet=quiet,
        verbose=verbose,
        debug=debug,
        compat=compat,
        runs=runs,
        output=output,
    )
    if code := scenario_commands.run(files, options):
        raise typer.Exit(code)


@commands.command("validate")
def validate(files: Files) -> None:
    """Check scenario files without running them."""
    from services.cli.commands.simulator import scenario_commands  # noqa: PLC0415

    if code := scenario_commands.validate(files):
        raise typer.Exit(code)


@commands.command("interactive")
def interactive(
    file: Annotated[
        Path | None, typer.Argument(help="A scenario, for its fleet and pools.", show_default=False)
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=100, help="Without a file: how many nodes.")
    ] = 3,
    seed: Annotated[str, typer.Option("--seed", help="Instead of the file's seed.")] = "",
) -> None:
    """Drive a simulated fleet by hand."""
    from services.cli.commands.simulator import interactive_command  # noqa: PLC0415

    if code := interactive_command.run(file, nodes, seed):
        raise typer.Exit(code)


@commands.command("fleet")
def fleet(
    nodes: Annotated[
        int, typer.Option("--nodes", min=0, max=20_000, help="How many; 0: the pool's size.")
    ] = 100,
    nats_url: NatsUrl = "",
    config: Config = None,
    pool: Annotated[
        str, typer.Option("--pool", help="Pool of that fleet; optional if it has one.")
    ] = "",
    faults_per_hour: Annotated[
        float,
        typer.Option("--faults-per-hour", min=0, max=1_000_000, help="Of all nodes together."),
    ] = 0.0,
    boot_seconds: Annotated[
        float, typer.Option("--boot-seconds", min=0, max=3_600, help="Of the slowest machine.")
    ] = 15.0,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0, help="How long; 0: until Ctrl-C.")
    ] = 0.0,
    seed: Annotated[str, typer.Option("--seed", help="Which node breaks when.")] = "1",
) -> None:
    """Simulate agents in real time, against real services.

    Without a bus it serves a fleet of its own.
    """
    from services.cli.commands.simulator import fleet_command  # noqa: PLC0415

    options = fleet_command.FleetOptions(
        nodes=nodes,
        nats_url=nats_url,
        config=config,
        pool=pool,
        faults_per_hour=faults_per_hour,
        boot_seconds=boot_seconds,
        minutes=minutes,
        seed=seed,
    )
    if code := fleet_command.run(options):
        raise typer.Exit(code)


def _numbers(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(each) for each in text.split(",")) if text else None
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers, as in 2,5") from None


def _commit() -> str:
    """The commit of this checkout; empty outside of one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - whichever git there is
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
