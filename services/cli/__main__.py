"""Runs `navarch`: an error is one sentence on stderr, with the exit code of its kind."""

import logging
import sys

from services.primitives.garbage_collection import collect_rarely


def main() -> None:
    """Run the command line."""
    if sys.stdout is None:  # a shell's `>&-`
        sys.exit("navarch: standard output is closed")
    collect_rarely()  # imports make many objects, and none of them garbage
    from msgspec import DecodeError  # noqa: PLC0415

    from schemas.names import InvalidNameError  # noqa: PLC0415 - keeps `--help` quick

    try:
        from services.cli.command_table import command_line  # noqa: PLC0415
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"navarch: the package {error.name} is missing: a GPU host has the agent's alone. "
            "Install the command line and the services with: pip install 'navarch[services]'\n"
        )
        sys.exit(1)
    from services.cli import console  # noqa: PLC0415
    from services.primitives.errors import NavarchError  # noqa: PLC0415
    from services.runtime.logs import EscapingFormatter  # noqa: PLC0415

    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("navarch: %(message)s"))
    logging.basicConfig(level=logging.ERROR, handlers=[handler])
    try:
        command_line(*sys.argv[1:2])(prog_name="navarch")
    except (NavarchError, InvalidNameError) as error:
        from schemas.refusal_catalogue import exit_code  # noqa: PLC0415

        console.note(str(error))
        sys.exit(exit_code(error))
    except DecodeError as error:
        console.note(f"what is stored cannot be read: {error}; navarch status says what it is")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
