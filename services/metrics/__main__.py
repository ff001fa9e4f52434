"""`python -m services.metrics`."""

from services.metrics.service import build
from services.runtime.process import main

if __name__ == "__main__":
    main("metrics", build)
