"""Finds whose job a process is of: every form in which schedulers name their control groups."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.cgroup_jobs import job_of, started_seconds
from agent.sources.job_lookup import CLOCKS_APART_SECONDS, KEPT_SECONDS, TICKS_PER_SECOND, JobLookup

UID = "3f1c9d1e-8a53-4b39-9d55-0f6d2a7a51c4"
UNDERSCORED = UID.replace("-", "_")
CONTAINER = "f00dbabe" * 8

SYSTEMD_POD = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
    f"/cri-containerd-{CONTAINER}.scope\n"
)
KIND = "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
SLURM_V1 = """\
12:pids:/system.slice/slurmd.service
11:freezer:/slurm/uid_1007/job_881204/step_0
9:devices:/slurm/uid_1007/job_881204/step_0
8:memory:/slurm/uid_1007/job_881204/step_0/task_0
1:name=systemd:/system.slice/slurmd.service
0::/system.slice/slurmd.service
"""


@pytest.mark.parametrize(
    ("cgroup", "job"),
    [
        # Slurm, one hierarchy: slurmstepd's scope, also where a host runs several slurmd.
        ("0::/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0\n", "slurm-1234"),
        ("0::/system.slice/slurmstepd.scope/job_1234/step_batch/user/task_special\n", "slurm-1234"),
        ("0::/system.slice/gpu7_slurmstepd.scope/job_77/step_extern/slurm\n", "slurm-77"),
        ("0::/system.slice/slurmstepd.scope/job_1234\n", "slurm-1234"),
        # Slurm, many hierarchies; a prefix for the node name.
        (SLURM_V1, "slurm-881204"),
        ("4:memory:/slurm_gpu7/uid_0/job_5/step_0\n", "slurm-5"),
        # Kubernetes: systemd and cgroupfs drivers, each quality of service, static pods, kind.
        (SYSTEMD_POD, f"pod-{UID}"),
        (
            f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{CONTAINER}.scope",
            f"pod-{UID}",
        ),
        (f"11:devices:/kubepods/besteffort/pod{UID}/{CONTAINER}\n", f"pod-{UID}"),
        (f"0::/kubepods/pod{UID}/{CONTAINER}\n", f"pod-{UID}"),
        (f"0::/kubepods/burstable/pod{'ab' * 16}/{CONTAINER}\n", f"pod-{'ab' * 16}"),
        (
            f"{KIND}/kubelet-kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-ab.scope",
            f"pod-{UID}",
        ),
        # Slurm that runs in pods: the job is what its nodes share.
        (
            f"0::/kubepods/pod{UID}/{CONTAINER}/system.slice/slurmstepd.scope/job_9/step_0",
            "slurm-9",
        ),
        # Neither.
        ("0::/system.slice/nvidia-persistenced.service\n", ""),
        ("0::/system.slice/docker-" + CONTAINER + ".scope\n", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/system.slice/slurmd.service\n", ""),
        ("0::/user.slice/job_1234/x\n", ""),
        (f"0::/user.slice/tripod{UID}\n", ""),
        ("0::/\n", ""),
        ("", ""),
    ],
)
def test_a_job_is_named_in_its_control_group(cgroup: str, job: str) -> None:
    """Each form gives the job; what only looks like one gives none."""
    assert job == job_of(cgroup)


@given(
    st.text()
    | st.lists(st.sampled_from(["0::", "/slurm", "/job_1", "/pod", UID, "\n"])).map("".join)
)
def test_nothing_in_a_control_group_raises(text: str) -> None:
    """Any text has an answer that fits into an event."""
    assert job_of(text).isascii()


def test_a_process_that_is_gone_had_the_job_it_had(tmp_path: Path) -> None:
    """Read once, kept for the fault's repetitions, and not for a later process with its PID."""
    now = [0.0]
    place = tmp_path / "4711"
    place.mkdir()
    (place / "cgroup").write_text(SLURM_V1)
    processes = JobLookup(tmp_path, lambda: now[0])
    assert "slurm-881204" == processes.job(4711, 100.0)
    (place / "cgroup").unlink()
    now[0] = KEPT_SECONDS
    assert "slurm-881204" == processes.job(4711, 100.0)
    now[0] = KEPT_SECONDS + 1
    assert ("", "") == (processes.job(4711, 100.0), processes.job(4712, 100.0))


STAT = "4711 (a) b (c) R 1 4711 4711 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1 1"


@pytest.mark.parametrize(
    ("stat", "seconds"),
    [
        (STAT.format(ticks=12_345), 123.45),
        ("4711 (python) R 1", None),
        ("", None),
        (STAT.format(ticks="soon"), None),
    ],
)
def test_when_a_process_began_is_read(stat: str, seconds: float | None) -> None:
    """The start is read whatever a process calls itself; what cannot be read is not known."""
    assert seconds == started_seconds(stat, 100)


@pytest.mark.parametrize(("late", "job"), [(0.0, "slurm-881204"), (1.0, "")])
def test_a_number_that_passed_on_names_no_job(tmp_path: Path, late: float, job: str) -> None:
    """An old line's process, read by an agent that was down, may be another by now."""
    started = 500.0 + CLOCKS_APART_SECONDS + late
    place = tmp_path / "4711"
    place.mkdir()
    (place / "cgroup").write_text(SLURM_V1)
    (place / "stat").write_text(STAT.format(ticks=int(started * TICKS_PER_SECOND)))
    assert job == JobLookup(tmp_path, lambda: 0.0).job(4711, 500.0)


def test_a_process_of_this_host_began_before_now() -> None:
    """The kernel's own form: this very process is older than this moment."""
    text = Path("/proc/self/stat").read_text(encoding="utf-8")
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    started = started_seconds(text, TICKS_PER_SECOND)
    assert started is not None
    assert 0 < started <= uptime
