"""`kairos evaluate --scenes`: a LeRobot checkpoint over suites of scenes and horizon policies.

Every finished cell (scene and horizon policy) is a line of FOLDER/cells.jsonl, from which a stopped
evaluation goes on.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import parse_horizon
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.lab.metrics.cells import appendable
from kairos_ros.lab.scenes.arms import SceneArms, SceneView
from kairos_ros.lab.scenes.trial import run_episodes
from kairos_ros.lab.training.card import write_figure
from kairos_ros.lab.training.evaluate import Evaluation, Score
from kairos_ros.recording.runs.run_files import make_folder
from kairos_ros.robot.adapters.lerobot.lerobot_scenes import STATES, scenes_of

CELLS, RESULT, FIGURE = "cells.jsonl", "evaluation.json", "success_vs_horizon.png"
OWN_ACTIONS = ("xvla",)
"""Types whose actions LeRobot turns into the environment's by code of theirs."""
FIRST_SEED = 1000
"""As of `lerobot-eval` without `--seed`."""


@dataclass(frozen=True, slots=True)
class SceneSettings:
    """What is evaluated, and on what."""

    engine: EngineOptions
    suites: tuple[str, ...]
    horizons: tuple[str, ...]
    episodes: int = 10
    first_seed: int = FIRST_SEED
    lead: int = 0
    lossless: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Feature of the scene -> the policy's, as `--rename_map` of `lerobot-eval`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of LeRobot's configuration of the environment."""
    max_actions: int = 0
    """Of an episode; 0: as the scene says."""
    processes: int = 1
    arms: int = 1
    """In each process."""

    def same(self, policy_id: str) -> dict[str, Any]:
        """What cells of one file have in common; a number of processes changes no result."""
        told = asdict(self)
        for name in ("engine", "suites", "horizons", "processes", "arms"):
            del told[name]
        return told | {"policy": policy_id}


@dataclass(frozen=True, slots=True)
class Cell:
    """One scene under one horizon policy."""

    score: Score
    seeds: tuple[int, ...]
    """Of the successful episodes."""


def evaluate_scenes(
    settings: SceneSettings,
    out: Path,
    report: Callable[[str], None],
    progress: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Runs what `out` does not have yet; writes cells as they end, then the result and a figure.

    report: gets a line for every cell. progress: gets a line for every episode. Raises ConfigError
    for scenes and horizon policies that are not known, and for an `out` of other settings, and
    PolicyError for a policy that does not load or does not fit.
    """
    decides = {horizon: parse_horizon(horizon) for horizon in settings.horizons}
    if not any(horizon.startswith("static:") for horizon in decides):
        raise ConfigError("name at least one static horizon; the others are held against it")
    scenes = [scene for suite in settings.suites for scene in scenes_of(suite)]
    make_folder(out)
    from kairos_ros.engine.policies.policy_engine import load_policy_engine

    engine = load_policy_engine(settings.engine, progress)
    kind = engine.description.policy_type
    if engine.description.keyframe_stride or kind in OWN_ACTIONS:
        raise ConfigError(
            f"policies of type {kind} keep a state of every task, or bring their own code between "
            "environment and policy, which only lerobot-eval runs; use that"
        )
    common = settings.same(engine.description.policy_id)
    cells = _read(out / CELLS, common)
    given = {feature: own for own, feature in settings.renamed.items()}
    view = SceneView(
        tuple(name for name in STATES if name in engine.state_features),
        tuple(given.get(key, key) for key in engine.description.images),
        engine.description.observations,
        settings.first_seed,
        settings.lossless,
        settings.options,
        settings.max_actions,
    )
    for scene in scenes:
        missing = [one for one in settings.horizons if (scene, one) not in cells]
        if not missing:
            continue
        progress(f"{scene}: making {settings.processes * settings.arms} arms")
        with SceneArms(scene, view, settings.processes, settings.arms) as arms:
            _check(scene, arms, view, engine.description.action_dim, engine.description.state_dim)
            for horizon in missing:
                cell = _run(engine, arms, scene, horizon, decides[horizon], settings, progress)
                cells[scene, horizon] = cell
                with appendable(out / CELLS) as file:
                    file.write(json.dumps(common | asdict(cell)).encode() + b"\n")
                report(_line(cell.score))
    scores = tuple(cells[scene, horizon].score for scene in scenes for horizon in decides)
    result = Evaluation(settings.first_seed, settings.episodes, 0.0, scores)
    (out / RESULT).write_text(result.to_json())
    write_figure([result], out / FIGURE)
    return result


