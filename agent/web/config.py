"""Parses the file of ``--web.config.file``, in the format that Prometheus exporters share.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md

Everything that can be checked without opening other files is checked. Settings that Python's TLS does not support, and
settings that look like protection but have no effect, are refused with an error message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .errors import ConfigError
from .messages import Headers
from .yaml_file import load

CIPHERS: dict[str, str] = {
    f"TLS_ECDHE_{key}_WITH_{suite}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for suite, openssl in (
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""Cipher suites of TLS 1.2: Go's name, which the file uses -> OpenSSL's name."""
CIPHERS_OF_TLS13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Cipher suites of TLS 1.3. They are always on, as in Go."""
CURVES: dict[str, str] = {
    "CurveP256": "prime256v1",
    "CurveP384": "secp384r1",
    "CurveP521": "secp521r1",
    "X25519": "X25519",
}
HEADERS: dict[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
"""The headers that may be set -> the allowed values, or () for any value."""
VERSIONS: tuple[str, ...] = ("TLS12", "TLS13")
Verify = Literal["none", "optional", "required"]
CLIENT_AUTH: dict[str, Verify] = {
    "NoClientCert": "none",
    "RequestClientCert": "none",  # the certificate would not be checked, so the server does not ask for one
    "VerifyClientCertIfGiven": "optional",
    "RequireAndVerifyClientCert": "required",
}

_HASH = re.compile(r"\$2[abxy]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Pem:
    """Certificates or a key, in a file or in the configuration itself."""

    key: str  # its key in the configuration
    path: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    cert: Pem
    key: Pem
    client_ca: Pem | None = None
    verify: Verify = "none"
    allowed_sans: tuple[str, ...] = ()
    minimum: str = "TLS12"
    maximum: str = "TLS13"
    ciphers: tuple[str, ...] = ()  # for TLS 1.2, OpenSSL's names; empty for OpenSSL's default
    prefer_server_ciphers: bool = True
    curves: tuple[str, ...] = ()  # OpenSSL's names; empty for OpenSSL's default


@dataclass(frozen=True, slots=True)
class WebConfig:
    tls: TlsConfig | None = None
    headers: Headers = ()
    users: Mapping[str, str] | None = None  # name -> bcrypt hash
    interval_seconds: float = 0.0  # between requests; 0 for no limit
    burst: int = 0


def parse(data: bytes, folder: str) -> WebConfig:
    """Parses the configuration in ``data``. Relative paths in it start at ``folder``. Raises ConfigError."""
    top = _Section(load(data), "", _TOP)
    http = _Section(top.get("http_server_config"), "http_server_config", _HTTP)
    limit = _Section(top.get("rate_limit"), "rate_limit", _LIMIT)
    interval, burst = limit.get("interval", 0.0), limit.get("burst", 0)
    if interval and burst < 1:
        raise ConfigError("rate_limit: burst must be at least 1, otherwise no request would be answered")
    headers = http.get("headers", {})
    return WebConfig(_tls(top, folder), tuple(headers.items()), top.get("basic_auth_users"), interval, burst)


def _tls(top: _Section, folder: str) -> TlsConfig | None:
    section = _Section(top.get("tls_server_config"), "tls_server_config", _TLS)
    if not section:
        return None
    cert, key = (section.pem(name, folder) for name in ("cert", "key"))
    if not cert or not key:
        lacking = "key_file" if cert else "cert_file"
        raise ConfigError(f"tls_server_config: {lacking} is missing")
    verify = section.get("client_auth_type", "none")
    client_ca = section.pem("client_ca", folder)
    sans = section.get("client_allowed_sans", ())
    if client_ca and verify == "none":
        raise ConfigError("tls_server_config: client_ca_file has no effect without a client_auth_type that verifies")
    if not client_ca and verify != "none":
        raise ConfigError("tls_server_config: client_auth_type needs client_ca_file, the authority to trust")
    if sans and verify != "required":
        raise ConfigError("tls_server_config: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
    minimum, maximum = section.get("min_version", "TLS12"), section.get("max_version", "TLS13")
    suites = section.get("cipher_suites", ())
    ciphers = tuple(CIPHERS[name] for name in suites if name in CIPHERS)
    if suites and not ciphers:  # no suite for TLS 1.2
        minimum = "TLS13"
    if minimum > maximum:
        raise ConfigError(
            "tls_server_config: min_version, max_version and cipher_suites together leave no version of TLS"
        )
    prefer = section.get("prefer_server_cipher_suites", True)
    curves = section.get("curve_preferences", ())
    return TlsConfig(cert, key, client_ca, verify, sans, minimum, maximum, ciphers, prefer, curves)


Check = Callable[[object, str], Any]
"""Takes a value and its name. Returns the converted value, or raises ConfigError."""


class _Section(dict[str, Any]):
    """A mapping in the file, with checked keys and values. Empty values are left out."""

    def __init__(self, raw: object, name: str, checks: Mapping[str, Check]):
        super().__init__()
        self._prefix = f"{name}: " if name else ""
        for key, value in _mapping(raw, name).items():
            if key not in checks:
                known = ", ".join(checks)
                raise ConfigError(f"{self._prefix}unknown key {key!r}: the known keys are {known}")
            if value is not None and value != "":
                self[key] = checks[key](value, f"{self._prefix}{key}")

    def pem(self, name: str, folder: str) -> Pem | None:
        path, text = self.get(f"{name}_file", ""), self.get(name, "")
        if path and text:
            raise ConfigError(f"{self._prefix}both {name} and {name}_file are set: remove one of them")
        if path:
            return Pem(f"{name}_file", os.path.join(folder, path))
        return Pem(name, text=text) if text else None


def _mapping(value: object, name: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name or 'the file'} must be a mapping of keys to values")
    return value


def _as_it_is(value: object, name: str) -> object:
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{name}: {value!r} must be a string: write it in quotes")
    return value


def _boolean(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")
    return value


def _texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{name} must be a list")
    return tuple(_text(entry, name) for entry in value)


def _one_of(known: Mapping[str, Any] | tuple[str, ...]) -> Check:
    def check(value: object, name: str) -> Any:
        if not isinstance(value, str) or value not in known:
            raise ConfigError(f"{name}: {value!r} is not supported: the supported values are {', '.join(known)}")
        return known[value] if isinstance(known, Mapping) else value

    return check


def _each(check: Check) -> Check:
    return lambda value, name: tuple(check(entry, name) for entry in _texts(value, name))


def _headers(value: object, name: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for key, content in _mapping(value, name).items():
        if key not in HEADERS:
            raise ConfigError(f"{name}: {key!r} cannot be set: the headers that can be set are {', '.join(HEADERS)}")
        if content is None or content == "":
            continue
        if not (text := _text(content, f"{name}: {key}")).isprintable():
            raise ConfigError(f"{name}: {key} must be one line of text")
        if HEADERS[key] and text not in HEADERS[key]:
            raise ConfigError(f"{name}: {key} is {' or '.join(HEADERS[key])}, not {text!r}")
        headers[key] = text
    return headers


def _users(value: object, name: str) -> dict[str, str]:
    users: dict[str, str] = {}
    for user, secret in _mapping(value, name).items():
        user = _text(user, name)
        if ":" in user:
            raise ConfigError(f"{name}: a user name must not contain a colon: {user!r}")
        if not isinstance(secret, str) or not _HASH.fullmatch(secret):  # it may be a password, so it is not shown
            raise ConfigError(f"{name}: the value for {user!r} is not a bcrypt hash: make one with htpasswd -nB {user}")
        users[user] = secret
    return users


def _duration(value: object, name: str) -> float:
    """The seconds of a duration in Go's format. Go reads plain numbers as nanoseconds; here only 0 is accepted."""
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if text == "0":
        return 0.0
    if not re.fullmatch(f"(?:{_DURATION.pattern})+", text):
        raise ConfigError(f"{name}: {value!r} is not a duration: write 100ms or 1s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _count(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ConfigError(f"{name}: {value!r} is not a whole number")
    return value


_TOP: dict[str, Check] = {
    "tls_server_config": _as_it_is,
    "http_server_config": _as_it_is,
    "basic_auth_users": _users,
    "rate_limit": _as_it_is,
}
_TLS: dict[str, Check] = {
    "cert": _text,
    "key": _text,
    "client_ca": _text,
    "cert_file": _text,
    "key_file": _text,
    "client_ca_file": _text,
    "client_auth_type": _one_of(CLIENT_AUTH),
    "client_allowed_sans": _texts,
    "min_version": _one_of(VERSIONS),
    "max_version": _one_of(VERSIONS),
    "cipher_suites": _each(_one_of((*CIPHERS, *CIPHERS_OF_TLS13))),
    "prefer_server_cipher_suites": _boolean,
    "curve_preferences": _each(_one_of(CURVES)),
}
_HTTP: dict[str, Check] = {"http2": _boolean, "headers": _headers}
_LIMIT: dict[str, Check] = {"interval": _duration, "burst": _count}
