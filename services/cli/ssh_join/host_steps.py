"""Decides the steps that make a machine a node, by what it says of itself; their scripts. Pure.

Every script may be run again: it goes on where an earlier one ended. The token of a machine is
given to its script on standard input, so that no process has it in its arguments.
"""

import re
import shlex
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from schemas.names import node_token
from services.primitives.host_list import expand_hosts

TARGET: Final = re.compile(
    r"(?:(?P<node>[a-z0-9-]+)=)?(?:(?P<user>[A-Za-z0-9._-]+)@)?"
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?"
)
MARK: Final = "navarch:"
HOME: Final = "/opt/navarch"
AGENT: Final = f"{HOME}/bin/navarch-agent"
SETTINGS: Final = "/etc/navarch/agent.env"
STATE: Final = "/var/lib/navarch-agent"
UNIT: Final = "/etc/systemd/system/navarch-agent.service"
LOCK: Final = "/opt/navarch.lock"
LOCK_SECONDS: Final = 200
"""For which an installation waits for another on the same machine."""
SUPERVISOR: Final = f"{HOME}/run-agent"
FREE_KIB_MIN: Final = 300_000
"""What the agent and its packages take, with room for its state."""
PYTHONS: Final = "python3.14 python3.13 python3.12 python3.11 python3"
PORT: Final = 22
PORT_MAX: Final = 65_535

Step = Literal["install", "join", "start"]


class Target(NamedTuple):
    """Names a machine, how it is entered, and the node that it is to be."""

    node: str
    user: str
    host: str
    port: int


class HostState(NamedTuple):
    """Holds what a machine says of itself."""

    python: str = ""
    """Interpreter that can run the agent; empty: there is none."""
    version: str = ""
    """Of `python3`, for the message."""
    installed: bool = False
    joined: str = ""
    """`POOL/NODE` that it is already; empty: of no fleet."""
    pending: bool = False
    """Whether a join was begun there and has not ended."""
    free_kib: int = 0
    systemd: bool = False
    release: str = ""
    """Of the agent that was last seen to run there; empty: it is not known."""


def targets(words: Iterable[str]) -> list[Target]:
    """Return the machines that words name, as `user@gpu-[01-08]`; ValueError where one is wrong."""
    found: dict[str, Target] = {}
    for word in words:
        for each in expand_hosts(word) if "[" not in word.partition("@")[2][:1] else [word]:
            match = TARGET.fullmatch(each)
            if match is None or int(match["port"] or PORT) not in range(1, PORT_MAX + 1):
                raise ValueError(f"{each!r} is no machine: write user@host, or NODE=user@host:port")
            host = match["host"].strip("[]")
            node = match["node"] or node_token(_short(host))
            target = Target(node, match["user"] or "", host, int(match["port"] or PORT))
            if found.setdefault(node, target) != target:
                raise ValueError(
                    f"two machines would be {node}: name one of them, as gpu-01={each}"
                )
    return list(found.values())


def _short(host: str) -> str:
    """Return the first word of a name, and an address as it is."""
    is_address = ":" in host or host.replace(".", "").isdigit()
    return host.replace(":", "-") if is_address else host.partition(".")[0].lower()


LOOK: Final = f"""\
py=; for p in {PYTHONS}; do
  if command -v $p >/dev/null 2>&1 && $p -c 'import sys, venv, ensurepip
sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then py=$(command -v $p); break; fi; done
echo "{MARK} python $py"
echo "{MARK} version $(python3 -V 2>/dev/null)"
[ -x {AGENT} ] && [ ! -e {HOME}.unfinished ] && echo "{MARK} installed yes"
if [ -s {STATE}/nats.creds ]; then
  pool=$(sed -n 's/^NAVARCH_POOL=//p' {SETTINGS}); node=$(sed -n 's/^NAVARCH_NODE=//p' {SETTINGS})
  echo "{MARK} joined $pool/$node"; fi
[ -s {STATE}/join.token ] && echo "{MARK} pending yes"
d=/opt; [ -d $d ] || d=/
echo "{MARK} free $(df -Pk $d | awk 'NR==2 {{ print $4 }}')"
[ -d /run/systemd/system ] && echo "{MARK} systemd yes"
[ -s {HOME}/release ] && [ ! -e {HOME}.unfinished ] && echo "{MARK} release $(cat {HOME}/release)"
echo "{MARK} end"
"""


