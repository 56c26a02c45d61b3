"""Whom a robot asks and whom it believes, step by step."""

from kairos_ros.core.execution.server_binding import MOST_SERVERS, ServerBinding
from kairos_ros.core.fit import PolicyInterface, RobotInterface
from kairos_ros.core.server_status import ServedPolicy, ServerState, ServerStatus

S = 1_000_000_000
ACTIVE, INACTIVE, CONFLICT = ServerState.ACTIVE, ServerState.INACTIVE, ServerState.CONFLICT


def status(server, state=ACTIVE, policy="flow:1", **fields):
    return ServerStatus(server, state, policy=policy, **fields)


class Robot:
    def __init__(self, name="arm_1"):
        self.binding = ServerBinding(name)
        self.at_s = 0.0

    def hears(self, *statuses):
        for one in statuses:
            self.binding.heard(one, round(self.at_s * S))
        return self

    def looks(self):
        return self.binding.look(round(self.at_s * S))

    def later(self, seconds):
        self.at_s += seconds
        return self

    def in_task_with(self, server, policy="flow:1"):
        """Bound, with a chunk of this policy taken."""
        self.hears(status(server, policy=policy))
        self.looks()
        self.binding.begin()
        self.binding.taken(policy)
        return self


def test_nobody_is_asked_and_nobody_believed_before_a_server_is_known():
    robot = Robot()
    robot.binding.begin()
    assert robot.looks() == (False, "")
    assert robot.binding.bound == ""
    assert not robot.binding.is_from("")
    assert not robot.binding.is_from("anyone")
    assert "none has announced itself" in robot.binding.why_none(0)

    robot.hears(status("a"))
    assert robot.looks() == (True, "")
    assert robot.binding.bound == "a"
    assert robot.binding.server == status("a")


def test_only_an_active_server_of_this_robot_is_chosen():
    robot = Robot("left_1").hears(
        status("a", robots=("right_*",)), status("b", INACTIVE), status("c", CONFLICT)
    )
    robot.looks()
    assert robot.binding.bound == ""
    assert "inactive" in robot.binding.why_none(0)
    robot.hears(status("d", robots=("left_*",)))
    robot.looks()
    assert robot.binding.bound == "d"


def test_of_two_active_ones_the_one_that_has_served_longest_is_chosen_and_kept():
    robot = Robot().hears(status("a"), status("b", active_for_ns=9 * S))
    robot.looks()
    assert robot.binding.bound == "b"
    robot.hears(status("b"), status("a", active_for_ns=99 * S))
    assert robot.looks() == (False, "")
    assert robot.binding.bound == "b"


def test_an_idle_robot_follows_the_server_that_serves_whatever_its_policy():
    robot = Robot().hears(status("a"))
    robot.looks()
    robot.hears(status("a", INACTIVE))
    robot.looks()
    assert robot.binding.bound == ""
    robot.hears(status("b", policy="other:2"))
    robot.looks()
    assert robot.binding.bound == "b"


def test_a_task_stays_with_its_server_while_that_lives_even_deactivated():
    robot = Robot().in_task_with("a").hears(status("a", INACTIVE), status("b", active_for_ns=9 * S))
    assert robot.looks() == (False, "")
    assert robot.binding.bound == "a"
    assert robot.binding.is_from("a")
    assert not robot.binding.is_from("b")
    assert robot.binding.describe_other_servers() == f"{status('b')}: 1"


def test_a_chunk_of_another_policy_is_not_taken_within_a_task():
    robot = Robot().in_task_with("a")
    assert robot.binding.is_of("flow:1")
    assert not robot.binding.is_of("other:2")
    robot.binding.end()
    robot.binding.begin()
    assert robot.binding.is_of("other:2")


def test_a_task_goes_on_with_the_next_server_once_the_first_has_left():
    robot = Robot().in_task_with("a").hears(status("b"))
    assert robot.looks() == (False, "")
    robot.hears(status("a", ServerState.LEAVING))
    assert robot.looks() == (True, "")
    assert (robot.binding.bound, robot.binding.rebound) == ("b", 1)
    assert not robot.binding.is_from("a")


def test_a_task_goes_on_with_the_next_server_once_the_first_is_silent():
    robot = Robot().in_task_with("a").later(3).hears(status("b"))
    assert robot.looks() == (False, "")
    robot.later(1)
    assert robot.looks() == (True, "")
    assert robot.binding.bound == "b"


def test_a_server_that_is_silent_is_not_said_to_be_active():
    robot = Robot().hears(status("a", node="/serving"))
    robot.looks()
    robot.later(4).looks()
    assert robot.binding.bound == ""
    assert robot.binding.why_none(4 * S).startswith("/serving on ")
    assert robot.binding.why_none(4 * S).endswith(" is silent")


def test_a_server_that_says_it_serves_nobody_is_left():
    robot = Robot().in_task_with("a").hears(status("a", CONFLICT), status("b"))
    assert robot.looks() == (True, "")
    assert robot.binding.bound == "b"


def test_the_same_server_is_asked_on_while_there_is_no_other():
    robot = Robot().in_task_with("a").later(60)
    assert robot.looks() == (False, "")
    assert robot.binding.bound == "a"
    robot.hears(status("a"))
    assert robot.binding.is_from("a")


