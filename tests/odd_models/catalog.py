"""Every small module that tests a contract rather than a model, by name."""

from collections.abc import Callable

from tests.odd_models.shapes import dynamic_batch, dynamic_sequence, empty_batch
from tests.odd_models.signature import (
    constant_outputs,
    mutates_input,
    nested_tree,
    returns_input,
    scalar_input,
)
from tests.odd_models.state import (
    batchnorm_train,
    counter,
    nonpersistent_buffer,
    returns_parameter,
    tied_weights,
    weight_view,
)
from tests.odd_models.types import (
    bfloat16,
    complex64,
    float64,
    integers_and_booleans,
    uint8_image,
)
from turbine.zoo.example import Example

ODD: dict[str, Callable[[], Example]] = {
    "counter": counter,
    "batchnorm_train": batchnorm_train,
    "tied_weights": tied_weights,
    "weight_view": weight_view,
    "returns_parameter": returns_parameter,
    "nonpersistent_buffer": nonpersistent_buffer,
    "constant_outputs": constant_outputs,
    "nested_tree": nested_tree,
    "mutates_input": mutates_input,
    "returns_input": returns_input,
    "scalar_input": scalar_input,
    "integers_and_booleans": integers_and_booleans,
    "bfloat16": bfloat16,
    "float64": float64,
    "complex64": complex64,
    "uint8_image": uint8_image,
    "empty_batch": empty_batch,
    "dynamic_batch": dynamic_batch,
    "dynamic_sequence": dynamic_sequence,
}
