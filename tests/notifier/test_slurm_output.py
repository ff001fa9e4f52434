"""Navarch reads what Slurm prints; the texts were printed by Slurm 22.05.8."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.notifier.workload.slurm_workload import (
    checked_name,
    find_node,
    jobs_by_node,
    node_workload,
    reason_text,
)
from services.primitives.host_list import expand_hosts
from services.workload_systems.slurm_output import SlurmJob, read_comments, read_jobs, read_nodes

MARK = "5f0c"
NODES = f"""\
dyn1|10.0.0.9|ip-10-0-0-9|idle+dynamic_norm|root|none|{MARK}
gpu1|127.0.0.1|vm|allocated+drain|root|navarch: xid-79 on GPU 3 (replace-1)|{MARK}
gpu2|127.0.0.1|vm|down+drain+not_responding|slurm|Not responding|{MARK}
gpu3|127.0.0.1|vm|mixed|Unknown|none|{MARK}
gpu3|127.0.0.1|vm|mixed|Unknown|none|{MARK}
gpu4|127.0.0.1|vm|idle+drain|root|PSU | ticket 12
second line|{MARK}
"""
JOBS = f"""\
4711|4711|alice|2026-11-22T02:16:00|2026-11-22T04:26:00|2|gpu[1-2]|RUNNING|train|{MARK}
4712_3|4715|bob|N/A|Unknown|1|gpu3|COMPLETING|a|b|{MARK}
4716|4716|mallory|N/A|N/A|1|gpu3|RUNNING|evil
4711|1|root|N/A|N/A|1|gpu4|RUNNING|x|{MARK}
"""


def test_nodes_are_read_with_their_flags() -> None:
    """Slurm's compound states are sets of flags, whatever the reason contains."""
    nodes = read_nodes(NODES, MARK)
    assert list(nodes) == ["dyn1", "gpu1", "gpu2", "gpu3", "gpu4"]
    assert nodes["gpu1"].state == {"allocated", "drain"}
    assert nodes["gpu4"].reason == "PSU | ticket 12\nsecond line"
    seen = [(each.cordoned, each.down, each.ours, each.busy) for each in nodes.values()]
    assert seen == [
        (False, False, False, False),
        (True, False, True, True),
        (True, True, False, False),
        (False, False, False, True),
        (True, False, False, False),
    ]


def test_comment_that_copies_another_record_marks_no_other_job() -> None:
    """A user writes the comment: it must not have another user's job signalled."""
    printed = f"4711|navarch-checkpoint a|b|{MARK}\n4712|x\n4713|navarch-checkpoint|{MARK}\n"
    comments = read_comments(printed, MARK)
    assert [each for each, words in comments.items() if "navarch-checkpoint" in words] == ["4711"]


def test_job_name_with_line_breaks_forges_no_job() -> None:
    """A user writes the job name: it must not make Navarch see, or end, another user's job."""
    jobs = read_jobs(JOBS, MARK)
    assert [each.number for each in jobs] == ["4711", "4715", "4716"]
    assert jobs[0].started_at == datetime(2026, 11, 22, 2, 16, tzinfo=UTC)
    assert jobs[0].ends_at == datetime(2026, 11, 22, 4, 26, tzinfo=UTC)
    assert jobs[1].id == "4712_3"
    assert jobs[1].started_at is jobs[1].ends_at is None
    assert "gpu4" not in jobs_by_node(jobs)


def test_node_is_drained_when_cordoned_and_empty() -> None:
    """An empty node that may get new jobs is not drained, nor is one whose epilog runs."""
    nodes, jobs = read_nodes(NODES, MARK), jobs_by_node(read_jobs(JOBS, MARK))
    answers = {name: node_workload(node, jobs.get(name, ())) for name, node in nodes.items()}
    assert [name for name, each in answers.items() if each.drained] == ["gpu4"]
    assert answers["gpu1"].running[0].gang == "4711"
    assert answers["gpu3"].total == 2
    assert not answers["dyn1"].drained
    assert "epilog" in node_workload(nodes["gpu1"], ()).detail


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("", []),
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[008-010,12],login", ["gpu008", "gpu009", "gpu010", "gpu12", "login"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
    ],
)
def test_host_lists(hosts: str, names: list[str]) -> None:
    """Slurm's compressed host lists are expanded as `scontrol show hostnames` does."""
    assert list(expand_hosts(hosts)) == names


@pytest.mark.parametrize("hosts", ["gpu[1-3", "gpu1-3]", "gpu[a-c]", "gpu[1-]", "gpu[[1-2]]"])
def test_malformed_host_lists_are_errors(hosts: str) -> None:
    """Half of a list must not pass for other names."""
    with pytest.raises(ValueError, match="no host list"):
        list(expand_hosts(hosts))


def test_huge_host_list_is_refused() -> None:
    """A list of more names than any cluster has is an error, not an endless loop."""
    with pytest.raises(ValueError, match="more than"):
        list(expand_hosts("gpu[1-999999999]"))


@pytest.mark.parametrize("name", ["", "ALL", "all", "gpu[1-3]", "a,b", "-x", "a b", "a\n", "a=b"])
def test_hostname_that_names_several_nodes_is_refused(name: str) -> None:
    """An agent reports its hostname: `ALL` or a host list would drain the cluster."""
    with pytest.raises(ValueError, match="no name of one Slurm node"):
        checked_name(name)


@given(reason=st.text(max_size=400), saga=st.text(max_size=40))
def test_reasons_are_one_bounded_line_of_ours(reason: str, saga: str) -> None:
    """Slurm shows one line that Navarch recognises, whatever a fault is called."""
    text = reason_text(reason, f"{saga}/cordon")
    assert text.startswith("navarch: ")
    assert len(text) <= 200
    assert text.isprintable()


def test_reason_names_fault_and_saga() -> None:
    """`sinfo -R` shows why, and the saga to ask `navarch why` about."""
    assert reason_text("xid-79 on GPU 3", "replace-1/cordon") == (
        "navarch: xid-79 on GPU 3 (replace-1)"
    )


def test_nodes_are_found_by_name_short_name_or_unique_address() -> None:
    """An address that several nodes share identifies none of them."""
    nodes = read_nodes(NODES, MARK)

    def found(name: str, address: str) -> str:
        node = find_node(name, address, nodes)
        return node.name if node else ""

    assert found("gpu1", "") == "gpu1"
    assert found("gpu1.cluster.example", "") == "gpu1"
    assert found("training-7", "10.0.0.9") == "dyn1"
    assert found("training-7", "127.0.0.1") == ""


@given(st.lists(st.text(max_size=30), max_size=5))
def test_no_job_name_changes_the_number_of_jobs(names: list[str]) -> None:
    """Navarch reads as many jobs as Slurm printed, whatever users called them."""
    lines = (
        f"{each}|{each}|u|N/A|N/A|1|gpu1|RUNNING|{name}|{MARK}\n" for each, name in enumerate(names)
    )
    jobs: tuple[SlurmJob, ...] = read_jobs("".join(lines), MARK)
    assert [each.number for each in jobs] == [str(each) for each in range(len(names))]
