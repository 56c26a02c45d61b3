"""The worker program: engines behind one endpoint. `python -m kairos_ros.engine.worker -h` is what
a serving node starts; `kairos worker` runs the same by itself, anywhere.

Its exit status is a `WorkerExit`.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import zmq

from kairos_ros.core.errors import ConfigError, KairosError, PolicyError
from kairos_ros.core.language.decoding import CHOICES, DEFAULT_CHOICE
from kairos_ros.engine.interface import EngineLostError, EngineOptions, PreparedBatch
from kairos_ros.engine.pool.ray_pool import RayPlan, ray_replicas
from kairos_ros.engine.pool.replicas import Pool
from kairos_ros.engine.worker.link import WorkerLink
from kairos_ros.engine.worker.loading import load_registry
from kairos_ros.engine.worker.process import WorkerExit
from kairos_ros.engine.worker.questions import Questions
from kairos_ros.engine.worker.work_loop import PreparedAhead, WorkReport, work
from kairos_ros.host.orphan import die_with_parent
from kairos_ros.host.stacks import tell_stacks
from kairos_ros.transport.endpoint import Insecure, is_local
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder, default_folder
from kairos_ros.transport.messages import InferRequest
from kairos_ros.transport.sockets import CurveClient, ListenKeys

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
REFUSAL_HEARD_S = 5.0
"""How long a worker without a policy stays to say why."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker does."""

    endpoint: str
    registry: Mapping[str, EngineOptions]
    """Name -> policy. One GPU computes one batch at a time: all share one queue."""
    security: ListenKeys | CurveClient | Insecure | None = None
    dial: bool = False
    """Connect to a serving node that listens, instead of listening."""
    exit_if_silent_s: float = 0.0
    """0: a worker without clients waits for some."""
    questions: str = ""
    """Local endpoint where judges ask, besides a local `endpoint`."""
    report_s: float = 0.0
    """How often what was done is logged, while something is; 0: never."""
    pool: RayPlan | None = None
    """Replicas in processes of Ray's, instead of one engine in this one."""
    metrics: tuple[str, int] | None = None
    """Address and port where Prometheus scrapes it."""


def main(argv: list[str] | None = None) -> int:
    tell_stacks()
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s engine[{os.getpid()}] %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    options = EngineOptions(
        policy=args.policy,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        max_batch=args.max_batch,
        tokenizer=args.tokenizer,
        allowed_steps=args.allowed_steps,
        rtc=args.rtc,
        compile=args.compile,
        language_mib=args.language_mib,
        language_decoding=args.language_decoding,
    )
    try:
        if args.parent_pid:
            die_with_parent(args.parent_pid)
        plan = WorkerPlan(
            args.listen,
            {"": options},
            _security(args),
            exit_if_silent_s=args.exit_if_silent_s,
            questions=args.questions,
        )
    except KairosError as error:
        log.error("cannot listen on %s: %s", args.listen, error)
        return WorkerExit.OPTIONS
    return run_worker(plan)


def run_worker(plan: WorkerPlan) -> WorkerExit:
    """Serves until a signal or a failure. Finishes what runs then, and answers the rest.

    Raises ConfigError where metrics cannot be served.
    """
    link = WorkerLink(
        plan.endpoint,
        plan.exit_if_silent_s,
        plan.security,
        dial=plan.dial,
        questions=plan.questions,
    )
    if plan.metrics is not None:
        from kairos_ros.engine.worker.metrics import serve_metrics  # of an extra

        serve_metrics(link, *plan.metrics)
    try:
        link.start()
    except (KairosError, zmq.ZMQError) as error:
        how = "dial" if plan.dial else "listen on"
        log.error("cannot %s %s: %s", how, plan.endpoint, error)
        return WorkerExit.OPTIONS
    return _run(plan, link)


def _security(args: argparse.Namespace) -> ListenKeys | Insecure | None:
    """Keys on the network, unless loopback without them was asked for; nothing on one host."""
    if is_local(args.listen):
        return None
    if args.insecure_loopback:
        return Insecure.LOOPBACK
    keys = KeyFolder(Path(args.keys) if args.keys else default_folder())
    return ListenKeys(keys.own(Role.SERVER, args.key), keys)


def _run(plan: WorkerPlan, link: WorkerLink) -> WorkerExit:
    for number in SIGNALS:
        signal.signal(number, _leave)
    status = _serve(plan, link) if plan.pool is None else _serve_pool(plan, plan.pool, link)
    link.stop()
    link.refuse_waiting("the engine stops")
    link.close()
    return status


