"""What the docs tell people to type, and where they point: it is there."""

import importlib.util
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer.main
import yaml

import bench.__main__ as bench
from kairos_ros.bringup.launch_files import COMMON_ARGUMENTS
from kairos_ros.commands.cli import app

ROOT = Path(__file__).parents[2]
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("models/*/README.md")),
]
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
YAML = re.compile(r"^ *```yaml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:kairos|make|python -m|ros2 launch) [^`]+)`")
FILE = re.compile(r"`([\w./]+/[\w]+\.py|(?:kairos_ros|test|bench|config|tools)/[\w./]+)`")
"""A path of the repository, or of a module inside kairos_ros."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
every_page = pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))


def commands(page: Path, program: str) -> Iterator[list[str]]:
    """Arguments of every command of a page that begins with this program."""
    text = page.read_text()
    blocks = "\n".join(FENCED.findall(text)).replace("\\\n", " ")
    for line in [*blocks.splitlines(), *INLINE.findall(FENCED.sub("", text))]:
        for part in re.split(r"[;|&]| do (?=kairos)", line.partition(" #")[0]):
            try:
                words = shlex.split(part)
            except ValueError:  # prose, or half of a quoted list
                continue
            while words and "=" in words[0]:  # environment
                words.pop(0)
            if len(words) > 1 and words[0].removeprefix(".venv/bin/") == program:
                yield words[1:]


@cache
def kairos():
    return typer.main.get_command(app())


@every_page
def test_every_yaml_of_the_docs_can_be_read(page):
    for block in YAML.findall(page.read_text()):
        yaml.safe_load(textwrap.dedent(block))


@every_page
def test_every_kairos_command_of_the_docs_exists_with_its_options(page):
    for words in commands(page, "kairos"):
        if not re.fullmatch(r"[a-z][a-z0-9-]*", words[0]):  # `kairos serving: queue`, a diagnostic
            continue
        command = kairos()
        left = [word.strip("[]") for word in words]
        while left and left[0] in getattr(command, "commands", {}):
            command = command.commands[left.pop(0)]
        is_group = hasattr(command, "commands")
        assert not is_group or not left or "|" in left[0], f"no kairos {' '.join(words)}"
        known = {
            option for param in command.params for option in [*param.opts, *param.secondary_opts]
        }
        given = {word.partition("=")[0] for word in left if re.match(r"--?[a-z]", word)}
        assert given <= known | {"--help"}, f"kairos {' '.join(words)}"


@every_page
def test_every_launch_file_of_the_docs_takes_its_arguments(page):
    for words in commands(page, "ros2"):
        if words[:2] != ["launch", "kairos_ros"]:
            continue
        scope: dict = {}
        exec((ROOT / "launch" / words[2]).read_text(), scope)
        scope["launch_description"] = lambda arguments, make_plan: arguments
        given = {name for word in words[3:] if (name := word.partition(":=")[0]) != word}
        taken = {**scope["generate_launch_description"](), **COMMON_ARGUMENTS}
        assert given <= taken.keys(), words


@every_page
def test_every_benchmark_module_and_target_of_the_docs_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    for words in commands(page, "python"):
        if words[0] != "-m" or words[1] == "pytest":
            continue
        assert importlib.util.find_spec(words[1]), words
        if words[1] == "bench" and len(words) > 2 and not words[2].startswith("-"):
            assert f'"{words[2]}": ' in (ROOT / "bench" / "__main__.py").read_text(), words
    for words in commands(page, "make"):
        assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), words
        for name in (word.partition("=")[0] for word in words[1:] if "=" in word):
            assert re.search(rf"^{name} \?=", makefile, re.MULTILINE), words


@every_page
def test_every_file_of_the_docs_exists(page):
    for name in FILE.findall(page.read_text()):
        assert (ROOT / name).exists() or (ROOT / "kairos_ros" / name).exists(), name


@every_page
def test_every_link_of_the_docs_leads_somewhere(page):
    text = page.read_text()
    for target in LINK.findall(text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in map(anchor_of, HEADING.findall(file.read_text())), target


def anchor_of(heading: str) -> str:
    """As code forges make them."""
    words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return words.strip().replace(" ", "-")


def test_the_docs_are_read():
    """So that the tests above cannot pass for want of commands."""
    found = {
        program: sum(1 for page in DOCS for _ in commands(page, program))
        for program in ("kairos", "make", "python", "ros2")
    }
    assert found["kairos"] > 100
    assert min(found.values()) > 10, found


def test_every_benchmark_that_is_listed_is_a_module_and_the_reverse():
    listed = [*bench.ABOUT, *bench.PROGRAMS]
    assert sorted(listed) == sorted(name for names in bench.FAMILIES.values() for name in names)
    for name in listed:
        assert importlib.util.find_spec(bench.module_of(name)), name
