"""Batch inference on Ray Data: each actor loads the artifact once, each row is written once.

python examples/scale/ray_batch.py --folder /shared/scores --actors 2

The folder is on a file system that all machines share. If the program is ended, run it again: it
goes on with the rows that are not written yet. Needs `pip install turbine[ray]`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import ray
import ray.data
from ray.data.checkpoint import CheckpointConfig
from torch.export import Dim

import turbine
from turbine import zoo

BLOCK, BATCH, WIDTH = 1000, 64, 32
Batch = dict[str, numpy.ndarray[Any, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="inputs, artifact and results")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--actors", type=int, default=1, help="each with a CPU")
    options = parser.parse_args(arguments)
    if not ray.is_initialized():
        ray.init()
    cpus = int(ray.cluster_resources()["CPU"])
    if options.actors + 2 > cpus:
        # Ray would wait for ever: actors keep their CPUs. One is for keys, one to read and write.
        parser.error(f"{options.actors} actors need {options.actors + 2} CPUs, Ray has {cpus}")
    folder = options.folder.absolute()
    if not (folder / "model.turbine").exists():
        write_inputs(folder / "inputs", options.rows)
        export_model(folder / "model.turbine")
    score(folder, options.actors)
    return check(folder)


def score(folder: Path, actors: int, model: type[Model] | None = None) -> None:
    """Call the artifact on all rows that have no score yet."""
    # Keys of written rows. Files that a killed job did not finish are removed when it runs again.
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        "id", str(folder / "written"), delete_checkpoint_on_success=False
    )
    # A block is written to one file. It is what a failure repeats.
    rows = ray.data.read_parquet(str(folder / "inputs")).repartition(
        target_num_rows_per_block=BLOCK
    )
    scores = rows.map_batches(
        model or Model,
        fn_constructor_args=(folder / "model.turbine",),
        batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,  # for each actor; calls run on one thread
    )
    scores.write_parquet(str(folder / "scores"))


class Model:
    """What an actor keeps: the artifact, which is mapped once on each machine."""

    def __init__(self, path: Path) -> None:
        self.artifact = turbine.load(path, threads=1)

    def __call__(self, batch: Batch) -> Batch:
        # The last batch of a block is smaller: the artifact takes 1 to BATCH rows.
        scores = self.artifact(numpy.stack(list(batch["x"])))
        return {"id": batch["id"], "score": numpy.asarray(scores)}


def write_inputs(folder: Path, count: int) -> None:
    """Rows with keys, in files of uneven sizes."""
    folder.mkdir(parents=True)
    ids = numpy.arange(count)
    for number, part in enumerate(numpy.array_split(ids, max(count // 1000, 1))):
        x = numpy.random.default_rng(number).standard_normal((len(part), WIDTH), numpy.float32)
        columns = {"id": part, "x": pyarrow.FixedSizeListArray.from_arrays(x.ravel(), WIDTH)}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{number:04}.parquet")


def export_model(path: Path) -> None:
    example = zoo.mlp(batch=2, features=WIDTH, hidden=64)
    rows = ({0: Dim("rows", min=1, max=BATCH)},)
    turbine.aot.export(example.model, args=example.args, dynamic_shapes=rows).compile(path)


def check(folder: Path) -> int:
    """Compare the results with the inputs; the exit code is 0 if each row has its score once."""
    inputs = pyarrow.parquet.read_table(folder / "inputs").sort_by("id")
    found = pyarrow.parquet.read_table(folder / "scores").sort_by("id")
    ids = found["id"].to_numpy()
    missing = numpy.setdiff1d(inputs["id"].to_numpy(), ids)
    twice = len(ids) - len(numpy.unique(ids))
    print(f"{len(ids)} rows, {len(missing)} missing, {twice} twice")
    if len(missing) or twice:
        return 1
    artifact = turbine.load(folder / "model.turbine")
    rows = numpy.asarray(inputs["x"].to_pylist(), numpy.float32)
    expected = numpy.concatenate(
        [numpy.asarray(artifact(rows[i : i + BATCH])) for i in range(0, len(rows), BATCH)]
    )
    scores = numpy.asarray(found["score"].to_pylist(), numpy.float32)
    same = numpy.allclose(scores.reshape(expected.shape), expected, atol=1e-5)
    print("scores are those of the rows" if same else "scores differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
