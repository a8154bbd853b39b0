"""`torch.autocast("turbine")`: the same ops in a lower precision as on a CPU.

PyTorch's own autocast does not know tensors on the device. Functions are called through
`__torch_function__` once a program uses autocast, and not before: it makes every call longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from turbine.eager.tensor import DEVICE, DeviceTensor

DTYPES = [torch.bfloat16, torch.float16]

_LOWERED = {
    torch.matmul,
    torch.mm,
    torch.bmm,
    torch.addmm,
    torch.addbmm,
    torch.baddbmm,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.Tensor.mm,
    torch.Tensor.bmm,
    torch.Tensor.addmm,
    torch.Tensor.__rmatmul__,
    torch.einsum,
    torch.tensordot,
    torch.linalg.multi_dot,
    torch.lstm,
    torch.gru,
    torch.rnn_tanh,
    torch.rnn_relu,
    F.multi_head_attention_forward,
    F.linear,
    F.conv1d,
    F.conv2d,
    F.conv3d,
    F.conv_transpose1d,
    F.conv_transpose2d,
    F.conv_transpose3d,
    F.scaled_dot_product_attention,
}
_RAISED = {
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.cross_entropy,
    F.nll_loss,
    F.kl_div,
    F.huber_loss,
    torch.cumsum,
    torch.cumprod,
    torch.prod,
    torch.Tensor.prod,
    torch.cdist,
}


def begin() -> None:
    """Let functions on the device heed autocast from now on."""
    DeviceTensor.__torch_function__ = _call


@classmethod  # type: ignore[misc]
def _call(
    cls: Any,
    func: Any,
    types: Any,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    named = kwargs or {}
    if torch.is_autocast_enabled(DEVICE):
        if func in _LOWERED:
            args, named = _convert((args, named), torch.get_autocast_dtype(DEVICE))
        elif func in _RAISED:
            args, named = _convert((args, named), torch.float32)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **named)


def _convert(arguments: Any, dtype: torch.dtype) -> Any:
    def convert(one: Tensor) -> Tensor:
        is_converted = one.dtype in (torch.float32, *DTYPES)
        return one.to(dtype) if is_converted else one

    return tree_map_only(DeviceTensor, convert, arguments)
