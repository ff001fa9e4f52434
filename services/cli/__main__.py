"""Runs `navarch`: an error is one sentence on stderr, with exit code 1."""

import logging
import sys


def main() -> None:
    """Run the command line."""
    from schemas.names import InvalidNameError  # noqa: PLC0415 - keeps `--help` quick
    from services.cli.app import app  # noqa: PLC0415
    from services.primitives.errors import NavarchError  # noqa: PLC0415

    logging.basicConfig(level=logging.ERROR, format="navarch: %(message)s")
    try:
        app()
    except (NavarchError, InvalidNameError) as error:
        sys.stderr.write(f"navarch: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