def _serve(plan: WorkerPlan, link: WorkerLink) -> WorkerExit:
    """Loads the policies into this process and infers batches in order until told to stop."""
    started = time.monotonic()
    try:
        engines, refused = load_registry(plan.registry, link.loading)
    except PolicyError as error:
        link.refused(str(error), REFUSAL_HEARD_S)
        return WorkerExit.REFUSED
    descriptions = {name: engine.description for name, engine in engines.items()}
    for name, described in descriptions.items():
        log.info(
            "serving %s on %s (%s)",
            f"{name}: {described.policy_id}" if name else described.policy_id,
            described.device,
            described.dtype,
        )
    log.info("ready after %.1f s", time.monotonic() - started)
    for number in SIGNALS:  # first, as batches come from then on
        signal.signal(number, lambda *_: link.stop())
    link.ready(descriptions, refused)

    def prepare(policy: str, requests: Sequence[InferRequest]) -> PreparedBatch:
        engine = engines[policy] if policy in engines else next(iter(engines.values()))
        return engine.prepare(requests)

    report = WorkReport(plan.report_s)
    try:
        with PreparedAhead(prepare, link, Questions(engines, link)) as jobs:
            work(jobs, link, report)
    except EngineLostError as error:
        log.error("%s", error)
        return WorkerExit.DEVICE_LOST
    finally:
        report.last()
    return WorkerExit.STOPPED


def _serve_pool(plan: WorkerPlan, ray: RayPlan, link: WorkerLink) -> WorkerExit:
    """Has Ray load the policies into replicas, which infer batches until told to stop."""
    link.loading("starting Ray")
    try:
        with ray_replicas(ray, plan.registry) as new_replica:
            for number in SIGNALS:  # Ray sets its own when it starts
                signal.signal(number, lambda *_: link.stop())
            pool = Pool(link, new_replica, ray.replicas, plan.report_s)
            status = pool.run()
            if status is WorkerExit.REFUSED:
                link.refused(pool.refusal, REFUSAL_HEARD_S)
            return status
    except ConfigError as error:
        log.error("%s", error)
        link.refused(str(error), REFUSAL_HEARD_S)
        return WorkerExit.OPTIONS


def _leave(number: int, _: FrameType | None) -> None:
    log.info("%s while loading: leaving", signal.Signals(number).name)
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kairos-engine-worker",
        description="Serves one policy to a serving node. Started by it; by hand for debugging.",
    )
    defaults = EngineOptions(policy="")
    parser.add_argument(
        "--listen", required=True, help="endpoint to serve, ipc://PATH or tcp://ADDRESS:PORT"
    )
    parser.add_argument(
        "--policy",
        required=True,
        help="LeRobot policy folder, hub id, or emulated:latency_ms=80+35b,...",
    )
    parser.add_argument("--device", default=defaults.device, help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default=defaults.dtype, help="auto, float32 or bfloat16")
    parser.add_argument("--threads", type=int, default=defaults.threads, help="CPU threads")
    parser.add_argument("--max-batch", type=int, default=defaults.max_batch)
    parser.add_argument(
        "--tokenizer", default="", help="replaces the tokenizer that the policy names"
    )
    parser.add_argument(
        "--allowed-steps", default="", help="further processor steps the policy may use: A,B"
    )
    parser.add_argument(
        "--rtc", action="store_true", help="guide chunks to begin with what is committed"
    )
    parser.add_argument(
        "--compile", action="store_true", help="compile the sampler; loading takes minutes longer"
    )
    parser.add_argument(
        "--language-mib",
        type=int,
        default=0,
        help="memory for questions that the policy answers in words; 0: it answers none",
    )
    parser.add_argument(
        "--language-decoding",
        default=DEFAULT_CHOICE,
        choices=CHOICES,
        help="which of the answers a step decodes one token further",
    )
    parser.add_argument(
        "--questions", default="", help="ipc://PATH where judges ask, besides an ipc:// endpoint"
    )
    parser.add_argument("--key", default="", help="server key of this host, where it has several")
    parser.add_argument(
        "--keys", default="", help="folder of keys (KAIROS_KEYS, else ~/.config/kairos/keys)"
    )
    parser.add_argument(
        "--insecure-loopback",
        action="store_true",
        help="serve tcp://127.0.0.1 without keys, to every user of this host",
    )
    parser.add_argument(
        "--parent-pid", type=int, default=0, help="die with this process, which started the worker"
    )
    parser.add_argument(
        "--exit-if-silent-s", type=float, default=0.0, help="exit without a client for so long"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
