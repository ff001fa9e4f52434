"""Lists an example of every command, which its help shows and a test runs."""

from collections.abc import Mapping
from typing import Any, Final

import typer

EXAMPLES: Final[Mapping[str, str]] = {
    "status": "navarch status --check",
    "list": "navarch list --pool training --sort-by age",
    "get": "navarch get training-1-3fb4",
    "top": "navarch top --gpus --sort memory",
    "instances": "navarch instances --pool training",
    "leaked": "navarch leaked",
    "offerings": "navarch offerings --all --type h100-8x",
    "doctor": "navarch doctor --check",
    "why": "navarch why training-1-3fb4",
    "watch": "navarch watch replace-training-1-3 --timeout 20m",
    "events": "navarch events --since 1h --pool training",
    "timeline": "navarch timeline training-2-3c46",
    "audit": "navarch audit --since 24h",
    "evidence": "navarch evidence training-1-0c15 --save ticket.tar.gz",
    "logs": "navarch logs pool-manager --since 10m",
    "report": "navarch report --since 7d",
    "incident": "navarch incident --since 2h --pool training",
    "cost": "navarch cost --label team",
    "cordon": "navarch cordon training-1-3fb4 --reason 'a loose cable'",
    "uncordon": "navarch uncordon training-1-3fb4 --wait",
    "drain": "navarch drain training-1-3fb4 --mode wait",
    "replace": "navarch replace training-1-3fb4 --dry-run",
    "reset-gpu": "navarch reset-gpu training-1-3fb4 --reason 'ECC counters' --wait",
    "reboot": "navarch reboot training-1-3fb4 --reason 'after a driver upgrade' --wait",
    "terminate": "navarch terminate training-1-3fb4 --reason 'no longer needed'",
    "diagnose": "navarch diagnose training-1-3fb4 --check boot",
    "hold": "navarch hold training-1-3fb4 --for 2h --reason 'bisecting a slow NIC'",
    "release": "navarch release training-1-3fb4 --reason 'found it'",
    "readmit": "navarch readmit training-1-3fb4",
    "ssh": "navarch ssh training-1-3fb4 nvidia-smi",
    "up": "navarch up --gpus 16 --type h100 --name my-cluster --dry-run",
    "down": "navarch down my-cluster --dry-run",
    "scale": "navarch scale training 3 --wait",
    "stop": "navarch stop --pool training --until 2h --reason 'a wrong image'",
    "resume": "navarch resume --dry-run",
    "sweep": "navarch sweep --dry-run",
    "join": "navarch join --print gpu-01",
    "leave": "navarch leave gpu-01",
    "forget": "navarch forget training-1 --dry-run",
    "demo": "navarch demo",
    "init": "navarch init --gpus 8",
    "serve": "navarch serve --config config/navarch.yaml",
    "mcp": "navarch mcp",
    "nats-context": "navarch nats-context",
    "backup": "navarch backup /backup/2026-11-25",
    "restore": "navarch restore /backup/2026-11-25 --nats-url tls://new.example.com:4222",
    "version": "navarch version",
    "alerts list": "navarch alerts list",
    "alerts acknowledge": "navarch alerts acknowledge health/training/n1 --reason 'on it'",
    "alerts ack": "navarch alerts ack health/training/n1",
    "alerts silence": "navarch alerts silence health/training/n1 --for 2h --reason 'known'",
    "alerts assign": "navarch alerts assign health/training/n1 --to ada",
    "alerts note": "navarch alerts note health/training/n1 'ticket 4711'",
    "alerts test": "navarch alerts test oncall",
    "policy check": "navarch policy check config/health-policy.yaml",
    "policy explain": "navarch policy explain --xid 79",
    "policy test": "navarch policy test config/health-policy.yaml --since 7d",
    "config validate": "navarch config validate navarch.yaml",
    "config diff": "navarch config diff new.yaml",
    "config apply": "navarch config apply new.yaml",
    "config explain": "navarch config explain navarch.yaml --under pools.training",
    "config schema": "navarch config schema",
    "config set-credentials": "navarch config set-credentials lambda --key-env LAMBDA_API_KEY",
    "saga list": "navarch saga list --all --since 7d",
    "saga show": "navarch saga show replace-training-1-3",
    "saga cancel": "navarch saga cancel drain-training-1-3 --reason 'not tonight'",
    "saga retry": "navarch saga retry replace-training-1-3 --reason 'token renewed'",
    "saga proceed": "navarch saga proceed drain-training-1-3 --reason 'the job is lost anyway'",
    "pool list": "navarch pool list -o name",
    "pool status": "navarch pool status training",
    "pool history": "navarch pool history training --since 7d",
    "breaker show": "navarch breaker show",
    "breaker open": "navarch breaker open training --reason 'moving the rack'",
    "breaker close": "navarch breaker close training --reason 'driver 570 rolled back'",
    "drill": "navarch drill training-1-3fb4 xid 79 --yes",
    "identity accept": "navarch identity accept training-1-3fb4 --dry-run",
    "hardware list": "navarch hardware list",
    "hardware add": "navarch hardware add gpu GPU-0c0ffee0 --reason 'vendor case 4711'",
    "hardware forget": "navarch hardware forget gpu GPU-0c0ffee0",
    "nats-config write": "navarch nats-config write --fleet prod --host bus.example.com",
    "nats-config rotate": "navarch nats-config rotate agents",
    "nats-config push": "navarch nats-config push",
    "nats-config certificate": "navarch nats-config certificate alice",
    "nats-config agent": "navarch nats-config agent training/training-7",
    "nats-config pods": "navarch nats-config pods training",
    "nats-config region": "navarch nats-config region eu --pool training-eu --hub n1.example.com",
    "nats-config user add": "navarch nats-config user add alice --role operator",
    "nats-config user renew": "navarch nats-config user renew alice",
    "nats-config user list": "navarch nats-config user list",
    "nats-config user revoke": "navarch nats-config user revoke alice",
    "gateway token create": "navarch gateway token create ada --role operator --expires 90d",
    "workload check": "navarch workload check training",
    "workload done": "navarch workload done training-1-3fb4",
    "plugins new": "navarch plugins new provider acme-cloud",
    "plugins list": "navarch plugins list --all",
    "plugins disable": "navarch plugins disable acme-cloud",
    "plugins enable": "navarch plugins enable acme-cloud",
    "slurm resume": "navarch slurm resume 'training-[001-003]'",
    "slurm suspend": "navarch slurm suspend training-002",
    "simulator fuzz": "navarch simulator fuzz --seed 7",
    "simulator run": "navarch simulator run config/scenarios/fatal-xid-is-replaced.yaml",
    "simulator validate": "navarch simulator validate 'config/scenarios/*.yaml'",
    "simulator interactive": "navarch simulator interactive config/scenarios/queue-autoscaler.yaml",
    "simulator fleet": "navarch simulator fleet --nodes 1000 --minutes 1",
}
"""A command -> how it may be typed, in the words of the documentation."""


def epilog(name: str) -> str | None:
    """Return the last lines of a command's help."""
    return f"\b\nExample:\n  {EXAMPLES[name]}" if name in EXAMPLES else None


def with_examples(group: typer.Typer, name: str) -> typer.Typer:
    """Give every command of a group, and of groups in it, its example."""
    for command in group.registered_commands:
        function: Any = command.callback
        own = command.name or function.__name__.replace("_", "-")
        command.epilog = epilog(f"{name} {own}")
    for inside in group.registered_groups:
        assert inside.typer_instance is not None
        own = inside.name or inside.typer_instance.info.name
        with_examples(inside.typer_instance, f"{name} {own}")
    return group
