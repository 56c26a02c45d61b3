"""The lives of a pool's replicas, without Ray."""

import threading
from dataclasses import replace
from types import SimpleNamespace

from small_engine import SMALL_ENGINE

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.interface import EngineLostError
from kairos_ros.engine.pool import replicas as pool
from kairos_ros.engine.pool.demand import ReplicaCount
from kairos_ros.engine.worker.process import WorkerExit


class Link(SimpleNamespace):
    """A worker's link on which nothing happens."""

    def __init__(self):
        super().__init__(stopping=False, replicas=0, computing=0)

    def loading(self, stage):
        pass

    refuse_waiting = loading

    def ready(self, served, refused):
        pass


class Replica:
    """Loads, or not, in this order."""

    def __init__(self, *loads):
        self.loads, self.infer = list(loads), None

    def load(self, given_up):
        outcome = self.loads.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, pool.Loaded):
            return outcome
        return pool.Loaded({"": outcome}, {})

    def end(self):
        pass


def run(monkeypatch, replica):
    """Every life but the last that is possible ends with a lost process."""
    link = Link()

    def work(infer, link, report):
        if replica.loads:
            raise EngineLostError("the host is gone")
        link.stopping = True

    monkeypatch.setattr(pool, "work", work)
    pool_of_one = pool.Pool(link, lambda: replica, ReplicaCount(1, 1), 60.0)
    thread = threading.Thread(target=lambda: ends.append(pool_of_one.run()), daemon=True)
    ends = []
    thread.start()
    thread.join(20.0)
    return ends, pool_of_one.refusal


def test_a_replica_that_served_and_cannot_load_for_a_while_is_tried_again(monkeypatch):
    missing = PolicyError("there is no policy folder /models/pick")
    replica = Replica(SMALL_ENGINE, missing, SMALL_ENGINE)
    assert run(monkeypatch, replica) == ([WorkerExit.STOPPED], "")
    assert not replica.loads


def test_a_replica_on_another_gpu_may_be_as_fast_and_take_as_much_memory_as_it_does(monkeypatch):
    other = replace(SMALL_ENGINE, device="cuda:1", warmup=((1, 0.2),), memory_mib=900)
    replica = Replica(SMALL_ENGINE, other)
    assert run(monkeypatch, replica) == ([WorkerExit.STOPPED], "")
    assert not replica.loads


def test_a_replica_that_lacks_a_policy_for_a_while_is_tried_again(monkeypatch):
    both = pool.Loaded({"pick": SMALL_ENGINE, "place": SMALL_ENGINE}, {})
    one = pool.Loaded({"pick": SMALL_ENGINE}, {"place": "there is no policy folder /models/place"})
    replica = Replica(both, one, both)
    assert run(monkeypatch, replica) == ([WorkerExit.STOPPED], "")
    assert not replica.loads


def test_a_replica_that_cannot_load_at_all_is_refused(monkeypatch):
    ends, why = run(monkeypatch, Replica(PolicyError("there is no policy folder /models/pick")))
    assert ends == [WorkerExit.REFUSED]
    assert "there is no policy folder" in why


def test_a_policy_that_keeps_states_is_refused_where_there_may_be_several_replicas():
    link, replica = Link(), Replica(replace(SMALL_ENGINE, keyframe_stride=1))
    several = pool.Pool(link, lambda: replica, ReplicaCount(1, 2), 60.0)
    assert several.run() is WorkerExit.REFUSED
    assert "start it with one replica" in several.refusal
