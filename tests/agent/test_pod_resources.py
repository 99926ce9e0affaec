"""The client of the kubelet's pod-resources socket, with a real gRPC server and with servers that misbehave."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from fake_node import kubelet
from fake_node.kubelet import ALLOCATABLE, PODS, SOCKET, Pod, gpu, list_response, mig, part, serve
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from whyidle.agent.files import Roots, Unreadable
from whyidle.agent.kubelet import grpc_unary, pod_resources
from whyidle.agent.kubelet.grpc_unary import UnaryCall
from whyidle.agent.kubelet.pod_resources import PodResources
from whyidle.agent.parsers.pod_resources import MOST_FIELDS, Allocation, allocatable, pods

LIST = "/v1.PodResourcesLister/List"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / SOCKET
    found.parent.mkdir(parents=True)
    return found


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodResources:
    """A client that connects for each call."""
    monkeypatch.setattr(pod_resources, "KEEP_SECONDS", 0.0)
    return PodResources(Roots(rootfs=str(tmp_path)))


def reason(client: PodResources) -> str:
    with pytest.raises(Unreadable) as failure:
        client.look()
    return failure.value.reason


def test_a_container_holds_what_the_kubelet_gave_it():
    found = pods(list_response(PODS))
    assert found.pods == {(pod.namespace, pod.name) for pod in PODS}
    assert Allocation("research", "llama-0", "trainer", "nvidia.com/gpu", gpu(1)) in found.allocations
    assert (
        Allocation("serving", "small-5d4f9c7b8-xk2lp", "server", "nvidia.com/mig-1g.10gb", mig(4)) in found.allocations
    )
    assert Allocation("serving", "dra-0", "server", "gpu.nvidia.com", "n1/gpu-5") in found.allocations
    assert len(found.allocations) == 9


def test_devices_are_counted_once():
    twice = {"nvidia.com/gpu": [gpu(0), gpu(0), gpu(1)]}
    assert allocatable(kubelet.allocatable_response(twice)) == {"nvidia.com/gpu": 2}
    assert allocatable(kubelet.allocatable_response(ALLOCATABLE))["rdma/hca_shared_devices_a"] == 63


def test_an_empty_node_has_no_pods():
    assert pods(b"").pods == frozenset()
    assert allocatable(b"") == {}


def test_skips_unknown_fields():
    added = part(9, b"new") + kubelet.varint(8 << 3) + kubelet.varint(1 << 60) + b"\x7d1234" + b"\x7912345678"
    container = part(1, "c") + added + part(2, added + part(1, "amd.com/gpu") + part(2, "0000:c1:00.0") + added)
    message = added + part(1, added + part(1, "p") + part(2, "n") + part(3, container)) + added
    assert pods(message).allocations == (Allocation("n", "p", "c", "amd.com/gpu", "0000:c1:00.0"),)


def test_a_claim_may_have_only_a_cdi_name():
    claim = part(
        5, part(2, "claim") + part(4, part(1, part(1, "nvidia.com/gpu=0")) + part(1, part(1, "nvidia.com/gpu=1")))
    )
    message = part(1, part(1, "p") + part(2, "n") + part(3, part(1, "c") + claim))
    assert [(held.resource, held.device) for held in pods(message).allocations] == [
        ("nvidia.com/gpu", "0"),
        ("nvidia.com/gpu", "1"),
    ]


NAMES = st.text(min_size=1, max_size=20, alphabet=st.characters(codec="utf-8", categories=("L", "N")))


RESOURCES = st.dictionaries(NAMES, st.lists(NAMES, max_size=3), max_size=2)


@given(st.lists(st.tuples(NAMES, NAMES, st.dictionaries(NAMES, RESOURCES, max_size=2)), max_size=3))
def test_messages_round_trip(raw: list[tuple[str, str, dict[str, dict[str, list[str]]]]]):
    written = [Pod(*pod) for pod in raw]
    assert list(pods(list_response(written)).allocations) == [
        Allocation(pod.namespace, pod.name, container, resource, device)
        for pod in written
        for container, resources in pod.containers.items()
        for resource, devices in resources.items()
        for device in devices
    ]


@given(st.binary(max_size=300), st.integers(0, 5))
def test_garbage_raises_only_unreadable(garbage: bytes, depth: int):
    message = garbage
    for _ in range(depth):
        message = part(1 + depth % 3, message)
    for decode in (pods, allocatable):
        try:
            decode(message)
        except Unreadable:
            pass


@given(st.data())
def test_a_corrupt_message_is_unreadable_or_another_message(data: st.DataObject):
    message = bytearray(list_response(PODS))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    del message[data.draw(st.integers(0, len(message))) :]
    try:
        found = pods(bytes(message))
    except Unreadable:
        return
    assert all(len(text) <= 253 * 2 + 1 and text.isprintable() for held in found.allocations for text in held)


def test_rejects_a_message_of_too_many_fields():
    with pytest.raises(Unreadable, match="huge"):
        pods(b"\x10\x01" * (MOST_FIELDS + 1))


def test_rejects_an_endless_varint():
    with pytest.raises(Unreadable, match="garbage"):
        pods(b"\xff" * 20)


def test_asks_the_kubelet(path: Path, client: PodResources):
    with serve(path) as server:
        listing = client.look()
        assert listing
        assert listing.pods == pods(list_response(PODS))
        assert listing.allocatable == {resource: len(devices) for resource, devices in ALLOCATABLE.items()}
        assert client.look() is listing, "it said the same again"
        server.answer(PODS[1:], ALLOCATABLE)
        assert (changed := client.look())
        assert ("research", "llama-0") not in changed.pods.pods
        server.answer((), {})
        assert (emptied := client.look())
        assert not emptied.pods.allocations
        assert server.calls() == 4


def test_limits_how_often_it_asks(path: Path, tmp_path: Path):
    with serve(path) as server:
        client = PodResources(Roots(rootfs=str(tmp_path)))
        assert len({id(client.look()) for _ in range(20)}) == 1
        assert server.calls() == 1
        server.answer(status="RESOURCE_EXHAUSTED")
        other = PodResources(Roots(rootfs=str(tmp_path)))
        assert {reason(other) for _ in range(20)} == {"resource_exhausted"}
        assert server.calls() == 2


@pytest.mark.parametrize("status", ["UNAVAILABLE", "UNIMPLEMENTED", "PERMISSION_DENIED", "INTERNAL"])
def test_names_an_error_and_serves_no_old_answer(path: Path, client: PodResources, status: str):
    with serve(path) as server:
        assert client.look()
        server.answer(PODS, ALLOCATABLE, status=status)
        assert reason(client) == status.lower()
        server.answer(PODS, ALLOCATABLE)
        assert client.look()


def test_an_error_of_allocatable_devices_affects_only_them(path: Path, client: PodResources):
    with serve(path) as server:
        for status, failure in (("UNIMPLEMENTED", ""), ("UNKNOWN", ""), ("INTERNAL", "internal")):
            server.answer(PODS, ALLOCATABLE, allocatable_status=status)
            assert (listing := client.look())
            assert listing.pods.allocations
            assert (listing.allocatable, listing.failure) == (None, failure)


def test_rejects_an_answer_that_is_too_long(path: Path, client: PodResources, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pod_resources, "DEADLINE_SECONDS", 30.0)  # on busy cores, 17 MiB take more than a second
    with serve(path) as server:
        many = [Pod("ns", f"pod-{number}", {"c": {"nvidia.com/gpu": [gpu(number)]}}) for number in range(5000)]
        server.answer(many)
        assert (listing := client.look())
        assert len(listing.pods.allocations) == 5000, "far more than fits into one window of HTTP/2"
        server.answer(raw=part(99, bytes(17 << 20)))
        assert reason(client) == "huge"
        server.answer(raw=b"\xff" * 100)
        assert reason(client) == "garbage"
        server.answer(PODS)
        assert client.look()


def test_waits_a_second_for_a_server_that_hangs(path: Path, client: PodResources):
    with serve(path) as server:
        server.answer(PODS, ALLOCATABLE, seconds=3600)
        assert reason(client) == "deadline_exceeded"
        server.answer(PODS, ALLOCATABLE)
        assert client.look()


def test_notices_a_kubelet_restart_at_once(path: Path, tmp_path: Path):
    client = PodResources(Roots(rootfs=str(tmp_path)))
    with serve(path) as server:
        first = client.look()
        assert first
        server.kill()
        assert client.look() is first, "until it has to be asked again"
    assert reason(client) == "missing"
    with serve(path, PODS[:1]):
        assert (listing := client.look())
        assert listing.pods.pods == {("research", "llama-0")}


def test_reports_a_socket_without_a_listener(path: Path, client: PodResources):
    with serve(path) as server:
        server.kill()
        assert reason(client) == "unavailable"


def test_a_node_without_a_kubelet_is_not_an_error(tmp_path: Path, client: PodResources):
    assert client.look() is None


def test_connects_to_a_socket_with_a_long_path(tmp_path: Path):
    deep = tmp_path / ("d" * 200)
    with speaking(deep / SOCKET, lambda connection: None):
        assert reason(PodResources(Roots(rootfs=str(deep)))) == "unavailable"


@contextmanager
def speaking(path: Path, talk: Callable[[socket.socket], None]) -> Iterator[None]:
    """A server that accepts connections, and handles each as instructed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with listener:
        fd = os.open(path.parent, os.O_PATH)  # a name that is short enough for an address, whatever the path is
        listener.bind(f"/proc/self/fd/{fd}/{path.name}")
        listener.listen(4)

        def serve_all() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    talk(connection)

        thread = threading.Thread(target=serve_all, daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.close(fd)
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            path.unlink()


def reply(
    body: bytes = bytes(5),
    *,
    status: str = "200",
    trailers: tuple[tuple[str, str], ...] = (("grpc-status", "0"),),
    content: str = "application/grpc",
) -> bytes:
    """The bytes of a server that answers the first stream of a connection, and not the second."""
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(UnaryCall([LIST, "/second"], 1.0).to_send())
    server.send_headers(1, [(":status", status), ("content-type", content)])
    server.send_data(1, body)
    server.send_headers(1, trailers, end_stream=True)
    return server.data_to_send()


def answer_to(sent: bytes) -> bytes | Unreadable | None:
    exchange = UnaryCall([LIST], 1.0)
    exchange.receive(sent)
    return exchange.answers.get(LIST)


def test_reads_the_message_and_status_of_an_answer():
    assert answer_to(reply(b"\0\0\0\0\3abc")) == b"abc"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (reply(b""), "garbage"),
        (reply(b"\0\0\0\0\4abc"), "garbage"),
        (reply(b"\0\0\0\0\2abc"), "garbage"),
        (reply(b"\1\0\0\0\3abc"), "garbage"),  # compressed, although nobody asked for it
        (reply(status="404"), "garbage"),
        (reply(trailers=(("x", "y"),)), "garbage"),
        (reply(trailers=(("grpc-status", "-1"),)), "garbage"),
        (reply(trailers=(("grpc-status", "99"),)), "unknown"),
        (reply(trailers=(("grpc-status", "16"), ("grpc-message", "no"))), "unauthenticated"),
    ],
)
def test_rejects_invalid_answers(sent: bytes, expected: str):
    answer = answer_to(sent)
    assert isinstance(answer, Unreadable)
    assert answer.reason == expected


