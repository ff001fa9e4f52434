"""Runs the provisioner: `python -m services.provisioner`."""

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from services.provisioner.service import build, check
from services.runtime.process import main

if __name__ == "__main__":
    main("provisioner", build, check)
