"""Success against executed horizon, per task and horizon policy, simulated on held-out seeds."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import parse_horizon
from kairos_ros.host.process_pool import process_pool
from kairos_ros.lab.training.bench import arms
from kairos_ros.lab.training.camera.look import Look, SceneRandomizer
from kairos_ros.lab.training.demonstrations import HELD_OUT_SEED
from kairos_ros.recording.runs.run_files import make_folder
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

STATIC = tuple(f"static:{h}" for h in (5, 8, 10, 15, 20, 30, 50))
CONFIDENCE = tuple(f"confidence:t={t}" for t in (0.05, 0.1, 0.2, 0.3, 0.4, 0.6))
TAIL_AGREEMENT = tuple(f"tail_agreement:t={t}" for t in (0.5, 0.8, 1.5, 2.5))
HORIZONS = STATIC + CONFIDENCE + TAIL_AGREEMENT


@dataclass(frozen=True, slots=True)
class Score:
    """Episodes of one scene (or, in `Evaluation.overall`, of all) under one horizon policy."""

    scene: str
    horizon: str
    episodes: int
    successes: int
    rounds: int
    actions: int

    @property
    def success(self) -> float:
        return self.successes / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate (Wilson)."""
        return wilson_95(self.successes, self.episodes)

    @property
    def mean_horizon(self) -> float:
        """Actions executed per round; the last round of an episode often ends early."""
        return self.actions / self.rounds


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All scores of a policy folder, and what they were measured with."""

    first_seed: int
    episodes: int
    disturbance: float
    scores: tuple[Score, ...]
    look: Look = "demo"
    """Of the scenes: as in training's plain half, or each episode in random light and colours."""

    def of(self, horizon: str) -> list[Score]:
        return [score for score in self.scores if score.horizon == horizon]

    def overall(self, horizon: str) -> Score:
        """Every scene counts the same: all have the same number of episodes."""
        parts = self.of(horizon)
        return Score(
            "all",
            horizon,
            *(
                sum(getattr(part, name) for part in parts)
                for name in ("episodes", "successes", "rounds", "actions")
            ),
        )

    @property
    def scenes(self) -> list[str]:
        return list(dict.fromkeys(score.scene for score in self.scores))

    @property
    def horizons(self) -> list[str]:
        return list(dict.fromkeys(score.horizon for score in self.scores))

    @property
    def best_static(self) -> str:
        """The static horizon with the most successes; of equal ones the longest."""
        static = [h for h in self.horizons if h.startswith("static:")]
        return max(static, key=lambda h: (self.overall(h).successes, self.overall(h).mean_horizon))

    def to_json(self) -> str:
        rows = []
        for score in self.scores:
            low, high = score.interval
            rows.append(
                asdict(score)
                | {
                    "success": round(score.success, 4),
                    "success_95": [round(low, 4), round(high, 4)],
                    "mean_executed_horizon": round(score.mean_horizon, 2),
                }
            )
        settings = {
            name: getattr(self, name) for name in ("first_seed", "episodes", "disturbance", "look")
        }
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        return f'{json.dumps(settings)[:-1]}, "scores": [\n  {lines}\n]}}\n'


def evaluate(
    policy: Path,
    *,
    scenes: Sequence[str] = tuple(SCENES),
    horizons: Sequence[str] = HORIZONS,
    episodes: int = 50,
    first_seed: int = HELD_OUT_SEED,
    disturbance: float = 0.0,
    look: Look = "demo",
    processes: int = 2,
    report: Callable[[str], None] = print,
) -> Evaluation:
    """Run `episodes` per scene and horizon policy, on the same seeds for every horizon policy.

    Raises ConfigError for an unknown scene or horizon policy, and for a folder that holds no
    policy or cannot be written into, before anything runs.
    """
    unknown = [scene for scene in scenes if scene not in SCENES]
    if unknown or not scenes:
        raise ConfigError(f"unknown tasks {unknown}; choose from {', '.join(SCENES)}")
    for horizon in horizons:
        parse_horizon(horizon)
    if not any(horizon.startswith("static:") for horizon in horizons):
        raise ConfigError(
            "name at least one static horizon; it is what the others are held against"
        )
    if not (policy / "config.json").is_file():
        raise ConfigError(f"{policy} holds no policy (config.json); give its folder")
    make_folder(policy)
    seeds = range(first_seed, first_seed + episodes)
    scores: dict[str, list[Score]] = {}
    with process_pool(processes) as pool:
        jobs = {
            pool.submit(_score_scene, policy, scene, horizons, seeds, disturbance, look): scene
            for scene in scenes
        }
        try:
            for job in as_completed(jobs):
                scores[jobs[job]] = job.result()
                best = max(scores[jobs[job]], key=lambda score: score.successes)
                report(f"{jobs[job]}: up to {best.success:.0%} ({best.horizon})")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    ordered = tuple(score for scene in scenes for score in scores[scene])
    return Evaluation(first_seed, episodes, disturbance, ordered, look)


def _score_scene(
    policy: Path,
    scene: str,
    horizons: Iterable[str],
    seeds: range,
    disturbance: float,
    look: Look,
) -> list[Score]:
    import torch

    from kairos_ros.lab.training.rollout import PolicyUnderTest, run_episodes

    torch.set_num_threads(1)
    under_test = PolicyUnderTest(policy)
    bodies = arms(str(policy), scene, len(seeds))
    dress = SceneRandomizer(look)
    scores = []
    for horizon in horizons:
        results = run_episodes(
            under_test, scene, seeds, parse_horizon(horizon), bodies, disturbance, dress=dress
        )
        scores.append(
            Score(
                scene,
                horizon,
                len(results),
                sum(r.success for r in results),
                sum(r.rounds for r in results),
                sum(r.actions for r in results),
            )
        )
    return scores


def load_evaluation(path: Path) -> Evaluation:
    """Reads what `Evaluation.to_json` wrote."""
    data = json.loads(path.read_text())
    fields = Score.__slots__
    scores = tuple(Score(**{name: row[name] for name in fields}) for row in data["scores"])
    look = data.get("look", "demo")
    return Evaluation(data["first_seed"], data["episodes"], data["disturbance"], scores, look)


def by_family(evaluation: Evaluation) -> Mapping[str, list[Score]]:
    """Overall scores of each horizon family (static, confidence, …), by growing horizon."""
    families: dict[str, list[Score]] = defaultdict(list)
    for horizon in evaluation.horizons:
        families[horizon.partition(":")[0]].append(evaluation.overall(horizon))
    return {name: sorted(row, key=lambda s: s.mean_horizon) for name, row in families.items()}
