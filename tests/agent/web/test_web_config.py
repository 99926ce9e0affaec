"""--web.config.file: what it may contain, what it does to connections, and what happens when it changes."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_agent import agent, fails
from support_certificates import Pair, authority, needs_openssl, signed
from support_ledgers import DEADLINE_SECONDS

from whyidle.agent.log import Log
from whyidle.agent.web.config import CIPHERS, CURVES, Pem, TlsConfig, WebConfig, parse
from whyidle.agent.web.errors import ConfigError
from whyidle.agent.web.file_gate import FileGate
from whyidle.agent.web.gate import Refused
from whyidle.agent.web.limit import Limit
from whyidle.agent.web.listener import PLACES, Listener
from whyidle.agent.web.messages import Request, Response, plain
from whyidle.agent.web.passwords import Passwords

SECRET = "correct horse"
HASH = "$2b$04$WLcjiFxcLNk362mn5jKb3eNHS10PTEDfInTeyDKaXWSktsP6K4b5a"
OTHER_SECRET = "battery staple"
OTHER_HASH = "$2y$04$jOwF21hdtMT/W31QOfphrua8v3MhhPXNs2yS4fpjcd3y0LApIleOa"  # as htpasswd writes it

EVERYTHING = f"""
tls_server_config:
  cert_file: server.crt
  key_file: /keys/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.crt
  client_allowed_sans: [prometheus, 127.0.0.1]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP256]
http_server_config:
  http2: false
  headers:
    X-Frame-Options: deny
    X-XSS-Protection: ""
    Strict-Transport-Security: max-age=1
basic_auth_users:
  alice: {HASH}
