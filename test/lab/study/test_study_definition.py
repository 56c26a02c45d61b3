"""Study files: what they say is checked before a single cell is run."""

import pytest
import yaml

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.commands.study import _kind, shipped_studies
from kairos_ros.lab.study.definition import combinations, read_study
from kairos_ros.lab.study.metrics import METRICS

STUDY = """
question: Does it help?
settings: {tasks: 20}
vary:
  load: [0.5, 1.5]
  policy:
    FIFO: {scheduling: fifo}
    ours: {scheduling: admit, refetch: true}
sizes:
  quick: {seeds: 2, settings: {tasks: 5}, vary: {load: [1.5]}}
  full: {seeds: 3}
figure: {x: load, lines: policy, baseline: [FIFO]}
claims:
  - {ours: {policy: ours}, baseline: {policy: FIFO}, per: [load]}
"""


def write(tmp_path, text=STUDY, **changes):
    content = yaml.safe_load(text)
    for where, value in changes.items():
        *parents, last = where.split("__")
        section = content
        for name in parents:
            section = section[int(name) if name.isdecimal() else name]
        if value is None:
            del section[last]
        else:
            section[last] = value
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_all_combinations_are_run_with_every_seed(tmp_path):
    cells = combinations(read_study(write(tmp_path)), "full")
    assert len(cells) == 2 * 2 * 3
    ours = [c.cell for c in cells if c.labels == {"load": 1.5, "policy": "ours"}]
    assert [cell.seed for cell in ours] == [0, 1, 2]
    assert (ours[0].scheduling, ours[0].refetch, ours[0].tasks) == ("admit", True, 20)


def test_a_size_replaces_settings_and_narrows_what_is_varied(tmp_path):
    cells = combinations(read_study(write(tmp_path)), "quick")
    assert len(cells) == 1 * 2 * 2
    assert {c.cell.tasks for c in cells} == {5}


def test_several_things_varied_add_options_of_one_scheduling_policy(tmp_path):
    buckets = {"1": {"options": {"buckets": 1}}, "many": {"options": {"buckets": 1_000_000}}}
    path = write(
        tmp_path,
        settings={"scheduling": "wait_ratio", "options": {"age": "ceil"}},
        vary={"buckets": buckets, "aging": {"never": {"options": {"aging": "none"}}}},
        sizes={"full": {"seeds": 1}},
        figure={"x": "buckets", "lines": "aging"},
        claims=[{"kind": "best", "over": "buckets", "reference": "1", "per": ["aging"]}],
    )
    cells = [c.cell.scheduling_spec for c in combinations(read_study(path), "full")]
    assert cells == [
        "wait_ratio:age=ceil,buckets=1,aging=none",
        "wait_ratio:age=ceil,buckets=1000000,aging=none",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"settings__loud": 1},
            r"no field 'loud' here .*; allowed are: workload, policy, traces",
        ),
        ({"vary__load": [0.5, 1.5, -1]}, r"load: .*greater than 0, not -1"),
        ({"sizes__quick__vary": {"load": []}}, r"0 cells; 1 to 20000"),
        (
            {"vary__policy__ours__scheduling": "lifo"},
            r"unknown scheduling policy 'lifo'; known here: admit",
        ),
        (
            {"settings__accounting": "both"},
            r"accounting: 'both' is not allowed; allowed are: replay, observation",
        ),
        ({"settings__engine": "tpu"}, r"engine: 'tpu' is none of pi05, smolvla, vam"),
        ({"settings__workload": "libero"}, r"workload: 'libero' is none of recorded, pi05-libero"),
        ({"settings__workload": "vam-bridge"}, r"horizon: 'static:tuned' is neither static nor"),
        ({"settings__rounds_ratio": 2.0}, r"rounds_ratio: is recorded, not assumed"),
        ({"sizes__full__seeds": 0}, r"sizes.full.seeds: .*greater than or equal to 1, not 0"),
        ({"sizes__quick__vary": {"load": [9]}}, r"sizes: load has no value 9, only 0.5, 1.5"),
        ({"sizes__huge": {"seeds": 1}}, r"'huge' is not allowed; allowed are: 'quick' or 'full'"),
        ({"figure__x": "laod"}, r"figure: 'laod' is not varied here, only load, policy"),
        ({"figure__lines": "load"}, r"figure: policy is varied but neither x, lines"),
        (
            {"figure__colour": "red"},
            r"figure.colour: there is no field .*allowed are: kind, x, l",
        ),
        ({"figure__baseline": ["LIFO"]}, r"figure: policy has no value 'LIFO', only FIFO, ours"),
        ({"claims__0__per": []}, r"claims.0: says nothing of load; add it to at or per"),
        ({"claims__0__ours": {"policy": "best"}}, r"claims.0: policy has no value 'best'"),
        ({"question": None}, r"question: it is missing"),
        ({"vary": None}, r"vary: it is missing"),
        ({"claims__0__paper": {"latency_p95_s": "a"}}, r"paper has latency_p95_s, which is no"),
        ({"claims__0__metric": ["speed"]}, r"there is no metric 'speed'; there are latency_mean_s"),
        ({"figure__y": ["speed"]}, r"there is no metric 'speed'"),
        ({"claims__0__wins": 1}, r"36:3: claims.0.wins: .*allowed are: kind, metric, ours, base"),
        ({"claims": [{"kind": "best", "wins": 1}]}, r"claims.0.wins: .*allowed are: kind, over"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_field_and_what_is_allowed(
    tmp_path, changes, message
):
    path = write(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message) as error:
        read_study(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("text", ["", "- 1", "question: [", "42", "question: \x00"])
def test_a_file_that_is_no_study_is_refused(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        read_study(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: No such file.*--list"):
        read_study(tmp_path / "none.yaml")


SIMULATED = [name for name, path in shipped_studies().items() if not _kind(path)]


@pytest.mark.parametrize("name", SIMULATED)
def test_shipped_studies_are_valid_in_both_sizes_with_at_least_five_seeds(name):
    study = read_study(shipped_studies()[name])
    assert set(study.sizes) == {"quick", "full"}
    assert study.sizes["full"].seeds >= 5
    assert set(study.figure.y) <= set(METRICS)
