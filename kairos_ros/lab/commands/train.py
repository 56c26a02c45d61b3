"""`kairos train` and `kairos evaluate`: the options, and nothing that costs an import."""

import os
from pathlib import Path
from typing import Annotated

import typer

from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

PICTURED, EYES_MINUTES = 80, 45.0


def train_command(
    out: Annotated[
        Path | None,
        typer.Option(help="Policy folder to write, LeRobot format [default: that of the tasks]."),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Demonstrations and the resumable state are kept here [default: runs/train, for"
            " an arm runs/train/POLICY]."
        ),
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            help="Comma-separated Meta-World tasks, or one of so101-reach, bi_so101-reach,"
            " franka-reach; empty means all of Meta-World's that are known."
        ),
    ] = "",
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Training time, without demonstrations [default: 25]."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Train this many steps instead of --minutes.")
    ] = None,
    demonstrations: Annotated[
        int, typer.Option(min=1, help="Successful demonstrations per task.")
    ] = 500,
    batch_size: Annotated[int, typer.Option(min=1, help="Chunks per training step.")] = 512,
    learning_rate: Annotated[
        float, typer.Option(min=0.0, help="At its highest; with --start, less is better.")
    ] = 1e-3,
    width: Annotated[int, typer.Option(min=8, help="Width of the network.")] = 512,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="CPU threads and simulator processes; 0 means all cores.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of demonstrations and training.")] = 0,
    cameras: Annotated[
        bool,
        typer.Option(
            "--cameras", help="Train a policy that reads cameras instead of the objects' poses."
        ),
    ] = False,
    pictured: Annotated[
        int, typer.Option(min=1, help="With --cameras: pictured demonstrations per task.")
    ] = PICTURED,
    start: Annotated[
        str,
        typer.Option(
            help="Folder of a policy that knows these tasks and reads the objects' poses: training"
            " goes on from it; with --cameras, all but the eyes begins with its weights. Empty: it"
            " begins with nothing."
        ),
    ] = "",
    from_dataset: Annotated[
        str,
        typer.Option(
            help="Dataset of kairos bag export: the expert takes over in its tasks, and shows how"
            " they go on. Empty: none."
        ),
    ] = "",
    eyes_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01, help=f"With --cameras: time to learn to see [default: {EYES_MINUTES:g}]."
        ),
    ] = None,
    eyes_steps: Annotated[
        int | None, typer.Option(min=1, help="Learn to see in so many steps instead.")
    ] = None,
) -> None:
    """Train a policy of the demos from scripted demonstrations.

    Run the same command again to continue a stopped training.
    """
    if cameras:
        from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen

        render_off_screen()  # before anything imports MuJoCo

    import torch

    from kairos_ros.lab.training.camera.eyes import EyesSettings
    from kairos_ros.lab.training.subject import METAWORLD, subject_of, vision_of
    from kairos_ros.lab.training.train import TrainSettings, train

    subject = subject_of(_scenes(tasks))
    runs = Path("runs/train")
    eyes = None
    if cameras:
        minutes_to_see = EYES_MINUTES if eyes_minutes is None and eyes_steps is None else None
        eyes = EyesSettings(pictured, eyes_minutes or minutes_to_see, eyes_steps)
        name = vision_of(_scenes(tasks)).policy
        work = work or runs / name
    else:
        name = subject.policy
    threads = threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    settings = TrainSettings(
        scenes=_scenes(tasks),
        episodes=demonstrations,
        minutes=25.0 if minutes is None and steps is None else minutes,
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        width=width,
        seed=seed,
        eyes=eyes,
        start=start,
        failed=from_dataset,
    )
    train(
        settings,
        out=out or Path("models", name),
        work=work or (runs if subject is METAWORLD else runs / subject.policy),
        device=device,
        processes=threads,
        report=typer.echo,
    )