rate_limit: {{interval: 1m0.5s, burst: 20}}
"""


def test_reads_every_setting_of_the_format() -> None:
    assert parse(EVERYTHING.encode(), "/etc") == WebConfig(
        TlsConfig(
            cert=Pem("cert_file", "/etc/server.crt"),
            key=Pem("key_file", "/keys/server.key"),
            client_ca=Pem("client_ca_file", "/etc/ca.crt"),
            verify="required",
            allowed_sans=("prometheus", "127.0.0.1"),
            ciphers=("ECDHE-ECDSA-AES128-GCM-SHA256",),
            prefer_server_ciphers=False,
            curves=("prime256v1",),
        ),
        headers=(("X-Frame-Options", "deny"), ("Strict-Transport-Security", "max-age=1")),
        users={"alice": HASH},
        interval_seconds=60.5,
        burst=20,
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config:\nbasic_auth_users: {}\n", "{}"])
def test_accepts_an_empty_file(text: str) -> None:
    config = parse(text.encode(), "")
    assert (config.tls, config.users or None, config.headers) == (None, None, ())


PAIR = "cert_file: a, key_file: b"
WRONG: dict[str, str] = {
    "a: [": "it is not YAML: ",
    "\0": "it is not YAML",
    "[tls_server_config]": "the file must be a mapping of keys to values",
    "tls_config: {}": "unknown key 'tls_config': the known keys are tls_server_config, http_server_config, "
    "basic_auth_users",
    "tls_server_config: {certfile: a}": "tls_server_config: unknown key 'certfile': the known keys are cert, key,",
    "tls_server_config: {cert_file: a, cert_file: b}": "the key 'cert_file' appears twice",
    "tls_server_config: {cert_file: a}": "tls_server_config: key_file is missing",
    "tls_server_config: {key: a}": "tls_server_config: cert_file is missing",
    "tls_server_config: {min_version: TLS13}": "tls_server_config: cert_file is missing",
    f"tls_server_config: {{{PAIR}, cert: c}}": "tls_server_config: both cert and cert_file are set: remove one of them",
    f"tls_server_config: {{{PAIR}, client_ca_file: c}}": "no effect without a client_auth_type that verifies",
    f"tls_server_config: {{{PAIR}, client_auth_type: VerifyClientCertIfGiven}}": "needs client_ca_file",
    f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}": "'RequireAnyClientCert' is not supported",
    f"tls_server_config: {{{PAIR}, client_auth_type: Always}}": "the supported values are NoClientCert, "
    "RequestClientCert,",
    f"tls_server_config: {{{PAIR}, client_allowed_sans: [a]}}": "client_allowed_sans needs client_auth_type Require",
    f"tls_server_config: {{{PAIR}, client_allowed_sans: a}}": "client_allowed_sans must be a list",
    f"tls_server_config: {{{PAIR}, min_version: TLS10}}": "'TLS10' is not supported: the supported values are "
    "TLS12, TLS13",
    f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}": "together leave no version of TLS",
    f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}}": "'TLS_RSA_WITH_RC4_128_SHA' is not",
    f"tls_server_config: {{{PAIR}, cipher_suites: [TLS_AES_128_GCM_SHA256], max_version: TLS12}}": "leave no "
    "version of TLS",
    f"tls_server_config: {{{PAIR}, curve_preferences: [P256]}}": "'P256' is not supported: the supported values "
    "are CurveP256",
    f"tls_server_config: {{{PAIR}, prefer_server_cipher_suites: 1}}": "must be true or false, not 1",
    "http_server_config: {http2: maybe}": "http_server_config: http2 must be true or false, not 'maybe'",
    "http_server_config: {headers: {X-Powered-By: us}}": "'X-Powered-By' cannot be set: the headers that can be "
    "set are Strict-Transport-",
    "http_server_config: {headers: {X-Frame-Options: no}}": "X-Frame-Options: False must be a string: write it "
    "in quotes",
    "http_server_config: {headers: {X-Frame-Options: never}}": "is deny or sameorigin, not 'never'",
    'http_server_config: {headers: {X-XSS-Protection: "1\\r\\nA: b"}}': "X-XSS-Protection must be one line of text",
    "basic_auth_users: [alice]": "basic_auth_users must be a mapping of keys to values",
    "basic_auth_users: {1: a}": "basic_auth_users: 1 must be a string",
    f"basic_auth_users: {{'a:b': {HASH}}}": "a user name must not contain a colon: 'a:b'",
    "basic_auth_users: {alice: hunter2}": "the value for 'alice' is not a bcrypt hash: make one with htpasswd "
    "-nB alice",
    f"basic_auth_users: {{a: {HASH}, a: {HASH}}}": "the key 'a' appears twice",
    "rate_limit: {interval: 5}": "5 is not a duration: write 100ms or 1s",
    "rate_limit: {interval: 1s}": "burst must be at least 1",
    "rate_limit: {interval: 1s, burst: -1}": "-1 is not a whole number",
}


@pytest.mark.parametrize("text", WRONG)
def test_rejects_invalid_configurations_with_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode(), "")
    assert WRONG[text] in str(caught.value)
    assert "hunter2" not in str(caught.value)


WORDS = st.sampled_from(
    [
        *"[]{}:,\n -&*~'\"",
        *("tls_server_config", "cert_file", "key", "client_auth_type", "basic_auth_users", "http_server_config"),
        *("headers", "rate_limit", "interval", "1s", "true", "<<", "!!python/name:os", "2020-99-99"),
    ]
)


@given(st.binary() | st.lists(WORDS).map(lambda words: "".join(words).encode()))
def test_refuses_garbage_with_a_sentence(data: bytes) -> None:
    with contextlib.suppress(ConfigError):
        parse(data, "")


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_checks_passwords() -> None:
    passwords = Passwords({"alice": HASH, "zoë": OTHER_HASH})

    def status(authorization: str) -> int:
        answer = passwords.check(authorization)
        return answer.status if answer else 200

    for _ in range(2):  # from the hash, and from memory
        assert status(basic("alice", SECRET)) == 200
        assert status(basic("zoë", OTHER_SECRET)) == 200
        assert status(basic("alice", OTHER_SECRET)) == 401
        assert status(basic("bob", SECRET)) == 401
    wrong = [
        "",
        "Basic",
        "Basic ",
        "Bearer x",
        "Basic !",
        "Basic YQ==",
        basic("alice", ""),
        basic("", SECRET),
        "Basic é",
    ]
    assert {status(authorization) for authorization in wrong} == {401}
    assert status(basic("alice", "nul\0")) == 401
    assert status(basic("alice", SECRET).replace("Basic ", "bASIC  ")) == 200


def test_uses_72_bytes_of_a_password() -> None:
    passwords = Passwords({"alice": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()})
    assert passwords.check(basic("alice", "x" * 100)) is None
    assert passwords.check(basic("alice", "x" * 71))


def test_wrong_passwords_wait_in_a_short_queue_and_known_users_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    passwords = Passwords({"alice": bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(9)).decode()})
    assert passwords.check(basic("alice", SECRET)) is None
    answers: list[Response | None] = []
    guesses = [
        threading.Thread(target=lambda n=n: answers.append(passwords.check(basic("alice", f"guess {n}"))))
        for n in range(PLACES)
    ]
    for guess in guesses:
        guess.start()
    assert passwords.check(basic("alice", SECRET)) is None
    for guess in guesses:
        guess.join(DEADLINE_SECONDS)
    assert {answer and answer.status for answer in answers} == {401, 503}


def test_a_limit_is_a_token_bucket() -> None:
    now = [0.0]
    limit = Limit(0.5, 3, lambda: now[0])

    def granted(tries: int) -> int:
        return sum(limit.check() is None for _ in range(tries))

    assert granted(5) == 3
    now[0] = 0.4
    assert granted(5) == 0
    now[0] = 1.0
    assert granted(5) == 2
    now[0] = 100.0
    assert granted(5) == 3


# -- what it does to connections


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, ca: Pair) -> Pair:
    return signed(tmp_path_factory.mktemp("server"), ca, "server", "IP:127.0.0.1")


def hello(request: Request) -> Response:
    return plain(200, "hello")


class Served:
    """A server with the settings of a file, in this process."""

    def __init__(self, path: Path):
        self.path = path
        self.log = io.StringIO()
        self.gate = FileGate(str(path), Log("info", "logfmt", self.log))
        self.listener = Listener("127.0.0.1", 0, self.gate, hello, lambda address, problem: None)
        host, _, port = self.listener.address.rpartition(":")
        self.place = host, int(port)

    def get(
        self, context: ssl.SSLContext | None = None, path: str = "/", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        with contextlib.closing(self.connection(context)) as client:
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            return answer.status, dict(answer.headers), answer.read()

    def connection(self, context: ssl.SSLContext | None = None) -> HTTPConnection:
        if context:
            return HTTPSConnection(*self.place, context=context, timeout=DEADLINE_SECONDS)
        return HTTPConnection(*self.place, timeout=DEADLINE_SECONDS)

    def refuses(self, context: ssl.SSLContext) -> bool:
        try:
            self.get(context)
        except (OSError, http.client.HTTPException):
            return True
        return False


@contextlib.contextmanager
def serving(folder: Path, text: str) -> Iterator[Served]:
    path = folder / "web.yml"
    path.write_text(text)
    served = Served(path)
    thread = threading.Thread(target=served.listener.serve)
    thread.start()
    try:
        yield served
    finally:
        served.listener.close()
        thread.join(DEADLINE_SECONDS)


def trusting(ca: Pair, client: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.cert)
    if client:
        context.load_cert_chain(client.cert, client.key)
    return context


def tls(pair: Pair, *lines: str) -> str:
    return "\n  ".join(["tls_server_config:", f"cert_file: {pair.cert}", f"key_file: {pair.key}", *lines]) + "\n"


def test_every_page_asks_for_the_password(tmp_path: Path) -> None:
    headers = "http_server_config: {headers: {X-Frame-Options: deny}}\n"
    with serving(tmp_path, f"basic_auth_users: {{alice: {HASH}}}\n{headers}") as served:
        for path in ("/", "/metrics", "/healthz", "/nothing"):
            status, headers, body = served.get(path=path)
            assert (status, body) == (401, b"unauthorized\n")
            assert headers["WWW-Authenticate"].startswith("Basic realm=")
            assert headers["X-Frame-Options"] == "deny"
        assert served.get(Authorization=basic("alice", "guess"))[0] == 401
        status, headers, body = served.get(Authorization=basic("alice", SECRET))
        assert (status, headers["X-Frame-Options"], body) == (200, "deny", b"hello\n")


def test_the_limit_answers_429(tmp_path: Path) -> None:
    with serving(tmp_path, "rate_limit: {interval: 1h, burst: 2}") as served:
        assert [served.get()[0] for _ in range(4)] == [200, 200, 429, 429]


@needs_openssl
def test_tls_with_files_beside_the_configuration(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    shutil.copy(pair.cert, tmp_path / "a.crt")
    shutil.copy(pair.key, tmp_path / "a.key")
    with serving(tmp_path, "tls_server_config: {cert_file: a.crt, key_file: a.key}") as served:
        assert served.get(trusting(ca))[0] == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            served.get()  # plain HTTP
        silent = [socket.create_connection(served.place) for _ in range(PLACES)]
        assert served.get(trusting(ca))[0] == 200, "clients that say nothing must not hold up the others"
        for client in silent:
            client.close()


@needs_openssl
def test_accepts_certificates_inside_the_configuration(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    inline = {name: file.read_text().replace("\n", "\n    ") for name, file in vars(pair).items()}
    with serving(
        tmp_path, "tls_server_config:\n" + "".join(f"  {k}: |\n    {v}\n" for k, v in inline.items())
    ) as served:
        assert served.get(trusting(ca))[0] == 200


@needs_openssl
def test_applies_versions_ciphers_and_curves(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    old = trusting(ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(tmp_path, tls(pair, "min_version: TLS13")) as served:
        assert served.get(trusting(ca))[0] == 200
        assert served.refuses(old)
    lines = ("cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]", "curve_preferences: [CurveP384]")
    with serving(tmp_path, tls(pair, *lines)) as served:
        with old.wrap_socket(socket.create_connection(served.place), server_hostname="127.0.0.1") as client:
            assert client.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"  # pyright: ignore[reportOptionalSubscript]
        wrong_curve = trusting(ca)
        wrong_curve.set_ecdh_curve("secp521r1")
        assert served.refuses(wrong_curve)


@needs_openssl
def test_every_cipher_and_curve_is_known_to_openssl(tmp_path: Path, pair: Pair) -> None:
    path = tmp_path / "web.yml"
    path.write_text(tls(pair, f"cipher_suites: [{', '.join(CIPHERS)}]"))
    FileGate(str(path), Log(stream=io.StringIO()))
    for curve in CURVES:
        path.write_text(tls(pair, f"curve_preferences: [{curve}]"))
        if curve != "X25519" or hasattr(ssl.SSLContext, "set_groups"):
            FileGate(str(path), Log(stream=io.StringIO()))
        else:
            with pytest.raises(ConfigError, match="this Python can use one curve"):
                FileGate(str(path), Log(stream=io.StringIO()))


@needs_openssl
def test_checks_client_certificates(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    sans = "DNS:prometheus,IP:::1,email:a@b.example,URI:spiffe://a/b"
    ours, stranger = signed(tmp_path, ca, "ours", sans), signed(tmp_path, authority(tmp_path, "other"), "x", sans)
    needed = ("client_auth_type: RequireAndVerifyClientCert", f"client_ca_file: {ca.cert}")
    with serving(tmp_path, tls(pair, *needed)) as served:
        assert served.get(trusting(ca, ours))[0] == 200
        assert served.refuses(trusting(ca))
        assert served.refuses(trusting(ca, stranger))
    with serving(tmp_path, tls(pair, "client_auth_type: VerifyClientCertIfGiven", needed[1])) as served:
        assert served.get(trusting(ca))[0] == 200
        assert served.get(trusting(ca, ours))[0] == 200
        assert served.refuses(trusting(ca, stranger))
    with serving(tmp_path, tls(pair, "client_auth_type: RequestClientCert")) as served:
        assert served.get(trusting(ca, stranger))[0] == 200
    for san in ("prometheus", "'0:0::1'", "a@b.example", "spiffe://a/b"):
        with serving(tmp_path, tls(pair, *needed, f"client_allowed_sans: [grafana, {san}]")) as served:
            assert served.get(trusting(ca, ours))[0] == 200, san
    for san in ("prometheus.example", "ours", "*"):
        with serving(tmp_path, tls(pair, *needed, f"client_allowed_sans: ['{san}']")) as served:
            assert served.refuses(trusting(ca, ours)), san


# -- what happens when it changes


def test_reloads_users_and_an_invalid_file_lets_nobody_in(tmp_path: Path) -> None:
    with serving(tmp_path, f"basic_auth_users: {{alice: {HASH}}}") as served:
        with contextlib.closing(served.connection()) as kept:

            def status(user: str, password: str) -> int:
                kept.request("GET", "/", headers={"Authorization": basic(user, password)})
                answer = kept.getresponse()
                answer.read()
                return answer.status

            assert status("alice", SECRET) == 200
            served.path.write_text(f"basic_auth_users: {{alice: {OTHER_HASH}, bob: {HASH}}}")
            assert (status("alice", SECRET), status("alice", "battery staple"), status("bob", SECRET)) == (
                401,
                200,
                200,
            )
            served.path.write_text("basic_auth_users: {bob: nonsense}")
            assert status("bob", SECRET) == 500
            served.path.unlink()
            assert served.get(Authorization=basic("bob", SECRET))[0] == 500
            served.path.write_text(f"basic_auth_users: {{bob: {HASH}}}")
            assert (status("bob", SECRET), status("alice", OTHER_SECRET)) == (200, 401)
        lines = served.log.getvalue().splitlines()
        assert [line.split()[0] for line in lines] == ["level=info", "level=error", "level=error", "level=info"]
        assert "not a bcrypt hash" in lines[1]
        assert "No such file" in lines[2]


@needs_openssl
def test_certificates_are_renewed_without_a_restart(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    mine = Pair(tmp_path / "a.crt", tmp_path / "a.key")
    shutil.copy(pair.cert, mine.cert)
    shutil.copy(pair.key, mine.key)
    new_ca = authority(tmp_path, "new")
    renewed = signed(tmp_path, new_ca, "renewed", "IP:127.0.0.1")
    with serving(tmp_path, tls(mine)) as served, contextlib.closing(served.connection(trusting(ca))) as kept:
        kept.request("GET", "/")
        assert kept.getresponse().read() == b"hello\n"
        shutil.copy(renewed.cert, mine.cert)  # the key is still the old one
        assert served.get(trusting(ca))[0] == 200
        assert served.refuses(trusting(new_ca))
        assert "the previous certificate stays in use" in served.log.getvalue()
        shutil.copy(renewed.key, mine.key)
        assert served.get(trusting(new_ca))[0] == 200
        assert served.refuses(trusting(ca))
        before = kept.sock
        kept.request("GET", "/")
        assert kept.getresponse().read() == b"hello\n"
        assert kept.sock is before, "who is connected stays so"
        shutil.copy(pair.cert, mine.cert.with_suffix(".next"))
        os.replace(mine.cert.with_suffix(".next"), mine.cert)
        mine.key.unlink()
        assert served.get(trusting(new_ca))[0] == 200
        assert "[]" not in served.log.getvalue()


@needs_openssl
def test_open_connections_need_a_certificate_once_it_is_required(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    ours = signed(tmp_path, ca, "ours", "DNS:prometheus")
    with serving(tmp_path, tls(pair)) as served, contextlib.closing(served.connection(trusting(ca))) as kept:
        kept.request("GET", "/")
        assert kept.getresponse().read() == b"hello\n"
        needed = tls(pair, "client_auth_type: RequireAndVerifyClientCert", f"client_ca_file: {ca.cert}")
        served.path.write_text(needed)
        kept.request("GET", "/")
        with pytest.raises((OSError, http.client.HTTPException)):
            kept.getresponse()
        assert served.refuses(trusting(ca))
        assert served.get(trusting(ca, ours))[0] == 200
        served.path.write_text("")
        with pytest.raises(Refused, match="without a restart"):
            served.gate.rules()
        assert served.refuses(trusting(ca, ours))
        served.path.write_text(needed.replace(str(pair.cert), str(tmp_path / "missing")))
        assert served.refuses(trusting(ca, ours)), "the first time that these files are named, they must be there"
        served.path.write_text(needed)
        assert served.get(trusting(ca, ours))[0] == 200


# -- the agent


@needs_openssl
def test_an_agent_serves_with_tls_and_passwords(tmp_path: Path, ca: Pair, pair: Pair) -> None:
    web = tmp_path / "web.yml"
    web.write_text(tls(pair) + f"basic_auth_users: {{alice: {HASH}}}\n")
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    with agent(ledgers, f"--web.config.file={web}") as running:
        assert "tls=True" in running.first_line
        host, _, port = running.address.rpartition(":")
        client = HTTPSConnection(host, int(port), context=trusting(ca), timeout=DEADLINE_SECONDS)
        with contextlib.closing(client):
            client.request("GET", "/metrics")
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (401, b"unauthorized\n")
            client.request("GET", "/metrics", headers={"Authorization": basic("alice", SECRET)})
            answer = client.getresponse()
            assert (answer.status, b"whyidle_build_info" in answer.read()) == (200, True)


def test_an_agent_does_not_start_with_an_invalid_file(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    said = f"whyidle agent: cannot use the web configuration {web}: "
    code, line = fails("agent", f"--ledger.dir={tmp_path}", f"--web.config.file={web}")
    assert (code, line) == (1, f"{said}{web} cannot be read: No such file or directory")
    web.write_text("tls_server_config: {cert_file: a, key_file: b}")
    code, line = fails("agent", f"--ledger.dir={tmp_path}", f"--web.config.file={web}")
    assert (code, line) == (1, f"{said}{tmp_path}/a cannot be read: No such file or directory")
    for file in ("a", "b"):
        (tmp_path / file).write_text("nonsense")
    code, line = fails("agent", f"--ledger.dir={tmp_path}", f"--web.config.file={web}")
    assert code == 1
    assert line.startswith(f"{said}tls_server_config: cert_file and key_file are not a certificate")
