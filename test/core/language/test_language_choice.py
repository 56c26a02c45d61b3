"""Answers that are one of several, token by token."""

from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.language.choice import Choice

OPEN_DOOR, OPEN_DRAWER, PUSH, PUSH_HARD = (1, 2, 3, 9), (1, 2, 4, 9), (5, 9), (5, 6, 9)


def test_what_may_follow_is_what_an_allowed_answer_goes_on_with():
    choice = Choice((OPEN_DOOR, OPEN_DRAWER, PUSH))
    assert choice.next([]) == (1, 5)
    assert choice.next([1]) == (2,)
    assert choice.next([1, 2]) == (3, 4)
    assert choice.next(OPEN_DOOR) == ()


def test_an_answer_is_decided_where_no_other_begins_so():
    choice = Choice((OPEN_DOOR, OPEN_DRAWER, PUSH))
    assert choice.decided([]) is None
    assert choice.decided([1, 2]) is None
    assert choice.decided([1, 2, 4]) == 1
    assert choice.decided([5]) == 2


def test_an_answer_that_another_one_begins_with_is_told_by_its_end():
    choice = Choice((PUSH, PUSH_HARD))
    assert choice.decided([5]) is None
    assert choice.next([5]) == (6, 9)
    assert (choice.decided([5, 9]), choice.decided([5, 6])) == (0, 1)


def test_answers_are_told_by_their_first_tokens_or_not():
    assert Choice((OPEN_DOOR, PUSH)).by_first_token
    assert not Choice((OPEN_DOOR, OPEN_DRAWER)).by_first_token


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=2, max_size=6),
    st.randoms(use_true_random=False),
)
def test_whatever_allowed_tokens_are_chosen_one_answer_comes_out(bodies, random):
    answers = tuple({(*body, 9) for body in bodies})
    choice, said = Choice(answers), []
    while (found := choice.decided(said)) is None:
        said.append(random.choice(choice.next(said)))
    assert answers[found][: len(said)] == tuple(said)
