"""The forward pass of the Llama family over our KV memory, in as few operations as there can be.

Q, K and V in one product, gate and up in one, rotation of Q and K together, results added in place.
Knows tensors and a pass's cache; where weights come from is `exspec.engine.fused.reading`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn.functional import embedding

from exspec.engine.fused.linears import Linear

_FIRST_POSITIONS = 1024

RotaryModule = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class LayerCache(Protocol):
    """What a pass needs of `exspec.engine.kv.hf_adapter.PassCache`."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> object: ...
    def attend(self, queries: torch.Tensor, scaling: float | None) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """Root mean square norm, in float32 as the family's modules do it."""

    weight: torch.Tensor
    epsilon: float

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Over the last dimension of `[..., dim]`."""
        wide = rows.to(torch.float32)
        scale = wide.square().mean(-1, keepdim=True).add_(self.epsilon).rsqrt_()
        return wide.mul(scale).to(rows.dtype).mul_(self.weight)


class Rotation:
    """Cosines and sines of positions as the model's own rotary module gives them, kept in a table.

    The module must treat each position alone. The table grows to the positions that were met.
    """

    def __init__(self, module: RotaryModule, like: torch.Tensor) -> None:
        self._module = module
        self._like = like
        self._cosines, self._sines = self._table(_FIRST_POSITIONS)

    @property
    def dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return self._cosines.shape[-1]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines `[N, 1, dim]` of positions `[N]`."""
        end = int(positions.max()) + 1
        if end > len(self._cosines):
            self._cosines, self._sines = self._table(1 << (end - 1).bit_length())
        return self._cosines[positions], self._sines[positions]

    def _table(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(num_positions, device=self._like.device)[None]
        cosines, sines = self._module(self._like, positions)
        signs = torch.ones_like(sines[0, 0])
        signs[: len(signs) // 2] = -1
        return cosines[0][:, None].contiguous(), (sines[0] * signs)[:, None].contiguous()


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Heads of every layer, and what scores are multiplied by."""

    num_heads: int
    num_kv_heads: int
    dim: int
    scaling: float

    @property
    def num_rotated(self) -> int:
        """Query and key heads, which stand together."""
        return self.num_heads + self.num_kv_heads

    @property
    def num_all(self) -> int:
        """Query, key and value heads."""
        return self.num_rotated + self.num_kv_heads


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """One layer. `head_norm`, where a family has it, is over `[query and key heads, dim]`."""

    shape: HeadShape
    input_norm: RmsNorm
    qkv: Linear
    head_norm: RmsNorm | None
    output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: Linear

    def run(
        self,
        index: int,
        hidden: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: LayerCache,
    ) -> None:
        """Add to `hidden` `[N, width]` what the layer at `index` adds."""
        shape = self.shape
        qkv = self.qkv(self.input_norm(hidden)).view(len(hidden), shape.num_all, shape.dim)
        rotated = self._rotated(qkv[:, : shape.num_rotated], *rotation).transpose(0, 1)
        values = qkv[:, shape.num_rotated :].transpose(0, 1)
        cache.update(rotated[None, shape.num_heads :], values[None], index)
        attended = cache.attend(rotated[: shape.num_heads], shape.scaling)
        hidden += self.output(attended.reshape(len(hidden), -1))
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        hidden += self.down(self.activation(gate) * up)

    def _rotated(
        self, heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor
    ) -> torch.Tensor:
        """`[N, query and key heads, dim]`, turned by their positions."""
        if self.head_norm is not None:
            heads = self.head_norm(heads)
        turned = heads.roll(self.shape.dim // 2, -1)
        return torch.addcmul(heads * cosines, turned, sines)


class FusedBody:
    """A whole model up to its head."""

    def __init__(
        self,
        embeddings: torch.Tensor,
        rotation: Rotation,
        layers: tuple[FusedLayer, ...],
        norm: RmsNorm,
    ) -> None:
        """`embeddings` `[num_embeddings, width]`; `norm` comes last."""
        self._embeddings = embeddings
        self._rotation = rotation
        self._layers = layers
        self._norm = norm

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Token ids and positions `[N]` to `[N, width]`, before the last norm."""
        hidden = embedding(ids, self._embeddings)
        rotation = self._rotation.at(positions)
        for index, layer in enumerate(self._layers):
            layer.run(index, hidden, rotation, cache)
        return hidden

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the head takes, of those `[M, width]` where logits are wanted."""
        return self._norm(hidden)
