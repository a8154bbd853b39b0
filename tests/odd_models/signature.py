"""Modules with unusual inputs and outputs: constants, pytrees, aliases and mutated inputs."""

from typing import Any

import torch
from torch import Tensor, nn

from turbine.zoo.example import Example
from turbine.zoo.seeds import build_seeded, generator

Tree = dict[str, list[tuple[Tensor, Tensor]]]


class ConstantOutputs(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"y": x + 1, "none": None, "n": 3, "size": x.shape[0]}


class NestedTree(nn.Module):
    """Scale a tree of pairs by keyword arguments, one of them optional."""

    def forward(self, tree: Tree, *, scale: Tensor, shift: Tensor | None = None) -> Tree:
        return {
            name: [(a * scale, b if shift is None else b + shift) for a, b in pairs]
            for name, pairs in tree.items()
        }


class MutatesInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2


class ReturnsInput(nn.Module):
    """Return the input itself, and views of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x.view(-1), x[1:].T


class ScalarInput(nn.Module):
    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return x * scale, scale + 1


def constant_outputs() -> Example:
    return Example(build_seeded(ConstantOutputs), (torch.randn(3, 4, generator=generator()),))


def nested_tree() -> Example:
    random = generator()
    a, b, c, d, e, f = torch.randn(6, 3, 4, generator=random).unbind()
    tree = {"many": [(a, b), (c, d)], "one": [(e, f)]}
    scale, shift = torch.randn(2, 4, generator=random).unbind()
    return Example(build_seeded(NestedTree), (tree,), {"scale": scale, "shift": shift})


def mutates_input() -> Example:
    return Example(build_seeded(MutatesInput), (torch.randn(3, 4, generator=generator()),))


def returns_input() -> Example:
    return Example(build_seeded(ReturnsInput), (torch.randn(3, 4, generator=generator()),))


def scalar_input() -> Example:
    x = torch.randn(3, 4, generator=generator())
    return Example(build_seeded(ScalarInput), (x, torch.tensor(2.5)))
