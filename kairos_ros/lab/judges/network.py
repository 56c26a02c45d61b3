"""The embedded judge's network in torch, for training; `vlm/embedded/` runs its export."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kairos_ros.lab.training.camera.points import POINTS
from kairos_ros.vlm.embedded.tiny_vlm import NetworkShape


class Convolution(nn.Module):
    """3×3, then batch normalisation, which `folded` melts into the weights."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution that does the same."""
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        bias = self.norm.bias - self.norm.running_mean * scale
        return self.conv.weight * scale[:, None, None, None], bias


class Attention(nn.Module):
    """Multi-head attention from one sequence to another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, to: Tensor, padding: Tensor | None = None) -> Tensor:
        """x [B, L, W], to [B, T, W], padding bool [B, T]: True where `to` is to be ignored."""
        q, k, v = (
            layer(of).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, of in ((self.query, x), (self.key, to), (self.value, to))
        )
        mask = None if padding is None else ~padding[:, None, None]
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """The words read each other, look at the picture, think."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.read, self.look = Attention(width, heads), Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.read_norm, self.look_norm, self.think_norm = (nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, seen: Tensor, padding: Tensor) -> Tensor:
        """x [B, Q, L, W]: Q questions about each picture; seen [B, T, W]; padding [B, Q, L]."""
        own = self.read_norm(x).flatten(0, 1)
        x = x + self.read(own, own, padding.flatten(0, 1)).view_as(x)
        x = x + self.look(self.look_norm(x).flatten(1, 2), seen).view_as(x)
        return x + self.down(functional.relu(self.up(self.think_norm(x))))


class JudgeNetwork(nn.Module):
    """Pictures and questions in, logits of the answers out."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        channels = (3, *shape.channels)
        pairs = pairwise(channels)
        self.down = nn.ModuleList(Convolution(i, o, 2) for i, o in pairs)
        deep = channels[-1]
        self.residual = nn.ModuleList(Convolution(deep, deep, 1) for _ in range(shape.residual))
        self.see_proj = nn.Linear(deep, shape.width)
        self.see_norm = nn.LayerNorm(shape.width)
        self.where = nn.Parameter(0.02 * torch.randn(shape.grid**2, shape.width))
        self.word = nn.Parameter(0.02 * torch.randn(shape.words, shape.width))
        self.place = nn.Parameter(0.02 * torch.randn(shape.most_words, shape.width))
        self.block = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.blocks))
        self.last_norm = nn.LayerNorm(shape.width)
        self.point = nn.Linear(shape.width, len(POINTS))
        self.locate = nn.Linear(shape.width, 3 * len(POINTS))

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        """Logits [B, Q, words].

        images: float [B, 3, px, px] in [-1, 1]; words: int64 [B, Q, L], Q questions about each
        image, the answer slot first, padded with 0.
        """
        return self.study(images, words)[0]

    def study(self, images: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `forward` says, and what only training asks.

        In which of the image's tokens each of POINTS lies, logits [B, grid², 3]; and where it is in
        the cell according to each answer slot, [B, Q, 3, 3].
        """
        x = images
        for layer in self.down:
            x = functional.relu(layer(x))
        for layer in self.residual:
            x = functional.relu(x + layer(x))
        seen = self.see_norm(self.see_proj(x.flatten(2).transpose(1, 2))) + self.where
        tokens = self.word[words] + self.place[: words.shape[-1]]
        for block in self.block:
            tokens = block(tokens, seen, words == 0)
        slot = self.last_norm(tokens[:, :, 0])
        place = self.locate(slot).unflatten(-1, (len(POINTS), 3))
        return slot @ self.word.T, self.point(seen), place

    @torch.no_grad()
    def weights(self) -> dict[str, np.ndarray]:
        """float32 arrays under the names that `TinyVLM` reads."""
        named = {
            name: value
            for name, value in self.named_parameters()
            if not name.startswith(("down.", "residual.", "point.", "locate."))
        }
        for part in ("down", "residual"):
            for number, layer in enumerate(getattr(self, part)):
                named[f"{part}.{number}.weight"], named[f"{part}.{number}.bias"] = layer.folded()
        return {
            name.replace("see_proj.", "see."): value.float().cpu().numpy()
            for name, value in named.items()
        }
