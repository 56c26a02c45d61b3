"""What can go wrong, by kind: user-fixable errors as exceptions, wire-level refusals as codes."""

from enum import IntEnum


class KairosError(Exception):
    """Something the user can fix: what was wrong, with the value, and what to do."""


class ConfigError(KairosError):
    """A parameter, file or option is wrong."""


class WireError(KairosError):
    """A message from a peer is malformed; it is dropped and counted, nothing else is lost."""


class PolicyError(KairosError):
    """A policy cannot be loaded, verified or run."""


class UnansweredError(KairosError):
    """A node that was asked says nothing."""


class RefusalCode(IntEnum):
    """Why a request was answered without actions. Values are those of ActionChunk.msg."""

    NONE = 0
    UNKNOWN_ROBOT = 1  # no live announcement from this robot and session
    DUPLICATE_ROBOT = 2  # another live session owns this robot id
    BAD_STATE = 3  # joint state has the wrong length
    BAD_IMAGE = 4  # an image is missing, of the wrong size, or does not decode
    NOT_FINITE = 5  # NaN or infinity in the observation
    TOO_LARGE = 6  # message larger than the server accepts
    OLD_ROUND = 7  # an older round than the newest one seen
    REPEATED_ROUND = 8  # the same round and attempt again, already answered
    TASK_ENDED = 9  # the robot said that this task is over
    UNKNOWN_INSTRUCTION = 10  # the policy serves a closed set of instructions
    BAD_HORIZON_POLICY = 11  # horizon policy unknown or its options wrong
    DEADLINE = 12  # could not be served before the deadline of the request
    ENGINE_DOWN = 13  # no engine is up; retry later
    OVERLOADED = 14  # queue is full
    NOT_ACTIVE = 15  # serving node is configured but not activated
    ENGINE_FAILED = 16  # the policy failed on this observation
    MALFORMED = 17  # any other contradiction inside the message
    UNKNOWN_POLICY = 18  # the server serves no policy of that name
    NOT_ADMITTED = 19  # the fleet runs by a plan that does not have this robot
