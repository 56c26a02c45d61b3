"""The embedded judge's training: true labels, an export that computes the same, honest marks."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("metaworld")
pytest.importorskip("matplotlib")

import torch
from safetensors.numpy import load_file

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.judges.card import write_judge_card
from kairos_ros.lab.judges.certify import PROMPTS
from kairos_ros.lab.judges.exam import (
    ANSWERS,
    Marked,
    best_temperature,
    calibration_error,
    confusion,
    examine,
    reliability,
)
from kairos_ros.lab.judges.figures import draw_confusion, draw_mistakes, draw_reliability
from kairos_ros.lab.judges.network import JudgeNetwork
from kairos_ros.lab.judges.prompts import HELD_OUT, TRAINED
from kairos_ros.lab.judges.report import report
from kairos_ros.lab.judges.scenes import LOSABLE, STATES, UNCLEAR, Frames, task_state
from kairos_ros.lab.judges.train import (
    NO_ANSWER,
    JudgeSettings,
    Pictures,
    augmented,
    cells,
    train_judge,
    vocabulary,
)
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES, expert, make_scene, reset_scene
from kairos_ros.vlm.embedded.embedded_judge import EmbeddedJudge
from kairos_ros.vlm.embedded.tiny_vlm import NetworkShape, TinyVLM, read_model, write_description
from kairos_ros.vlm.embedded.words import words_of
from kairos_ros.vlm.questions import SAFETY, TASK_STATE

pytestmark = pytest.mark.slow

SMALL = JudgeSettings(losable=2, others=2, epochs=6, batch_size=32, image_px=32)


def coloured(count: int = 192) -> dict[str, Frames]:
    """Pictures whose answers are plain: a white bar is an intruder, a corner's colour the state."""
    rng = np.random.default_rng(0)
    image = rng.integers(80, 120, (count, 32, 32, 3)).astype(np.uint8)
    state, unsafe = rng.integers(0, 3, count), rng.random(count) < 0.5
    for n in range(count):
        image[n, :12, :12] = 0
        image[n, :12, :12, state[n]] = 255
        if unsafe[n]:
            image[n, 18:24, 8:28] = 255
    frames = Frames(
        image,
        state.astype(np.int8),
        unsafe,
        np.where(unsafe, 0.1, 0).astype(np.float32),
        np.arange(count),
        np.zeros((count, 3, 3), np.float32),
        np.full((count, 3, 2), 0.5, np.float32),
    )
    return {"push-v3": frames}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("judge"), []
    torch.set_num_threads(1)
    done = train_judge(
        SMALL,
        Pictures(coloured()),
        name="small",
        out=folder / "small",
        work=folder,
        report=lines.append,
    )
    return folder, done, lines


def test_training_reads_pictures_and_words(trained):
    folder, done, _ = trained
    assert done
    judge = EmbeddedJudge(*read_model(folder / "small"))
    marked = examine(judge, coloured(), {k: p[:1] for k, p in PROMPTS.items()})
    assert sum(one.right for one in marked) > 0.9 * len(marked)


def test_the_export_in_numpy_computes_what_torch_does():
    torch.manual_seed(0)
    shape = NetworkShape(image_px=32, words=30)
    network = JudgeNetwork(shape)
    images = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    floats = images.permute(0, 3, 1, 2) / 127.5 - 1.0
    words = torch.tensor([[[2, 7, 9, 11, 3, 5], [2, 8, 3, 6, 0, 0]]] * 3)
    network.train()
    for _ in range(3):  # statistics of the normalisation that are not those of a new network
        network(floats, words)
    network.eval()
    with torch.no_grad():
        wanted = network(floats, words).numpy()
    exported = TinyVLM(shape, network.weights())
    seen = exported.see(images.numpy())
    for picture in range(3):
        for question, count in enumerate((6, 4)):
            logits = exported.answer(seen[picture], words[picture, question, :count].tolist())
            np.testing.assert_allclose(logits, wanted[picture, question], atol=2e-5, rtol=1e-4)


def test_an_interrupted_training_continues_and_ends_with_the_same_weights(
    trained, tmp_path, monkeypatch
):
    whole, _, _ = trained
    lines, passes = [], []
    shuffle = torch.randperm

    def interrupt_the_third(count):
        passes.append(count)
        if len(passes) == 3:
            raise KeyboardInterrupt
        return shuffle(count)

    def once():
        return train_judge(
            SMALL,
            Pictures(coloured()),
            name="small",
            out=tmp_path / "small",
            work=tmp_path,
            report=lines.append,
        )

    monkeypatch.setattr(torch, "randperm", interrupt_the_third)
    assert once() is False
    assert "continue" in lines[-1]
    assert once() is True
    assert any("from epoch 3 of 6" in line for line in lines)
    ours = load_file(tmp_path / "small" / "model.safetensors")
    theirs = load_file(whole / "small" / "model.safetensors")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_a_training_is_not_continued_with_other_settings(trained):
    folder, _, _ = trained
    with pytest.raises(ConfigError, match="other settings"):
        train_judge(
            replace(SMALL, seed=1),
            Pictures(coloured()),
            name="small",
            out=folder / "other",
            work=folder,
            report=lambda _: None,
        )


