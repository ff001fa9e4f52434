"""Finds the data files that ship with Navarch: `config/` of a checkout, or of an installed wheel.

`config/` holds data and no Python, so it is no package: a wheel installs it under
`share/navarch/config`, and where that is depends on how the wheel was installed.
"""

import sysconfig
from pathlib import Path
from typing import Final

from services.primitives.errors import ConfigurationError

INSTALLED: Final = "share/navarch/config"
_ROOT: Final = Path(__file__).resolve().parents[__name__.count(".")]


def resource(name: str) -> Path:
    """Return the path of a shipped file (`health-policy.yaml`); ConfigurationError if missing."""
    looked = [
        _ROOT / "config" / name,
        Path(sysconfig.get_path("data")) / INSTALLED / name,
        _ROOT / INSTALLED / name,  # `pip install --target`
    ]
    for path in looked:
        if path.is_file():
            return path
    # `pip install --user` and the like put data elsewhere, and record where.
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415

    try:
        recorded = distribution("navarch").files or []
    except PackageNotFoundError:
        recorded = []
    for file in recorded:
        if file.as_posix().endswith(f"{INSTALLED}/{name}"):
            path = Path(str(file.locate())).resolve()
            looked.append(path)
            if path.is_file():
                return path
    tried = ", ".join(str(path) for path in looked)
    raise ConfigurationError(
        f"not found (looked at {tried}); reinstall navarch, or name the file in the configuration",
        file=name,
    )
