"""Every nats-server that the project starts or documents stores what it acknowledges."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("compose", "config", "deploy", "docs", "services")
SUFFIXES: Final = {".conf", ".md", ".py", ".sh", ".yaml", ".yml"}
BLOCK: Final = re.compile(r"^\s*jetstream ?\{(.{,300})", re.DOTALL | re.MULTILINE)
"""The beginning of the server's block, in a file or in a template."""
SYNCED: Final = re.compile(r"sync_interval: (always|\{sync\})")
"""`{sync}`: the embedded server's, which is `always` but for fleets in temporary directories."""
FLAG: Final = re.compile(r"--jetstream\b|\"-js\"")
"""On the command line there is no such setting, so it must be in a file."""


def test_every_server_syncs_each_write_before_it_is_acknowledged() -> None:
    """Each server syncs every write; by default a power cut would lose those of two minutes."""
    files = [ROOT / "README.md"]
    for folder in FOLDERS:
        files += (each for each in (ROOT / folder).rglob("*") if each.suffix in SUFFIXES)
    texts = {each.relative_to(ROOT): each.read_text(encoding="utf-8") for each in files}
    blocks = [(path, each) for path, text in texts.items() for each in BLOCK.findall(text)]
    assert len(blocks) >= 4
    assert [path for path, block in blocks if not SYNCED.search(block)] == []
    assert [path for path, text in texts.items() if FLAG.search(text)] == []
