"""Servers behind a gateway."""

import pytest
from chat_server import ChatServer


@pytest.fixture
def servers():
    """Makes servers of a model, which are closed in the end."""
    made = []

    def make(**options):
        made.append(ChatServer(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()
