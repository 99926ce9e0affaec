"""The HTTP server of the agent, over real sockets, with good, bad, slow and many clients."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_ledgers import DEADLINE_SECONDS, until

from whyidle.agent.web import listener as listener_module
from whyidle.agent.web.connection import HEAD_BYTES, Times
from whyidle.agent.web.gate import OpenGate
from whyidle.agent.web.listener import PLACES, Listener
from whyidle.agent.web.messages import HEADERS, BadRequest, Request, Response, parse, plain, render
from whyidle.agent.web.negotiation import accepts_gzip, wants_openmetrics

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = Times(request=0.5, answer=0.5, idle=0.5, linger=0.5)
LONG = b"x" * (8 << 20)
"""More bytes than the buffers of a connection hold."""


class Running:
    """A server, and the connections to it."""

    def __init__(self, listener: Listener, connections: contextlib.ExitStack):
        self.listener = listener
        host, _, port = listener.address.rpartition(":")
        self.place = (host, int(port))
        self._connections = connections

    def connect(self, data: bytes = b"", window: int = 0) -> socket.socket:
        client = self._connections.enter_context(socket.socket())
        if window:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        client.settimeout(DEADLINE_SECONDS)
        client.connect(self.place)
        if data:
            client.sendall(data)
        return client

    def ask(self, data: bytes) -> bytes:
        """Everything that the server sends until it closes the connection."""
        return rest(self.connect(data))

    def get(self, method: str = "GET", path: str = "/", **headers: str) -> tuple[int, dict[str, str], bytes]:
        client = HTTPConnection(*self.place, timeout=DEADLINE_SECONDS)
        with contextlib.closing(client):
            client.request(method, path, headers=headers)
            answer = client.getresponse()
            return answer.status, dict(answer.headers), answer.read()


def rest(client: socket.socket) -> bytes:
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 16):
            pieces.append(piece)
    return b"".join(pieces)


def http_threads() -> int:
    return sum(thread.name == "http" for thread in threading.enumerate())


def hello(request: Request) -> Response:
    return plain(200, f"{request.method} {request.path}")


@contextlib.contextmanager
def serving(service: Callable[[Request], Response] = hello, times: Times | None = None) -> Iterator[Running]:
    listener = Listener("127.0.0.1", 0, OpenGate(), service, lambda address, problem: None, times)
    thread = threading.Thread(target=listener.serve)
    thread.start()
    with contextlib.ExitStack() as connections:
        yield Running(listener, connections)
        listener.close()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()
    until(lambda: not http_threads())


def test_an_answer_is_complete_and_does_not_name_the_server() -> None:
    with serving() as running:
        status, headers, body = running.get(path="/a?b=c")
        assert (status, body) == (200, b"GET /a\n")
        assert set(headers) == {"Date", "Content-Type", "Content-Length"}
        status, of_head, nothing = running.get("HEAD", "/a")
        assert (status, of_head["Content-Length"], nothing) == (200, "8", b"")


def test_a_connection_serves_many_requests_pipelined_or_in_turn() -> None:
    with serving() as running:
        client = HTTPConnection(*running.place, timeout=DEADLINE_SECONDS)
        with contextlib.closing(client):
            ports = set()
            for number in range(100):
                client.request("GET", f"/{number}")
                assert client.getresponse().read() == f"GET /{number}\n".encode()
                assert client.sock
                ports.add(client.sock.getsockname()[1])
            assert len(ports) == 1
        at_once = GET * 3 + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        assert running.ask(at_once).count(b"HTTP/1.1 200 OK\r\n") == 4


@pytest.mark.parametrize("pause", ["every byte", "in the end mark"])
def test_a_request_may_come_in_pieces(pause: str) -> None:
    pieces = [bytes([byte]) for byte in GET] if pause == "every byte" else [GET[:-2], GET[-2:]]
    with serving() as running:
        client = running.connect()
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.001)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")


HOST = b"Host: x\r\n"
REFUSED: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    "one word": (b"GET\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400),
    "another HTTP": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "no version": (b"GET / HTTP/1.x\r\n" + HOST + b"\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "a method in two": (b"GE\tT / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n", 400),
    "a blank before the colon": (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "a folded header": (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n", 400),
    "a bare line feed": (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\nC: d\r\n\r\n", 400),
    "a NUL": (b"GET / HTTP/1.1\r\n" + HOST + b"A: \0\r\n\r\n", 400),
    "many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * HEADERS + b"\r\n", 431),
    "a long header": (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"b" * HEAD_BYTES + b"\r\n\r\n", 431),
    "a long target": (b"GET /" + b"a" * HEAD_BYTES + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
    "no end": (b"a" * (HEAD_BYTES + 1), 431),
    "POST": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc", 405),
    "a long POST": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 300000\r\n\r\n" + b"a" * 300000, 405),
    "TRACE": (b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n", 405),
}


@pytest.mark.parametrize("what", REFUSED)
def test_answers_bad_requests_and_closes(what: str) -> None:
    data, status = REFUSED[what]
    with serving() as running:
        answer = running.ask(data + GET)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), what
        assert answer.count(b"\r\nDate: ") == 1
        assert b"Connection: close\r\n" in answer
        assert (b"Allow: GET, HEAD\r\n" in answer) == (status == 405)
        assert running.get()[0] == 200


def test_closes_the_connection_after_a_body() -> None:
    """The next bytes could be a second request, hidden in the body of the first."""
    with serving() as running:
        request = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(GET)
        assert running.ask(request + GET).count(b"HTTP/1.1 200") == 1
        assert running.ask(GET.replace(b"x", b"x\r\nTransfer-Encoding: chunked") + GET).count(b"HTTP/1.1 200") == 1


def test_closes_after_an_answer_to_http_1_0() -> None:
    with serving() as running:
        assert running.ask(b"GET / HTTP/1.0\r\n\r\n").endswith(b"\r\nConnection: close\r\n\r\nGET /\n")
        assert running.ask(b"GET http://x/a?b HTTP/1.0\r\n\r\n").endswith(b"GET /a\n")


@pytest.mark.parametrize("said", [b"", b"GET / HT", GET])
def test_closes_a_silent_connection(said: bytes) -> None:
    with serving(times=SHORT) as running:
        answer = running.ask(said)
        expected = {b"": b"", b"GET / HT": b"HTTP/1.1 408 ", GET: b"HTTP/1.1 200 "}[said]
        assert answer[: len(expected)] == expected
        assert answer.count(b"HTTP/1.1") == bool(expected)


def test_closes_a_connection_that_sends_too_slowly() -> None:
    with serving(times=SHORT) as running:
        slow = running.connect()

        def refused() -> bool:
            try:
                slow.sendall(b"a")
            except OSError:
                return True
            time.sleep(0.05)
            return False

        until(refused)


def test_closes_a_connection_that_reads_too_slowly() -> None:
    with serving(lambda request: Response(200, "text/plain", LONG), times=SHORT) as running:
        slow = running.connect(GET, window=1 << 12)
        taken = slow.recv(10)
        until(lambda: not http_threads())
        taken += rest(slow)
        assert len(taken) < len(LONG)
        assert len(running.get()[2]) == len(LONG)


@pytest.mark.parametrize("said", [b"", b"GET / HT", GET])
def test_held_connections_do_not_lock_others_out(said: bytes) -> None:
    with serving() as running:
        held = []
        for _ in range(3 * PLACES):
            held.append(running.connect(said))
            if said == GET:
                held[-1].recv(1 << 16)
        for _ in range(10):
            assert running.get()[0] == 200
        until(lambda: http_threads() <= PLACES)
        assert held[0].recv(1) == b""  # the first one was closed to make room
        held[-1].sendall(b"TP/1.1\r\nHost: x\r\n\r\n" if said == b"GET / HT" else GET)
        assert held[-1].recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_unread_answers_do_not_lock_others_out() -> None:
    with serving(lambda request: Response(200, "text/plain", LONG if request.path == "/long" else b"")) as running:
        for _ in range(2 * PLACES):
            running.connect(GET.replace(b"/", b"/long", 1), window=1 << 12).recv(1)
        assert running.get()[0] == 200
        until(lambda: http_threads() <= PLACES)


def test_does_not_drop_a_connection_during_an_answer() -> None:
    go, started = threading.Event(), threading.Semaphore(0)

    def slow(request: Request) -> Response:
        started.release()
        assert go.wait(DEADLINE_SECONDS)
        return plain(200)

    with serving(slow) as running:
        clients = [running.connect(GET) for _ in range(PLACES)]
        for _ in clients:
            assert started.acquire(timeout=DEADLINE_SECONDS)
        assert running.ask(b"").startswith(b"HTTP/1.1 503 ")
        go.set()
        assert all(client.recv(1 << 16).startswith(b"HTTP/1.1 200 ") for client in clients)
        assert running.get()[0] == 200


def test_shutdown_waits_for_answers_but_not_for_clients() -> None:
    go, started = threading.Event(), threading.Event()

    def slow(request: Request) -> Response:
        started.set()
        assert go.wait(DEADLINE_SECONDS)
        return plain(200, "the last")

    with serving(slow) as running:
        idle, working = running.connect(), running.connect(GET)
        assert started.wait(DEADLINE_SECONDS)
        closing = threading.Thread(target=running.listener.close)
        closing.start()
        assert rest(idle) == b""
        go.set()
        answer = rest(working)
        assert answer.endswith(b"the last\n")
        assert b"Connection: close\r\n" in answer
        closing.join(DEADLINE_SECONDS)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(running.place)


def test_shutdown_does_not_wait_for_an_answer_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "STOP_SECONDS", 0.1)
    go, started = threading.Event(), threading.Event()

    def stuck(request: Request) -> Response:
        started.set()
        go.wait(DEADLINE_SECONDS)
        return plain(200)

    with serving(stuck) as running:
        client = running.connect(GET)
        assert started.wait(DEADLINE_SECONDS)
        running.listener.close()
        go.set()
        rest(client)


def test_recovers_from_a_lack_of_descriptors() -> None:
    with serving() as running, contextlib.ExitStack() as held:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = running.connect(GET)
        assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        waiting = held.enter_context(socket.socket())
        waiting.settimeout(DEADLINE_SECONDS)
        while (spare := socket.socket()).fileno() < waiting.fileno():  # fills the gaps below
            held.enter_context(spare)
        spare.close()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
            time.sleep(0.3)
            kept.sendall(GET)
            assert kept.recv(1 << 16).startswith(b"HTTP/1.1 200 "), "nobody else came, so nobody has to go"
            waiting.connect(running.place)
            assert kept.recv(1) == b"", "there was none to spare for the new one"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        waiting.sendall(GET)
        assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


HEADS = st.binary(max_size=200) | st.builds(
    lambda target, host: b"GET " + target + b" HTTP/1.1\r\nhost:" + host, st.binary(), st.binary()
)


@given(HEADS)
def test_parser_accepts_or_refuses_arbitrary_bytes(head: bytes) -> None:
    try:
        answer = hello(parse(head))
    except BadRequest as error:
        answer = error.answer
    assert render(answer).startswith(f"HTTP/1.1 {answer.status} ".encode())


OF_PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        (OF_PROMETHEUS, True),
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text; version=0.0.1", False),
        ("application/openmetrics-text; version=2.0.0", False),
        ("application/openmetrics-text;version=1.0.0;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;version=1.0.0;q=0", False),
        ('Application/OpenMetrics-Text; Version="1.0.0"; Q=0.5 , */*;q=0.1', True),
        ("application/openmetrics-text;q=soon", False),
        (";;,=,", False),
    ],
)
def test_negotiates_the_format(accept: str, openmetrics: bool) -> None:
    assert wants_openmetrics(accept) == openmetrics


@pytest.mark.parametrize(
    ("accept", "gzip"),
    [
        ("gzip", True),
        ("", False),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("*", True),
        ("*;q=0", False),
        ("*, gzip;q=0", False),
    ],
)
def test_negotiates_compression(accept: str, gzip: bool) -> None:
    assert accepts_gzip(accept) == gzip


@given(st.text(max_size=60))
def test_negotiation_accepts_arbitrary_headers(header: str) -> None:
    assert wants_openmetrics(header) in (True, False)
    assert accepts_gzip(header) in (True, False)
