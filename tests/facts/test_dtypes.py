"""The dtype table matches torch, numpy and IREE."""

from __future__ import annotations

import numpy
import pytest
import torch
from iree import runtime

from turbine import dtypes, errors
from turbine.dtypes import TABLE, Dtype

# Our name -> IREE's name for the same element type.
HAL = {
    "bool": "BOOL_8",
    "int8": "SINT_8",
    "int16": "SINT_16",
    "int32": "SINT_32",
    "int64": "SINT_64",
    "uint8": "UINT_8",
    "uint16": "UINT_16",
    "uint32": "UINT_32",
    "uint64": "UINT_64",
    "float16": "FLOAT_16",
    "bfloat16": "BFLOAT_16",
    "float32": "FLOAT_32",
    "float64": "FLOAT_64",
    "float8_e5m2": "FLOAT_8_E5M2",
    "float8_e4m3fn": "FLOAT_8_E4M3_FN",
    "float8_e5m2fnuz": "FLOAT_8_E5M2_FNUZ",
    "float8_e4m3fnuz": "FLOAT_8_E4M3_FNUZ",
    "float8_e8m0fnu": "FLOAT_8_E8M0_FNU",
    "complex64": "COMPLEX_64",
    "complex128": "COMPLEX_128",
}
each_row = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def test_each_dtype_has_one_row() -> None:
    assert [row.name for row in TABLE] == list(HAL)


@each_row
def test_hal_codes_match_iree(row: Dtype) -> None:
    assert row.hal == int(runtime.HalElementType.__members__[HAL[row.name]])


@each_row
def test_torch_dtype_finds_its_row(row: Dtype) -> None:
    assert dtypes.of_torch(row.torch) is row


@each_row
def test_numpy_dtype_finds_its_row(row: Dtype) -> None:
    assert dtypes.of_numpy(row.numpy) is row


@each_row
def test_item_sizes_match_torch_and_numpy(row: Dtype) -> None:
    assert row.itemsize == row.torch.itemsize == row.numpy.itemsize


@each_row
def test_kinds_match_torch(row: Dtype) -> None:
    signed = row.kind in ("int", "float", "complex")
    expected = (row.kind == "float", row.kind == "complex")
    assert (row.torch.is_floating_point, row.torch.is_complex) == expected
    if row.name not in ("bool", "float8_e8m0fnu"):  # the last has neither a sign nor a zero
        assert row.torch.is_signed is signed


@each_row
def test_torch_and_numpy_decode_the_same_bytes_alike(row: Dtype) -> None:
    ones = torch.ones(3).to(row.torch)
    raw = ones.view(torch.uint8).numpy().tobytes()
    assert numpy.frombuffer(raw, row.numpy).tolist() == [1, 1, 1]


@each_row
def test_every_spelling_finds_its_row(row: Dtype) -> None:
    assert dtypes.from_spelling(row.name) is dtypes.from_spelling(row.torch_mlir) is row


def test_signless_integers_are_signed() -> None:
    assert [dtypes.from_spelling(f"i{bits}").name for bits in (8, 16, 32, 64)] == [
        "int8",
        "int16",
        "int32",
        "int64",
    ]


def test_an_unknown_dtype_lists_the_nearest_first() -> None:
    with pytest.raises(errors.UnsupportedDtype, match="unknown dtype 'float31'; valid: float32, "):
        dtypes.from_torch_name("float31")
    with pytest.raises(errors.UnsupportedDtype, match="unknown dtype 'f31'; valid: f32, "):
        dtypes.from_spelling("f31")


@pytest.mark.parametrize("dtype", [torch.qint8, torch.complex32, torch.bits8])
def test_a_torch_dtype_without_a_row_is_an_error(dtype: torch.dtype) -> None:
    with pytest.raises(errors.UnsupportedDtype, match=str(dtype).removeprefix("torch.")):
        dtypes.of_torch(dtype)


@pytest.mark.parametrize("spelling", ["O", "U4", "datetime64[s]", "longdouble"])
def test_a_numpy_dtype_without_a_row_is_an_error(spelling: str) -> None:
    with pytest.raises(errors.UnsupportedDtype, match="unknown dtype"):
        dtypes.of_numpy(numpy.dtype(spelling))
