"""What the command prints for arguments that it does not know."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from whyidle.cli.main import main


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("report", "--nonsense"), "whyidle report"),
        (("rules", "--format", "operator", "more"), "whyidle rules"),
        (("bench", "storage", ".", "--nonsense"), "whyidle bench storage"),
        (("bench", "storage", ".", "--json", ".", "--nonsense"), "whyidle bench storage"),
        (("bench", "network", "--nonsense"), "whyidle bench network"),
        (("goodput", "run", "--json", "more"), "whyidle goodput"),
        (("--nonsense", "report", "--json"), "whyidle"),
        (("nonsense",), "whyidle"),
    ],
)
def test_unknown_arguments_are_answered_with_the_usage_of_their_command(
    words: tuple[str, ...], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"usage: {usage} [")
    assert lines[-1].startswith(f"{usage}: error: ")
    assert "more" in lines[-1] or "nonsense" in lines[-1]


@pytest.mark.parametrize("words", [("rules", "--print-config"), ("report", "--dir", "."), ("agent", "--nonsense")])
def test_a_closed_output_prints_no_traceback(words: tuple[str, ...], tmp_path: Path) -> None:
    log = tmp_path / "log"
    for closing in (">&-", "2>&-", ">&- 2>&-"):
        command = f"{shlex.quote(sys.executable)} -m whyidle {shlex.join(words)} {closing}"
        done = subprocess.run(["bash", "-c", f"({command}) > out 2> {log}"], cwd=tmp_path)
        assert "Traceback" not in log.read_text()
        assert done.returncode == {"rules": 0, "report": 1, "agent": 2}[words[0]]
