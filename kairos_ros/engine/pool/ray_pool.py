"""Replicas as Ray actors: Ray places them on hosts and GPUs of its cluster, and starts those that
died again. Without a cluster, a private Ray on this host that ends with the worker.

What goes to an actor was decoded and checked here; nothing from the wire is unpickled. Between the
hosts of a cluster Ray itself pickles, and so trusts them all (docs/security.md).
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kairos_ros.core.errors import ConfigError, KairosError, PolicyError
from kairos_ros.engine.interface import Engine, EngineLostError, EngineOptions
from kairos_ros.engine.policies.saved_policy import PREFIX
from kairos_ros.engine.pool.demand import ReplicaCount
from kairos_ros.engine.pool.replicas import Loaded
from kairos_ros.engine.worker.loading import load_registry
from kairos_ros.engine.worker.process import private_folder
from kairos_ros.host.child_processes import children
from kairos_ros.host.extras import require
from kairos_ros.transport.messages import InferOutcome, InferRequest

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 * 1024 * 1024
"""Shared memory of a private Ray: batches on their way to replicas and back."""
PRIVATE = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # off: listen on loopback only; Linux, too
    "RAY_COLOR_PREFIX": "0",
    "RAY_USAGE_STATS_ENABLED": "0",  # they would be sent to Ray's makers
}
"""Environment of a private Ray; read when Ray is imported, and by what it starts."""
STARTS = 3
"""Attempts to start a private Ray."""
CONNECT_S = 10.0
LOOK_S = 0.25
"""How often somebody who waits for a replica looks whether the worker shall stop."""
BATCH_MIN_S = 10.0
BATCH_FACTOR = 10.0
"""A batch that takes longer than max(BATCH_MIN_S, BATCH_FACTOR * what the largest should take): the
replica hangs, is killed, and started again."""


@dataclass(frozen=True, slots=True)
class RayPlan:
    """How many replicas, and where."""

    replicas: ReplicaCount
    address: str = ""
    """HOST:PORT of a cluster's head, or auto for the one this host is in; empty: a private Ray."""


