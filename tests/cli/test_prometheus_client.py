"""Errors and warnings if Prometheus is down, is something else, rejects the query or warns; credentials."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support_certificates import authority, needs_openssl, signed

from whyidle.cli.main import main
from whyidle.cli.prometheus.client import MOST_POINTS, NoAnswer, Prometheus
from whyidle.cli.prometheus.runs import equal

EMPTY = {"status": "success", "data": []}
Answer = tuple[int, dict[str, str], str]


class Server(ThreadingHTTPServer):
    """Answers all requests in the same way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer: Answer = (200, {}, json.dumps(EMPTY))
        self.asked: list[tuple[str, dict[str, list[str]], str]] = []
        """(path, parameters, the header with the credentials)"""
        self.silent = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, parse_qs(body), self.headers.get("Authorization", "")))
        if self.server.silent.is_set():
            self.rfile.read(1)  # until the client gives up
            return
        code, headers, text = self.server.answer
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


def said(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> str:
    assert main(["goodput", "r1", "--prometheus", url, *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("whyidle goodput: ")
    return err


def refusal(error: str) -> str:
    return json.dumps({"status": "error", "errorType": "execution", "error": error})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, {}, "Unauthorized"), "requires authentication (401): give a token or a password"),
        ((403, {}, refusal("not your tenant")), "does not allow this user to query (403): not your tenant"),
        ((404, {}, "404 page not found"), "there is no Prometheus at"),
        ((302, {"Location": "https://sso.example.org/login?state=secret"}, ""), "redirects to https://sso.example.org"),
        ((422, {}, refusal("too many samples")), "refuses a query (422): too many samples. The query: "),
        ((503, {}, refusal("query timed out")), "aborted a query (503): query timed out. Ask for less with --since"),
        ((502, {}, "<html>"), "answers 502"),
        ((502, {"Transfer-Encoding": "chunked"}, "no chunk"), "answers 502"),
        ((200, {}, "<html>Grafana</html>"), "does not answer as a Prometheus does"),
        ((200, {}, '{"status": "success", "data": {"a": 1}}'), "series must be a list"),
        ((200, {}, '{"status": "success", "data": [{"run": "r1"}]}'), "has no number as attempt"),
    ],
)
def test_reports_an_invalid_answer_with_a_sentence_and_a_status(
    answer: Answer, sentence: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answer = answer
    err = said(capsys, server.url)
    assert sentence in err
    assert "secret" not in err


def test_reports_a_server_that_is_down_or_silent(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no Prometheus answers at http://127.0.0.1:1 (Connection refused)" in said(capsys, "http://127.0.0.1:1")
    server.silent.set()
    assert "timed out" in said(capsys, server.url, "--prometheus-timeout", "1s")


def test_keeps_warnings_and_queries_long_ranges_in_parts(server: Server) -> None:
    point = {"metric": {"rank": "0"}, "values": [[1.0, "2"], [2.0, "NaN"]]}
    data = {"resultType": "matrix", "result": [point]}
    server.answer = 200, {}, json.dumps({"status": "success", "data": data, "warnings": ["a store is away"]})
    asked = Prometheus(f"{server.url}/", {}, 30.0)
    (course,) = asked.range("up", 0.0, 2.5 * MOST_POINTS, 1.0)
    assert (course.labels, course.points) == ({"rank": "0"}, 3 * [(1.0, 2.0)])
    parts = [(one["start"][0], one["end"][0]) for _, one, _ in server.asked]
    assert parts == [("0.000", "9999.000"), ("10000.000", "19999.000"), ("20000.000", "25000.000")]
    assert asked.warnings == ["a store is away"]


def test_nothing_that_a_server_says_moves_the_cursor(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    asked = Prometheus(server.url, {}, 30.0)
    data = {"resultType": "vector", "result": [{"metric": {"run": "a\x1b[2J"}, "value": [1.0, "2"]}]}
    server.answer = 200, {}, json.dumps({"status": "success", "data": data, "warnings": ["b\x1b]0;c\x07"]})
    [sample] = asked.query("up", 1.0)
    server.answer = 200, {}, json.dumps({"status": "success", "data": [sample.labels | {"owner": "\r"}]})
    assert sample.labels | {"owner": "�"} == asked.series("up", 0.0, 1.0)[0] == {"run": "a�[2J", "owner": "�"}
    assert asked.warnings == ["b�]0;c�"]
    server.answer = 422, {}, refusal("d\x1b[2J")
    assert "d�[2J" in said(capsys, server.url)


def test_a_name_stays_within_its_matcher() -> None:
    name = 'a"} or up{b="\\\n'
    matcher = equal("run", name)
    assert matcher == r'run="a\"} or up{b=\"\\\n"'
    assert json.loads(matcher.removeprefix("run=")) == name


@pytest.mark.parametrize(
    ("variables", "file", "header"),
    [
        ({"WHYIDLE_PROMETHEUS_TOKEN": "abc"}, None, "Bearer abc"),
        ({}, ("--prometheus-token-file", "abc\n"), "Bearer abc"),
        ({"WHYIDLE_PROMETHEUS_BASIC_AUTH": "me:pa:ss"}, None, "me:pa:ss"),
        ({"WHYIDLE_PROMETHEUS_TOKEN": "abc"}, ("--prometheus-basic-auth-file", "me:pass"), "me:pass"),
    ],
)
def test_credentials_come_from_files_and_the_environment(
    variables: dict[str, str],
    file: tuple[str, str] | None,
    header: str,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**variables, "WHYIDLE_PROMETHEUS": server.url}.items():
        monkeypatch.setenv(name, value)
    words = []
    if file is not None:
        (tmp_path / "secret").write_text(file[1])
        words = [file[0], str(tmp_path / "secret")]
    assert main(["goodput", "r1", *words]) == 1
    assert "has seen nothing of run r1" in capsys.readouterr().err
    expected = header if header.startswith("Bearer") else f"Basic {base64.b64encode(header.encode()).decode()}"
    assert {one for _, _, one in server.asked} == {expected}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "is empty"), ("two\nlines", "must be one line"), (None, "cannot be read: No such file")],
)
def test_reports_an_unreadable_secret(
    text: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "secret").write_text(text)
    assert sentence in said(capsys, "http://127.0.0.1:1", "--prometheus-token-file", str(tmp_path / "secret"))


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://prometheus", "http://me:pass@prometheus", "http://h/?a=b"])
def test_rejects_an_invalid_address_without_repeating_its_password(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["goodput", "r1", "--prometheus", url])
    err = capsys.readouterr().err
    assert "argument --prometheus" in err
    assert "pass@" not in err


@needs_openssl
def test_accepts_https_with_a_private_certificate_authority(server: Server, tmp_path: Path) -> None:
    ca = authority(tmp_path)
    pair = signed(tmp_path, ca, "prometheus", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url.replace("http:", "https:")
    assert Prometheus(url, {}, 30.0, str(ca.cert)).series("up", 0.0, 1.0) == []
    with pytest.raises(NoAnswer, match="certificate verify failed"):
        Prometheus(url, {}, 30.0).series("up", 0.0, 1.0)
    with pytest.raises(NoAnswer, match="cannot be used as a file of CA certificates"):
        Prometheus(url, {}, 30.0, str(tmp_path / "none"))
