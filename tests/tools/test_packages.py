"""Programs of another Debian release: what is missing is said. `make test-prometheus` tests the rest."""

from __future__ import annotations

from pathlib import Path

import packages
import pytest


def test_says_that_it_needs_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packages.main([str(tmp_path / "debian"), "sid", "prometheus"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "packages: needs apt-get, which only Debian and its relatives have\n"


def test_takes_the_mirror_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first `apt-get update`, the origin of a repository is not known."""
    named = "||http://security.example.org/debian-security/\n||http://mirror.example.org/debian/\n"
    apt = tmp_path / "apt-get"
    apt.write_text(f"#!/bin/sh\ncat <<'END'\n{named}END\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert packages.mirror() == "http://mirror.example.org/debian"
    apt.write_text(f"#!/bin/sh\ncat <<'END'\n{named}Debian|Debian|http://own.example.org/mirror\nEND\n")
    assert packages.mirror() == "http://own.example.org/mirror"
    apt.write_text("#!/bin/sh\n")
    assert packages.mirror() == packages.MIRROR
