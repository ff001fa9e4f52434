"""`navarch-agent` with the flags of the original's agent says which command is the present one."""

import pytest

from agent.__main__ import run
from agent.original_flags import present_command


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "--server https://cp.example.com --node-id n1 --provider gcp",
            "NAVARCH_NATS_URL=nats://cp.example.com:4222 NAVARCH_POOL=POOL NAVARCH_NODE=n1",
        ),
        (
            "-server 10.0.0.5:50051 -pool web -node-id web-1",
            "NAVARCH_NATS_URL=nats://10.0.0.5:4222 NAVARCH_POOL=web NAVARCH_NODE=web-1",
        ),
        (
            "--node-id=n1 --server=http://[::1]:50051",
            "NAVARCH_NATS_URL='nats://[::1]:4222' NAVARCH_POOL=POOL NAVARCH_NODE=n1",
        ),
        (
            "--server",
            "NAVARCH_NATS_URL=nats://HOST:4222 NAVARCH_POOL=POOL NAVARCH_NODE=NODE",
        ),
        (
            "--node-id $(id)",
            "NAVARCH_NATS_URL=nats://HOST:4222 NAVARCH_POOL=POOL NAVARCH_NODE='$(id)'",
        ),
        (
            "--server http://[broken --node-id n1",
            "NAVARCH_NATS_URL=nats://HOST:4222 NAVARCH_POOL=POOL NAVARCH_NODE=n1",
        ),
    ],
)
def test_the_originals_flags_become_settings(line: str, command: str) -> None:
    """Each value is in its variable, quoted for a shell; a missing one is a placeholder."""
    assert present_command(line.split()).endswith(f"\n  {command} navarch-agent")


@pytest.mark.parametrize(
    "line", ["", "--check", "--config agent.yaml --check", "diagnose dcgm --level 2", "--pool web"]
)
def test_other_command_lines_are_left_alone(line: str) -> None:
    """Flags and commands of this agent, and unknown ones, go to the parser."""
    assert present_command(line.split()) == ""


def test_the_agent_answers_instead_of_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit status is that of a wrong command line, and no usage is shown."""
    assert run(["--server", "https://control-plane.example.com", "--node-id", "n1"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("navarch-agent: these are flags of the original's agent")
    assert "usage:" not in shown
    assert "NAVARCH_NODE=n1 navarch-agent" in shown
