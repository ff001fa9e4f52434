"""Parses the output of diagnostic tools. Pure: text in, a CheckFinding out; no text raises.

Formats as of: nvidia-smi of drivers 450 to 580 (CSV query), dcgmi of DCGM 2.x, 3.x and 4.x (`diag
-j`), nvbandwidth 0.5 to 0.8 (`-j`), nccl-tests 2.13 to 2.17 (text), gpu-burn 1.0 to 1.1 (text).
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from agent.maintenance.diagnostics.findings import CheckParameters, ToolOutput, first_words, not_run
from agent.observations import CheckFinding
from schemas.node_events import Metric

GPUS_MAX: Final = 64
PROBLEMS_MAX: Final = 8
CONFIGURATION: Final = 5
"""DCGM's severity of settings (persistence mode …), as opposed to hardware."""
IN_USE: Final = frozenset({2, 46, 201})
"""CUDA's out of memory, device unavailable, invalid context: the GPU is in use."""

_UUID = re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_BUS = re.compile(r"Avg bus bandwidth\s*:\s*([0-9.]{1,16})")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,12}|N/A)\s*(OK|FAILED)?")
_BURNT = re.compile(r"^\s*GPU (\d{1,3}): (OK|FAULTY)\b", re.MULTILINE)
_JSON = msgspec.json.Decoder()


def nvidia_smi(output: ToolOutput, parameters: CheckParameters) -> CheckFinding:
    """Read `nvidia-smi --query-gpu=index,uuid --format=csv,noheader`: it shows what NVML shows."""
    name = "nvidia-smi"
    shown = {found.lower() for found in _UUID.findall(output.text)}
    if output.code != 0:
        detail = f"exit status {output.code}: {first_words(output)}"
        return CheckFinding(name, ok=False, detail=detail)
    missing = tuple(gpu.index for gpu in parameters.gpus if gpu.uuid.lower() not in shown)
    if missing:
        detail = f"GPUs that it does not show: {', '.join(map(str, missing))}"
        return CheckFinding(name, ok=False, detail=detail, gpus=missing)
    if not shown:
        return CheckFinding(name, ok=False, detail="it shows no GPU")
    return CheckFinding(name, ok=True, detail=f"it shows {len(shown)} GPUs")


def memory(output: ToolOutput, parameters: CheckParameters) -> CheckFinding:
    """Read our own memory test: a JSON object a line, one for each GPU or one with an error."""
    name = "memory"
    index_of = {gpu.uuid.lower(): gpu.index for gpu in parameters.gpus}
    passed, busy, failed, problems = 0, 0, [], []
    for line in output.text.splitlines():
        found = _object(line)
        if not found:
            continue
        code, what = found.get("code", 0), str(found.get("error", ""))
        if not what:
            passed += 1
        elif code in IN_USE:
            busy += 1
        else:
            failed.append(index_of.get(str(found.get("uuid", "")).lower(), -1))
            problems.append(what)
    if problems:
        gpus = tuple(index for index in failed if index >= 0)
        return CheckFinding(name, ok=False, detail="; ".join(problems[:PROBLEMS_MAX]), gpus=gpus)
    if output.code != 0 or passed + busy == 0:
        return not_run(name, output)
    detail = f"{passed} GPUs hold what is written to them"
    return CheckFinding(name, ok=True, detail=f"{detail}, {busy} are in use" if busy else detail)


def dcgm(output: ToolOutput, parameters: CheckParameters) -> CheckFinding:
    """Read `dcgmi diag -r LEVEL -j`: the JSON, whatever the exit status and the text around it."""
    name = "dcgm"
    begin, end = output.text.find("{"), output.text.rfind("}")
    document = _object(output.text[begin : end + 1]) if begin >= 0 else {}
    tree = document.get("DCGM Diagnostic") or document.get("DCGM GPU Diagnostic")
    if not isinstance(tree, dict):
        return not_run(name, output)
    counted: dict[str, int] = {}
    problems: list[str] = []
    settings: list[str] = []
    gpus: set[int] = set()
    for test, result in _dcgm_results(tree):
        status = str(result.get("status", "")).lower()
        counted[status] = counted.get(status, 0) + 1
        if status != "fail":
            continue
        texts, configuration = _dcgm_warnings(result)
        where = settings if configuration else problems
        where.append(f"{test}: {texts or 'failed'}")
        if not configuration:
            gpus.update(_dcgm_gpus(result))
    if error := tree.get("runtime_error"):
        return CheckFinding(name, ok=False, detail=f"could not be run: {error}", ran=False)
    if not counted.get("pass") and not problems and not settings:
        return not_run(name, output)
    metrics: dict[str, Metric] = {"level": parameters.level, "passed": counted.get("pass", 0)}
    metrics["failed"] = len(problems)
    if problems:
        detail = "; ".join(problems[:PROBLEMS_MAX])
        return CheckFinding(
            name, ok=False, detail=detail, gpus=tuple(sorted(gpus)), metrics=metrics
        )
    detail = f"level {parameters.level}: {counted.get('pass', 0)} tests passed"
    if settings:
        detail += f"; settings to check: {'; '.join(settings[:PROBLEMS_MAX])}"
    return CheckFinding(name, ok=True, detail=detail, metrics=metrics)


