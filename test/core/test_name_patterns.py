"""Name patterns of robots: which names are whose, and whether two servers could want the same."""

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.name_patterns import check_patterns, matches, overlap


def test_no_patterns_are_everybodys():
    assert matches([], "arm_1")
    assert overlap([], ["left_*"])
    assert overlap([], [])


def test_a_name_belongs_to_any_of_the_patterns():
    assert matches(["left_*", "arm_1"], "arm_1")
    assert not matches(["left_*", "arm_1"], "arm_10")


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("left_*", "right_*", False),
        ("left_*", "*_1", True),  # left_1, whether or not there is one today
        ("arm_?", "arm_1*", True),
        ("arm_?", "arm_1?*", False),
        ("arm_[1-4]", "arm_[5-8]", False),
        ("arm_[1-4]", "arm_[!1-3]", True),
        ("a*b*c", "a*c*b", False),  # the last letter differs
        ("*left*", "*right*", True),
    ],
)
def test_whether_two_patterns_have_a_name_in_common(one, other, shared):
    assert overlap([one], [other]) is overlap([other], [one]) is shared


@given(st.text("ab*?", max_size=4), st.text("ab*?", max_size=4))
def test_overlap_finds_what_trying_every_short_name_finds(one, other):
    names = ("".join(name) for length in range(7) for name in product("ab", repeat=length))
    tried = any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in names)
    assert overlap([one], [other]) is tried


@pytest.mark.parametrize("pattern", ["", "arm-1", "left_* ", "/arm_1", "[", "[!a-zA-Z0-9_]"])
def test_a_pattern_that_no_robot_can_match_is_refused_with_it(pattern):
    with pytest.raises(ConfigError, match="matches no robot"):
        check_patterns(["arm_*", pattern])
