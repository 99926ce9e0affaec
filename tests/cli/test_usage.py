"""What the command prints for arguments that it does not know."""

from __future__ import annotations

import pytest

from whyidle.cli.main import main


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("report", "--nonsense"), "whyidle report"),
        (("rules", "--format", "operator", "more"), "whyidle rules"),
        (("bench", "storage", ".", "--nonsense"), "whyidle bench storage"),
        (("bench", "network", "--nonsense"), "whyidle bench network"),
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