def _run(
    engine: Any,
    arms: SceneArms,
    scene: str,
    horizon: str,
    decide: Any,
    settings: SceneSettings,
    progress: Callable[[str], None],
) -> Cell:
    def tell(done: int, succeeded: int) -> None:
        progress(f"{scene}, {horizon}: {succeeded} of {done} episodes, {settings.episodes} in all")

    episodes = run_episodes(
        engine,
        arms,
        range(settings.first_seed, settings.first_seed + settings.episodes),
        decide,
        lead=settings.lead,
        renamed=settings.renamed,
        tell=tell,
    )
    score = Score(
        scene,
        horizon,
        len(episodes),
        sum(episode.success for episode in episodes),
        sum(episode.rounds for episode in episodes),
        sum(len(episode.actions) for episode in episodes),
    )
    return Cell(score, tuple(episode.seed for episode in episodes if episode.success))


def _check(scene: str, arms: SceneArms, view: SceneView, action_dim: int, state_dim: int) -> None:
    """Raises ConfigError where the scene's robot is not the policy's or has none of its cameras."""
    about = arms.about
    for what, theirs, ours in (
        ("actions", about.action_dim, action_dim),
        ("states", about.state_dim, state_dim),
    ):
        if theirs != ours:
            raise ConfigError(
                f"{scene} has {what} of {theirs} numbers, the policy's have {ours}; evaluate a "
                f"policy of this robot (pictures of the scene: {', '.join(about.images)})"
            )
    if view.images and not set(view.images) & set(about.images):
        raise ConfigError(
            f"{scene} has pictures {', '.join(about.images) or 'of nothing'}, the policy reads "
            f"{', '.join(view.images)}; say with --rename which is which"
        )


def _read(file: Path, common: Mapping[str, Any]) -> dict[tuple[str, str], Cell]:
    """Finished cells, by scene and horizon. Raises ConfigError for those of other settings."""
    found: dict[tuple[str, str], Cell] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            told = json.loads(line)
            score = Score(**told.pop("score"))
            seeds = tuple(told.pop("seeds"))
        except (ValueError, KeyError, TypeError):
            continue  # the line that was being written when it was stopped
        if told != json.loads(json.dumps(common)):
            differs = [key for key in common if told.get(key) != common[key]]
            raise ConfigError(
                f"{file} is of another evaluation ({', '.join(differs)} differ); give another --out"
            )
        found[score.scene, score.horizon] = Cell(score, seeds)
    return found


def _line(score: Score) -> str:
    low, high = score.interval
    return (
        f"{score.scene}, {score.horizon}: {score.successes} of {score.episodes} "
        f"({low:.0%} to {high:.0%}), {score.mean_horizon:.1f} actions per round"
    )


def rows(evaluation: Evaluation) -> Iterator[tuple[str, ...]]:
    """Of the table: every horizon policy over all scenes, then the best static one per scene."""
    for horizon in evaluation.horizons:
        score = evaluation.overall(horizon)
        low, high = score.interval
        yield (
            horizon,
            f"{score.success:.1%}",
            f"{low:.1%} to {high:.1%}",
            f"{score.mean_horizon:.1f}",
            f"{score.rounds / score.episodes:.1f}",
        )
    best = [_best_static(evaluation.scores, scene) for scene in evaluation.scenes]
    actions, rounds = sum(one.actions for one in best), sum(one.rounds for one in best)
    episodes = sum(one.episodes for one in best)
    yield (
        "best static of each scene",
        f"{sum(one.successes for one in best) / episodes:.1%}",
        "chosen on these episodes",
        f"{actions / rounds:.1f}",
        f"{rounds / episodes:.1f}",
    )


def _best_static(scores: Sequence[Score], scene: str) -> Score:
    """The largest at the highest accuracy."""
    static = [s for s in scores if s.scene == scene and s.horizon.startswith("static:")]
    return max(static, key=lambda s: (s.successes, s.mean_horizon))
