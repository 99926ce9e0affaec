"""A simulated Kubernetes API server: HTTP, discovery and watches for Helm's client, over the objects of a Store.

It is not Kubernetes. It answers the requests that Helm makes for this chart, and rejects what an API server would
reject. support_kube_store.py lists what is missing. There is no authentication, and only JSON, except for Secrets. Its
OpenAPI documents have no types: they say that the server checks fields itself, as current servers do, so Helm leaves
that to it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import yaml
from support_helm import Map
from support_kube_checks import Kind, Refused
from support_kube_merge import json_merged, strategic
from support_kube_protobuf import CONTENT_TYPE, secret
from support_kube_store import VERSION, Store

OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_PATCHES = {
    "application/merge-patch+json": lambda live, patch, shape: json_merged(live, patch),
    "application/strategic-merge-patch+json": strategic,
}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    body: bytes

    @property
    def given(self) -> Map:
        if self.content_type == CONTENT_TYPE:
            return secret(self.body)
        return yaml.load(self.body, yaml.CSafeLoader) if "yaml" in self.content_type else json.loads(self.body)

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager", "unknown")


@dataclass
class Api:
    """The server. A kubeconfig would contain `url`."""

    store: Store
    version: str = VERSION
    """The version that it reports. What it accepts depends only on the store."""
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def answer(self, request: Request) -> Map:
        """Raises Refused."""
        with self.lock:
            self.requests.append(request)
            if request.method == "GET" and (document := self._discovery(request.path)):
                return document
            return self._on_objects(request)

    # -- discovery

    def _discovery(self, path: str) -> Map | None:
        groups = sorted({(kind.group, kind.version) for kind in self.store.kinds if kind.group})
        if path == "/version":
            major, minor, _ = self.version.split(".", 2)
            return {"major": major, "minor": minor, "gitVersion": f"v{self.version}", "platform": "linux/amd64"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in groups]}
        if path == "/openapi/v3":
            return {"paths": {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in self._versions()}}
        if path.startswith("/openapi/v3/"):
            return _checks_fields(
                [kind for kind in self.store.kinds if _path(kind) == path.removeprefix("/openapi/v3/")]
            )
        version = path.removeprefix("/apis/") if path.startswith("/apis/") else path.removeprefix("/api/")
        kinds = [kind for kind in self.store.kinds if kind.api_version == version]
        return _resources(version, kinds) if kinds else None

    def _versions(self) -> list[str]:
        return sorted({_path(kind) for kind in self.store.kinds})

    # -- objects

    def _on_objects(self, request: Request) -> Map:
        kind, namespace, name = self.place(request.path)
        match request.method, bool(name):
            case "GET", True:
                return self.store.get(kind, namespace, name)
            case "GET", False:
                if "sendInitialEvents" in request.query:
                    raise Refused(422, "Invalid", "sendInitialEvents: Forbidden: not known to this server")
                wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
                found = self.store.list(kind, namespace, request.query.get("labelSelector", ""), wanted)
                version = {"resourceVersion": str(self.store.version)}
                return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": version, "items": found}
            case "POST", False:
                return self.store.create(kind, namespace, request.given, request.manager)
            case "PUT", True:
                return self.store.update(kind, namespace, name, lambda live, _: request.given, request.manager)
            case "PATCH", True:
                return self._patch(request, kind, namespace, name)
            case "DELETE", True:
                return self.store.delete(kind, namespace, name)
        raise Refused(405, "MethodNotAllowed", f"{request.method} {request.path}: not known here")

    def _patch(self, request: Request, kind: Kind, namespace: str, name: str) -> Map:
        given = request.given
        if request.content_type == "application/apply-patch+yaml":
            return self.store.apply(kind, namespace, given, request.manager, request.query.get("force") == "true")
        if kind.group not in ("", "apps", "networking.k8s.io") and "strategic" in request.content_type:
            raise Refused(415, "UnsupportedMediaType", "custom resources take no strategic merge patch")
        patch = _PATCHES[request.content_type]
        return self.store.update(kind, namespace, name, lambda live, shape: patch(live, given, shape), request.manager)

    def place(self, path: str) -> tuple[Kind, str, str]:
        """The kind, the namespace and the name in a path. The name is empty for a list."""
        version, _, rest = path.removeprefix("/api/").removeprefix("/apis/").partition("/")
        if path.startswith("/apis/"):
            second, _, rest = rest.partition("/")
            version = f"{version}/{second}"
        words = rest.split("/")
        namespace = words[1] if len(words) > 2 and words[0] == "namespaces" else ""
        plural, *names = words[2:] if namespace else words
        for kind in self.store.kinds:
            if (kind.api_version, kind.plural) == (version, plural) and len(names) < 2:
                return kind, namespace, "".join(names)
        raise Refused(404, "NotFound", "the server could not find the requested resource")

    def _moved_on(self, seen: int) -> bool:
        return self.store.version > seen or self.closing.is_set()

    def watch(self, request: Request) -> Iterator[Map]:
        """Events of a list since its version, until the server closes."""
        kind, namespace, _ = self.place(request.path)
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        seen = int(request.query.get("resourceVersion") or 0)
        while not self.closing.is_set():
            with self.store.changed:
                self.store.changed.wait_for(partial(self._moved_on, seen), timeout=1)
                new = [event for event in self.store.events if event.version > seen]
            for event in new:
                seen = event.version
                of, where, called = event.key
                if of == kind.name and namespace in ("", where) and name in ("", called):
                    yield {"type": event.type, "object": event.object}


def _path(kind: Kind) -> str:
    return f"apis/{kind.api_version}" if kind.group else "api/v1"


def _checks_fields(kinds: list[Kind]) -> Map:
    """OpenAPI with only one statement: whether a PATCH of that kind accepts `fieldValidation`."""
    paths = {}
    for kind in kinds:
        named = {"group": kind.group, "version": kind.version, "kind": kind.name}
        operation = {
            "x-kubernetes-group-version-kind": named,
            "parameters": [{"name": "fieldValidation", "in": "query"}],
        }
        where = "namespaces/{namespace}/" if kind.namespaced else ""
        paths[f"/{_path(kind)}/{where}{kind.plural}/{{name}}"] = {"patch": operation}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": f"v{VERSION}"}, "paths": paths}


def _group(group: str, version: str) -> Map:
    named = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [named], "preferredVersion": named}


def _resources(version: str, kinds: list[Kind]) -> Map:
    rows = [
        {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
        for kind in kinds
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [{**row, "verbs": _VERBS} for row in rows],
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two packets: the second would wait 40 ms for an acknowledgement of the first.
    disable_nagle_algorithm = True
    api: Api

    def _serve(self) -> None:
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, address.path, query, self.headers.get("Content-Type") or "", body)
        try:
            if query.get("watch") in ("1", "true") and "sendInitialEvents" not in query:
                return self._stream(request)
            if request.path == "/openapi/v2":
                return self._send(200, b"")  # In protobuf: a document without a type, so that none is checked by it.
            self._send(201 if self.command == "POST" else 200, self.api.answer(request))
        except Refused as refused:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refused.code}
            self._send(refused.code, {**status, "reason": refused.reason, "message": str(refused)})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _send(self, code: int, document: Map | bytes) -> None:
        text = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", OPENAPI_V2 if isinstance(document, bytes) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, request: Request) -> None:
        events = self.api.watch(request)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in events:
                text = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing, because `requests` has the requests."""


@contextmanager
def serving(store: Store | None = None, version: str = VERSION) -> Iterator[Api]:
    """An API server on its own port."""
    api = Api(store or Store(), version)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.closing.set()
        with api.store.changed:
            api.store.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
