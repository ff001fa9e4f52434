"""The entry point `navarch-agent`: `healthy` runs without loading the agent."""

import sys


def main() -> None:
    """Run the command line's command."""
    if sys.argv[1:2] == ["healthy"]:
        from agent import healthy_command  # noqa: PLC0415

        sys.exit(healthy_command.run(sys.argv[2:]))
    from agent.__main__ import main as run_agent  # noqa: PLC0415

    run_agent()


if __name__ == "__main__":
    main()
