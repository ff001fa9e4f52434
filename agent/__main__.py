"""The `navarch-agent` command: runs the agent, or one of its tools."""

import argparse
import asyncio
import functools
import importlib.metadata
import logging
import os
import random
import secrets
import signal
import sys
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Final

import msgspec

import services.runtime.import_trim  # noqa: F401 - before whatever loads the bus's client
from agent import healthy_command
from agent.delivery.outbox import AgentOutbox
from agent.delivery.spool import Spool
from agent.enrollment import CONNECT_SECONDS_MAX, BusLogin
from agent.fleet_join import SETTINGS_FILE, STATE_FOLDER
from agent.interpreter_watch import end_when_held
from agent.maintenance.diagnostics.health_check_plugins import load_checks
from agent.node_logs import CHARS_MAX, LINES_MAX
from agent.original_flags import present_command
from agent.service import Agent, AgentDependencies
from agent.settings import AgentConfig, boot_id_of, hostname_of, load
from agent.sources.cloud.cloud_detection import machine_id, notice_sources, provider_id, rack
from agent.sources.host_metrics import HostMetrics
from agent.sources.job_lookup import JobLookup
from agent.sources.nvml import Nvml, NvmlEvents
from schemas.agent_commands import DiagnoseRequest
from schemas.join_tokens import TOKEN_CHARS_MAX
from schemas.node_events import CheckResult
from schemas.permissions import AGENT_BYTES_MAX, bootstrap_inbox, node_inbox, pod_inbox
from schemas.settings import NatsSettings
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError
from services.runtime.log_answers import LogMemory, remembered
from services.runtime.logs import set_up_logs