class EngineActor:
    """The actor: in a process of Ray's, on whichever host Ray chose."""

    def __init__(self) -> None:
        self._engines: dict[str, Engine] = {}

    def load(self, registry: Mapping[str, EngineOptions]) -> Loaded:
        """Raises PolicyError where none of them is served."""
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        self._engines, refused = load_registry(registry, lambda s: log.info("loading: %s", s))
        served = {name: engine.description for name, engine in self._engines.items()}
        return Loaded(served, refused)

    def infer(self, policy: str, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """Of the only policy where none is named."""
        engine = self._engines.get(policy) or next(iter(self._engines.values()))
        return engine.infer(requests)


class RayReplica:
    """One actor. See `pool.Replica`."""

    def __init__(self, registry: Mapping[str, EngineOptions], cpus: int, gpus: int) -> None:
        import ray

        self._ray = ray
        self._registry = dict(registry)
        self._limit_s = BATCH_MIN_S
        self._actor: Any = (
            ray.remote(EngineActor)
            .options(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0)
            .remote()
        )

    def load(self, given_up: Callable[[], bool]) -> Loaded | None:
        ray = self._ray
        try:
            # Retried, for as long as it takes: so one waits for an actor that starts again.
            there = self._actor.__ray_ready__.options(max_task_retries=-1).remote()
            if not self._done(there, given_up):
                return None
            loading = self._actor.load.remote(self._registry)
            if not self._done(loading, given_up):
                return None
            loaded: Loaded = ray.get(loading)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, KairosError):
                raise error.cause from None
            raise PolicyError(f"it cannot be loaded: {error.cause or error}") from error
        except Exception as error:  # RayError, and whatever else Ray says of a lost process
            raise EngineLostError(str(error)) from error
        slowest = max(
            (s * d.max_batch / b for d in loaded.served.values() for b, s in d.warmup[-1:]),
            default=0.0,
        )
        self._limit_s = max(BATCH_MIN_S, BATCH_FACTOR * slowest)
        return loaded

    def end(self) -> None:
        self._ray.kill(self._actor)

    def _done(self, reference: Any, given_up: Callable[[], bool]) -> bool:
        while not self._ray.wait([reference], timeout=LOOK_S)[0]:
            if given_up():
                return False
        return True

    def infer(self, policy: str, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        ray = self._ray
        try:
            outcomes: list[InferOutcome] = ray.get(
                self._actor.infer.remote(policy, requests), timeout=self._limit_s
            )
        except ray.exceptions.RayActorError as error:
            raise EngineLostError(f"the replica died: {error}") from error
        except Exception as error:
            # Whatever it was, only a new process is sure to be sound.
            ray.kill(self._actor, no_restart=False)
            late = isinstance(error, ray.exceptions.GetTimeoutError)
            what = f"no answer within {self._limit_s:.0f} s" if late else str(error)
            raise EngineLostError(f"the replica failed: {what}") from error
        return outcomes


@contextlib.contextmanager
def ray_replicas(
    plan: RayPlan, registry: Mapping[str, EngineOptions]
) -> Iterator[Callable[[], RayReplica]]:
    """Starts (or joins) Ray, and gives what asks it for one more replica. They end with the block,
    and so does a private Ray.

    Call it from the main thread: the kernel ends a private Ray with the thread that started it.
    Raises ConfigError.
    """
    cpus = max(options.threads for options in registry.values())
    devices = {o.device for o in registry.values() if not o.policy.startswith(PREFIX)}
    for device in devices:
        if ":" in device:
            raise ConfigError(f"device {device}: in a pool Ray chooses the GPU, use cuda")
    with contextlib.ExitStack() as stack:
        most = plan.replicas.most
        ray = _private_ray(stack, most * cpus) if not plan.address else _join(plan.address)
        stack.callback(ray.shutdown)
        there = int(ray.cluster_resources().get("GPU", 0))
        gpus = 1 if "cuda" in devices or (there and "auto" in devices) else 0
        if not plan.address and gpus * most > there:
            raise ConfigError(
                f"{most} replicas need a GPU each, and Ray finds {there} on this host"
            )
        yield lambda: RayReplica(registry, cpus, gpus)


def _private_ray(stack: contextlib.ExitStack, cpus: int) -> Any:
    """Reachable from this host only, and by whoever knows its token: this process and its own."""
    os.environ |= PRIVATE | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    folder = stack.enter_context(private_folder())
    ray = _ray()
    before, reason = set(children(os.getpid())), ""
    for attempt in range(STARTS):
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                logging_level=logging.WARNING,
                # Ray opens its folder to all; nobody gets through ours.
                _temp_dir=str(folder / f"ray{attempt}"),
            )
            return ray
        except Exception as error:  # a bare one, where this host was too busy for 30 s
            log.warning("Ray did not start: %s", error)
            reason = str(error)
            ray.shutdown()
            _end(set(children(os.getpid())) - before)
    raise ConfigError(f"Ray did not start on this host in {STARTS} attempts: {reason}")


def _end(pids: set[int]) -> None:
    """What a Ray that failed to start left running."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _join(address: str) -> Any:
    if "://" in address:
        raise ConfigError(
            f"--ray-address {address}: run the worker on a host of the cluster and give HOST:PORT "
            "of its head, or auto"
        )
    ray = _ray()
    if address != "auto":
        _check_somebody_listens(address)
    try:
        ray.init(address=address, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise ConfigError(f"--ray-address {address}: cannot join that cluster: {error}") from error
    return ray


def _check_somebody_listens(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise ConfigError(f"--ray-address {address}: write HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--ray-address {address}: no Ray answers there: {error}") from error


def _ray() -> Any:
    require("ray")
    import ray

    return ray