def read_look(output: str) -> HostState | None:
    """Return what a machine has said; None if the end is missing."""
    said: dict[str, str] = {}
    for line in output.splitlines():
        if line.startswith(f"{MARK} "):
            name, _, value = line.removeprefix(f"{MARK} ").partition(" ")
            said[name] = value.strip()
    if "end" not in said:
        return None
    return HostState(
        python=said.get("python", ""),
        version=said.get("version", "").removeprefix("Python "),
        installed="installed" in said,
        joined=said.get("joined", "").strip("/"),
        pending="pending" in said,
        free_kib=int(said["free"]) if said.get("free", "").isdigit() else 0,
        systemd="systemd" in said,
        release=said.get("release", ""),
    )


def steps_for(
    state: HostState, pool: str, node: str, *, has_wheels: bool, is_known: bool
) -> tuple[Step, ...] | str:
    """Return what is to be done on a machine, or why nothing is, in a sentence.

    `is_known`: whether the fleet has the node.
    """
    if refused := why_not_ours(state, pool, node, is_known=is_known):
        return refused
    begun: tuple[Step, ...] = ("start",) if state.joined else ("join", "start")
    if state.installed:
        return begun
    if not has_wheels:
        return (
            "it has no agent, and no wheels are kept: add --wheels FOLDER with those of "
            "navarch[credentials] (pip wheel -w FOLDER 'navarch-….whl[credentials]')"
        )
    return why_no_room(state) or ("install", *begun)


def why_not_ours(state: HostState, pool: str, node: str, *, is_known: bool) -> str:
    """Return why a machine that joined is not this node, in a sentence; empty: it may be."""
    if state.joined and state.joined != f"{pool}/{node}":
        return (
            f"it is {state.joined} already: take it out first (navarch leave "
            f"{state.joined.rpartition('/')[2]} --ssh user@host)"
        )
    if state.joined and not is_known:
        return (
            f"it is {state.joined} of another fleet, or has left this one: run `navarch-agent "
            "leave` there, and join again"
        )
    return ""


def why_no_room(state: HostState) -> str:
    """Return why an agent cannot be installed on a machine, in a sentence; empty: it can."""
    if not state.python:
        has = f"its python3 is {state.version}" if state.version else "it has no python3"
        return (
            f"{has}, and the agent needs 3.11 with venv: install python3.11 and python3.11-venv, "
            "or another by uv (`uv python install --default 3.12`)"
        )
    if state.free_kib < FREE_KIB_MIN:
        return (
            f"its disk has {state.free_kib // 1024} MB free below /opt, and the agent needs "
            f"{FREE_KIB_MIN // 1024}: make room there"
        )
    return ""


def install_script(python: str, unit: str) -> str:
    """Return what installs the agent; standard input has the wheels, as a tar archive.

    `python`: the interpreter; empty: NAVARCH_PYTHON names it.
    """
    named = shlex.quote(python) if python else '"$NAVARCH_PYTHON"'
    supervisor = f"""\
#!/bin/sh
# Starts the agent again when it ends. Written by `navarch join`; `navarch leave --ssh` removes it.
exec 9>{STATE}/supervisor.lock
flock -n 9 || exit 0
echo $$ > {STATE}/supervisor.pid
while :; do {AGENT} --config {SETTINGS} 9>&-; sleep 5; done
"""
    return f"""\
set -e; umask 022
# What an earlier join began goes on when the operator's command is killed.
exec 8>{LOCK}; flock -w {LOCK_SECONDS} 8
d=$(mktemp -d /var/tmp/navarch.XXXXXX); trap 'rm -rf "$d"' EXIT
tar -xf - -C "$d"; cd "$d"; sha256sum --quiet -c SHA256SUMS
[ ! -e {HOME}.unfinished ] || rm -rf {HOME}
mkdir -p {HOME}; touch {HOME}.unfinished; rm -f {HOME}/release
[ -x {HOME}/bin/python ] || {named} -m venv {HOME}
{HOME}/bin/pip install -q --no-index --find-links "$d" --no-deps --force-reinstall \
  --require-hashes -r requirements.txt
printf %s {shlex.quote(supervisor)} > {SUPERVISOR}; chmod 755 {SUPERVISOR}
if [ -d /run/systemd/system ]; then printf %s {shlex.quote(unit)} > {UNIT}; fi
mkdir -p -m 700 {STATE}
rm -f {HOME}.unfinished
echo "{MARK} end"
"""