BUS_SECONDS_MAX: Final = 5.0
"""For an operator's command; the agent itself tries for ever."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command `navarch-agent`."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run the command line's command; return the exit status."""
    if (code := healthy_command.answered(arguments)) is not None:
        return code
    if instead := present_command(arguments):
        print(f"navarch-agent: {instead}", file=sys.stderr)  # noqa: T201
        return 2
    options = _parser().parse_args(arguments)
    set_up_logs("navarch-agent")
    try:
        if options.command == "parse":
            return _parse(options.file)
        if options.command == "inject":
            return _inject(options)
        if options.command in ("join", "leave"):
            return _join_or_leave(options)
        config = load(os.environ, options.config)
        logging.getLogger().setLevel(config.log_level)
        if options.command == "enroll":
            return asyncio.run(_enroll(config))
        if options.command == "diagnose":
            return asyncio.run(_diagnose(config, options))
        if options.check:
            # The check prints each failure; logged retries would only repeat it.
            logging.getLogger().setLevel(logging.CRITICAL)
            return asyncio.run(_check(config))
        Path(config.state_dir).mkdir(parents=True, exist_ok=True)
        with remembered(LINES_MAX, CHARS_MAX, SystemClock().now) as logged:
            asyncio.run(_run(config, logged))
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe. Python flushes once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (NavarchError, OSError) as error:
        print(f"navarch-agent: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="navarch-agent", description="Reports this GPU host's hardware to Navarch."
    )
    parser.add_argument(
        "--config", type=Path, help="YAML or .env file; NAVARCH_* variables win over it"
    )
    parser.add_argument(
        "--check", action="store_true", help="check whether this host can run the agent"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("healthy", help="whether this node is healthy, for a prolog: in ms")
    commands.add_parser("connected", help="whether the agent is connected, for a probe: in ms")
    commands.add_parser("enroll", help="fetch this node's own credentials")
    joins = commands.add_parser("join", help="join a fleet with a token from `navarch join`")
    joins.add_argument(
        "--token-file", type=Path, help="file with the token; without it standard input has it"
    )
    leaves = commands.add_parser("leave", help="remove what join has written on this machine")
    for each in (joins, leaves):
        each.add_argument("--settings", type=Path, default=SETTINGS_FILE, help="of the agent")
        each.add_argument("--state", type=Path, default=STATE_FOLDER, help="folder of its state")
    parse = commands.add_parser("parse", help="print the faults in a kernel log as JSON lines")
    parse.add_argument("file", help="kmsg, dmesg, journalctl, syslog, JSON; - for stdin")
    diagnose = commands.add_parser("diagnose", help="ask this node's agent to test the host")
    diagnose.add_argument("checks", nargs="*", metavar="CHECK", help="boot, nvidia-smi, dcgm …")
    diagnose.add_argument("--level", type=int, default=1, help="of dcgm, 1 to 4 (default: 1)")
    diagnose.add_argument("--seconds", type=int, default=60, help="of burn (default: 60)")
    diagnose.add_argument("--gbps-min", type=float, default=0.0, help="minimum bandwidth")
    diagnose.add_argument("--timeout", type=float, default=3600.0, help="seconds to wait for it")
    inject = commands.add_parser("inject", help="write a fault to the kernel log, as a drill")
    inject.add_argument("kind", choices=["xid"])
    inject.add_argument("code", type=int)
    inject.add_argument("--gpu", type=int, default=0, help="index of the GPU (default: 0)")
    inject.add_argument("--text", default="", help="what the line says after the code")
    return parser


def _parse(file: str) -> int:
    # The running agent does not load the tools.
    from agent import operator_tools  # noqa: PLC0415

    report = functools.partial(print, file=sys.stderr)
    return operator_tools.parse_file(file, print, report)


def _inject(options: argparse.Namespace) -> int:
    from agent import operator_tools  # noqa: PLC0415

    # A drill needs only the kernel log and NVML, so any names are valid.
    names = {"NAVARCH_POOL": "drill", "NAVARCH_NODE": "drill"}
    config = load(names | dict(os.environ), options.config)
    print(operator_tools.inject(config, options.code, options.gpu, text=options.text))  # noqa: T201
    if warning := operator_tools.unread_drill(config):
        print(f"navarch-agent: {warning}", file=sys.stderr)  # noqa: T201
    return 0


def _join_or_leave(options: argparse.Namespace) -> int:
    from agent import fleet_join  # noqa: PLC0415

    # Each failure is one sentence; logged retries would only repeat it.
    logging.getLogger().setLevel(logging.CRITICAL)
    place = fleet_join.JoinPlace(options.settings, options.state)
    if options.command == "leave":
        print(fleet_join.leave(place))  # noqa: T201
        return 0
    source = options.token_file
    text = source.read_text("utf-8") if source else sys.stdin.read(TOKEN_CHARS_MAX + 1)
    token, clock = fleet_join.read_token(text), SystemClock()
    print(asyncio.run(fleet_join.join(token, place, _connect_new, clock.now)))  # noqa: T201
    print(f"start its agent: navarch-agent --config {place.settings}")  # noqa: T201
    if Path("/run/systemd/system").is_dir():
        print("or, where its unit is installed: systemctl enable --now navarch-agent")  # noqa: T201
    return 0


async def _diagnose(config: AgentConfig, options: argparse.Namespace) -> int:
    from agent import operator_tools  # noqa: PLC0415
    from services.operator_text.condition_text import condition_line  # noqa: PLC0415

    request = DiagnoseRequest(
        checks=tuple(options.checks),
        level=options.level,
        seconds=options.seconds,
        gbps_min=options.gbps_min,
    )
    found = await operator_tools.diagnose(
        config,
        functools.partial(_connect, config, seconds_max=BUS_SECONDS_MAX),
        request,
        options.timeout,
    )
    if found.refused:
        print(f"refused: {found.refused}")  # noqa: T201
    _print_checks(found.checks)
    for each in found.conditions:
        print(condition_line(each))  # noqa: T201
    return 0 if found.ok else 1


def _print_checks(checks: Iterable[CheckResult]) -> None:
    for each in checks:
        print(f"{'ok  ' if each.ok else 'FAIL'}  {each.name:<13} {each.detail}")  # noqa: T201


async def _enroll(config: AgentConfig) -> int:
    from agent.enrollment import enroll  # noqa: PLC0415

    print(await enroll(config, functools.partial(_connect_new, config)))  # noqa: T201
    return 0


async def _connect_new(
    config: AgentConfig, file: Path, seconds_max: float | None = None
) -> NatsBus:
    """Connect with credentials that permit only to request others."""
    used = msgspec.structs.replace(config, nats_creds_file=str(file))
    box = bootstrap_inbox(config.pool, config.node)
    if config.pod_token_file:
        box = pod_inbox(config.pool)
    return await _connect(used, box, seconds_max=seconds_max)


async def _check(config: AgentConfig) -> int:
    from agent import operator_tools  # noqa: PLC0415

    connect = functools.partial(_connect, config, seconds_max=BUS_SECONDS_MAX)
    findings = await operator_tools.check(config, connect)
    _print_checks(findings)
    return 0 if all(each.ok for each in findings) else 1


async def _run(config: AgentConfig, logged: LogMemory) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    clock = SystemClock()

    def open_own(seconds_max: float) -> Awaitable[NatsBus]:
        return _connect(config, seconds_max=seconds_max)

    def open_with(file: Path) -> Awaitable[NatsBus]:
        return _connect_new(config, file, CONNECT_SECONDS_MAX)

    login = BusLogin(config, clock, open_own, open_with, random.random)
    agent = Agent(
        config,
        AgentDependencies(
            clock=clock,
            connect=login.connect,
            nvml=Nvml(config.nvml_library),
            xids=NvmlEvents(config.nvml_library),
            outbox=AgentOutbox(Spool(Path(config.state_dir) / "spool.sqlite"), clock),
            host=HostMetrics(Path(config.proc)),
            processes=JobLookup(Path(config.proc), clock.monotonic),
            rack=lambda: rack(config),
            provider_id=lambda: provider_id(config),
            machine_id=machine_id(),
            notice_sources=notice_sources(config, clock),
            plugins=load_checks(config.health_checks),
            environment=os.environ,
            root=os.geteuid() == 0,
            boot_id=boot_id_of(config),
            start_id=secrets.token_hex(4),
            hostname=hostname_of(config),
            version=importlib.metadata.version("navarch"),
            log=logged,
        ),
    )
    beside = [asyncio.create_task(each) for each in (login.run(), end_when_held(clock))]
    try:
        await agent.run(stopping)
    finally:
        for each in beside:
            each.cancel()


async def _connect(
    config: AgentConfig, box: str = "", *, seconds_max: float | None = None
) -> NatsBus:
    settings = NatsSettings(
        url=config.nats_url,
        user=config.nats_user,
        password=config.nats_password,
        creds_file=config.nats_creds_file,
        tls_ca_file=config.nats_tls_ca_file,
        tls_cert_file=config.nats_tls_cert_file,
        tls_key_file=config.nats_tls_key_file,
    )
    name = f"agent {config.pool}/{config.node}"
    inbox = box or config.nats_inbox_prefix or node_inbox(config.pool, config.node)
    options = ConnectOptions(
        settings=settings, name=name, inbox_prefix=inbox, message_bytes_max=AGENT_BYTES_MAX
    )
    return await NatsBus.connect(options, seconds_max=seconds_max)


if __name__ == "__main__":
    main()
