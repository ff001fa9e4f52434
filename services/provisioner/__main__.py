"""`python -m services.provisioner`."""

from services.provisioner.service import build
from services.runtime.process import main

if __name__ == "__main__":
    main("provisioner", build)
