"""Scripts written for iree-turbine run with nothing changed but what is installed."""

from __future__ import annotations

import iree.turbine.aot as aot
import torch
from torch import nn

X = torch.ones(3, 4)


# Parameters


def test_parameters_without_a_scope_are_in_the_scope_model() -> None:
    model = nn.Linear(4, 2)
    aot.externalize_module_parameters(model)
    text = str(aot.export(model, args=(X,)).mlir_module)
    assert '#flow.parameter.named<"model"::"weight">' in text


def test_globals_without_a_scope_are_in_the_scope_model() -> None:
    marked = torch.ones(2)
    aot.ExternalTensorTrait(external_scope="", external_name="marked").set(marked)

    class Module(aot.CompiledModule):
        one = aot.export_global(marked)
        two = aot.export_global(torch.ones(2), external=True, external_scope="")

    text = str(aot.CompiledModule.get_mlir_module(Module()))
    assert '#flow.parameter.named<"model"::"marked">' in text
    assert '#flow.parameter.named<"model"::"two">' in text
