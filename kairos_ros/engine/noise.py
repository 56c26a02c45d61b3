"""Noise that belongs to a robot, not to a batch: row b depends on seed b only."""

from collections.abc import Sequence

import torch


def row_generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """One CPU generator per row, so that a GPU engine draws the same noise as a CPU engine."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def row_noise(
    generators: Sequence[torch.Generator], shape: tuple[int, ...], device: torch.device
) -> torch.Tensor:
    """Standard normal float32 [B, *shape]; advances the generators."""
    rows = [torch.randn(shape, generator=generator) for generator in generators]
    return torch.stack(rows).to(device)
