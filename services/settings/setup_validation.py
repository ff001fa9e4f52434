"""Checks a pool's way of setting up its nodes, and names what to write instead."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from schemas.launch_fingerprints import digest
from schemas.settings import NatsSettings, PoolSpec
from services.settings import placeholders
from services.settings.setting_paths import resolve_path

CLOUD_CONFIG: Final = "#cloud-config"
KINDS: Final = (CLOUD_CONFIG, "#!", "Content-Type:", "MIME-Version:", "#include", "#cloud-boothook")
"""How user data must begin for cloud-init to take it."""

Problem = tuple[tuple[str | int, ...], str]


def birth_problem(spec: PoolSpec, nats: NatsSettings, directory: Path) -> Problem | None:
    """The key that is wrong and why; None where all is right. `directory`: of the configuration."""
    for number, command in enumerate(spec.setup_commands):
        if wrong := placeholders.problem("the command", command, placeholders.SETUP_NAMES):
            return ("setup_commands", number), wrong
    if spec.setup_commands and not spec.ssh_private_key_path:
        return ("setup_commands",), (
            "they run over SSH, and the pool has no `ssh_private_key_path`; name the private "
            "key's file"
        )
    if spec.user_data == placeholders.AUTO and nats.tls_cert_file and not spec.setup_commands:
        return ("user_data",), (
            "`auto` gives the agent no client certificate, and nats-server requires one "
            "(nats.tls_cert_file): write it to the node by `setup_commands`, or name a template "
            "of your own that sets NAVARCH_NATS_TLS_CERT_FILE to one in the image"
        )
    if spec.user_data not in ("", placeholders.AUTO):
        wrong = template_problem(Path(resolve_path(spec.user_data, directory)))
        return (("user_data",), wrong) if wrong else None
    return None


def user_data_digest(named: str, directory: Path) -> str:
    """Return the digest of a pool's user data; empty: its template cannot be read here."""
    if named in ("", placeholders.AUTO):
        return digest(named)
    text = template_text(named, directory)
    return digest(text) if text is not None else ""


def templates_of(pools: Mapping[str, PoolSpec], directory: Path) -> dict[str, str]:
    """Return pool -> its template of user data, of those that can be read here."""
    named = {name: each.user_data for name, each in pools.items()}
    found = {
        name: template_text(each, directory)
        for name, each in named.items()
        if each not in ("", placeholders.AUTO)
    }
    return {name: text for name, text in found.items() if text is not None}


def template_text(named: str, directory: Path) -> str | None:
    """Return the template that a pool's user data names; None: it cannot be read here."""
    try:
        return Path(resolve_path(named, directory)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def template_problem(file: Path) -> str:
    """Return what is wrong with a template of user data."""
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(placeholders.TEMPLATE_BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return f"{file} cannot be read ({reason}); write `auto`, or a template's file"
    if len(text.encode()) > placeholders.TEMPLATE_BYTES_MAX:
        return f"{file} is longer than {placeholders.TEMPLATE_BYTES_MAX} bytes"
    if wrong := placeholders.unknown(text, placeholders.USER_DATA_NAMES):
        there = ", ".join(f"{{{{.{each}}}}}" for each in placeholders.USER_DATA_NAMES)
        return f"{file}:{wrong[0]}: {wrong[1]} is not there to ask for; there are {there}"
    if not text.startswith(KINDS):
        return f"{file}:1: cloud-init takes what begins with {CLOUD_CONFIG} or #!"
    if text.startswith(CLOUD_CONFIG):
        return _yaml_problem(file, text)
    return ""


def _yaml_problem(file: Path, text: str) -> str:
    """Whether it is YAML once it is filled in; values of several lines get two."""
    values = dict.fromkeys(placeholders.USER_DATA_NAMES, "x")
    values |= dict.fromkeys(placeholders.LONG_NAMES, "x\nx")
    try:
        filled = yaml.safe_load(placeholders.fill(text, values))
    except yaml.MarkedYAMLError as error:
        return f"{file}: is not YAML when it is filled in: {error.problem}"
    except yaml.YAMLError as error:
        return f"{file}: is not YAML when it is filled in: {error}"
    return "" if isinstance(filled, dict) else f"{file}: is no mapping; see cloud-init's examples"
