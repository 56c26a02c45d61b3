"""Whether the policy can answer a request, and whether a far engine answered with its chunk."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

import numpy as np

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Observation, Refusal, Request
from kairos_ros.core.fit import (
    PolicyInterface,
    camera_advice,
    camera_name,
    features_of,
    missing_cameras,
)
from kairos_ros.transport.messages import EngineDescription, InferOutcome, InferResult
from kairos_ros.transport.picture import check_parts


def policy_interface(policy: EngineDescription) -> PolicyInterface:
    """What a robot must fit."""
    return PolicyInterface(
        policy.policy_id,
        policy.state_dim,
        policy.action_dim,
        policy.images,
        policy.any_image_size,
        policy.images_optional,
        policy.observations,
        policy.keyframe_stride,
    )


def with_policy_names(request: Request, policy: EngineDescription) -> Request:
    """`request` with the images that `policy` reads, by the names that it has for them."""
    if not request.observation.images:
        return request
    found = features_of(request.observation.images, policy.images)

    def named(seen: Observation) -> Observation:
        images = {name: seen.images[camera] for name, camera in found.items()}
        return replace(seen, images=images)

    earlier = tuple(map(named, request.earlier))
    return replace(request, observation=named(request.observation), earlier=earlier)


def check_request(
    request: Request, policy: EngineDescription, max_bytes: int, absent: Collection[str] = ()
) -> Refusal | None:
    """Why `policy` cannot answer `request`, or None. Images are decoded by the engine; here only
    their structure is looked at.

    absent: cameras that the robot is declared to be without.
    """
    observation = request.observation
    if request.size_bytes > max_bytes:
        return Refusal(
            RefusalCode.TOO_LARGE,
            f"observation of {request.size_bytes} bytes, at most {max_bytes} are accepted; "
            "send smaller or stronger compressed images",
        )
    if len(request.earlier) >= policy.observations:
        return Refusal(
            RefusalCode.MALFORMED,
            f"{len(request.earlier) + 1} observations, "
            f"{policy.policy_type} reads {policy.observations}",
        )
    if policy.keyframe_stride and request.execution.started and not request.task_actions:
        return Refusal(
            RefusalCode.MALFORMED,
            f"{policy.policy_type} goes on from what was executed, and the request does not tell "
            "(`task_actions`, `executed`, and keyframes in `earlier`); update the robot node",
        )
    for ago, seen in _newest_first(request):
        if seen.state.shape != (policy.state_dim,):
            return Refusal(
                RefusalCode.BAD_STATE,
                f"state{ago} has {seen.state.size} values, "
                f"{policy.policy_type} reads {policy.state_dim}",
            )
        if not np.isfinite(seen.state).all():
            where = int(np.flatnonzero(~np.isfinite(seen.state))[0])
            return Refusal(
                RefusalCode.NOT_FINITE,
                f"state{ago}[{where}] is {seen.state[where]}",
                retry_after_ns=100_000_000,
            )
    optional = policy.images_optional
    missing = missing_cameras(observation.images, policy.images, absent, optional=optional)
    if missing:
        advice = camera_advice(observation.images, policy.images, missing, optional=optional)
        return Refusal(
            RefusalCode.BAD_IMAGE,
            f"image {missing[0]!r} is missing; {policy.policy_type} reads "
            f"{', '.join(map(camera_name, policy.images))}, the request has "
            f"{', '.join(observation.images) or 'none'}: {advice}",
        )
    for ago, seen in _newest_first(request):
        for name, image in seen.images.items():
            try:
                check_parts(image)
            except WireError as error:
                return Refusal(RefusalCode.BAD_IMAGE, f"image {name}{ago}: {error}")
    if policy.instructions is not None and request.instruction not in policy.instructions:
        return Refusal(
            RefusalCode.UNKNOWN_INSTRUCTION,
            f"instruction {request.instruction!r} is none of the {len(policy.instructions)} that "
            f"this policy was trained on, for example {policy.instructions[0]!r}",
        )
    return None


def _newest_first(request: Request) -> Iterator[tuple[str, Observation]]:
    """Every observation, and what to say of when it was taken."""
    yield "", request.observation
    for periods, seen in enumerate(reversed(request.earlier), 1):
        yield f" of {periods} control period{'s' * (periods > 1)} earlier", seen


def chunk_problem(outcomes: Iterable[InferOutcome], policy: EngineDescription) -> str:
    """What is wrong with the first outcome that is no chunk of `policy`; empty: nothing.

    A failure is an answer like any other. An engine of this host is not asked about: it checks
    itself, and is the same installation.
    """
    whole = (policy.chunk_size, policy.action_dim)
    shortest = 1 if policy.keyframe_stride else policy.chunk_size
    for outcome in outcomes:
        if not isinstance(outcome, InferResult):
            continue
        chunk, updates = outcome.chunk, outcome.updates
        fits = chunk.shape[1:] == whole[1:] and shortest <= len(chunk) <= policy.chunk_size
        if not fits or chunk.dtype != np.float32:
            return (
                f"a chunk of shape {chunk.shape}, {chunk.dtype}; "
                f"{policy.policy_id} answers {whole}, float32"
            )
        if updates.ndim != 3 or updates.shape[1] != len(chunk):
            return f"updates of shape {updates.shape} for a chunk of {len(chunk)} actions"
        if not (np.isfinite(chunk).all() and np.isfinite(updates).all()):
            return "a chunk that is not finite"
    return ""
