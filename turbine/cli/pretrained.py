"""Models of the transformers package: a folder with a configuration in, a model out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from turbine import errors
from turbine.extras import import_extra

PREFIX = "hf:"
_CONFIG = "config.json"


def check(source: str) -> None:
    """Raise unless the text names a folder with a configuration."""
    _, folder = _split(source)
    if not (folder / _CONFIG).is_file():
        raise errors.ExportError(
            f"no {_CONFIG} in {folder}",
            hint="write hf:FOLDER or hf:ARCHITECTURE@FOLDER, with a folder that save_pretrained "
            "wrote",
        )


def load(source: str) -> Any:
    """The model of "hf:FOLDER" or "hf:ARCHITECTURE@FOLDER", in evaluation mode.

    Weights are those of the .safetensors files in the folder. Nothing is fetched, and no code of
    the folder runs.
    """
    check(source)
    library = import_extra("transformers", "models")
    architecture, folder = _split(source)
    kind = _class_of(library, architecture or _declared(folder), folder)
    config = library.AutoConfig.from_pretrained(folder, local_files_only=True)
    config.use_cache = False  # results of an export are tensors
    if any(folder.glob("*.safetensors")):
        model = kind.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True
        )
    else:
        print(f"note: no .safetensors in {folder}, the weights are random", file=sys.stderr)
        model = kind(config)
    return model.eval()


def _split(source: str) -> tuple[str, Path]:
    architecture, _, folder = source.removeprefix(PREFIX).rpartition("@")
    return architecture, Path(folder).expanduser()


def _declared(folder: Path) -> str:
    """The architecture that a configuration names."""
    try:
        (name,) = json.loads((folder / _CONFIG).read_text())["architectures"]
    except (ValueError, KeyError, TypeError) as error:
        raise errors.ExportError(
            f"{folder / _CONFIG} does not name one architecture",
            hint=f"write {PREFIX}ARCHITECTURE@{folder}, such as {PREFIX}BertModel@{folder}",
        ) from error
    return str(name)


def _class_of(library: ModuleType, name: str, folder: Path) -> Any:
    kind = getattr(library, name, None)
    if not isinstance(kind, type) or not issubclass(kind, library.PreTrainedModel):
        raise errors.ExportError(
            f"transformers {library.__version__} has no architecture {name!r}",
            where=str(folder / _CONFIG),
            hint="use the name of a model's class, such as BertModel, or another version of it",
        )
    return kind