def test_a_task_ends_where_only_another_policy_is_served_now():
    robot = Robot().in_task_with("a").hears(status("a", ServerState.LEAVING))
    robot.hears(status("b", ServerState.STARTING, policy=""))
    assert robot.looks() == (False, "")
    robot.hears(status("b", policy="other:2"))
    changed, outcome = robot.looks()
    assert not changed
    assert outcome.startswith("failed: ")
    assert "other:2" in outcome
    assert "flow:1" in outcome


def test_a_task_ends_where_its_own_server_changes_its_policy():
    robot = Robot().in_task_with("a").hears(status("a", policy="other:2"))
    assert "other:2" in robot.looks()[1]


def test_before_the_first_chunk_any_policy_will_do():
    robot = Robot().hears(status("a"))
    robot.looks()
    robot.binding.begin()
    robot.hears(status("a", ServerState.LEAVING), status("b", policy="other:2"))
    assert robot.looks() == (True, "")


def test_a_robot_that_was_frozen_itself_does_not_take_its_server_for_silent():
    robot = Robot().in_task_with("a").later(8).hears(status("b"))
    robot.binding.resumed(round(robot.at_s * S))
    assert robot.looks() == (False, "")
    assert robot.binding.bound == "a"


def test_what_is_remembered_of_others_is_bounded():
    robot = Robot()
    for number in range(10 * MOST_SERVERS):
        robot.hears(status(f"s{number}"))
        robot.binding.is_from(f"x{number}" * 1000)
    assert len(robot.binding._heard) == MOST_SERVERS
    assert len(robot.binding.other_servers) == MOST_SERVERS
    assert max(map(len, robot.binding.other_servers)) <= 64


def test_a_flood_of_identities_does_not_push_the_bound_server_out():
    robot = Robot().in_task_with("a")
    for number in range(3 * MOST_SERVERS):
        robot.hears(status(f"s{number}", policy=""), status(f"t{number}"))
    robot.later(1.0).hears(status("a"))
    assert robot.looks() == (False, "")
    assert robot.binding.bound == "a"


def test_a_task_does_not_go_on_with_a_server_that_names_no_policy():
    robot = Robot().in_task_with("a")
    robot.hears(status("a", CONFLICT), status("b", policy=""))
    _, outcome = robot.looks()
    assert robot.binding.bound == "a"
    assert outcome.startswith("failed: the server is now")


def several(server, *weights, **fields):
    """A server of several policies, the first one its default."""
    policies = tuple(
        ServedPolicy(name, PolicyInterface(one, 3, 1), 20)
        for name, one in zip("ab", weights, strict=True)
    )
    return status(server, policy=weights[0], policies=policies, **fields)


def test_a_task_goes_on_where_its_policy_is_one_of_several():
    robot = Robot().in_task_with("a").hears(several("b", "other:2", "flow:1"))
    robot.hears(status("a", ServerState.LEAVING))
    assert robot.looks() == (True, "")
    assert robot.binding.bound == "b"
    assert robot.binding.asks_for == "flow:1", "and not what that server gives who names nothing"


def test_a_task_ends_where_its_policy_is_none_of_several():
    robot = Robot().in_task_with("a").hears(several("a", "other:2", "third:3"))
    assert "with policy other:2; the task began with policy flow:1" in robot.looks()[1]


def test_a_task_goes_on_where_its_policy_may_be_one_that_is_not_loaded_yet():
    unknown = ServedPolicy("b", None, 0)
    robot = Robot().in_task_with("a").hears(status("b", policy="other:2", policies=(unknown,)))
    robot.hears(status("a", ServerState.LEAVING))
    assert robot.looks() == (True, "")
    assert robot.binding.asks_for == "flow:1"
    assert robot.binding.policy is None


def test_requests_name_the_policy_of_the_goal_and_after_the_first_chunk_its_weights():
    binding = ServerBinding("arm_1", policy="pick")
    assert binding.asks_for == "pick"
    binding.begin("place")
    assert binding.asks_for == "place"
    binding.taken("flow:1")
    assert binding.asks_for == "flow:1"
    binding.end()
    assert binding.asks_for == "pick"


def test_a_robot_is_held_against_the_policy_that_it_asks_for_and_what_stands_in_for_it():
    body = RobotInterface(3, 1)
    fits, wide = PolicyInterface("flow:1", 3, 1), PolicyInterface("wide:2", 3, 7)
    for swapped, asked, misfit in (("", "a", False), ("", "b", True), ("b", "a", True)):
        binding = ServerBinding("arm_1", body, policy=asked)
        policies = ServedPolicy("a", fits, 20, swapped), ServedPolicy("b", wide, 20)
        binding.heard(status("s", policy="flow:1", policies=policies), 0)
        binding.look(0)
        assert binding.bound == "s"
        assert bool(binding.misfit) is misfit, (swapped, asked)


def test_a_task_goes_on_with_the_standby_as_soon_as_the_other_has_said_it_would_be_gone():
    soon = status("a", silent_after_ns=S)
    robot = Robot().in_task_with("a").hears(soon, status("b", ServerState.STANDBY))
    robot.later(0.9).hears(status("b"))
    assert robot.looks() == (False, "")
    assert robot.binding.bound == "a"
    robot.later(0.2)
    assert robot.looks() == (True, "")
    assert (robot.binding.bound, robot.binding.rebound) == ("b", 1)


def test_a_server_that_stands_by_has_its_robots_no_more():
    robot = Robot().in_task_with("a").hears(status("a", ServerState.STANDBY), status("b"))
    assert robot.looks() == (True, "")
    assert robot.binding.bound == "b"
