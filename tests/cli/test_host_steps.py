"""Tests of what is done on a machine that joins over SSH, by what it says of itself."""

import re

import pytest

from services.cli.ssh_join.host_steps import (
    FREE_KIB_MIN,
    HostState,
    Target,
    failure_sentence,
    read_look,
    steps_for,
    targets,
)

READY = HostState(python="/usr/bin/python3", version="3.11.2", free_kib=FREE_KIB_MIN)
WHOLE = ("install", "join", "start")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["root@gpu-01"], [Target("gpu-01", "root", "gpu-01", 22)]),
        (["gpu-01"], [Target("gpu-01", "", "gpu-01", 22)]),
        (
            ["ops@gpu-01.rack3.example.com:2222"],
            [("gpu-01", "ops", "gpu-01.rack3.example.com", 2222)],
        ),
        (["a=ops@10.0.0.5"], [("a", "ops", "10.0.0.5", 22)]),
        (["ops@10.0.0.5"], [("10-0-0-5", "ops", "10.0.0.5", 22)]),
        (["root@[fd00::1]:22"], [("fd00--1", "root", "fd00::1", 22)]),
        (["root@g-[08-10]"], [(f"g-{n}", "root", f"g-{n}", 22) for n in ("08", "09", "10")]),
        (["root@g-1", "root@g-1"], [("g-1", "root", "g-1", 22)]),
    ],
)
def test_machines_are_named_as_for_ssh(words: list[str], found: list[tuple[str, ...]]) -> None:
    """The node has the first word of the host's name, unless another is given."""
    assert [tuple(each) for each in found] == [tuple(each) for each in targets(words)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["root@g-1", "root@g-1.other.example"], "two machines would be g-1: name one of them"),
        (["root@g-1", "ops@g-1"], "two machines would be g-1"),
        (["root@g-1:0"], "is no machine"),
        (["root@g-1:99999"], "is no machine"),
        (["-oProxyCommand=x"], "is no machine"),
        (["root@g-1; reboot"], "is no machine"),
        (["a b"], "is no machine"),
        (["root@"], "is no machine"),
        (["root@g-[1-9999999]"], "than"),
    ],
)
def test_what_is_no_machine_is_refused(words: list[str], said: str) -> None:
    """Two machines never get one name, and options of a shell or of ssh are none."""
    with pytest.raises(ValueError, match=said):
        targets(words)


@pytest.mark.parametrize(
    ("state", "has_wheels", "done"),
    [
        (READY, True, WHOLE),
        (READY._replace(installed=True), False, ("join", "start")),
        (READY._replace(installed=True, joined="gpu/gpu-01"), False, ("start",)),
        (READY._replace(joined="gpu/gpu-01"), True, ("install", "start")),
        (READY, False, "no agent, and no wheels are kept: add --wheels FOLDER"),
        (
            READY._replace(python="", version="3.9.2"),
            True,
            "is 3.9.2, .*install python3.11",
        ),
        (READY._replace(python="", version=""), True, "has no python3, .*uv python install"),
        (READY._replace(free_kib=10_240), True, "has 10 MB free below /opt, .*make room"),
        (
            READY._replace(joined="gpu/gpu-09"),
            True,
            "gpu/gpu-09 already: .*navarch leave gpu-09",
        ),
        (READY._replace(joined="web/gpu-01"), True, "is web/gpu-01 already"),
    ],
)
def test_the_steps_follow_from_what_a_machine_says(
    state: HostState, has_wheels: bool, done: tuple[str, ...] | str
) -> None:
    """A step that is done is left out, and each refusal is a sentence with its remedy."""
    found = steps_for(state, "gpu", "gpu-01", has_wheels=has_wheels, is_known=True)

    if isinstance(done, tuple):
        assert found == done
    else:
        assert isinstance(found, str)
        assert re.search(done, found)


def test_a_machine_that_the_fleet_does_not_know_is_not_taken() -> None:
    """A machine may be of another fleet, or have left: its operator says so on it."""
    joined = READY._replace(installed=True, joined="gpu/gpu-01")
    found = steps_for(joined, "gpu", "gpu-01", has_wheels=True, is_known=False)

    assert isinstance(found, str)
    assert "navarch-agent leave" in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AUTH: a: sudo: a password is required", "allow `sudo -n`"),
        ("AUTH: a shows another host key than the one that is pinned: x", "join.known_hosts"),
        ("AUTH: a refuses this user and key: Permission denied", "authorized_keys.* --key"),
        ("INVALID: a cannot be entered: the private key has a passphrase: x", "without with --key"),
        ("INVALID: a cannot be entered: the private key does not exist: x", "another with --key"),
        ("NETWORK: a cannot be reached: [Errno 111]", "reaches its SSH port"),
        ("NETWORK: a does not answer in time: TimeoutError", "port is reached"),
        ("TRANSIENT: a: 1: tar: x: Cannot write: No space left on device", "disk is full: make"),
        ("TRANSIENT: ERROR: No matching distribution found for cffi", "wheel for its Python"),
        (
            "TRANSIENT: a: 2: navarch-agent: its clock is off:\n set it",
            "^its clock is off: set it$",
        ),
        ("TRANSIENT: a: something else", "^a: something else$"),
    ],
)
def test_a_failure_is_one_sentence_with_its_remedy(text: str, said: str) -> None:
    """The agent's own sentences are kept, and what is not known is said as it is."""
    assert re.search(said, failure_sentence(text))


def test_an_answer_that_is_cut_is_none() -> None:
    """Lines of other programs, as of a login banner, do not count."""
    said = "Welcome!\nnavarch: python /usr/bin/python3\nnavarch: version Python 3.11.2\n"
    said += "navarch: installed yes\nnavarch: joined gpu/gpu-01\nnavarch: free 1234\n"

    assert read_look(said) is None
    assert read_look(f"{said}navarch: pending yes\nnavarch: end\n") == HostState(
        python="/usr/bin/python3",
        version="3.11.2",
        installed=True,
        joined="gpu/gpu-01",
        pending=True,
        free_kib=1234,
    )
