"""`python -m services.notifier`."""

from services.notifier.service import build
from services.runtime.process import main

if __name__ == "__main__":
    main("notifier", build)
