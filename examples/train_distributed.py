"""Train on several processes or machines: DDP (a copy each) or FSDP2 (a share each).

torchrun --nproc-per-node 2 examples/train_distributed.py
torchrun --nproc-per-node 2 examples/train_distributed.py --sharded

On two machines, on each of them, with the name of the first one as the meeting point:

torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint first:29500 \
    --rdzv-id lenet examples/train_distributed.py
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch
import train_gpt
import training
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from turbine import zoo

LETTERS = len(train_gpt.LETTERS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = training.parser(__doc__, steps=100, rate=2e-3)
    parser.add_argument("--sharded", action="store_true", help="FSDP2 in place of DDP")
    options = parser.parse_args(arguments)
    distributed.init_process_group("gloo")
    try:
        return train(options)
    finally:
        distributed.destroy_process_group()


def train(options: argparse.Namespace) -> int:
    rank = distributed.get_rank()
    example = zoo.gpt2(length=train_gpt.SUM, vocab=LETTERS, dim=64, layers=2, heads=4)
    model = (shard if options.sharded else DistributedDataParallel)(example.model.train())
    torch.manual_seed(rank)  # the weights are the same everywhere, the data are not
    if rank != 0:
        options.log, options.quiet = None, True
    losses = training.fit(train_gpt.loss, model, train_gpt.batches(16), options)
    mean = torch.tensor(losses)
    distributed.all_reduce(mean)
    mean /= distributed.get_world_size()
    return training.finish(mean.tolist()) if rank == 0 else 0


def shard(model: nn.Module) -> nn.Module:
    """Every process keeps a share of each block's weights, and gathers them for as long as it runs.

    The wrapped call of each block ends a graph, so blocks are compiled one by one.
    """
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def leave(code: int) -> NoReturn:
    """End the process without Python's finalization.

    The threads of a gloo group end with the last reference to it, and caches of DTensor keep one
    until the process ends. A thread that drops a tensor while Python finalizes aborts the process:
    "terminate called without an active exception" (pytorch/pytorch#190489).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
