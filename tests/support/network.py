"""A network that can be cut: processes in namespaces of this machine, each on a link of its own.

Needs root and iproute2. What is cut off hears nothing, not even that a connection was closed, as
behind a switch that has lost its power. The bridge is in a namespace of its own, where no firewall
of this machine applies: a container engine's drops what bridges forward.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Final, Self

COMMAND_SECONDS_MAX: Final = 60.0


class Network:
    """Enter it and the links exist; leave it and nothing is left of them."""

    def __init__(self, places: Mapping[str, str]) -> None:
        """`places`: process -> the place it is at; others are at the host."""
        self._places = dict(places)
        mark = os.getpid() % 0xFFFF
        self._names = {
            place: f"nv{mark:x}-{number}"
            for number, place in enumerate(sorted(set(places.values())))
        }
        self._bridge = f"nv{mark:x}br"
        self._host_link = f"nv{mark:x}"
        self._prefix = f"10.{64 + mark % 128}.{mark // 128 % 256}"
        self.host = f"{self._prefix}.1"
        """The host's address."""

    def address(self, place: str) -> str:
        """Return the address of a place."""
        return f"{self._prefix}.{sorted(self._names).index(place) + 2}"

    def place_of(self, process: str) -> str:
        """Return where a process is; empty: at the host."""
        return self._places.get(process, "")

    def address_of(self, process: str) -> str:
        """The address of a process, wherever it is."""
        place = self.place_of(process)
        return self.address(place) if place else self.host

    def through(self, process: str) -> tuple[str, ...]:
        """Return the command before a process's own that starts it in its place."""
        place = self.place_of(process)
        return ("ip", "netns", "exec", self._names[place]) if place else ()

    def __enter__(self) -> Self:
        """Make the links."""
        try:
            _ip("netns", "add", self._bridge)
            _ip("-n", self._bridge, "link", "add", self._bridge, "type", "bridge")
            _ip("-n", self._bridge, "link", "set", self._bridge, "up")
            self._plug(self._host_link)
            _ip("addr", "add", f"{self.host}/24", "dev", f"{self._host_link}n")
            _ip("link", "set", f"{self._host_link}n", "up")
            for place, name in self._names.items():
                _ip("netns", "add", name)
                self._plug(name)
                _ip("link", "set", f"{name}n", "netns", name)
                inside = ("-n", name)
                _ip(*inside, "addr", "add", f"{self.address(place)}/24", "dev", f"{name}n")
                _ip(*inside, "link", "set", f"{name}n", "up")
                _ip(*inside, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take them away; a link goes with its namespace."""
        for name in (*self._names.values(), self._bridge):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", name)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self._host_link}n")

    def cut(self, place: str) -> None:
        """Let nothing through, from now on."""
        self._set(place, "down")

    def heal(self, place: str) -> None:
        """Let everything through again."""
        self._set(place, "up")

    def _plug(self, name: str) -> None:
        """Make a link from here to the bridge; the end here has the name with `n`."""
        _ip("link", "add", f"{name}h", "netns", self._bridge, "type", "veth", "peer", f"{name}n")
        _ip("-n", self._bridge, "link", "set", f"{name}h", "master", self._bridge, "up")

    def _set(self, place: str, state: str) -> None:
        _ip("-n", self._bridge, "link", "set", f"{self._names[place]}h", state)


@cache
def missing() -> str:
    """Return why no network can be cut here; empty: it can."""
    if not shutil.which("ip"):
        return "no iproute2 here: apt-get install iproute2"
    if os.geteuid() != 0:
        return "cutting a network needs root"
    try:
        with Network({"probe": "probe"}):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"


def _ip(*arguments: str) -> None:
    subprocess.run(
        ["ip", *arguments],
        check=True,
        capture_output=True,
        timeout=COMMAND_SECONDS_MAX,
    )
