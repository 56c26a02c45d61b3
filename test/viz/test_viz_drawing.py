"""What is drawn of a fleet: paths in space, colours, what is sent again. Without ROS."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.host.share import share
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract
from kairos_ros.robot.description.kinematics import Chain
from kairos_ros.telemetry.events import EngineReported
from kairos_ros.viz import colours
from kairos_ros.viz.bodies import MetaWorldBody, UrdfBody, two_bones
from kairos_ros.viz.chunk_layer import chunks, dashes, part
from kairos_ros.viz.chunk_paths import ChunkPath, ChunkPaths
from kairos_ros.viz.fleet_layer import arms, fleet
from kairos_ros.viz.places import Grid, Slots
from kairos_ros.viz.safety_layer import safety
from kairos_ros.viz.scene import (
    LastTransition,
    LastVerdict,
    RobotDrawing,
    RobotPaths,
    Scene,
    Serving,
)
from kairos_ros.viz.scheduler_layer import WIDTH_M, scheduler
from kairos_ros.viz.shape import USED, MarkerKind, ShapeBuilder, turned_from_z
from kairos_ros.viz.shown import Shown

STATE = np.zeros(39, np.float32)
STATE[:4] = 0.0, 0.6, 0.2, 1.0
STATE[4:7] = 0.1, 0.7, 0.02
STATE[36:39] = 0.2, 0.8, 0.1
KEY = ("session", "1", 3)
BUILDER = ShapeBuilder("any", "arm_1/base")


def toward_x(count):
    actions = np.zeros((count, 4), np.float32)
    actions[:, 0] = 1.0
    return actions


def straight(actions=10, horizon=6, confidence=1.0):
    points = np.zeros((1, actions + 1, 3))
    points[0, :, 0] = 0.01 * np.arange(actions + 1)
    return ChunkPath(3, points, horizon, np.full(horizon, confidence), "why")


def robot(**changes):
    view = RobotDrawing("arm_1", 0, "arm_1/base", "running", "open the drawer", round=3)
    return replace(view, body=MetaWorldBody(), **changes)


def scene(*robots, serving=None):
    return Scene("fleet", {one.name: one for one in robots}, serving, {}, -1.0)


def of(shapes, ns):
    return [shape for shape in shapes if shape.ns == ns]


def length(shape):
    """In m, of all lines of a shape."""
    points = np.array(shape.points)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    return float((steps if shape.kind is MarkerKind.STRIP else steps[::2]).sum())


def test_a_displacing_arm_goes_a_centimetre_per_action_and_stays_in_its_zone():
    (way,) = MetaWorldBody().paths(STATE, toward_x(70))
    assert way.shape == (71, 3)
    np.testing.assert_allclose(way[:5, 0], [0.0, 0.01, 0.02, 0.03, 0.04], atol=1e-6)
    np.testing.assert_allclose(way[:, 1:], [[0.6, 0.2]] * 71, atol=1e-6)
    assert way[-1, 0] == pytest.approx(0.5)  # the action guard lets it no further


def test_a_saturated_action_moves_no_further_than_the_guard_lets_it():
    (way,) = MetaWorldBody().paths(STATE, 5 * toward_x(2))
    assert way[-1, 0] == pytest.approx(0.02)


@pytest.mark.parametrize("name", ["so101", "franka"])
def test_the_path_of_a_joint_space_arm_is_its_forward_kinematics(name):
    contract = read_contract(contract_path(name))
    urdf = (share() / "models" / "arms" / f"{name}.urdf").read_text()
    root, tip = {
        "so101": ("base_link", "gripper_frame_link"),
        "franka": ("panda_link0", "panda_hand_tcp"),
    }[name]
    body = UrdfBody.from_urdf(urdf, [tip], contract.joints)
    chain = Chain.from_urdf(urdf, root, tip)
    rng = np.random.default_rng(1)
    low, high = (np.array([getattr(j, end) for j in contract.joints]) for end in ("lower", "upper"))
    stops = rng.uniform(low, high, (6, len(low)))
    state = np.concatenate([stops[0], [0.1, 0.2, 0.3]])  # where the ball is, too
    (way,) = body.paths(state, stops[1:].astype(np.float32))
    named = [[j.name for j in contract.joints].index(joint) for joint in chain.joints]
    for point, stop in zip(way, stops, strict=True):
        np.testing.assert_allclose(point, chain.tip(stop[named])[:3, 3], atol=1e-5)
    assert body.tools(contract.state_features, state) == [tuple(np.round(way[0], 4))]


def test_a_policy_in_degrees_draws_the_same_path_as_one_in_radians():
    contract = read_contract(contract_path("so101"))
    urdf = (share() / "models" / "arms" / "so101.urdf").read_text()
    tips = ["gripper_frame_link"]
    degrees = [joint.model_copy(update={"unit": "degrees"}) for joint in contract.joints]
    state = np.array([joint.safe for joint in contract.joints])
    actions = state + np.linspace(0, 0.3, 5)[:, None]
    one = UrdfBody.from_urdf(urdf, tips, contract.joints).paths(state, actions)
    other = UrdfBody.from_urdf(urdf, tips, degrees).paths(np.rad2deg(state), np.rad2deg(actions))
    np.testing.assert_allclose(one, other, atol=1e-9)


def test_two_arms_on_one_base_have_a_path_each():
    contract = read_contract(contract_path("bi_so101"))
    urdf = (share() / "models" / "arms" / "bi_so101.urdf").read_text()
    tips = ["left_gripper_frame_link", "right_gripper_frame_link"]
    body = UrdfBody.from_urdf(urdf, tips, contract.joints)
    state = np.array([joint.safe for joint in contract.joints])
    actions = np.repeat(state[None], 4, axis=0)
    actions[:, 0] += 0.1 * np.arange(4)  # the left shoulder turns
    left, right = body.paths(state, actions)
    assert np.linalg.norm(left[-1] - left[0]) > 0.05
    np.testing.assert_allclose(right, np.repeat(right[:1], 5, axis=0))
    path = ChunkPath(1, np.stack([left, right]), 4, np.ones(4), "")
    shown = chunks(scene(robot(chunks=RobotPaths(path, done=1.0))))
    assert len(of(shown, "chunk: now")) == 2
    assert len({shape.key for shape in shown}) == len(shown)


def test_two_drivers_that_name_their_joints_alike_are_told_apart_by_their_features():
    contract = read_contract(contract_path("bi_so101_real"))
    urdf = (share() / "models" / "arms" / "bi_so101.urdf").read_text()
    tips = ["left_gripper_frame_link", "right_gripper_frame_link"]
    left, right = UrdfBody.from_urdf(urdf, tips, contract.joints).entries
    assert (left, right) == ((0, 1, 2, 3, 4), (6, 7, 8, 9, 10))


def test_a_tip_that_the_contract_does_not_move_is_refused():
    contract = read_contract(contract_path("so101"))
    urdf = (share() / "models" / "arms" / "so101.urdf").read_text()
    with pytest.raises(ConfigError, match="shoulder_pan"):
        UrdfBody.from_urdf(urdf, ["gripper_frame_link"], contract.joints[1:])


def test_states_and_actions_of_another_robot_are_not_drawn():
    assert MetaWorldBody().paths(np.zeros(3), toward_x(5)) is None
    assert MetaWorldBody().paths(STATE, np.zeros((5, 7))) is None
    assert MetaWorldBody().draw(BUILDER, ["a"], np.zeros(1)) == []


def test_an_elbow_is_above_and_as_far_from_both_ends_as_the_bones_are_long():
    start, end = np.array([0.0, 0.0, 0.4]), np.array([0.1, 0.7, 0.2])
    elbow = two_bones(start, end, 0.62, 0.5)
    assert np.linalg.norm(elbow - start) == pytest.approx(0.62)
    assert np.linalg.norm(end - elbow) == pytest.approx(0.5)
    assert elbow[2] > start[2]
    far = two_bones(start, start + np.array([0, 5, 0]), 0.6, 0.6)
    assert np.isfinite(far).all()


def test_executed_to_come_and_trimmed_are_the_whole_path_once():
    view = robot(chunks=RobotPaths(straight(actions=10, horizon=6), done=2.5))
    shown = chunks(scene(view))
    (executed,), to_come = of(shown, "chunk: executed"), of(shown, "chunk: to come")
    assert length(executed) == pytest.approx(0.025, abs=1e-4)
    assert sum(map(length, to_come)) == pytest.approx(0.035, abs=1e-4)
    (trimmed,) = of(shown, "chunk: trimmed")
    assert min(p[0] for p in trimmed.points) == pytest.approx(0.06, abs=1e-4)
    assert max(p[0] for p in trimmed.points) <= 0.1
    (now,) = of(shown, "chunk: now")
    assert now.position[0] == pytest.approx(0.025, abs=1e-4)
    assert of(shown, "chunk: cut")[1].text == "6 of 10"


def test_an_executed_chunk_leaves_nothing_to_come():
    shown = chunks(scene(robot(chunks=RobotPaths(straight(), done=99.0))))
    assert not of(shown, "chunk: to come")
    assert not of(shown, "chunk: cut")
    assert length(of(shown, "chunk: executed")[0]) == pytest.approx(0.06, abs=1e-4)


def test_what_was_stopped_is_not_to_come_any_more():
    shown = chunks(scene(robot(chunks=RobotPaths(straight(horizon=6), done=2.0, end=4))))
    assert sum(map(length, of(shown, "chunk: to come"))) == pytest.approx(0.02, abs=1e-4)
    assert of(shown, "chunk: cut")[1].text == "4 of 10"


def test_the_less_sure_an_action_is_the_greyer_is_its_path():
    chunk = replace(straight(horizon=6), confidence=np.array([1.0, 1.0, 0.6, 0.6, 0.1, 0.1]))
    (path,) = of(chunks(scene(robot(chunks=RobotPaths(chunk, done=1.5)))), "chunk: to come")
    assert len(path.colours) == len(path.points) == 6
    grey = [math.dist(ink, colours.TO_COME) for ink in path.colours]
    assert grey[0] == 0
    assert grey == sorted(grey)
    assert grey[-1] > grey[2] > 0


@given(st.floats(0, 6))
def test_every_point_to_come_has_a_shade(done):
    shown = of(chunks(scene(robot(chunks=RobotPaths(straight(), done=done)))), "chunk: to come")
    assert all(len(shape.colours) == len(shape.points) for shape in shown)
    assert bool(shown) == (done < 6)


def test_the_next_chunk_is_shown_up_to_its_horizon():
    shown = chunks(scene(robot(chunks=RobotPaths(straight(), next=straight(horizon=4)))))
    assert length(of(shown, "chunk: next")[0]) == pytest.approx(0.04, abs=1e-4)


@given(st.floats(0, 10), st.floats(0, 10))
def test_a_part_of_a_path_begins_and_ends_where_it_shall(a, b):
    start, end = sorted((a, b))
    points = straight().points[0]
    cut = part(points, start, end)
    assert cut[0, 0] == pytest.approx(0.01 * start)
    assert cut[-1, 0] == pytest.approx(0.01 * end)
    assert (np.diff(cut[:, 0]) >= 0).all()


@given(st.integers(0, 40), st.floats(0.001, 0.5))
def test_dashes_come_in_pairs_and_never_run_past_the_end(count, dash):
    points = np.linspace([0, 0, 0], [0.3, 0, 0.1], max(count, 1))
    ends = dashes(points, dash)
    assert len(ends) % 2 == 0
    assert all(-1e-9 <= p[0] <= 0.3 + 1e-9 for p in ends)


def test_a_chunk_is_put_together_in_whatever_order_its_parts_come():
    actions, whole = toward_x(6), toward_x(10)
    parts = [
        lambda paths: paths.requested(KEY, 1, STATE),
        lambda paths: paths.answered(KEY, 1, actions, np.linspace(1, 0, 6), "why"),
        lambda paths: paths.whole(KEY, 1, whole),
    ]
    for order in permutations(parts):
        paths = ChunkPaths()
        for number, tell in enumerate(order):
            known = paths.path(KEY, MetaWorldBody())
            told = {parts.index(one) for one in order[:number]}
            assert (known is not None) == ({0, 1} <= told)
            tell(paths)
        path = paths.path(KEY, MetaWorldBody())
        assert path.points.shape == (1, 11, 3)
        assert path.horizon == 6


def test_a_chunk_starts_from_the_observation_that_it_was_made_from():
    paths, moved = ChunkPaths(), STATE.copy()
    moved[0] = 0.1
    paths.requested(KEY, 0, STATE)
    paths.requested(KEY, 1, moved)
    paths.whole(KEY, 0, toward_x(10))  # of an observation that was fetched again
    paths.answered(KEY, 1, toward_x(6), np.ones(6), "")
    path = paths.path(KEY, MetaWorldBody())
    assert path.points[0, 0, 0] == pytest.approx(0.1)
    assert path.points.shape[1] == 7


def test_old_rounds_are_forgotten():
    paths = ChunkPaths()
    for number in range(100):
        paths.requested((*KEY[:2], number), 0, STATE)
        paths.answered((*KEY[:2], number), 0, toward_x(3), np.ones(3), "")
    assert paths.path((*KEY[:2], 99), MetaWorldBody()) is not None
    assert paths.path((*KEY[:2], 50), MetaWorldBody()) is None


def test_a_chunk_that_leads_nowhere_finite_is_not_drawn():
    paths, broken = ChunkPaths(), toward_x(3)
    broken[1, 1] = np.nan
    paths.requested(KEY, 0, STATE)
    paths.answered(KEY, 0, broken, np.ones(3), "")
    assert paths.path(KEY, MetaWorldBody()) is None


unit = st.floats(-1, 1)


@given(st.tuples(unit, unit, unit).filter(lambda v: math.hypot(*v) > 1e-3))
def test_a_rod_points_where_it_shall(way):
    direction = np.array(way) / math.hypot(*way)
    x, y, z, w = turned_from_z(direction)
    assert math.hypot(x, y, z, w) == pytest.approx(1)
    turned = [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)]
    np.testing.assert_allclose(turned, direction, atol=1e-3)


def test_every_shape_of_a_busy_scene_is_sound_and_has_a_key_of_its_own():
    engines = (
        EngineReported("edge", "edge", "busy", 3, 16, 0.4, 0, 0, ""),
        EngineReported("cloud", "cloud", "down", 0, 8, math.inf, 0, 0, "", 0.1),
    )
    serving = Serving(True, 0.1, 99, 12.0, "wait_ratio", "static:10", engines)
    crowd = [
        robot(
            joint_names=tuple(f"state_{i}" for i in range(39)),
            joints=STATE,
            chunks=RobotPaths(straight(), 1.5, straight()),
            judged=LastVerdict(n % 2 == 0, math.nan, 0.1, 0.2),
            transition=LastTransition("unsafe " * 30, 0.5),
            wait_ratio=n / 8,
        )
        for n in range(9)
    ]
    crowd = [
        replace(one, name=f"arm_{n}", slot=n, frame=f"arm_{n}/base") for n, one in enumerate(crowd)
    ]
    for layer in (fleet, arms, chunks, scheduler, safety):
        shapes = layer(scene(*crowd, serving=serving))
        assert shapes
        assert len({shape.key for shape in shapes}) == len(shapes)
        for shape in shapes:
            assert all(shape.scale[i] > 0 for i in USED[shape.kind]), shape
            assert all(shape.scale[i] == 0 for i in {0, 1, 2} - set(USED[shape.kind])), shape
            assert np.isfinite([*shape.position, *shape.orientation, *shape.scale]).all(), shape
            assert 0 < shape.colour[3] <= 1


def test_a_verdict_colours_the_zone_and_a_silent_judge_takes_the_colour_away():
    def looks(judged):
        shown = safety(scene(robot(judged=judged)))
        return of(shown, "zone")[0].colour, [s.text for s in of(shown, "verdict")]

    assert looks(LastVerdict(True, 0.97, 0.086, 0.5)) == (colours.SAFE, ["safe 97 % · 86 ms"])
    assert looks(LastVerdict(False, 0.9, 0.1, 0.5)) == (colours.UNSAFE, ["UNSAFE 90 % · 100 ms"])
    assert looks(LastVerdict(False, 0.9, 0.1, 4.0)) == (colours.UNJUDGED, ["judge silent for 4 s"])
    assert looks(None)[1] == []


def test_what_a_judge_caused_is_told_for_a_while_and_the_course_of_tasks_is_not():
    def told(transition):
        return [s.text for s in of(safety(scene(robot(transition=transition))), "reaction")]

    assert told(LastTransition("unsafe", 1.0)) == ["unsafe"]
    assert told(LastTransition("unsafe", 10.0)) == []
    assert told(LastTransition("succeeded", 1.0, told=False)) == []


def test_a_robot_that_waits_for_a_human_says_so_whatever_its_loop_does():
    waiting = robot(machine="waiting_for_human")
    assert "waiting for human" in of(fleet(scene(waiting)), "caption")[0].text


def test_a_caption_tells_round_wait_and_score():
    view = robot(wait_ratio=0.034, stalled_s=0.52, asks="queued", tasks_done=4, tasks_succeeded=3)
    texts = [shape.text for shape in of(fleet(scene(view)), "caption")]
    assert texts == [
        "arm_1: running",
        "open the drawer",
        "round 3 · waits 3 % · held 0.5 s · queued",
        "3 of 4 done",
    ]
    several = of(fleet(scene(robot(wait_ratio=0.034, policy="pick"))), "caption")
    assert several[2].text == "round 3 · policy pick · waits 3 %"


def test_the_board_fills_a_bar_by_an_engines_load_and_turns_red_where_it_is_down():
    def bar(state, load):
        engine = EngineReported("edge", "edge", state, 0, 16, load, 0, 0, "")
        serving = Serving(True, 0.1, 2, 5.0, "fifo", "static:10", (engine,))
        shape = of(scheduler(scene(serving=serving)), "engines")[2]
        return shape.scale[0] / WIDTH_M, shape.colour

    assert bar("ready", 0.25) == (pytest.approx(0.25, abs=1e-3), colours.EDGE)
    assert bar("busy", 7.0) == (pytest.approx(1.0), colours.EDGE)
    assert bar("down", 0.0)[1] == colours.UNSAFE


def test_the_board_says_when_the_serving_node_is_gone_and_not_what_it_said_last():
    engine = EngineReported("edge", "edge", "busy", 3, 16, 0.9, 0, 0, "")
    silent = Serving(True, 5.0, 7, 3.0, "fifo", "static:10", (engine,))
    shown = scheduler(scene(robot(), serving=silent))
    title = of(shown, "serving")[1]
    assert title.text == "1 robot · serving node silent for 5 s"
    assert title.colour == colours.UNSAFE
    assert not of(shown, "engines") + of(shown, "queue")
    nobody = of(scheduler(scene(serving=None)), "serving")[1]
    assert nobody.text == "0 robots · no serving node"


def test_only_what_changed_is_sent_and_what_is_gone_is_deleted():
    shown = Shown(again_s=2.0)
    a, b = (
        BUILDER.ball(1, (0, 0, 0), 0.1, colours.INK),
        BUILDER.ball(2, (0, 0, 0), 0.1, colours.INK),
    )
    moved = BUILDER.ball(2, (0, 0, 0.5), 0.1, colours.INK)
    assert shown.update([a, b], 0.0).draw == (a, b)
    assert shown.update([a, b], 0.1).draw == ()
    assert shown.update([a, moved], 0.2).draw == (moved,)
    changes = shown.update([moved], 0.3)
    assert changes.draw == ()
    assert changes.delete == (a,)
    assert shown.update([moved], 2.3).draw == (moved,)  # its lifetime would end
    shown.send_all()
    assert shown.update([moved], 2.4).draw == (moved,)
    with pytest.raises(ValueError, match="any"):
        shown.update([moved, moved], 2.5)


def test_what_is_gone_as_somebody_new_comes_is_deleted_for_who_watched_before():
    shown = Shown(again_s=2.0)
    a, b = (BUILDER.ball(i, (0, 0, 0), 0.1, colours.INK) for i in (1, 2))
    shown.update([a, b], 0.0)
    shown.send_all()
    changes = shown.update([b], 0.1)
    assert (changes.draw, changes.delete) == ((b,), (a,))


def test_what_moves_less_than_a_tenth_of_a_millimetre_has_not_moved():
    still = BUILDER.ball(1, (0.1, 0.2, 0.3), 0.1, colours.INK)
    assert BUILDER.ball(1, (0.10001, 0.19999, 0.3), 0.1, colours.INK) == still


def test_robots_stand_in_the_order_of_their_names_and_who_leaves_moves_nobody():
    slots, grid = Slots(), Grid(columns=4, spacing_m=1.0, row_spacing_m=2.0)
    slots.update(["arm_10", "arm_2", "arm_1"])
    assert slots.of == {"arm_1": 0, "arm_2": 1, "arm_10": 2}
    assert [grid.at(slot, 3)[0] for slot in range(3)] == [1.0, 0.0, -1.0]
    slots.update(["arm_10", "arm_2"])
    assert slots.of == {"arm_2": 1, "arm_10": 2}
    slots.update(["arm_10", "arm_2", "arm_1"])
    assert slots.of["arm_1"] == 0
    assert len({grid.at(slot, 9) for slot in range(9)}) == 9
    assert grid.at(4, 5)[1] == -2.0
    assert grid.back(5) < -2.0
