"""The Compose project: one source for every file, no service that listens to the network, no stored passwords.

Prometheus, Alertmanager and the agent run with the users, mounts and command lines of the file, with Debian's programs
instead of the images. Only intervals and waits are shorter. Grafana cannot be installed here: its files are compared
with what its provisioning reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import support_pod
from support_compose import FOLDER, ROOT, install, mounts, pod, project
from support_ledgers import Spec, children, until
from support_manifest import Node
from support_pod import Pod
from support_prometheus import hurried
from support_yaml import read_yaml, write_yaml

import whyidle
from whyidle.cli.agent import DEFAULT_ADDRESS

pytestmark = pytest.mark.xdist_group("compose")

Json = dict[str, Any]
SERVICES: dict[str, Json] = project()["services"]
LASTING = ("agent", "prometheus", "alertmanager", "grafana")
AGENT_UID = 65532
PROGRAMS = {
    "prometheus": shutil.which("prometheus"),
    "alertmanager": shutil.which("prometheus-alertmanager"),
}
LACKING = support_pod.missing() or ("" if all(PROGRAMS.values()) else "needs prometheus and prometheus-alertmanager")
needs_programs = pytest.mark.skipif(bool(LACKING), reason=str(LACKING))

BESIDE = Path("/opt/programs")

LISTENS = re.compile(r"--(?:web|cluster)\.listen-address=(.*)")


def source_of(service: str, target: str) -> Path:
    """The path in the repository that is mounted there."""
    [source] = [source for source, at, _ in mounts(SERVICES[service]) if at == target]
    return (FOLDER / source).resolve()


def address(service: str) -> str:
    """The address on which a service listens."""
    if service == "grafana":
        env = SERVICES[service]["environment"]
        return f"{env['GF_SERVER_HTTP_ADDR']}:{env['GF_SERVER_HTTP_PORT']}"
    return next(found[1] for word in SERVICES[service]["command"] if (found := LISTENS.match(word)) and found[1])


def provisioned(what: str) -> Json:
    [file] = (FOLDER / "grafana" / what).iterdir()
    return read_yaml(file.read_text())


# -- the file


def test_mounted_files_exist_and_are_read_only() -> None:
    named = project()["volumes"]
    for name, service in SERVICES.items():
        for source, target, read_only in mounts(service):
            if source.startswith("."):
                assert read_only, (name, target)
                assert (FOLDER / source).exists(), (name, source)
            else:
                assert source in named or source in ("/proc", "/sys", "/dev/shm", "/dev/shm/whyidle"), (name, source)
                assert read_only == (source in ("/proc", "/sys")), (name, source)


def test_rules_and_dashboards_are_the_generated_ones() -> None:
    assert source_of("prometheus", "/etc/prometheus/rules") == ROOT / "alerts" / "generated"
    assert source_of("prometheus", "/etc/prometheus/prometheus.yml") == ROOT / "deploy/prometheus/prometheus.yml"
    assert source_of("alertmanager", "/etc/alertmanager/alertmanager.yml").parent == ROOT / "deploy/prometheus"
    [provider] = provisioned("dashboards")["providers"]
    assert source_of("grafana", provider["options"]["path"]) == ROOT / "dashboards" / "generated"
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (source_of("grafana", str(home.parent)) / home.name).is_file()


def test_images_are_pinned() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert all(re.fullmatch(r"[a-z./]+:v?\d+\.\d+\.\d+", image) for image in images.values()), images
    assert images["ledgers"] == images["prometheus"]  # one fewer to fetch
    assert images["agent"].partition(":")[2] == whyidle.__version__
    build = SERVICES["agent"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()
    assert SERVICES["agent"]["pull_policy"] == "build"


def test_nothing_listens_on_the_network() -> None:
    for name in LASTING:
        assert "ports" not in SERVICES[name]
        assert SERVICES[name]["network_mode"] == "host"
        assert address(name).startswith("127.0.0.1:"), name
        listens = [found[1] for word in SERVICES[name].get("command", ()) if (found := LISTENS.match(word))]
        assert all(not at or at.startswith("127.0.0.1:") for at in listens), listens
    assert "--cluster.listen-address=" in SERVICES["alertmanager"]["command"]  # 0.0.0.0:9094 by default


def test_services_have_no_more_rights_than_they_need() -> None:
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("cap_add", []) == (["CHOWN"] if name == "ledgers" else []), name
        assert not {"privileged", "devices", "secrets"} & service.keys(), name


def test_services_find_each_other() -> None:
    folder = source_of("prometheus", "/etc/prometheus/targets")
    for file, name in (("nodes.yml", "agent"), ("alertmanagers.yml", "alertmanager")):
        [group] = read_yaml((folder / file).read_text())
        assert group["targets"] == [address(name)]
    assert address("agent") == DEFAULT_ADDRESS
    urls = {source["type"]: source["url"] for source in provisioned("datasources")["datasources"]}
    assert urls == {name: f"http://{address(name)}" for name in ("prometheus", "alertmanager")}


def test_each_service_has_a_health_check() -> None:
    for name in ("prometheus", "alertmanager", "grafana"):
        assert f"http://{address(name)}/" in SERVICES[name]["healthcheck"]["test"][-1]
    dockerfile = (ROOT / SERVICES["agent"]["build"]["dockerfile"]).read_text()
    assert f"http://{address('agent')}/healthz" in dockerfile.partition("HEALTHCHECK")[2]


def test_the_file_for_gpus_adds_nothing_else() -> None:
    assert project("compose.nvidia.yaml").keys() == {"services"}
    [(name, service)] = project("compose.nvidia.yaml")["services"].items()
    assert (name, service.keys()) == ("agent", {"deploy"})


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="needs docker-compose, version 2")
def test_compose_accepts_the_files() -> None:
    files = ("-f", FOLDER / "compose.yaml", "-f", FOLDER / "compose.nvidia.yaml")
    done = subprocess.run(["docker-compose", *files, "config", "--quiet"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# -- Grafana

# The keys that its provisioning reads (pkg/services/provisioning/{datasources,dashboards}/types.go). It silently
# ignores other keys.
DATA_SOURCE = {
    **dict.fromkeys(("name", "uid", "type", "access", "url", "user", "database", "basicAuthUser", "orgName"), str),
    **dict.fromkeys(("isDefault", "editable", "basicAuth", "withCredentials"), bool),
    **dict.fromkeys(("jsonData", "secureJsonData"), dict),
    **dict.fromkeys(("orgId", "version"), int),
}
PROVIDER = {
    **dict.fromkeys(("name", "type", "folder", "folderUid"), str),
    **dict.fromkeys(("editable", "disableDeletion", "allowUiUpdates"), bool),
    **dict.fromkeys(("orgId", "updateIntervalSeconds"), int),
    "options": dict,
}


@pytest.mark.parametrize(
    ("what", "key", "schema"), [("datasources", "datasources", DATA_SOURCE), ("dashboards", "providers", PROVIDER)]
)
def test_grafana_reads_the_provisioned_files(what: str, key: str, schema: dict[str, type]) -> None:
    said = provisioned(what)
    assert said.keys() == {"apiVersion", key}
    assert said["apiVersion"] == 1
    for entry in said[key]:
        assert {"name", "type"} <= entry.keys() <= schema.keys(), entry
        assert all(isinstance(value, schema[name]) for name, value in entry.items()), entry
    assert len({entry["name"] for entry in said[key]}) == len(said[key])
    places = [at for _, at, _ in mounts(SERVICES["grafana"])]
    assert f"/etc/grafana/provisioning/{what}" in places


def test_the_dashboards_find_their_data() -> None:
    prometheus, _ = provisioned("datasources")["datasources"]
    config = read_yaml((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert prometheus["isDefault"]
    assert prometheus["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    for file in (ROOT / "dashboards" / "generated").glob("*.json"):
        [variable] = [v for v in json.loads(file.read_text())["templating"]["list"] if v["type"] == "datasource"]
        assert variable["query"] == prometheus["type"], file


def test_contains_no_password() -> None:
    env = SERVICES["grafana"]["environment"]
    assert env["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert (env["GF_AUTH_ANONYMOUS_ENABLED"], env["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("true", "Viewer")
    assert (env["GF_AUTH_BASIC_ENABLED"], env["GF_AUTH_DISABLE_LOGIN_FORM"]) == ("false", "true")
    words = [*env, *(word for service in SERVICES.values() for word in service.get("environment", ()))]
    assert not [word for word in words if "PASSWORD" in word or "SECRET" in word]


# -- the ledgers' folder


def _prepared(folder: Path) -> Pod:
    """A pod with only the service `ledgers`, on a new or an existing node."""
    node = Node(folder / "node")
    (node.files / "dev/shm").mkdir(parents=True, exist_ok=True)
    (node.files / "dev/shm").chmod(0o1777)
    return Pod(pod({"ledgers": SERVICES["ledgers"]}, {}, ("ledgers",)), node, folder / f"pod-{os.urandom(4).hex()}")


def _prepare(asked: Pod) -> tuple[int, str]:
    with asked:
        said = asked.start(asked.spec["initContainers"][0])
        return said.wait(), said.log()


@needs_programs
def test_ledger_folder_is_writable_by_all_and_owned_by_the_agent(tmp_path: Path) -> None:
    ledgers = tmp_path / "node/dev/shm/whyidle"
    for before in ("missing", "made", "of a rank"):
        if before == "of a rank":  # which was faster, under a strict umask
            os.chown(ledgers, 1234, 1234)
            ledgers.chmod(0o700)
        assert _prepare(_prepared(tmp_path)) == (0, ""), before
        status = ledgers.lstat()
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o1777, AGENT_UID, AGENT_UID), before


@needs_programs
def test_does_not_follow_a_link_in_place_of_the_ledger_folder(tmp_path: Path) -> None:
    asked = _prepared(tmp_path)
    target = tmp_path / "node/dev/shm/target"
    target.mkdir(mode=0o755)
    (target.parent / "whyidle").symlink_to("target")
    code, said = _prepare(asked)
    assert code
    assert "remove it" in said
    assert (stat.S_IMODE(target.stat().st_mode), target.stat().st_uid) == (0o755, 0)


# -- everything, running


@dataclass
class Webhook:
    """What Alertmanager sends to the receiver."""

    server: HTTPServer
    told: list[Json] = field(default_factory=list)

    def serve(self) -> None:
        told = self.told

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server.RequestHandlerClass = Handler
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@dataclass
class Stack:
    pod: Pod
    ledgers: Path
    webhook: Webhook

    def ask(self, service: str, path: str) -> Any:
        port = int(address(service).rpartition(":")[2])
        code, body = self.pod.containers[service].ask(port, path)
        assert code == 200, body
        return json.loads(body)

    def query(self, expression: str) -> list[Json]:
        return self.ask("prometheus", f"/api/v1/query?query={urllib.parse.quote(expression)}")["data"]["result"]

    def healthy(self, service: str) -> bool:
        """The request of its health check."""
        container = self.pod.containers[service]
        path = "/healthz"
        if "healthcheck" in SERVICES[service]:
            path = urllib.parse.urlparse(SERVICES[service]["healthcheck"]["test"][-1]).path
        try:
            return container.ask(int(address(service).rpartition(":")[2]), path)[0] == 200
        except OSError:
            assert container.process.poll() is None, container.log()
            return False


def _hurry(checkout: Path, webhook: int) -> None:
    """Intervals and waits of seconds, and a receiver. Everything else is as shipped."""
    for file in (checkout / "alerts" / "generated").glob("*.yaml"):
        file.write_text(hurried(file.read_text()))
    file = checkout / "deploy/prometheus/prometheus.yml"
    config = read_yaml(file.read_text())
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["scrape_timeout"] = "1s"
    file.write_text(write_yaml(config))
    file = checkout / "deploy/prometheus/alertmanager.yml"
    config = read_yaml(file.read_text())
    for route in (config["route"], *config["route"]["routes"]):
        # The interval too: a slow agent is absent at first, and its end would wait for the next interval.
        route["group_wait"] = route["group_interval"] = "1s"
    people = next(receiver for receiver in config["receivers"] if receiver["name"] == "people")
    people["webhook_configs"] = [{"url": f"http://127.0.0.1:{webhook}/"}]
    file.write_text(write_yaml(config))


def _programs(node: Node) -> dict[str, str]:
    """The program that each image starts. A program that is not in /usr, such as a newer Prometheus, is copied to the
    node."""
    folder = node.files / BESIDE.relative_to("/")
    folder.mkdir(parents=True)
    found = {}
    for name, program in PROGRAMS.items():
        assert program
        found[name] = program if program.startswith("/usr/") else f"{BESIDE}/{Path(program).name}"
        if found[name] != program:
            shutil.copy(program, folder)
    return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("compose")
    node = Node(folder / "node")
    (node.files / "dev/shm").mkdir(parents=True)
    (node.files / "dev/shm").chmod(0o1777)
    checkout = install(node)
    programs = {name: [program] for name, program in _programs(node).items()}
    programs["agent"] = [sys.executable, "-m", "whyidle.cli.main"]
    services = {name: SERVICES[name] for name in ("ledgers", "agent", "prometheus", "alertmanager")}
    for name in PROGRAMS:
        beside = {"source": str(BESIDE), "target": str(BESIDE), "read_only": True}
        services[name] = {**SERVICES[name], "volumes": [*SERVICES[name]["volumes"], beside]}
    with Pod(pod(services, programs, ("ledgers",)), node, folder / "pod") as running:
        webhook = Webhook(running.in_network(lambda: HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)))
        webhook.serve()
        _hurry(checkout, webhook.server.server_port)
        running.prepare(until)
        running.begin()
        yield Stack(running, node.files / "dev/shm/whyidle", webhook)
        for name, container in running.containers.items():
            print(f"-- {name}\n{container.log()}")  # pytest shows it if the test has failed
        webhook.server.shutdown()
        webhook.server.server_close()


@pytest.mark.long
@needs_programs
def test_alerts_of_the_agent_reach_the_receiver_of_alertmanager(stack: Stack) -> None:
    """From a rank's ledger to Prometheus, and from an agent that ends to one message about it, not two."""
    for service in ("agent", "alertmanager", "prometheus"):
        until(lambda service=service: stack.healthy(service))
    with children(stack.ledgers, Spec(run="composed", steps=4, step={"compute": 0.25})):
        [rank] = until(lambda: stack.query('whyidle_rank_up{run="composed"} == 1'))
        assert rank["metric"]["instance"] == address("agent")
        assert stack.query("up == 1")

    managers = stack.ask("prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert [manager["url"] for manager in managers] == [f"http://{address('alertmanager')}/api/v2/alerts"]
    rules = until(lambda: _evaluated(stack))
    generated = [read_yaml(file.read_text()) for file in (ROOT / "alerts/generated").glob("*.yaml")]
    assert len(rules) == sum(len(group["rules"]) for file in generated for group in file["groups"])
    assert {rule["health"] for rule in rules} == {"ok"}

    assert stack.pod.containers["agent"].terminate() == 0
    until(lambda: stack.webhook.told)
    known = until(lambda: _both(stack))
    assert known["WhyidleAgentDown"]["status"]["inhibitedBy"] == [known["WhyidleAgentAbsent"]["fingerprint"]]
    names = {alert["labels"]["alertname"] for message in stack.webhook.told for alert in message["alerts"]}
    assert names == {"WhyidleAgentAbsent"}
    assert stack.webhook.told[0]["receiver"] == "people"
    assert stack.webhook.told[0]["groupLabels"] == {"alertname": "WhyidleAgentAbsent"}


def _evaluated(stack: Stack) -> list[Json]:
    """All rules, once each has been evaluated. Until then none."""
    rules = [rule for group in stack.ask("prometheus", "/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    return [] if "unknown" in {rule["health"] for rule in rules} else rules


def _both(stack: Stack) -> dict[str, Json]:
    known = {alert["labels"]["alertname"]: alert for alert in stack.ask("alertmanager", "/api/v2/alerts")}
    both = {"WhyidleAgentAbsent", "WhyidleAgentDown"} <= known.keys()
    return known if both and known["WhyidleAgentDown"]["status"]["inhibitedBy"] else {}