def _dcgm_results(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the test and each of its results, of whichever version."""
    for category in _dicts(tree.get("test_categories")):
        for test in _dicts(category.get("tests")):
            summary = test.get("test_summary")
            results = list(_dicts(test.get("results")))
            if not results and isinstance(summary, dict):
                results = [summary]
            for result in results:
                yield str(test.get("name", "?")), result


def _dcgm_warnings(result: dict[str, Any]) -> tuple[str, bool]:
    """Give the texts of a result, and whether they are all about settings."""
    warnings = result.get("warnings") or result.get("warning") or []
    if isinstance(warnings, str):
        return warnings, False
    texts, severities = [], []
    for each in warnings if isinstance(warnings, list) else []:
        texts.append(str(each.get("warning", "")) if isinstance(each, dict) else str(each))
        severities.append(each.get("error_severity") if isinstance(each, dict) else None)
    configuration = bool(severities) and all(each == CONFIGURATION for each in severities)
    return ", ".join(filter(None, texts)), configuration


def _dcgm_gpus(result: dict[str, Any]) -> Iterator[int]:
    """GPUs of a result: `entity_id` since 4.0, `gpu_ids` ("0,1") before."""
    if result.get("entity_group") == "GPU" and isinstance(result.get("entity_id"), int):
        yield result["entity_id"]
    for part in str(result.get("gpu_ids", "")).split(",")[:GPUS_MAX]:
        if part.strip().isdecimal():
            yield int(part)


def nvbandwidth(output: ToolOutput, parameters: CheckParameters) -> CheckFinding:
    """Read `nvbandwidth -j`: each test's status, and the least bandwidth of its matrix."""
    name = "nvbandwidth"
    begin = output.text.find("{")
    tree = _object(output.text[begin:]).get("nvbandwidth") if begin >= 0 else None
    if not isinstance(tree, dict):
        return not_run(name, output)
    if error := tree.get("error"):
        return CheckFinding(name, ok=False, detail=str(error))
    problems, passed = [], 0
    metrics: dict[str, Metric] = {}
    for case in _dicts(tree.get("testcases")):
        what, status = str(case.get("name", "?"))[:64], str(case.get("status", "?"))
        speeds = [speed for row in case.get("bandwidth_matrix") or () for speed in _numbers(row)]
        if status not in ("Passed", "Waived"):
            problems.append(f"{what}: {case.get('error') or status}")
        elif speeds:
            passed += 1
            metrics[f"{what}_gbps"] = min(speeds)
            if min(speeds) < parameters.gbps_min:
                problems.append(f"{what}: {min(speeds):g} GB/s, expected {parameters.gbps_min:g}")
    if problems:
        return CheckFinding(
            name, ok=False, detail="; ".join(problems[:PROBLEMS_MAX]), metrics=metrics
        )
    if not passed:
        return not_run(name, output)
    least = ", ".join(f"{what.removesuffix('_gbps')} {value:g}" for what, value in metrics.items())
    return CheckFinding(name, ok=True, detail=f"least GB/s: {least}", metrics=metrics)


def nccl(output: ToolOutput, parameters: CheckParameters) -> CheckFinding:
    """Read `all_reduce_perf`: wrong values, and the average bus bandwidth."""
    name = "nccl"
    speed, bounds = _BUS.search(output.text), _BOUNDS.search(output.text)
    if speed is None or bounds is None:
        if failure := _failure_line(output.text):
            return CheckFinding(name, ok=False, detail=failure)
        return not_run(name, output)
    gbps = _number(speed.group(1)) or 0.0
    metrics: dict[str, Metric] = {"bus_gbps": gbps}
    if bounds.group(2) == "FAILED" or bounds.group(1) not in ("0", "N/A"):
        detail = f"{bounds.group(1)} values came out wrong"
        return CheckFinding(name, ok=False, detail=detail, metrics=metrics)
    if gbps < parameters.gbps_min:
        detail = f"{gbps:g} GB/s over the bus, expected {parameters.gbps_min:g}"
        return CheckFinding(name, ok=False, detail=detail, metrics=metrics)
    if output.code != 0:
        detail = f"exit status {output.code}: {first_words(output)}"
        return CheckFinding(name, ok=False, detail=detail, metrics=metrics)
    return CheckFinding(name, ok=True, detail=f"{gbps:g} GB/s over the bus", metrics=metrics)


def _failure_line(text: str) -> str:
    """Find the line in which nccl-tests say what failed (`… Test NCCL failure common.cu:…`)."""
    return next((line.strip() for line in text.splitlines() if "failure" in line.lower()), "")


def burn(output: ToolOutput, parameters: CheckParameters) -> CheckFinding:
    """Read `gpu_burn`: its last words, `GPU 0: OK` or `GPU 0: FAULTY` for each GPU."""
    name = "burn"
    tail = output.text[output.text.rfind("Tested ") :] if "Tested " in output.text else ""
    found = _BURNT.findall(tail)
    if not found:
        return not_run(name, output)
    faulty = tuple(int(index) for index, word in found if word == "FAULTY")
    if faulty:
        detail = f"GPUs that computed wrongly: {', '.join(map(str, faulty))}"
        return CheckFinding(name, ok=False, detail=detail, gpus=faulty)
    return CheckFinding(name, ok=True, detail=f"{len(found)} GPUs burnt for {parameters.seconds} s")


def _object(text: str) -> dict[str, Any]:
    """Decode a JSON object; empty if the text is not one."""
    try:
        found = _JSON.decode(text.strip())
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (each for each in value if isinstance(each, dict))


def _numbers(row: Any) -> Iterator[float]:
    for each in row if isinstance(row, list) else ():
        number = _number(str(each))
        if number is not None:
            yield number


def _number(text: str) -> float | None:
    """Parse a number; None if it is not one (`N/A`)."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None
