"""Trains a critic: which horizons fail a task, from the outcomes of episodes with drawn horizons.

Whether the episode of a round failed is modelled as 1 - (1 - base) · exp(-added): `base` is the
risk of what the robot sees, whatever is done in this round; `added` grows with the horizon, from 0
of the shortest one on. Each is a network of its own, trained together; only `added` is kept.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.critic import CLIP, Array, Critic
from kairos_ros.lab.horizons.teaching import Taught

MEMBERS = 4
"""Networks that are averaged."""
WIDTH = 48
DROPPED = 0.5
"""Of hidden units, while it is trained, and half as much of the features: an episode has one
outcome and some ten rounds, which are soon known by heart."""
RATE = 3e-3
DECAY = 1e-3
BATCH = 1024
MOST_EPOCHS = 60
PATIENCE = 12
"""Epochs without progress on the episodes held out, after which training ends."""
HELD_OUT = 0.15
"""Share of episodes."""
FIRST_GUESS = -3.0
"""Of what each step of the horizon adds: 5 %. Less is learned slowly."""
PRICE = 0.01
"""Of what is added, in the loss: where an episode has failed already, no horizon adds to that, and
nothing else says so."""
LEAST_SPREAD = 1e-4
"""Of a feature, in its unit: one that hardly changes says nothing."""
UNUSED = 1e6
"""The spread of such a feature."""


def fit_critic(
    taught: Taught,
    horizons: tuple[int, ...],
    offset: Array,
    *,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Critic:
    """A critic that allows no risk yet. The same for the same input, on one kind of processor.

    Raises ConfigError where all episodes ended alike: then there is nothing to learn.
    """
    if taught.failed.all() or not taught.failed.any():
        how = "failed" if taught.failed.any() else "succeeded"
        raise ConfigError(
            f"all {taught.episode.max() + 1} episodes that should teach the critic {how}; a task "
            "that fails with no horizon needs none, and one that always fails has none"
        )
    mean, spread = taught.seen.mean(axis=0), taught.seen.std(axis=0)
    spread = np.where(spread < LEAST_SPREAD, np.float32(UNUSED), spread)
    scaled = np.clip((taught.seen - mean) / spread, -CLIP, CLIP)
    failing = float(taught.failed.mean())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        base = _Networks(scaled.shape[1] + 1, 1, float(np.log(failing / (1 - failing))))
        added = _Networks(scaled.shape[1], len(horizons) - 1, FIRST_GUESS)
        _train(base, added, scaled, taught, seed, report)
    return Critic(horizons, 0.0, offset, mean, spread, added.exported())


class _Networks(nn.Module):
    """[members, rows, features] -> [members, rows, outputs], of independent networks."""

    def __init__(self, inputs: int, outputs: int, bias: float) -> None:
        super().__init__()
        widths = (inputs, WIDTH, WIDTH, outputs)
        self.weights = nn.ParameterList(
            torch.randn(MEMBERS, before, after) * (2 / before) ** 0.5
            for before, after in pairwise(widths)
        )
        self.biases = nn.ParameterList(torch.zeros(MEMBERS, 1, after) for after in widths[1:])
        with torch.no_grad():
            self.weights[-1] *= 0.1
            self.biases[-1] += bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(x, DROPPED / 2, self.training)
        for weights, biases in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = functional.relu(x @ weights + biases)
            x = functional.dropout(x, DROPPED, self.training)
        return x @ self.weights[-1] + self.biases[-1]

    def exported(self) -> tuple[tuple[Array, Array], ...]:
        return tuple(
            (w.detach().numpy().copy(), b.detach().numpy().copy())
            for w, b in zip(self.weights, self.biases, strict=True)
        )


def _loss(
    base: torch.Tensor, added: torch.Tensor, horizon: torch.Tensor, failed: torch.Tensor
) -> torch.Tensor:
    """Mean over all; base: [members, rows, 1], added: [members, rows, steps], the others [members,
    rows]."""
    risk = functional.pad(functional.softplus(added).cumsum(-1), (1, 0))
    survives = functional.logsigmoid(-base[..., 0]) - risk.gather(-1, horizon[..., None])[..., 0]
    fails = torch.log(-torch.expm1(survives.clamp(max=-1e-6)))
    return PRICE * risk.mean() - torch.where(failed, fails, survives).mean()


def _train(
    base: _Networks,
    added: _Networks,
    scaled: Array,
    taught: Taught,
    seed: int,
    report: Callable[[str], None],
) -> None:
    rng = np.random.default_rng(seed)
    episodes = rng.permutation(int(taught.episode.max()) + 1)
    held_out = np.isin(taught.episode, episodes[: max(1, int(HELD_OUT * len(episodes)))])
    x = torch.from_numpy(scaled)
    # rounds to come are drawn otherwise in the second lesson, which fails more or less often
    informed = torch.cat([x, torch.from_numpy(taught.second.astype(np.float32))[:, None]], dim=1)
    horizon, failed = torch.from_numpy(taught.horizon), torch.from_numpy(taught.failed)
    teach = np.flatnonzero(~held_out)
    check = torch.from_numpy(np.flatnonzero(held_out)).expand(MEMBERS, -1)
    both = nn.ModuleList([base, added])

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return _loss(base(informed[rows]), added(x[rows]), horizon[rows], failed[rows])

    optimiser = torch.optim.AdamW(both.parameters(), lr=RATE, weight_decay=DECAY)
    best, kept, waited = np.inf, both.state_dict(), 0
    for epoch in range(MOST_EPOCHS):
        both.train()
        orders = torch.from_numpy(np.stack([rng.permutation(teach) for _ in range(MEMBERS)]))
        for rows in orders.split(BATCH, dim=1):
            optimiser.zero_grad()
            loss(rows).backward()
            optimiser.step()
        both.eval()
        with torch.no_grad():
            checked = float(loss(check))
        waited += 1
        if checked < best:
            best, waited = checked, 0
            kept = {name: value.clone() for name, value in both.state_dict().items()}
        if epoch % 10 == 9:
            report(f"epoch {epoch + 1}: {checked:.4f} on episodes held out, best {best:.4f}")
        if waited >= PATIENCE:
            break
    both.load_state_dict(kept)
