"""Keys of the links between hosts of a planned fleet that are not there."""

import time
from pathlib import Path

import pytest
from host_fleets import three_hosts
from ports import free_ports
from wire import until

from kairos_ros.bringup.planned.hosts.host_part import ToldPlan, part_of
from kairos_ros.bringup.planned.hosts.link_keys import check_keys
from kairos_ros.bringup.planned.hosts.part_check import check_part
from kairos_ros.bringup.planned.hosts.restarts import FIRST_S, Restarts
from kairos_ros.bringup.planned.planner import FleetPlanner, PlanChoices
from kairos_ros.bringup.process_spec import ProcessKind
from kairos_ros.bringup.processes import Fleet
from kairos_ros.commands.fleets.planned import up_planned
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

PORT = free_ports(8)


@pytest.fixture
def file(tmp_path):
    """Of a fleet whose host `b` is beyond loopback, with the engines and a second serving node."""
    file = three_hosts(tmp_path, PORT, standby=True)
    file.write_text(file.read_text().replace("address: 127.0.0.1", "address: 192.0.2.7"))
    return file


@pytest.fixture
def fleet(file):
    return FleetPlanner(str(file), PlanChoices(gpus=3, host="a")).plan()[0]


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """The folder of keys of the host that is this one, which is empty."""
    monkeypatch.setenv("KAIROS_KEYS", str(tmp_path / "keys"))
    return KeyFolder(tmp_path / "keys")


def test_every_host_says_which_key_it_lacks_and_what_to_do(fleet, file, keys, tmp_path):
    def lacks(host):
        with pytest.raises(ConfigError) as error:
            check_keys(part_of(fleet, host).values())
        with pytest.raises(ConfigError) as told:
            check_part(ToldPlan("a", fleet, staged=True), host, file)
        assert str(told.value) == str(error.value), "a told plan is not followed either"
        return str(error.value)

    check_keys(part_of(fleet, "c").values())  # which has arms only
    assert f"no client key is in {keys.path}; make one with `kairos keys new NAME`" in lacks("b")
    keys.new("b_client", Role.CLIENT)
    assert f"no server 'b' is known; known in {keys.path}: none" in lacks("b")
    assert "`kairos keys export b`" in lacks("b")
    keys.new("b", Role.SERVER)
    keys.trust(keys.public("b"))
    workers = [s for s in part_of(fleet, "b").values() if s.kind is ProcessKind.WORKER]
    with pytest.raises(
        ConfigError, match=f"no serving node may dial .*: {keys.clients} has no key"
    ):
        check_keys(workers)
    keys.trust(KeyFolder(tmp_path / "of_a").new("a", Role.CLIENT).key)
    check_keys(workers)
    own = f"the serving node of this host may not dial its engines: {keys.clients} lacks its key"
    assert f"{own} b_client. Run `kairos keys export b_client" in lacks("b")
    keys.trust(keys.public("b_client"))
    check_keys(part_of(fleet, "b").values())
    keys.revoke("b")
    assert "remove own/b.secret and run `kairos keys new b --server` (the old key" in lacks("b")
    (keys.path / "own" / "b.secret").unlink()
    keys.trust(keys.new("b", Role.SERVER).key)
    check_keys(part_of(fleet, "b").values())


@pytest.mark.slow
@pytest.mark.parametrize("host", ["a", "b"])
def test_a_host_that_lacks_a_key_is_not_started(file, keys, host, tmp_path):
    how = PlanChoices(gpus=3, host=host)
    with pytest.raises(ConfigError, match="kairos keys new NAME"):
        up_planned(str(file), how, FleetNames(), tmp_path / "up", record=False, rviz=False)
    assert not list(tmp_path.glob("up/*.log")), "no process was started"


@pytest.mark.slow
def test_a_program_whose_key_has_gone_is_not_started_again_until_it_is_back(fleet, keys, tmp_path):
    """A worker ends: the server key of its host was removed meanwhile."""
    (key, worker), *_ = (
        (k, s) for k, s in part_of(fleet, "b").items() if s.kind is ProcessKind.WORKER
    )
    said = []
    with Fleet([worker], tmp_path / "logs") as processes:
        restarts = Restarts(processes, said.append)

        def look():
            restarts.look({key: worker})
            return said

        until(look, what="for the worker to be missed")
        log = Path(processes.log(key))
        before, began_s = log.read_text(), time.monotonic()
        until(lambda: look() and time.monotonic() > began_s + 4 * FIRST_S)
        assert before.count("no server key 'b'") == 1
        assert log.read_text() == before, "it was not started again"
        assert len(said) == 1
        assert f"{key} is not started again: no server key 'b' in {keys.path}" in said[0]
        assert restarts.failed[key] in said[0]
        keys.new("b", Role.SERVER)
        keys.trust(keys.new("a", Role.CLIENT).key)
        until(lambda: look() and not restarts.failed, what="for its new start")
        assert processes.processes[key].poll() is None
