"""A real Prometheus scrapes every program of a live fleet: each rule and each panel has data, and
an alert fires when an engine is killed."""

import itertools
import json
import re
import shutil
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from asking_robot import AskingRobot
from chat_server import ChatServer
from kairos_ros.msg import ActionChunk
from openpi_robot import POLICY, address, doors
from openpi_robot import robot as openpi_client
from ports import free_ports
from wire import WireRobot, until

from kairos_ros.bringup.plan import serving
from kairos_ros.core.calls.call import Caller, caller_headers

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed"),
]
KAIROS = Path(sys.prefix, "bin", "kairos")
CONFIG = Path(__file__).parents[2] / "config"
GROUP = yaml.safe_load((CONFIG / "prometheus" / "kairos.rules.yaml").read_text())["groups"][0]
RULES = [rule["alert"] for rule in GROUP["rules"]]
PANELS = json.loads((CONFIG / "grafana" / "kairos.json").read_text())["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
TOKEN = "dashboard-secret"
URL = re.compile(r"https?://[\w.]+:\d+")


class Fleet:
    """What Prometheus knows, the worker that can be killed, and a robot that is refused."""

    def __init__(self, url: str, worker, robots: list[AskingRobot], stranger: WireRobot) -> None:
        self.worker, self.robots = worker, robots
        self._stranger, self._rounds = stranger, itertools.count(2)
        self._client = httpx.Client(base_url=url, timeout=30.0)

    def get(self, path: str, **params):
        answer = self._client.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list:
        return self.get("query", query=expression)["result"]

    def be_refused(self) -> None:
        """One more request without the pictures that the policy reads."""
        assert self._stranger.ask(next(self._rounds)).kind == ActionChunk.REFUSED

    def firing(self) -> set[str]:
        alerts = self.get("alerts")["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}


def printed_url(process) -> str:
    """The first address that a program prints."""

    def found():
        assert process.process.poll() is None, process.output()
        return URL.search(process.output())

    return until(found, what="for an address")[0]


def ask(gateway: str, component: str, slo_ms: int, model: str = "m") -> int:
    headers = caller_headers(Caller("arm_1", component), slo_ms * 1_000_000)
    body = {"model": model, "messages": [{"role": "user", "content": "?"}]}
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=body, headers=headers, timeout=30)
    return answer.status_code


@pytest.fixture(scope="module")
def fleet(starter_for_module, wire, tmp_path_factory):
    """Two robots, engines here and elsewhere, a gateway with a server that is down; each program is
    scraped twice a second."""
    run, folder = starter_for_module.run, tmp_path_factory.mktemp("prometheus")
    far, port, scraped = free_ports(), free_ports(), free_ports()
    worker = run(
        [
            *(KAIROS, "worker", "--listen", f"tcp://127.0.0.1:{far}", "--insecure-loopback"),
            *("--policy", f"pick={POLICY}", "--metrics", f"127.0.0.1:{scraped}"),
        ]
    )
    engine = f"cloud=tcp://127.0.0.1:{far},policy=pick,insecure_loopback"
    starter_for_module.start(serving(policy=POLICY, engines=[engine]))
    model = ChatServer()
    nobody = f"http://127.0.0.1:{free_ports()}/v1"
    gateway = printed_url(run([KAIROS, "gateway", model.url, nobody, "--listen", "127.0.0.1:0"]))
    dashboard = printed_url(
        run([KAIROS, "dashboard", "--listen", "127.0.0.1:0"], {"KAIROS_DASHBOARD_TOKEN": TOKEN})
    )
    wire.serving_since()
    where = address(doors(run, folder))
    targets = {
        "kairos": dashboard,
        "kairos_gateway": gateway,
        "kairos_doors": where,
        "kairos_worker": f"http://127.0.0.1:{scraped}",
    }
    # as they ship, but that no alert waits
    rules = [rule | {"for": "0s"} for rule in GROUP["rules"]]
    every = {"interval": "1s", "rules": rules}
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [GROUP | every]}))
    scrapes = [
        {
            "job_name": job,
            "static_configs": [{"targets": [url.split("//")[1]]}],
            "authorization": {"credentials": TOKEN},
        }
        for job, url in targets.items()
    ]
    (folder / "prometheus.yml").write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
                "rule_files": ["rules.yaml"],
                "scrape_configs": scrapes,
            }
        )
    )
    prometheus = run(
        [
            *(PROMETHEUS, f"--config.file={folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={folder}/db", f"--web.listen-address=127.0.0.1:{port}"),
        ]
    )
    robots = [openpi_client(where, f"arm_{n}", 100.0 * n).begin() for n in (1, 2)]
    until(lambda: "Server is ready" in prometheus.output(), what="for Prometheus")
    for component, slo_ms in (("safety", 5000), ("monitor", 5000), ("system2", 0)):
        assert ask(gateway, component, slo_ms) == 200
    time.sleep(2.0)  # counters are scraped before they rise
    for component, slo_ms in (("safety", 5000), ("monitor", 5000), ("system2", 0)):
        assert ask(gateway, component, slo_ms) == 200
    assert ask(gateway, "monitor", 100, "none") >= 400
    stranger = WireRobot(wire, "stranger").join()
    yield Fleet(f"http://127.0.0.1:{port}", worker, robots, stranger)
    stranger.leave()
    for robot in robots:
        robot.end()
    model.close()


def test_every_program_is_scraped(fleet):
    def up() -> bool:
        targets = fleet.get("targets")["activeTargets"]
        healthy = [one["labels"]["job"] for one in targets if one["health"] == "up"]
        return len(set(healthy)) == len(targets) == 4

    until(up, what="for all targets")


def test_rules_are_read_and_evaluated(fleet):
    def evaluated() -> bool:
        (group,) = fleet.get("rules")["groups"]
        assert [rule["name"] for rule in group["rules"]] == RULES
        assert not [rule for rule in group["rules"] if rule.get("lastError")]
        return all(rule["health"] == "ok" for rule in group["rules"])

    until(evaluated, what="for all rules")


@pytest.fixture(scope="module")
def without_worker(fleet):
    """The same, once the alerts of a worker that was killed have fired."""
    far = 'kairos_engine_up{engine="cloud"}'
    until(lambda: [one for one in fleet.query(far) if one["value"][1] == "1"])
    scraped_twice = "rate(kairos_worker_compute_seconds_total[5m])"
    until(lambda: fleet.query(scraped_twice), what="for two scrapes of the worker")
    # a program that gets no processor for a second cannot be scraped: that is over at once
    down = {"KairosEngineDown", "KairosExporterDown"}
    until(lambda: not fleet.firing() & down, what="for no alert")
    fleet.worker.process.kill()
    for alert in ("KairosEngineDown", "KairosExporterDown"):
        until(lambda alert=alert: alert in fleet.firing(), what=f"for {alert}")
    return fleet


def test_killing_a_worker_fires_the_alert_of_its_engine_and_of_no_other(without_worker):
    def engines() -> list[str]:
        alerts = without_worker.get("alerts")["alerts"]
        down = [one["labels"] for one in alerts if one["labels"]["alertname"] == "KairosEngineDown"]
        return [labels["engine"] for labels in down]

    until(lambda: engines() == ["cloud"], what="for the alert of that engine only")
    until(lambda: "KairosServingNodeDown" not in without_worker.firing(), what="for no other")
    for robot in without_worker.robots:
        robot.check()


def test_every_panel_has_data(without_worker):
    for expression in EXPRESSIONS:
        until(
            lambda of=expression: without_worker.query(of) or without_worker.be_refused(),
            what=f"for {expression}",
        )
