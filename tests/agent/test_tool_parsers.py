"""Reads what the tools print, as their documented formats have it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.maintenance.diagnostics import tool_parsers
from agent.maintenance.diagnostics.findings import CheckParameters, ToolOutput
from agent.observations import CheckFinding
from schemas.node_events import GpuIdentity

OUTPUTS = Path(__file__).parent / "outputs"
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(2)]
ASKED = CheckParameters(gpus=tuple(GpuIdentity(index=n, uuid=uuid) for n, uuid in enumerate(UUIDS)))


def printed(name: str, code: int = 0) -> ToolOutput:
    """Give an output on file."""
    return ToolOutput(code, (OUTPUTS / name).read_text())


def says(finding: CheckFinding) -> tuple[bool, bool, tuple[int, ...]]:
    """Give what matters: passed, ran, which GPUs failed."""
    return finding.ok, finding.ran, finding.gpus


PASSED, FAILED, NOT_RUN = (True, True, ()), (False, True, ()), (False, False, ())


@pytest.mark.parametrize(
    ("output", "expected", "detail"),
    [
        (
            ToolOutput(0, "".join(f"{n}, {u}, 00000000:1B:00.0\n" for n, u in enumerate(UUIDS))),
            PASSED,
            "it shows 2 GPUs",
        ),
        (
            ToolOutput(0, f"0, {UUIDS[0].upper()}, 00000000:1B:00.0\n"),
            (False, True, (1,)),
            "GPUs that it does not show: 1",
        ),
        (printed("nvidia-smi-lost.txt", 15), FAILED, "exit status 15: Unable to determine"),
        (
            ToolOutput(
                9, "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n"
            ),
            FAILED,
            "exit status 9: NVIDIA-SMI has failed",
        ),
    ],
)
def test_nvidia_smi(output: ToolOutput, expected: object, detail: str):
    """The check passes where the tool shows every GPU that NVML shows."""
    found = tool_parsers.nvidia_smi(output, ASKED)
    assert says(found) == expected
    assert found.detail.startswith(detail)


def test_nvidia_smi_must_show_something():
    """No GPU at all is a failure, even where NVML shows none either."""
    assert says(tool_parsers.nvidia_smi(ToolOutput(0, ""), CheckParameters())) == FAILED


@pytest.mark.parametrize(
    ("output", "expected", "detail"),
    [
        (
            printed("dcgm-4-level1.json", 226),
            PASSED,
            "level 1: 1 tests passed; settings to check: software: Persistence mode for GPU 1",
        ),
        (
            printed("dcgm-4-level3-fail.json", 226),
            (False, True, (1,)),
            "memory: A DBE occurred during the test",
        ),
        (printed("dcgm-3-level2.json"), (False, True, (1,)), "PCIe: Detected 4133 PCIe replays"),
        (
            ToolOutput(
                255, "Error: unable to establish a connection to the specified host: localhost"
            ),
            NOT_RUN,
            "could not be run: Error: unable to establish a connection",
        ),
        (
            ToolOutput(
                1,
                '{"DCGM Diagnostic": {"runtime_error": "Diagnostic is already running",'
                ' "test_categories": []}}',
            ),
            NOT_RUN,
            "could not be run: Diagnostic is already running",
        ),
        (
            ToolOutput(
                0,
                '{"DCGM GPU Diagnostic": {"test_categories": [{"category": "Hardware", "tests": '
                '[{"name": "Memory", "results": [{"status": "Pass", "gpu_ids": "0"}, {"status": '
                '"Fail", "gpu_ids": "1,0", "warnings": "bad cells"}]}]}]}}',
            ),
            (False, True, (0, 1)),
            "Memory: bad cells",
        ),
        (
            ToolOutput(0, '{"DCGM Diagnostic": {"test_categories": []}}'),
            NOT_RUN,
            "could not be run",
        ),
    ],
)
def test_dcgm(output: ToolOutput, expected: object, detail: str):
    """The JSON of every version is read; a matter of settings alone fails nothing."""
    found = tool_parsers.dcgm(output, ASKED)
    assert says(found) == expected
    assert found.detail.startswith(detail)


@pytest.mark.parametrize(
    ("gbps_min", "expected", "detail"),
    [
        (
            0.0,
            PASSED,
            "least GB/s: host_to_device_memcpy_ce 12.87, device_to_device_memcpy_read_ce",
        ),
        (20.0, FAILED, "host_to_device_memcpy_ce: 12.87 GB/s, expected 20"),
    ],
)
def test_nvbandwidth(gbps_min: float, expected: object, detail: str):
    """The slowest pair counts."""
    found = tool_parsers.nvbandwidth(
        printed("nvbandwidth.json"), CheckParameters(gbps_min=gbps_min)
    )
    assert says(found) == expected
    assert found.detail.startswith(detail)
    assert found.metrics["host_to_device_memcpy_ce_gbps"] == 12.87


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"nvbandwidth": {"error": "CUDA_ERROR_SYSTEM_NOT_READY: cuInit(0)"}}', FAILED),
        ('{"nvbandwidth": {"testcases": [{"name": "x", "status": "Error"}]}}', FAILED),
        ('{"nvbandwidth": {"testcases": [{"name": "x", "status": "Waived"}]}}', NOT_RUN),
        ("terminate called after throwing an instance", NOT_RUN),
    ],
)
def test_nvbandwidth_errors(text: str, expected: object):
    """A test that ends in an error fails; where nothing was measured, nothing is known."""
    assert says(tool_parsers.nvbandwidth(ToolOutput(1, text), ASKED)) == expected


@pytest.mark.parametrize(
    ("output", "gbps_min", "expected", "detail"),
    [
        (printed("nccl.txt"), 300.0, PASSED, "350.747 GB/s over the bus"),
        (printed("nccl.txt"), 400.0, FAILED, "350.747 GB/s over the bus, expected 400"),
        (printed("nccl-wrong.txt", 1), 0.0, FAILED, "32 values came out wrong"),
        (
            printed("nccl-failure.txt", 3),
            0.0,
            FAILED,
            "node-7: Test NCCL failure common.cu:958 'unhandled cuda error",
        ),
        (
            ToolOutput(127, "", "error while loading shared libraries: libnccl.so.2"),
            0.0,
            NOT_RUN,
            "",
        ),
    ],
)
def test_nccl(output: ToolOutput, gbps_min: float, expected: object, detail: str):
    """Wrong values fail it, and so does too little bandwidth, and an error of NCCL."""
    found = tool_parsers.nccl(output, CheckParameters(gbps_min=gbps_min))
    assert says(found) == expected
    assert found.detail.startswith(detail)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (printed("burn.txt"), PASSED),
        (printed("burn-faulty.txt"), (False, True, (1,))),
        (ToolOutput(1, "Couldn't open compare.ptx"), NOT_RUN),
    ],
)
def test_burn(output: ToolOutput, expected: object):
    """The tool's last words decide for each GPU."""
    assert says(tool_parsers.burn(output, ASKED)) == expected


PARSERS = (
    tool_parsers.nvidia_smi,
    tool_parsers.memory,
    tool_parsers.dcgm,
    tool_parsers.nvbandwidth,
    tool_parsers.nccl,
    tool_parsers.burn,
)


@given(
    st.sampled_from(sorted(OUTPUTS.iterdir())),
    st.integers(0, 4000),
    st.text(max_size=30),
    st.integers(-15, 255),
)
def test_a_damaged_output_never_raises(file: Path, at: int, noise: str, code: int):
    """Each parser gives a finding whatever is cut from or written into an output."""
    text = file.read_text()
    for output in (
        ToolOutput(code, text[:at] + noise + text[at + 9 :]),
        ToolOutput(code, noise, text[at:]),
    ):
        found = [parse(output, ASKED) for parse in PARSERS]
        assert all(isinstance(each.detail, str) and each.detail for each in found)
