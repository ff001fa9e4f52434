"""Each kind's conformance suite fails a plugin that misbehaves, in the package of a new plugin.

One that hangs fails every suite of asynchronous methods at its deadline; that takes minutes, and is
left to the suites' own limits.
"""

from pathlib import Path
from typing import Final

import pytest

from services.cli.plugin_package import KIND_NAMES, package_files
from tests.support.plugin_suite import failed_modules

METHODS: Final = {
    "provider": "async list",
    "scheduler": "async score",
    "notifier": "async workloads",
    "authenticator": "async authenticate",
    "alert-channel": "async send",
    "autoscaler": "recommend",
    "metrics-source": "async load",
    "remediator": "choose",
    "health-check": "async run",
}
"""Kind -> the method that misbehaves."""
MISBEHAVIOURS: Final = {
    "raises": "raise RuntimeError('spoiled')",
    "answers_nothing": "return None",
    "answers_another_type": "return object()",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_suite_fails_a_plugin_that_misbehaves(kind: str, tmp_path: Path) -> None:
    """The untouched plugin beside them passes."""
    texts = package_files(KIND_NAMES[kind], "night-owl")
    module, test = "navarch_night_owl", texts["test_navarch_night_owl.py"]
    define, _, method = METHODS[kind].rpartition(" ")
    for name, body in {"good": "", **MISBEHAVIOURS}.items():
        spoiled = f"{define} def _spoiled(self, *given, **named):\n    {body}\n".lstrip()
        change = f"\n\n{spoiled}\n\nNightOwl.{method} = _spoiled\n" if body else ""
        (tmp_path / f"{module}_{name}.py").write_text(texts[f"{module}.py"] + change)
        (tmp_path / f"test_{name}.py").write_text(test.replace(module, f"{module}_{name}"))
    (tmp_path / "pyproject.toml").write_text(texts["pyproject.toml"])
    assert failed_modules(tmp_path) == {f"test_{name}.py" for name in MISBEHAVIOURS}
