"""Creates an SSL context of the standard library from the TLS configuration."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .config import Pem, TlsConfig
from .errors import ConfigError, PairError

VERSION: dict[str, ssl.TLSVersion] = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
VERIFY: dict[str, ssl.VerifyMode] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

Read = Callable[[str], bytes]


class Tls:
    """An SSL context, and the names that client certificates may have."""

    def __init__(self, config: TlsConfig, read: Read):
        """``read`` returns the content of a file or raises ConfigError. Raises ConfigError; PairError for the pair."""
        self._sans = frozenset(_canonical(san) for san in config.allowed_sans)
        authorities = _contents(config.client_ca, read) if config.client_ca else b""
        self.policy = (config, authorities)
        """Determines who may connect. If it changes, existing connections are closed, so clients must reconnect."""
        try:
            pair = _contents(config.cert, read), _contents(config.key, read)
        except ConfigError as error:
            raise PairError(str(error), self.policy) from None
        self.contents = (*self.policy, *pair)
        """Everything from which this object was made."""
        self._context = _context(config, authorities)
        try:
            _load_pair(self._context, *pair)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            names = f"{config.cert.key} and {config.key.key}"
            problem = f"tls_server_config: {names} are not a certificate and its unencrypted key in PEM ({reason})"
            raise PairError(problem, self.policy) from None

    def wrap(self, client: socket.socket) -> ssl.SSLSocket:
        """The encrypted socket, before the handshake."""
        return self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def check_peer(self, client: ssl.SSLSocket) -> None:
        """Call it after the handshake. Raises OSError if the client's certificate has none of the allowed names."""
        if not self._sans:
            return
        certificate = client.getpeercert() or {}
        names = certificate.get("subjectAltName", ())
        if not any(_canonical(str(name)) in self._sans for _, name in names):
            raise OSError("the client's certificate has none of the client_allowed_sans")


def _context(config: TlsConfig, authorities: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = VERSION[config.minimum], VERSION[config.maximum]
    context.verify_mode = VERIFY[config.verify]
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if config.prefer_server_ciphers:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.ciphers:
        context.set_ciphers(":".join(config.ciphers))
    if config.curves:
        _set_curves(context, config.curves)
    if authorities:
        try:
            context.load_verify_locations(cadata=authorities.decode())
        except (ssl.SSLError, ValueError):
            raise ConfigError("tls_server_config: client_ca_file holds no certificates in PEM") from None
    return context


def _set_curves(context: ssl.SSLContext, curves: tuple[str, ...]) -> None:
    set_groups = getattr(context, "set_groups", None)  # Python 3.15
    if set_groups:
        set_groups(":".join(curves))
    elif len(curves) == 1 and curves[0] != "X25519":
        context.set_ecdh_curve(curves[0])
    else:
        raise ConfigError(
            "tls_server_config: this Python can use one curve out of CurveP256, CurveP384 and CurveP521, but not a "
            "list; without curve_preferences it uses X25519 and these three"
        )


def _load_pair(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    with _as_file(cert) as cert_path, _as_file(key) as key_path:
        context.load_cert_chain(cert_path, key_path, password=_no_password)


def _no_password() -> str:
    raise ValueError("encrypted")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path to ``data``, which stays in memory. OpenSSL's loader accepts only paths."""
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _contents(pem: Pem, read: Read) -> bytes:
    return read(pem.path) if pem.path else pem.text.encode()


def _canonical(name: str) -> str:
    """The canonical form of an IP address, so that different spellings are equal. Other names are unchanged."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name
