"""Starts the metrics service: `python -m services.metrics`."""

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from services.metrics.service import build
from services.runtime.process import main

if __name__ == "__main__":
    main("metrics", build)
