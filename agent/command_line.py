"""Runs `navarch-agent`; its commands `healthy` and `connected` do not load the agent."""

import sys

from agent.healthy_command import answered


def main() -> None:
    """Run the command line's command."""
    if (code := answered(sys.argv[1:])) is not None:
        sys.exit(code)
    from agent.__main__ import main as run_agent  # noqa: PLC0415

    run_agent()


if __name__ == "__main__":
    main()