@given(st.data())
def test_arbitrary_bytes_are_an_answer_or_unreadable(data: st.DataObject):
    sent = bytearray(data.draw(st.sampled_from([reply(), reply(b"\0\0\0\0\3abc"), b""])))
    for _ in range(data.draw(st.integers(0, 5)) if sent else 0):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    sent += data.draw(st.binary(max_size=100))
    exchange = UnaryCall([LIST, "/second"], 1.0)
    try:
        while sent:
            length = data.draw(st.integers(1, len(sent)))
            exchange.receive(bytes(sent[:length]))
            exchange.to_send()
            del sent[:length]
    except Unreadable:
        pass


ANSWERED = reply(list_response(PODS))


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10), "unavailable"),
        (lambda connection: connection.sendall(bytes(range(256)) * 100), "garbage"),
        (lambda connection: None, "unavailable"),
        (lambda connection: connection.sendall(ANSWERED[: len(ANSWERED) // 2]), "unavailable"),
        (lambda connection: connection.sendall(ANSWERED), "unavailable"),  # and no answer to the second call
        (lambda connection: connection.recv(1 << 16) and threading.Event().wait(1.5), "deadline_exceeded"),
    ],
    ids=["HTTP/1", "garbage", "closes", "dies midway", "half an answer", "says nothing"],
)
def test_reports_a_server_that_is_not_grpc(
    path: Path, client: PodResources, talk: Callable[[socket.socket], None], expected: str
):
    def polite(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        talk(connection)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(5)
        while connection.recv(1 << 16):
            pass

    with speaking(path, talk if expected == "deadline_exceeded" else polite):
        assert reason(client) == expected


def test_cuts_off_an_endless_answer(path: Path, client: PodResources):
    """Endless meaningless frames: each read meets the deadline, but all together do not."""
    ping = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + bytes(8)  # its acknowledgement, so that nothing is sent in turn

    def talk(connection: socket.socket) -> None:
        settings = H2Connection(H2Configuration(client_side=False))
        settings.initiate_connection()
        connection.sendall(settings.data_to_send())
        try:
            while True:
                connection.sendall(ping)
                threading.Event().wait(0.05)
        except OSError:
            pass

    with speaking(path, talk):
        assert reason(client) == "deadline_exceeded"


def test_the_names_of_statuses_are_in_grpcs_order():
    codes = sorted(grpc.StatusCode, key=lambda code: code.value[0])
    assert [code.name.lower() for code in codes] == list(grpc_unary.STATUS)