def evaluate_command(
    policy: Annotated[
        Path,
        typer.Option(
            help="Policy folder to evaluate and write into; with --scenes also a hub id, and "
            "nothing is written into it."
        ),
    ] = Path("models/metaworld_flow"),
    tasks: Annotated[
        str, typer.Option(help="Comma-separated Meta-World tasks; empty means all known ones.")
    ] = "",
    horizons: Annotated[
        str,
        typer.Option(help="Horizon policies separated by ';'; empty means the model card's."),
    ] = "",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes per task and horizon.")] = 50,
    disturbance: Annotated[
        float, typer.Option(min=0.0, help="Noise on executed hand motions, action units.")
    ] = 0.0,
    look: Annotated[
        str,
        typer.Option(
            help="demo, or shifted: every episode in random light and colours, half with things on"
            " the table; for policies that read cameras."
        ),
    ] = "demo",
    processes: Annotated[
        int, typer.Option(min=0, help="Parallel processes; 0 means all cores.")
    ] = 0,
    scenes: Annotated[
        str,
        typer.Option(
            help="Suites of other simulators, comma-separated, for any LeRobot policy: metaworld, "
            "metaworld_easy to _very_hard, pusht, aloha, libero_spatial, _object, _goal, _10, _90; "
            "or single scenes such as libero_spatial/3."
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="With --scenes: folder of results [default: runs/evaluate/POLICY]."),
    ] = None,
    arms: Annotated[
        int, typer.Option(min=1, max=256, help="With --scenes: simulators in each process.")
    ] = 1,
    first_seed: Annotated[
        int, typer.Option(min=0, help="With --scenes: as --seed of lerobot-eval.")
    ] = 1000,
    lead: Annotated[
        int,
        typer.Option(
            min=0,
            help="With --scenes: actions executed while a chunk is made; 0: arms wait for it.",
        ),
    ] = 0,
    max_actions: Annotated[
        int, typer.Option(min=0, help="With --scenes: of an episode; 0: as the scene says.")
    ] = 0,
    jpeg: Annotated[
        bool, typer.Option("--jpeg", help="With --scenes: pictures as robots send them, not exact.")
    ] = False,
    rename: Annotated[
        list[str] | None,
        typer.Option(
            help="With --scenes: FEATURE=POLICYS_FEATURE, as --rename_map of lerobot-eval; "
            "repeatable."
        ),
    ] = None,
    scene_option: Annotated[
        list[str] | None,
        typer.Option(
            help="With --scenes: KEY=VALUE of LeRobot's environment, such as "
            "observation_height=256; repeatable."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="With --scenes: auto, cpu, cuda or cuda:N.")] = "auto",
    dtype: Annotated[str, typer.Option(help="With --scenes: auto, float32 or bfloat16.")] = "auto",
) -> None:
    """Measure success against executed horizon; writes evaluation JSON and plot, for the demo's
    policies also the model card. With --scenes, any LeRobot policy on other simulators' scenes; the
    same command continues a stopped one."""
    if scenes:
        from kairos_ros.lab.commands.evaluate_scenes import evaluate_on_scenes

        evaluate_on_scenes(
            policy,
            scenes,
            horizons,
            out,
            episodes=episodes,
            first_seed=first_seed,
            lead=lead,
            jpeg=jpeg,
            rename=rename or [],
            scene_option=scene_option or [],
            processes=processes or os.cpu_count() or 1,
            arms=arms,
            max_actions=max_actions,
            device=device,
            dtype=dtype,
        )
        return
    from kairos_ros.lab.training.camera.look import look_called
    from kairos_ros.lab.training.card import write_card
    from kairos_ros.lab.training.evaluate import HORIZONS, evaluate, load_evaluation

    result = evaluate(
        policy,
        scenes=_scenes(tasks),
        horizons=tuple(part.strip() for part in horizons.split(";") if part.strip()) or HORIZONS,
        episodes=episodes,
        disturbance=disturbance,
        look=look_called(look),
        processes=processes or os.cpu_count() or 1,
        report=typer.echo,
    )
    changed = [f"disturbed_{disturbance:g}"] if disturbance else []
    changed += [look] if look != "demo" else []
    (policy / f"{'_'.join(['evaluation', *changed])}.json").write_text(result.to_json())
    main = policy / "evaluation.json"
    if main.exists():
        others = sorted(policy.glob("evaluation_*.json"))
        write_card(policy, [load_evaluation(path) for path in (main, *others)])
    best = result.overall(result.best_static)
    typer.echo(f"best static horizon: {best.horizon}, {best.success:.1%} success")


def _scenes(tasks: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in tasks.split(",") if part.strip()) or tuple(SCENES)
