"""Renders deploy/kustomize/base from the chart: `python -m tests.real.kustomize_base` writes it."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy/helm/navarch"
EXAMPLE: Final = ROOT / "deploy/helm/example-values.yaml"
BASE: Final = ROOT / "deploy/kustomize/base"
KUBERNETES: Final = "1.37.0"
HEAD: Final = "# Rendered from deploy/helm by `python -m tests.real.kustomize_base`. Do not edit.\n"


def tool(name: str) -> str:
    """Return the path of a program, or nothing where there is none.

    The script tests/real/kubernetes/install-tools.sh or the system has installed it.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = os.environ.get("NAVARCH_DEPLOY_TOOLS") or Path(cache) / "navarch" / "deploy-tools"
    return shutil.which(name, path=str(folder)) or shutil.which(name) or ""


def run(program: str, *arguments: str) -> str:
    """Return a program's output; its failure raises CalledProcessError with its errors."""
    done = subprocess.run(
        (tool(program), *arguments), check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout


def rendered(*more: str, values: Path | None = EXAMPLE) -> str:
    """Return the chart's manifests; `more` has options of helm."""
    given = ("-f", str(values)) if values else ()
    fixed = ("--namespace", "navarch", "--kube-version", KUBERNETES)
    return run("helm", "template", "navarch", str(CHART), *fixed, *given, *more)


def files() -> dict[str, str]:
    """The base's files that follow from the chart."""
    config = yaml.safe_load(rendered("--show-only", "templates/config-map.yaml"))
    external = ("--no-hooks", "--set", "existingConfigMap=navarch-config")
    lines = rendered(*external).splitlines()
    kept = [line for line in lines if line.strip() and not line.startswith("# Source: ")]
    return {
        "services.yaml": HEAD + "\n".join(kept) + "\n",
        "navarch.yaml": HEAD + config["data"]["navarch.yaml"],
    }


def main() -> None:
    """Write the files of the base."""
    for name, text in files().items():
        (BASE / name).write_text(text)


if __name__ == "__main__":
    main()