def test_a_training_may_be_made_longer_or_shorter_until_it_cools(tmp_path, monkeypatch):
    shuffle, passes = torch.randperm, []

    def train(epochs, most):
        passes.clear()
        monkeypatch.setattr(torch, "randperm", lambda n: _counted(passes, most) or shuffle(n))
        return train_judge(
            replace(SMALL, epochs=epochs),
            Pictures(coloured(32)),
            name="small",
            out=tmp_path / "small",
            work=tmp_path,
            report=lambda _: None,
        )

    assert train(10, most=3) is False
    with pytest.raises(ConfigError, match="other settings"):
        train(4, most=9)  # would have cooled since its third pass
    assert train(5, most=9) is True
    assert len(passes) == 2
    with pytest.raises(ConfigError, match="other settings"):
        train(20, most=9)


def _counted(passes, most):
    passes.append(1)
    if len(passes) > most:
        raise KeyboardInterrupt


def test_every_word_of_every_wording_is_in_the_vocabulary_and_the_held_out_ones_are_not_trained():
    known = set(vocabulary())
    for kind in (SAFETY, TASK_STATE):
        assert not set(TRAINED[kind]) & set(HELD_OUT[kind])
        for prompt in (*TRAINED[kind], *HELD_OUT[kind], *ANSWERS[kind]):
            assert set(words_of(prompt)) <= known, prompt
    for instruction in SCENES.values():
        assert set(words_of(instruction)) <= known


def test_augmented_pictures_keep_their_shape_and_differ():
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    (one, _), (two, _) = augmented(images), augmented(images)
    assert one.shape == (4, 3, 32, 32)
    white = torch.zeros(8, 32, 32, 3, dtype=torch.uint8)
    white[:, 16, 16] = 255
    seen, moved = augmented(white)
    brightest = seen.sum(1).flatten(1).argmax(1)
    np.testing.assert_array_equal(brightest % 32, 16 + moved[:, 0])
    np.testing.assert_array_equal(brightest // 32, 16 + moved[:, 1])
    assert torch.isfinite(one).all()
    assert not torch.equal(one, two)


def test_a_point_lies_in_the_token_that_sees_it_and_moves_with_the_picture():
    pixel = torch.tensor([[[0.1, 0.9], [0.49, 0.3], [1.2, 0.5]]])
    still, moved = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[1, -2]])
    assert cells(pixel, still, 32, 4).tolist() == [[12, 5, NO_ANSWER]]
    assert cells(pixel, moved, 32, 4).tolist() == [[12, 4 + 2 - 4, NO_ANSWER]]


@pytest.mark.parametrize("scene", LOSABLE)
def test_the_true_state_follows_the_object(scene):
    env = make_scene(scene)
    obs = reset_scene(env, 3)
    assert STATES[task_state(env, scene, success=False)] == "ongoing"
    at = env.model.jnt_qposadr[np.flatnonzero(env.model.jnt_type == 0)[0]]
    put = env.data.qpos[at : at + 3].copy()
    for place, state in (
        ((0.65, 0.6, 0.02), "failed"),  # at the far wall
        ((0.0, 0.6, -0.9), "failed"),  # on the floor
        ((0.0, 0.25, 0.02), "failed"),  # beside the arm's foot
        (tuple(put), "ongoing"),
    ):
        env.data.qpos[at : at + 3] = place
        assert STATES[task_state(env, scene, success=False)] == state, place
    env.data.qpos[at : at + 3] = (env.mocap_high[0] + 0.01, 0.6, 0.02)
    assert task_state(env, scene, success=False) == UNCLEAR
    env.data.qpos[at : at + 3] = put
    teacher, success = expert(scene), False
    for _ in range(300):
        obs, _, _, _, info = env.step(np.clip(teacher.get_action(obs), -1, 1).astype(np.float32))
        success |= bool(info["success"])
    assert success
    assert STATES[task_state(env, scene, success=True)] == "done"


