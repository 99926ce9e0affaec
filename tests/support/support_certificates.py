"""Certificates for tests, made by the openssl command: an authority, and certificates that it signs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="makes certificates with the openssl command")


@dataclass(frozen=True)
class Pair:
    cert: Path
    key: Path


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def authority(folder: Path, name: str = "ca") -> Pair:
    """A new authority."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", pair.key, "-out", pair.cert, "-addext", "keyUsage=keyCertSign,cRLSign"),
    )
    return pair


def signed(folder: Path, by: Pair, name: str, sans: str) -> Pair:
    """A certificate for the alternative names ``sans``, such as ``DNS:a,IP:127.0.0.1``."""
    pair, request, extensions = (Pair(folder / f"{name}.crt", folder / f"{name}.key"), *_paths(folder, name))
    _openssl(
        *("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", pair.key, "-out", request),
    )
    # Python 3.13 requires the authority's key identifier, as RFC 5280 does.
    extensions.write_text(f"subjectAltName={sans}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n")
    _openssl(
        *("x509", "-req", "-in", request, "-CA", by.cert, "-CAkey", by.key, "-days", "2", "-CAcreateserial"),
        *("-extfile", extensions, "-out", pair.cert),
    )
    return pair


def _paths(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.csr", folder / f"{name}.ext"
