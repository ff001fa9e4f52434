"""Translates the spellings of the original project's files into the current ones. Pure.

It works on the parsed YAML, before anything is checked, and leaves a note about all that it moves
or drops. `Document.moved` says where a moved value was written, so that errors name its line.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Final

from schemas.duration import format_duration, parse_duration
from services.primitives.errors import ConfigurationError
from services.settings.autoscaling_dialect import RENAMED_OPTIONS, OldAutoscaling
from services.settings.yaml_document import Document, Path_

RENAMED: Final[dict[Path_, Path_]] = {
    ("autoscaler",): ("autoscaling",),
    ("cooldown_period",): ("cooldown",),
    ("ssh_key_names",): ("ssh_keys",),
    ("health", "unhealthy_threshold"): ("health", "unhealthy_after"),
    ("ip_wait_timeout",): ("setup", "ip_wait_timeout"),
    ("ssh_timeout",): ("setup", "ssh_timeout"),
    ("ssh_connect_timeout",): ("setup", "ssh_connect_timeout"),
    ("command_timeout",): ("setup", "command_timeout"),
}
"""Key of a pool -> its current one."""
BUS_PORT: Final = 4222
HOURS_A_MONTH: Final = 730
SIMULATED: Final = frozenset({"type", "gpu_count"})
"""Options of a `fake` provider as the original has it; with others it is the one without agents."""
ADDRESS: Final = (
    "`server.address` has no effect: agents and commands use the bus (`nats.url`), and each "
    "service has its own port for /metrics (`http`); remove it"
)
HEALTH_CHECKS: Final = (
    "`health_check_interval` has no effect: agents report faults as they occur, and read the GPUs "
    "each `agent.sample_interval` (1s); remove it"
)
API_KEY: Final = (
    "`api_key_secret` is not read: export the key as the variable that `api_key_env` names "
    "(LAMBDA_API_KEY), or store it with `navarch config set-credentials`; remove it"
)
CREDENTIALS: Final = (
    "`credentials_secret` is not read: the provider's own settings and SDK find the credentials, "
    "or store them with `navarch config set-credentials`; remove it"
)
UPLOADS: Final = (
    "files are not copied to new nodes: write the file in a setup command "
    "(`cat > /etc/example << 'EOF'`), or put it into the image"
)
MANIFEST: Final = (
    "is a Kubernetes manifest, not a configuration: apply it with `kubectl apply -f FILE`"
)
SCENARIO: Final = (
    "is a scenario of the simulator, not a configuration: run it with `navarch simulator run FILE`"
)
POLICY: Final = (
    "is a health policy, not a configuration: name it in one as `health_policy: FILE`; "
    "`navarch policy check FILE` reads it"
)
RESOURCES: Final = (
    "is written as resources with `kind` and `spec`, which are not read: write the sections "
    "`providers:` and `pools:`; docs/configuration.md has an example"
)


@dataclass(frozen=True, slots=True)
class Note:
    """Says what was translated, for the author of the file."""

    path: Path_
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Translation:
    """Holds a configuration in current spelling, and what was translated."""

    document: Document
    notes: tuple[Note, ...] = ()
    problems: tuple[ConfigurationError, ...] = ()


def translate(document: Document) -> Translation:
    """Translate a configuration; what cannot be translated is a problem."""
    if not isinstance(document.value, dict):
        return Translation(document)
    kind = document.value.get("apiVersion")
    if kind is not None or {"kind", "spec"} <= document.value.keys():
        text = RESOURCES if "navarch" in str(kind) else MANIFEST
        empty = replace(document, value={})
        return Translation(empty, problems=(document.error((), text),))
    if other := _other_kind(document.value):
        empty = replace(document, value={})
        return Translation(empty, problems=(document.error((), other),))
    work = _Work(replace(document, value=_copy(document.value), moved=dict(document.moved)))
    work.translate()
    return Translation(work.document, tuple(work.notes), tuple(work.problems))


def _other_kind(value: dict[str, Any]) -> str:
    """What a file is that is no configuration; empty: it may be one."""
    if isinstance(value.get("fleet"), list) or isinstance(value.get("stress"), dict):
        return SCENARIO
    return POLICY if isinstance(value.get("rules"), list) else ""


def note_lines(notes: Iterable[Note]) -> list[str]:
    """Each text once, with every line that it is about."""
    places: dict[str, list[int]] = {}
    for note in notes:
        if note.line not in places.setdefault(note.text, []):
            places[note.text].append(note.line)
    return [f"line {', '.join(map(str, lines))}: {text}" for text, lines in places.items()]


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


@dataclass(slots=True)
class _Work:
    """One translation as it proceeds."""

    document: Document
    notes: list[Note] = field(default_factory=list)
    problems: list[ConfigurationError] = field(default_factory=list)

    def translate(self) -> None:
        """Each section in turn; later ones read what earlier ones have moved."""
        self._server()
        self._global()
        self._list_of_pools()
        self._pool(("defaults",))
        for path in list(self._pools()):
            self._pool(path)
        self._providers()
        self._weights()
        for path in (("notifier",), *(("notifiers", each) for each in self._names("notifiers"))):
            self._notifier(path)

    # --- sections -----------------------------------------------------------------------------

    def _server(self) -> None:
        for key in ("notifier", "coordinator"):
            self.rename(("server", key), ("notifier",))
        self.rename(("server", "health_policy"), ("health_policy",))
        self.drop(("server", "address"), ADDRESS)
        self._agent(("server",), "external_address")

    def _agent(self, path: Path_, address: str) -> None:
        """What the original says of its agents, in `server` and in `global.agent`."""
        interval = self.get((*path, "heartbeat_interval"))
        if self.get((*path, "heartbeat_timeout")) is None and interval is not None:
            with suppress(ValueError):  # what is no duration is reported where it is
                value = format_duration(max(ceil(3 * parse_duration(interval)), 1.0))
                text = f"`agent.heartbeat_ttl` is {value}, three heartbeat intervals"
                if self.get(("agent", "heartbeat_ttl")) is None:
                    self.put(("agent", "heartbeat_ttl"), value, (*path, "heartbeat_interval"), text)
        self.rename((*path, "heartbeat_interval"), ("agent", "heartbeat_interval"))
        self.rename((*path, "heartbeat_timeout"), ("agent", "heartbeat_ttl"))
        self.drop((*path, "health_check_interval"), HEALTH_CHECKS)
        if (url := self.get((*path, address))) is None:
            return
        host = re.sub(r":\d+\Z", "", re.sub(r"\A\w+://", "", str(url)).split("/")[0])
        bus = f"nats://{host}:{BUS_PORT}"
        where = ".".join(map(str, (*path, address)))
        text = f"`{where}` is now `agent.bus_url`: {bus}, the same host with the port of the bus"
        self.take((*path, address))
        self.put(("agent", "bus_url"), bus, (*path, address), text)

    def _global(self) -> None:
        if not isinstance(self.get(("global",)), dict):
            return
        self._agent(("global", "agent"), "server")
        monthly = self.get(("global", "cost", "max_monthly_spend_usd"))
        if isinstance(monthly, int | float) and not isinstance(monthly, bool):
            hourly = round(monthly / HOURS_A_MONTH, 2)
            text = f"`max_monthly_spend_usd` is now `spend_cap`: {hourly} dollars an hour"
            path: Path_ = ("global", "cost", "max_monthly_spend_usd")
            self.take(path)
            self.put(("spend_cap",), hourly, path, text)
        text = "`alert_at_percent` has no effect: write an alert rule on navarch_spend_dollars"
        self.drop(("global", "cost", "alert_at_percent"), text)
        for part in ("agent", "cost"):
            left = self.get(("global", part), {})
            for key in left if isinstance(left, dict) else ():
                self.problem(("global", part, key), "has no meaning here; remove it")
            self.get(("global",)).pop(part, None)
        for key in self._names("global"):
            self.rename(("global", key), ("defaults", key))
        self.take(("global",))

    def _list_of_pools(self) -> None:
        """A list whose items have a `name` means the same as a mapping by name."""
        listed = self.get(("pools",))
        if not isinstance(listed, list):
            return
        named: dict[str, Any] = {}
        for number, each in enumerate(listed):
            path: Path_ = ("pools", number)
            name = each.pop("name", None) if isinstance(each, dict) else None
            if name is None:
                self.problem(path, "a pool in a list needs a `name`; add it")
            elif str(name) in named:
                self.problem(path, f"pool {str(name)!r} is there twice; rename one")
            else:
                named[str(name)] = each
                self.document.moved["pools", str(name)] = path
        self.document.value["pools"] = named

    def _pools(self) -> Iterator[Path_]:
        yield from (("pools", name) for name in self._names("pools"))

    def _pool(self, path: Path_) -> None:
        """The keys of one pool, or those of the defaults."""
        if not isinstance(self.get(path), dict):
            return
        scaling = self.get((*path, "scaling"))
        if isinstance(scaling, dict):
            for key in list(scaling):
                text = "the keys of `scaling` are now the pool's own"
                self.move((*path, "scaling", key), (*path, key), text)
            self.take((*path, "scaling"))
        elif scaling is not None:
            self.problem((*path, "scaling"), "must be a mapping of names")
            self.take((*path, "scaling"))
        for old, new in RENAMED.items():
            self.rename((*path, *old), (*path, *new))
        if (zone := self.get((*path, "zone"))) is not None:
            self.take((*path, "zone"))
            self.put((*path, "zones"), [zone], (*path, "zone"), "`zone` is now `zones`, a list")
        delay = "`scale_down_delay` has no effect: `cooldown` separates two changes; remove it"
        self.drop((*path, "scale_down_delay"), delay)
        if self.get((*path, "file_uploads")) is not None:
            self.problem((*path, "file_uploads"), UPLOADS)
            self.take((*path, "file_uploads"))
        self._thresholds(path)
        OldAutoscaling(self, (*path, "autoscaling")).translate()

    def _thresholds(self, path: Path_) -> None:
        """Thresholds beside the limits of a pool are those of an autoscaler."""
        for old in ("scale_up_threshold", "scale_down_threshold"):
            if self.get((*path, old)) is None:
                continue
            if self.get((*path, "autoscaling")) is None:
                text = f"`{old}` of a pool means an autoscaler of type reactive"
                self.put((*path, "autoscaling"), {"type": "reactive"}, (*path, old), text)
            self.rename((*path, old), (*path, "autoscaling", RENAMED_OPTIONS[old]))

    # --- providers ----------------------------------------------------------------------------

    def _providers(self) -> None:
        if "providers" not in self.document.value:
            self._unlisted_providers()
        for name in self._names("providers"):
            path: Path_ = ("providers", name)
            if self.get(path) is None:
                self.document.value["providers"][name] = {}
            options = self.get(path)
            if not isinstance(options, dict):
                continue
            self.drop((*path, "api_key_secret"), API_KEY)
            self.drop((*path, "credentials_secret"), CREDENTIALS)
            kind = options.get("type", name)
            if kind == "gcp" and isinstance(options.get("zone"), str):
                self._provider_zone(name)
            if kind == "fake" and options.keys() <= SIMULATED:
                text = (
                    "a `fake` provider runs simulated agents, as processes on this machine: its "
                    "type is now `local`"
                )
                options.pop("type", None)
                self.put((*path, "type"), "local", path, text)

    def _unlisted_providers(self) -> None:
        """A part of a configuration, with pools alone: providers with their default options."""
        for path in self._pools():
            for _, name in self._named_providers(path):
                if self.get(("providers", name)) is None:
                    text = f"provider {name!r} has its default options; add it under `providers:`"
                    self.put(("providers", name), {}, (*path, "provider"), text)

    def _named_providers(self, pool: Path_) -> Iterator[tuple[Path_, str]]:
        """Each place of a pool that names a provider."""
        one = self.get((*pool, "provider"), self.get(("defaults", "provider")))
        listed = self.get((*pool, "providers"))
        if isinstance(listed, list):
            for number, each in enumerate(listed):
                if isinstance(each, dict) and isinstance(each.get("name"), str):
                    yield (*pool, "providers", number), each["name"]
        elif isinstance(one, str) and one:
            yield pool, one

    def _provider_zone(self, provider: str) -> None:
        """A provider's zone is that of its pools which name none, in its region."""
        zone = self.take(("providers", provider, "zone"))
        for pool in list(self._pools()):
            for place, name in self._named_providers(pool):
                said = self.get(place)
                regions = said.get("regions") or said.get("region") or zone
                listed = regions if isinstance(regions, list) else [regions]
                here = any(zone.startswith(str(each)) for each in listed)
                if name == provider and here and not said.get("zones"):
                    text = f"the zone of provider {provider!r} is now in `zones` of its pools"
                    self.put((*place, "zones"), [zone], ("providers", provider, "zone"), text)

    def _weights(self) -> None:
        """Weights of providers are those of the round-robin strategy; others have none."""
        for pool in list(self._pools()):
            weights: dict[str, Any] = {}
            strategy = self.get((*pool, "strategy", "type"), self.get((*pool, "strategy")))
            for place, name in self._named_providers(pool):
                path = (*place, "weight")
                if self.get(path) is None:
                    continue
                if strategy != "round-robin":
                    text = "`weight` has no effect but with `strategy: round-robin`; remove it"
                    self.drop(path, text)
                    continue
                weights[name] = self.take(path)
                text = "`weight` is now in `weights` of the strategy round-robin"
                self.document.moved[*pool, "strategy", "weights", name] = path
                self.note(path, text)
            if weights:
                self.document.value["pools"][pool[1]]["strategy"] = {
                    "type": strategy,
                    "weights": weights,
                }

    def _notifier(self, path: Path_) -> None:
        """A secret of the webhook under another name."""
        for place in (path, (*path, "webhook")):
            options = self.get(place)
            if not isinstance(options, dict):
                continue
            for key in [key for key in options if key.endswith("_secret")]:
                self.rename((*place, key), (*place, "secret"))

    # --- what translations are made of --------------------------------------------------------

    def get(self, path: Path_, default: Any = None) -> Any:
        """The value at a path."""
        value: Any = self.document.value
        for part in path:
            inside: Any = value if isinstance(value, dict | list) else {}
            try:
                value = inside[part]
            except (KeyError, IndexError, TypeError):
                return default
        return default if value is None else value

    def take(self, path: Path_) -> Any:
        """Remove the value at a path, and return it."""
        return self.get(path[:-1]).pop(path[-1])

    def put(self, path: Path_, value: Any, written: Path_, text: str) -> None:
        """Set a value that was written at another path; what is there already is a problem."""
        *above, key = path
        parent: Any = self.document.value
        for number, part in enumerate(above):
            if isinstance(parent, dict) and parent.get(part) is None:
                parent[part] = {}
                self.document.moved.setdefault(path[: number + 1], written)
            if isinstance(parent, list) == isinstance(part, str):
                return  # a list in the place of a section, or the reverse, is reported
            parent = parent[part]
            if not isinstance(parent, dict | list):
                return  # what is there is reported
        if not isinstance(parent, dict):
            return
        if parent.get(key) is not None:
            old, new = _dotted(written), _dotted(path)
            self.problem(written, f"`{old}` means `{new}`, which is there too; remove one")
            return
        parent[key] = value
        if path != written:
            self.document.moved[path] = written
        self.note(written, text)

    def move(self, old: Path_, new: Path_, text: str) -> None:
        """Move what is at a path, if anything is."""
        if self.get(old) is not None:
            self.put(new, self.take(old), old, text)

    def rename(self, old: Path_, new: Path_) -> None:
        """Move it, with a note of both names."""
        common = 0
        while old[common] == new[common] and common < min(len(old), len(new)) - 1:
            common += 1
        was, now = _dotted(old[common:]), _dotted(new[common:])
        self.move(old, new, f"`{was}` is now `{now}`")

    def drop(self, path: Path_, text: str) -> None:
        """Remove what has no meaning here."""
        if self.get(path) is not None:
            self.take(path)
            self.note(path, text)

    def note(self, path: Path_, text: str) -> None:
        """Keep a note."""
        self.notes.append(Note(path, self.document.line(path), text))

    def problem(self, path: Path_, text: str) -> None:
        """Keep a problem."""
        self.problems.append(self.document.error(path, text))

    def _names(self, section: str) -> list[str]:
        found = self.get((section,))
        return list(found) if isinstance(found, dict) else []


def _dotted(path: Path_) -> str:
    return ".".join(map(str, path))
