"""Adds a provider's block to a configuration that has none of its name."""

import configparser
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from schemas.settings import Settings
from services.cli.configuration_check import check_configuration
from services.primitives.errors import ConfigurationError, NavarchError
from services.provisioner.provider_client.cloud_credentials import (
    FOLDER,
    StoredCredentials,
    store_credentials,
)

NEW_FILE: Final = Path("navarch.yaml")
"""Made where no configuration is named."""
SECTION: Final = re.compile(r"^providers:[ \t]*(#.*)?$", re.MULTILINE)
OTHER_SECTION: Final = re.compile(r"^['\"]?providers['\"]?[ \t]*:", re.MULTILINE)


def provider_block(name: str, options: Mapping[str, str]) -> str:
    """Return the lines of a provider, below `providers:`. Pure."""
    if not options:
        return f"  {name}: {{}}\n"
    lines = "".join(
        f"    {key}: {msgspec.json.encode(value).decode()}\n" for key, value in options.items()
    )
    return f"  {name}:\n{lines}"


def with_provider(text: str, block: str) -> str:
    """Return a configuration with one more provider; NavarchError if it is to be added by hand."""
    if found := SECTION.search(text):
        return f"{text[: found.end()]}\n{block}{text[found.end() :].removeprefix(chr(10))}"
    if OTHER_SECTION.search(text):
        raise NavarchError(f"`providers:` is not written as a block; add this below it:\n{block}")
    apart = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{apart}providers:\n{block}"


def check_credentials(
    settings: Settings, file: Path | None, provider: str, kept: StoredCredentials, secret: str
) -> None:
    """Raise NavarchError if the configuration would not be valid with these credentials."""
    if (
        kept.secret is not None
        and kept.secret.kind == "env"
        and kept.secret.where not in os.environ
    ):
        return  # the provisioner's environment has it, and this one need not
    known = Path(settings.data_dir) / FOLDER
    with tempfile.TemporaryDirectory() as folder:
        if known.is_dir():
            shutil.copytree(known, Path(folder) / FOLDER)
        store_credentials(Path(folder), provider, kept, secret)
        try:
            check_configuration(msgspec.structs.replace(settings, data_dir=folder), file)
        except ConfigurationError as error:
            raise NavarchError(
                f"the configuration would not be valid, so nothing was stored: {error}; give what "
                "is missing with --set OPTION=VALUE, or correct the file"
            ) from error


def profile_region(profile: str, environment: Mapping[str, str]) -> str:
    """Return the region of the environment, or of a profile of the AWS configuration, or none."""
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if found := environment.get(variable):
            return found
    file = Path(environment.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser()
    parser = configparser.RawConfigParser()
    try:
        parser.read(file, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return ""
    section = f"profile {profile}" if profile and profile != "default" else "default"
    return parser.get(section, "region", fallback="")