def test_rendered_pictures_show_what_their_labels_say(tmp_path):
    """Same seeds, same pictures; every intruder is visible; its moment without it is there, too."""
    script = """
import sys, numpy as np
from kairos_ros.lab.judges.scenes import record_frames
one = record_frames("push-v3", range(950_000, 950_003), px=48, look="demo")
two = record_frames("push-v3", range(950_000, 950_003), px=48, look="demo")
from kairos_ros.robot.adapters.sim.metaworld_scenes import make_scene, reset_scene
from kairos_ros.robot.adapters.sim.sim import metaworld_cameras
from kairos_ros.lab.training.camera import look as judge_look
from kairos_ros.lab.training.camera.points import projected, task_points
judge_look.LIGHT = judge_look.TINT = 0.0
env = make_scene("push-v3")
reset_scene(env, 950_003)
obs, *_ = env.step(np.zeros(4, np.float32))
camera = metaworld_cameras(env, {"corner3": (240, 240)})
views, pixels = [], []
def look():
    views.append(camera.frame("corner3").copy())
    pixels.append(projected(env, "corner3", task_points(obs)))
look()
with judge_look.dressed(env, "corner3", "shifted", np.random.default_rng(1)):
    look()
look()
np.savez(sys.argv[1], image=one.image, again=two.image, unsafe=one.unsafe, covered=one.covered,
    state=one.state, seed=one.seed, views=views, pixels=pixels)
"""
    path = tmp_path / "frames.npz"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(path)],
        capture_output=True,
        text=True,
        timeout=170,
    )
    if not path.exists():
        if "EGL" in run.stderr:
            pytest.skip("no EGL here")
        raise AssertionError(run.stderr)
    frames = np.load(path)
    np.testing.assert_array_equal(frames["image"], frames["again"])
    assert set(frames["seed"].tolist()) == {950_000, 950_001, 950_002}
    unsafe = frames["unsafe"]
    assert unsafe.mean() == 0.5
    assert (frames["covered"][unsafe] >= 0.004).all()
    assert (frames["covered"][~unsafe] == 0).all()
    pairs = frames["image"].reshape(-1, 2, 48, 48, 3).astype(int)
    changed = (np.abs(pairs[:, 0] - pairs[:, 1]).max(-1) > 24).mean((1, 2))
    assert (changed > 0.002).all()
    np.testing.assert_array_equal(frames["state"][::2], frames["state"][1::2])
    usual, moved, again = frames["views"].astype(int)
    np.testing.assert_array_equal(usual, again)
    assert np.abs(frames["pixels"][0] - frames["pixels"][1]).max() > 1 / 240
    for view, (_, _, goal) in ((usual, frames["pixels"][0]), (moved, frames["pixels"][1])):
        red, green, blue = view[int(goal[1] * 240), int(goal[0] * 240)]
        assert green > 2 * max(red, blue)  # push-v3 draws its goal as a green ball


def marked(truth: str, odds: tuple[float, ...], kind: str = SAFETY, scene: str = "push-v3"):
    return Marked(kind, PROMPTS[kind][0], scene, 0, truth, odds)


def test_marks_by_hand():
    rows = [
        marked("safe", (0.9, 0.1)),
        marked("safe", (0.3, 0.7)),
        marked("unsafe", (0.1, 0.9)),
        marked("unsafe", (0.05, 0.95)),
    ]
    np.testing.assert_array_equal(confusion(rows, SAFETY), [[1, 1], [0, 2]])
    bins = reliability(rows)
    np.testing.assert_allclose(bins, [(0.7, 0.0, 1), ((0.9 + 0.9 + 0.95) / 3, 1.0, 3)])
    assert calibration_error(rows) == pytest.approx((0.7 + 3 - 2.75) / 4)


def test_the_temperature_undoes_overconfidence():
    """Answers stated at 0.99 that are right in 80 of 100 cases want to be stated at about 0.8."""
    rows = [marked("safe" if n < 80 else "unsafe", (0.99, 0.01)) for n in range(100)]
    rows += [marked("done", (0.0, 1.0, 0.0), TASK_STATE)]
    hot = best_temperature(rows)
    stated = 0.99 ** (1 / hot) / (0.99 ** (1 / hot) + 0.01 ** (1 / hot))
    assert stated == pytest.approx(0.8, abs=0.03)


def test_the_card_and_its_figures_say_what_the_exam_found(trained, tmp_path):
    folder, _, _ = trained
    description, network = read_model(folder / "small")
    judge = EmbeddedJudge(description, network)
    frames = coloured(64)
    rows = examine(judge, frames, PROMPTS)
    found = report(rows, frames, PROMPTS)
    assert found["kinds"][SAFETY]["all"]["asked"] == 64
    sizes = [row["asked"] for row in found["intruder_sizes"]]
    assert sum(sizes) == frames["push-v3"].unsafe.sum()
    card = tmp_path / "small"
    card.mkdir()
    for name in ("model.safetensors", "training.json"):
        (card / name).write_bytes((folder / "small" / name).read_bytes())
    write_description(card, description)
    evaluation = {
        "held_out": found,
        "shifted": found,
        "small": {"px": 24, "kinds": {k: found["kinds"][k]["all"] for k in ANSWERS}},
        "latency_ms": {
            "calls": 1,
            "clock": {"p50": 1.0, "p99": 2.0},
            "computing": {"p50": 1.0, "p99": 2.0},
        },
        "calibration_pictures": 7,
        "test_episodes": 2,
    }
    (card / "evaluation.json").write_text(json.dumps(evaluation))
    draw_confusion({"Held-out": found, "Shifted": found}, card / "confusion.png")
    draw_reliability({"Held-out": found}, card / "reliability.png")
    draw_mistakes(rows, frames, card / "mistakes.png")
    write_judge_card(card)
    text = (card / "README.md").read_text()
    accuracy = found["kinds"][SAFETY]["all"]["accuracy"]
    assert f"{100 * accuracy:.1f}" in text
    assert "| push-v3 |" in text
    assert "24 × 24 px and enlarged" in text
    assert all(words in text for words in HELD_OUT[SAFETY])
