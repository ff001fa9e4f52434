"""Starts the notifier: `python -m services.notifier`."""

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from services.notifier.service import build, check
from services.runtime.process import main

if __name__ == "__main__":
    main("notifier", build, check)
