"""Compile small models of the transformers package and count what runs in PyTorch.

Every architecture is built from a tiny configuration with random weights, explained and compared
with eager. The exit code is 1 if an answer differs, or if an op is left to PyTorch that neither
draws random numbers nor has a size that depends on values.

    pip install turbine[models]
    python benchmarks/architectures.py --models bert,llama --training
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import turbine
from turbine import errors
from turbine.tables import table

VOCABULARY = 99
TOLERANCE = 1e-4
EXCUSED = ("draws random numbers", "the size of its result depends on values")

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
SEQUENCES = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}


def tokens() -> dict[str, Any]:
    ids = torch.randint(2, VOCABULARY, (2, 10))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def uncached() -> dict[str, Any]:
    return {**tokens(), "use_cache": False}


def pairs() -> dict[str, Any]:
    given = uncached()
    return {**given, "decoder_input_ids": given["input_ids"]}


def images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


# name -> (configuration class, what it is given, model class, arguments of a call)
Row = tuple[str, dict[str, Any], str, Callable[[], dict[str, Any]]]
MODELS: dict[str, Row] = {
    "bert": ("BertConfig", SIZES, "BertModel", tokens),
    "roberta": ("RobertaConfig", SIZES, "RobertaModel", tokens),
    "albert": ("AlbertConfig", {**SIZES, "embedding_size": 16}, "AlbertModel", tokens),
    "electra": ("ElectraConfig", {**SIZES, "embedding_size": 16}, "ElectraModel", tokens),
    "deberta": ("DebertaV2Config", SIZES, "DebertaV2Model", tokens),
    "mpnet": ("MPNetConfig", SIZES, "MPNetModel", tokens),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
        "GPT2LMHeadModel",
        uncached,
    ),
    "gpt_neox": ("GPTNeoXConfig", SIZES, "GPTNeoXForCausalLM", uncached),
    "opt": (
        "OPTConfig",
        {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
        "OPTForCausalLM",
        uncached,
    ),
    "bloom": (
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "BloomForCausalLM",
        uncached,
    ),
    "falcon": ("FalconConfig", SIZES, "FalconForCausalLM", uncached),
    "llama": ("LlamaConfig", GROUPED, "LlamaForCausalLM", uncached),
    "mistral": ("MistralConfig", GROUPED, "MistralForCausalLM", uncached),
    "qwen2": ("Qwen2Config", GROUPED, "Qwen2ForCausalLM", uncached),
    "gemma": ("GemmaConfig", {**GROUPED, "head_dim": 8}, "GemmaForCausalLM", uncached),
    "phi": ("PhiConfig", SIZES, "PhiForCausalLM", uncached),
    "t5": (
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
        },
        "T5Model",
        pairs,
    ),
    "bart": ("BartConfig", SEQUENCES, "BartModel", pairs),
    "vit": ("ViTConfig", {**SIZES, "image_size": 32, "patch_size": 8}, "ViTModel", images),
    "convnext": (
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "image_size": 32},
        "ConvNextModel",
        images,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    names = options.models.split(",") if options.models else list(MODELS)
    rows = [("model", "graphs", "ops compiled", "in PyTorch", "not excused", "difference")]
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows.append(judged(name, training=options.training))
    print(table(rows, right=range(1, len(rows[0]))))
    good = all(row[4] == "0" and float(row[5]) <= TOLERANCE for row in rows[1:])
    return 0 if good else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B", help="which models (default: all)")
    parser.add_argument("--training", action="store_true", help="with the gradients")
    return parser.parse_args(arguments)


def judged(name: str, *, training: bool) -> tuple[str, ...]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, given = build(name)
    model.train(training)
    with torch.set_grad_enabled(training):
        report = turbine.explain(model, **given)
        found = torch.compile(model, backend="turbine")
        difference = apart(answer(found, model, given), answer(model, model, given))
    left = Counter(op for op in report.left if not op.reason.startswith(EXCUSED))
    for op, count in left.items():
        print(f"  {count} x {op.op} at {op.where}: {op.reason}", file=sys.stderr)
    counts = (len(report.graphs), report.ops_compiled, len(report.left), left.total())
    return (name, *map(str, counts), f"{difference:.1e}")


def build(name: str) -> tuple[nn.Module, dict[str, Any]]:
    try:
        import transformers
    except ImportError as error:
        raise errors.MissingExtra(
            "transformers is not installed", hint="pip install turbine[models]"
        ) from error
    if name not in MODELS:
        raise errors.ConfigError(errors.unknown("model", name, MODELS))
    configuration, sizes, model, arguments = MODELS[name]
    # The package makes its classes on first use.
    made = transformers.__getattr__
    return made(model)(made(configuration)(**sizes)), arguments()


def answer(call: Any, model: nn.Module, given: dict[str, Any]) -> list[Tensor]:
    """The first result and, with gradients on, those of the parameters."""
    torch.manual_seed(0)
    model.zero_grad()
    result = call(**given)[0]
    if not result.requires_grad:
        return [result]
    result.square().mean().backward()
    # A parameter of results that the loss does not use gets zeros from compiled graphs.
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return [result.detach(), torch.cat([grad.flatten() for grad in grads])]


def apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of the results, or of all gradients, over their largest value."""
    both = zip(found, expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in both)


if __name__ == "__main__":
    sys.exit(main())
