"""How many actions per second a robot can do at most, and how often it asks for that.

An *action* is the unit of progress of Rosa §3.4: what a robot executes in `action_s` (t) of motion.
ℓ is the mean latency of System 1, network included, and ℓ2/H that of System 2 per action.

**Synchronous** robots (Rosa) wait for each chunk, then execute all of it: one request per action,
and `f <= 1 / (t + ℓ + ℓ2/H)` (eq. 4).

**Overlapped** robots, ours, observe and ask while they execute, and have one request at a time
under way. A chunk holds t of motion *from its observation on*: what was executed between
observation and answer is lost from it. Plans are asked beside, so ℓ2 is not in the loop. Let T be
the time between two observations, and e the motion executed between an observation and its answer.
A chunk gives u = t - e. It runs from its answer on, so the next observation, T after the last one,
has e = ℓ + u - T of it left, as long as that is between 0 and ℓ. Together: u = (t + T - ℓ) / 2, and
the robot does

    f(T) = u / (t·T) = (t + T - ℓ) / (2·t·T)    actions/s, for |t - ℓ| <= T <= t + ℓ

- At T = t + ℓ nothing overlaps (e = 0), and f = 1 / (t + ℓ): the synchronous robot. Asking still
  less often, f = 1/T.
- At T = t - ℓ it never halts: f = 1/t. That asks *more* often than once per action, 1 / (t - ℓ).
- One request at a time means T >= ℓ. For t/2 < ℓ < t it therefore halts even when it asks as soon
  as it can: f = 1 / (2ℓ). For ℓ >= t overlapping gains nothing.

So `f <= 1 / max(t, min(2ℓ, t + ℓ))`, and f actions/s take `(2·f·t - 1) / (t - ℓ)` requests/s where
f is above 1 / (t + ℓ), and f below it.
"""

import math

from kairos_ros.planning.workload import Execution


def most_actions_hz(
    action_s: float, system1_s: float, system2_share_s: float, execution: Execution
) -> float:
    """The closed-loop bound; system2_share_s: ℓ2/H."""
    if execution == "synchronous":
        return 1 / (action_s + system1_s + system2_share_s)
    return 1 / max(action_s, min(2 * system1_s, action_s + system1_s))


def requests_hz(
    actions_hz: float, action_s: float, system1_s: float, execution: Execution
) -> float:
    """System 1 requests per second of a robot that does so many actions per second.

    infinite where the closed loop does not allow it."""
    if actions_hz > most_actions_hz(action_s, system1_s, 0.0, execution) * (1 + 1e-9):
        return math.inf
    if execution == "synchronous" or actions_hz * (action_s + system1_s) <= 1:
        return actions_hz
    return (2 * actions_hz * action_s - 1) / (action_s - system1_s)


def longest_system1_s(actions_hz: float, requests_hz: float, action_s: float) -> float:
    """The longest mean latency with which an overlapped robot that asks so often still does so many
    actions per second: `requests_hz`, solved for System 1's."""
    if requests_hz > actions_hz * (1 + 1e-9):
        return min(1 / requests_hz, action_s - (2 * actions_hz * action_s - 1) / requests_hz)
    return 1 / actions_hz - action_s