JOIN: Final = f"""\
umask 077; exec {AGENT} join --settings {SETTINGS} --state {STATE}
"""
RESUME: Final = f"""\
umask 077
exec {AGENT} join --settings {SETTINGS} --state {STATE} --token-file {STATE}/join.token
"""
START: Final = f"""\
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload && systemctl enable -q navarch-agent && systemctl start navarch-agent \
    && echo "{MARK} runs by systemd"
else
  # Its log is in the answer of `navarch logs NODE`; a file would grow without a bound.
  setsid {SUPERVISOR} > /dev/null 2>&1 < /dev/null 8>&- &
  if command -v crontab > /dev/null 2>&1; then
    {{ crontab -l 2>/dev/null | grep -vF {SUPERVISOR}; echo "@reboot {SUPERVISOR}"; }} | crontab - \
      && echo "{MARK} runs supervised, and by cron after a reboot"
  else echo "{MARK} runs supervised; without systemd and cron it does not come back after a reboot"
  fi
fi
"""
LEAVE: Final = f"""\
if [ -e {UNIT} ]; then systemctl disable -q --now navarch-agent; rm -f {UNIT}
  systemctl daemon-reload; fi
if [ -s {STATE}/supervisor.pid ]; then kill -TERM -- -$(cat {STATE}/supervisor.pid) 2>/dev/null; fi
if command -v crontab > /dev/null 2>&1 && crontab -l 2>/dev/null | grep -qF {SUPERVISOR}; then
  crontab -l | grep -vF {SUPERVISOR} | crontab -; fi
[ ! -x {AGENT} ] || {AGENT} leave --settings {SETTINGS} --state {STATE}
rm -rf {STATE}; [ ! -e {SUPERVISOR} ] || rm -rf {HOME} {HOME}.unfinished {LOCK}
rmdir /etc/navarch 2>/dev/null
echo "{MARK} end"
"""


FAILURES: Final = (
    ("sudo:", "its user may not run commands as root: allow `sudo -n`, or log in as root"),
    (
        "another host key",
        (
            "it shows another host key than at first: if it was reinstalled, remove its line from "
            "ssh/join.known_hosts in the data directory"
        ),
    ),
    (
        "refuses this user and key",
        (
            "it refuses the user or the key: add the public key to its authorized_keys, or name "
            "another with --key"
        ),
    ),
    ("passphrase", "the private key has a passphrase: name one without with --key"),
    ("private key", "the private key cannot be read: name another with --key"),
    (
        "cannot be reached",
        "it cannot be reached: check its name, and that this machine reaches its SSH port",
    ),
    (
        "does not answer in time",
        "it does not answer in time: check that it runs, and that its SSH port is reached",
    ),
    ("No space left", "its disk is full: make room below /opt, /var/lib and /var/tmp"),
    (
        "No matching distribution",
        (
            "the folder lacks a wheel for its Python and processor: make them with the same "
            "Python, on such a processor"
        ),
    ),
)
"""What a failure contains, and the sentence with its remedy; the first match counts."""
PROVIDER_KIND: Final = re.compile(r"[A-Z]+: ")


def failure_sentence(text: str) -> str:
    """Return a failure as a sentence with what its operator can do about it."""
    plain = " ".join(text.split())
    # A token's refusal is the agent's own sentence.
    _, mark, own = plain.partition("navarch-agent: ")
    if mark:
        return own
    known = next((sentence for part, sentence in FAILURES if part in plain), "")
    return known or PROVIDER_KIND.sub("", plain, count=1)


def said_of(output: str, word: str) -> str:
    """Return what a script said after a word; empty: nothing."""
    start = f"{MARK} {word} "
    found = (each.removeprefix(start) for each in output.splitlines() if each.startswith(start))
    return next(found, "")
