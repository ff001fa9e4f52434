"""Checks a configuration as every service does at its start."""

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import services.runtime.import_trim  # noqa: F401 - before whatever loads more than is used
from agent.conditions.declared import CONDITIONS
from schemas.settings import Settings
from services.gateway.gateway_start import check as check_gateway
from services.health_monitor.rules.policy_file import load_policy, policy_path, words_compared
from services.health_monitor.service import check as check_health_monitor
from services.notifier.service import check as check_notifier
from services.pool_manager.service import check as check_pool_manager
from services.primitives.errors import ConfigurationError
from services.provisioner.service import check as check_provisioner
from services.runtime.configured_process import Check
from services.runtime.http_listener import check_port
from services.runtime.process import check_service, no_check
from services.settings.drain_warnings import drain_warnings
from services.settings.instance_type_file import load_instance_types
from services.settings.offering_warnings import (
    driver_warnings,
    offering_warnings,
    queue_warnings,
    schedule_warnings,
    setup_warnings,
)
from services.settings.plugin_loader import locate, setting_error
from services.settings.problem_list import ProblemList
from services.settings.settings_file import Configuration, inspect_configuration, read_file
from services.settings.setup_validation import templates_of

CHECKS: Final[dict[str, Check]] = {
    "pool-manager": check_pool_manager,
    "health-monitor": check_health_monitor,
    "provisioner": check_provisioner,
    "notifier": check_notifier,
    "metrics": no_check,
}


def check_file(file: Path, environment: Mapping[str, str]) -> Configuration:
    """Read a configuration; ConfigurationError with all that keeps the fleet from starting."""
    configuration = inspect_configuration(read_file(file), environment)
    problems = ProblemList()
    problems.extend(configuration.problems)
    with problems.collecting():
        check_configuration(configuration.settings, file)
    problems.raise_found()
    return configuration


def check_configuration(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError with all that would keep a service from starting with `settings`."""
    problems = ProblemList()
    for name, check in CHECKS.items():
        with problems.collecting():
            check_service(name, check, settings, file)
    with problems.collecting():
        check_gateway(settings, file)
    problems.raise_found()


def check_served_ports(settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if the services and the gateway of one host have one port."""
    taken = {settings.http.port: "http.port"}
    for key in ("port", "probes_port"):
        port, path = getattr(settings.gateway, key), f"gateway.{key}"
        if port and port in taken:
            problem = f"{port} is `{taken[port]}` too; write another, or 0 for any free one"
            raise setting_error(path, problem, file)
        taken[port] = path


def warnings_of(settings: Settings, file: Path | None) -> list[str]:
    """Return what keeps no service from starting, and is probably not meant."""
    types = load_instance_types(settings.instance_types, file)
    templates = templates_of(settings.pools, file.parent if file is not None else Path())
    found = [*drain_warnings(settings), *offering_warnings(settings, types)]
    found += [str(locate(each, file)) for each in driver_warnings(settings, types)]
    found += [*schedule_warnings(settings), *queue_warnings(settings)]
    found += [*setup_warnings(settings, templates), *key_file_warnings(settings)]
    found += condition_warnings(settings, file)
    try:
        check_port(settings.http, file)
    except ConfigurationError as error:
        found.append(f"{error} (unless the fleet that uses it is this one)")
    try:
        check_served_ports(settings, file)
    except ConfigurationError as error:
        found.append(f"{error} (`navarch serve` refuses it; services on machines apart do not)")
    if problem := data_dir_problem(Path(settings.data_dir)):
        found.append(f"data_dir: {problem}; name another, or run this as the services' user")
    return found


def condition_warnings(settings: Settings, file: Path | None) -> Iterator[str]:
    """Yield a warning for each rule of the health policy about a condition that no agent reports.

    An agent of a later release may report it, so such a policy is accepted.
    """
    policy = load_policy(policy_path(settings.health_policy, file))
    known = {each.name for each in CONDITIONS} | {each.name for each in policy.levels}
    for rule in policy.rules:
        for name in words_compared("condition", rule.condition):
            if name and name not in known:
                near = "".join(f"; did you mean {each}?" for each in get_close_matches(name, known))
                yield (
                    f"{policy.file}: rule {rule.name} names the condition {name!r}, which no agent "
                    f"of this release reports{near} (see `policy explain --condition`)"
                )


def key_file_warnings(settings: Settings) -> Iterator[str]:
    """Private keys with which new nodes are to be set up, and that are not here."""
    for name, spec in settings.pools.items():
        key = spec.ssh_private_key_path
        if spec.setup_commands and not os.access(key, os.R_OK):
            yield (
                f"pool {name}: ssh_private_key_path {key} cannot be read here, and new nodes are "
                "set up with it; put the key there, where the provisioner runs"
            )


def data_dir_problem(directory: Path) -> str:
    """Return why this user can neither write nor create the directory; empty: it can."""
    whole = directory.absolute()
    for each in (whole, *whole.parents):
        if os.path.lexists(each):
            if not each.is_dir():
                return f"{each} is not a directory"
            if not os.access(each, os.R_OK | os.W_OK | os.X_OK):
                doing = "written" if each == whole else f"created: {each} cannot be written"
                return f"{whole} cannot be {doing}"
            return ""
    return ""
