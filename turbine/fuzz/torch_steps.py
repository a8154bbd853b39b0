"""Random steps over PyTorch ops: one generator for each family, with its weight.

A generator returns the text of a step, with `$` for the name it binds; without `$` it writes to
the first name it mentions. Whether a step is valid is decided by running it in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from turbine.fuzz.scope import NoChoice, Scope, bracket
from turbine.runtime.torch_buffers import is_writable

Generator = Callable[[Scope], str]

_UNARY = (
    "-{}",
    "{}.abs()",
    "torch.relu({})",
    "torch.exp({}.clamp(max=5))",
    "torch.tanh({})",
    "torch.sigmoid({})",
    "torch.sqrt({}.abs())",
    "torch.rsqrt({}.abs() + 0.5)",
    "torch.log1p({}.abs())",
    "torch.floor({})",
    "torch.ceil({})",
    "torch.round({})",
    "torch.trunc({})",
    "torch.sin({})",
    "torch.cos({})",
    "torch.erf({})",
    "F.gelu({})",
    "F.silu({})",
    "F.softplus({})",
    "F.leaky_relu({}, 0.1)",
    "F.hardswish(torch.nan_to_num({}))",  # eager's gradient at nan depends on the lane
    "torch.sign({})",
    "torch.reciprocal({})",
    "torch.square({})",
    "torch.expm1({}.clamp(max=5))",
    "torch.frac({})",
    "torch.isnan({})",
    "torch.isfinite({})",
    "torch.logical_not({})",
    "torch.nan_to_num({})",
    "{}.clamp(-1, 1)",
    "{}.clamp(min=0)",
    "{} ** 2",
    "{} ** 3",
    "{}.clone()",
    "{}.contiguous()",
    "torch.zeros_like({})",
    "torch.full_like({}, 3)",
    "torch.tril({})",
    "torch.triu({}, 1)",
    "torch.bitwise_not({})",
    "torch.atan({})",
    "torch.signbit(torch.nan_to_num({}))",  # the sign of nan is undefined
)


def unary(s: Scope) -> str:
    return "$ = " + s.one_of(_UNARY).format(s.pick())


def convert(s: Scope) -> str:
    dtypes = (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int8",
        "uint8",
        "bool",
    )
    name, dtype = s.pick(), s.one_of(dtypes)
    if s.values[name].is_floating_point() and not dtype.startswith(("float", "bfloat", "bool")):
        # Conversion of a float out of the range of an integer depends on the CPU.
        low = 0 if dtype == "uint8" else -100
        return f"$ = torch.nan_to_num({name}).clamp({low}, 100).to(torch.{dtype})"
    return f"$ = {name}.to(torch.{dtype})"


_BINARY = (
    "{} + {}",
    "{} - {}",
    "{} * {}",
    "{} / {}",
    "torch.maximum({}, {})",
    "torch.minimum({}, {})",
    "torch.fmod({}, {})",
    "torch.remainder({}, {})",
    "torch.floor_divide({}, {})",
    "torch.atan2({}, {})",
    "torch.where({0} > {1}, {0}, {1})",
    "{} < {}",
    "{} >= {}",
    "{} == {}",
    "{} != {}",
    "torch.logical_and({}, {})",
    "torch.copysign({}, torch.nan_to_num({} + 0.0))",
    "torch.hypot({}, {})",
    "torch.lerp({}, {}, 0.3)",
    "torch.logaddexp({}, {})",
    "torch.addcmul({0}, {1}, {0})",
)


def binary(s: Scope) -> str:
    first = s.pick()
    second = str(s.number()) if s.chance(0.25) else s.pick()
    return "$ = " + s.one_of(_BINARY).format(first, second)


def view(s: Scope) -> str:
    x = s.pick()
    rank, shape = s.values[x].dim(), s.values[x].shape
    axis, other = (s.axis(x), s.axis(x)) if rank else (0, 0)
    size = s.size(x, axis) if rank else 1
    start = s.integer(-size, size)
    stop = s.one_of((size, size - 1, -1, 2 * size, s.integer(0, size)))
    order = s.choose.sample(range(rank), rank)
    span = s.integer(1, max(size, 1))
    cut = s.integer(0, size)
    texts = [
        f"{x}.reshape(-1)",
        f"{x}.flatten()",
        f"{x}.unsqueeze({s.integer(-rank - 1, rank)})",
        f"{x}.squeeze()",
        f"{x}[None]",
        f"{x}[..., None]",
        f"{x}.expand({bracket((s.integer(1, 3), *[-1] * rank))})",
    ]
    if rank:
        slices = ", ".join([":"] * (axis % rank) + [f"{start}:{stop}:{s.integer(1, 3)}"])
        texts += [
            f"{x}.transpose({axis}, {other})",
            f"{x}.permute({bracket(order)})",
            f"{x}.movedim({axis}, {other})",
            f"{x}[{slices}]",
            f"{x}.narrow({axis}, {cut}, {s.integer(0, size - cut)})",
            f"{x}.select({axis}, {s.index(size)})" if size else f"{x}.flip({axis})",
            f"{x}.flip({axis})",
            f"{x}.roll({s.integer(-5, 5)}, {axis})",
            f"{x}.squeeze({axis})",
            f"{x}.unfold({axis}, {span}, {s.integer(1, 3)})",
            f"{x}.chunk({s.integer(1, 3)}, {axis})[{s.one_of((0, -1))}]",
            f"{x}.split({span}, {axis})[{s.one_of((0, -1))}]",
            f"{x}.unbind({axis})[{s.one_of((0, -1))}]",
            f"{x}.repeat_interleave({s.integer(1, 3)}, {axis})",
            f"{x}.reshape({x}.shape[0], -1)",
            f"{x}.reshape(-1, {x}.shape[-1])",
            f"{x}.unflatten({axis}, ({_divisor(s, size)}, -1))",
            f"{x}.tile({bracket(s.integer(1, 2) for _ in shape)})",
            f"({x} * 1).contiguous().as_strided({list(shape)[:1]}, (1,), 0)",
        ]
    if rank > 1:
        texts += [
            f"{x}.diagonal({s.integer(-1, 1)})",
            f"{x}.mT",
            f"{x}.flatten({s.integer(0, rank - 2)}, -1)",
            f"{x}.rot90({s.integer(-3, 3)})",
        ]
    return "$ = " + s.one_of(texts)


def _divisor(s: Scope, size: int) -> int:
    return s.one_of([n for n in range(1, max(size, 1) + 1) if size % n == 0])


def read_index(s: Scope) -> str:
    x = s.pick_rank(1)
    axis = s.axis(x)
    size, rank = s.size(x, axis), s.values[x].dim()
    chosen = s.indices(size)
    before = ":, " * (axis % rank)
    count = s.integer(1, 4)
    like = [
        s.integer(0, length) if k != axis % rank else count
        for k, length in enumerate(s.values[x].shape)
    ]
    tensor = s.index_tensor(size, (count,))
    plain = s.index_tensor(size, (count,), negative=False)
    texts = [
        f"{x}[{before}{chosen}]",
        f"{x}[{before}{tensor}]",
        f"{x}[{before}{chosen[0]}]",
        f"{x}[..., {s.indices(s.size(x, -1))}]",
        f"{x}.index_select({axis}, {plain})",
        f"{x}.gather({axis}, {s.index_tensor(size, like, negative=False)})",
        f"torch.take({x}, {s.index_tensor(s.values[x].numel(), (count,))})",
        f"torch.take_along_dim({x}, {s.index_tensor(size, like, negative=False)}, {axis})",
        f"{x}[{before}{tensor}.reshape(-1, 1)]",
    ]
    if rank > 1:
        pair = (s.indices(s.size(x, 0), most=1), s.indices(s.size(x, 1)))
        texts += [
            f"{x}[{pair[0]}, {pair[1]}]",
            f"{x}[{s.index_tensor(s.size(x, 0), (2, 1))}, {s.index_tensor(s.size(x, 1), (3,))}]",
            f"{x}[{s.indices(s.size(x, 0))}, ..., {s.index(s.size(x, -1))}]",
            f"{x}[:, {s.indices(s.size(x, 1))}]",
            f"F.embedding({plain}, {x})",
        ]
    return "$ = " + s.one_of(texts)


def write_index(s: Scope) -> str:
    x = s.pick_rank(1)
    value = s.values[x]
    axis = s.axis(x)
    size, rank = s.size(x, axis), value.dim()
    count = s.integer(1, 4)
    tensor = s.index_tensor(size, (count,))
    plain = s.index_tensor(size, (count,), negative=False)
    shape = list(value.shape)
    shape[axis] = count
    source = f"{x}.new_full({shape}, {s.number()})"
    if s.chance(0.5):
        source = f"{x}.narrow({axis}, 0, 1).expand({shape}) * 2"
    like = [s.integer(0, n) if k != axis % rank else count for k, n in enumerate(value.shape)]
    places = s.index_tensor(size, like, negative=False)
    before = ":, " * (axis % rank)
    nones = "None, " * (axis % rank)
    combine = s.one_of(("prod", "mean", "amax", "amin"))
    reduce = f"'{s.one_of((combine, 'sum'))}', include_self={s.chance(0.5)}"
    half = size // 2
    # Eager PyTorch writes to elements that share memory more than once.
    apart = x if torch._debug_has_internal_overlap(value) == 0 else f"{x}.contiguous()"
    flat = s.index_tensor(value.numel(), (count,))
    texts = [
        f"torch.index_put({x}, ({nones}{tensor},), {source}, {s.chance(0.5)})",
        f"{x}.index_fill({axis}, {tensor}, {s.integer(-3, 3)})",
        f"{x}.index_add({axis}, {plain}, {source})",
        f"{x}.index_copy({axis}, {plain}, {source})",
        f"{x}.index_reduce({axis}, {plain}, {source}, '{combine}')",
        f"{x}.scatter({axis}, {places}, {s.integer(-3, 3)})",
        f"{x}.scatter_add({axis}, {places}, {x}.new_ones({like}))",
        f"{x}.scatter_reduce({axis}, {places}, {x}.new_full({like}, 2), {reduce})",
        f"torch.Tensor.put({x}, {flat}, {x}.new_full(({count},), 3), {s.chance(0.5)})",
        f"{x}.masked_fill({x} > 0, {s.integer(-3, 3)})",
        f"{apart}.select_scatter({x}.select({axis}, 0) + 1, {axis}, {s.index(size)})",
        f"{apart}.slice_scatter({x}.narrow({axis}, 0, {size - half}) * 2, {axis}, {half}, {size})",
    ]
    if s.chance(0.5):
        return "$ = " + s.one_of(texts)
    start = s.integer(-size, size)
    writes = [
        f"$[{before}{s.indices(size)}] = {s.number()}",
        f"$[{before}{tensor}] = {s.number()}",
        f"$[{before}{s.index(size)}] = {s.number()}",
        f"$[{before}{start}:] = {s.number()}",
        f"$[{before}{s.integer(0, size)}::2] *= 2",
        f"$[$ > 0] = {s.number()}",
        f"$[..., {s.index(s.size(x, -1))}] += 1",
        f"$.index_fill_({axis}, {tensor}, {s.integer(-3, 3)})",
        f"$.index_add_({axis}, {plain}, {source})",
        f"$.masked_fill_($ < 0, {s.integer(0, 3)})",
        f"$.select({axis}, {s.index(size)}).mul_(2)",
        f"$.transpose({axis}, 0)[{s.index(s.size(x, axis))}] = 1",
        f"$.narrow({axis}, 0, 1).copy_($.narrow({axis}, {size - 1}, 1))",
        f"$.view(-1)[{s.index(value.numel())}] = {s.number()}",
        f"$.put_({flat}, $.new_full(({count},), 3), {s.chance(0.5)})",
        f"$.diagonal().fill_({s.number()})" if rank > 1 else "$.fill_(1)",
    ]
    return f"$ = {x}.clone()\n" + s.one_of(writes)


def write_in_place(s: Scope) -> str:
    x = s.pick(is_writable)  # of elements that share memory, PyTorch fills some and refuses others
    texts = (
        "{}.add_(1)",
        "{}.mul_(2)",
        "{}.clamp_(-1, 1)",
        "{}.zero_()",
        "{}[...] = 2",
        "{}.t_()",
        "{}.unsqueeze_(0)",
        "{}.neg_()",
    )
    return s.one_of(texts).format(x)


def pool(s: Scope) -> str:
    dims = s.integer(1, 3)
    x = s.pick_exact_rank(dims + 1, dims + 2)
    kernel = tuple(s.integer(1, 3) for _ in range(dims))
    stride = tuple(s.integer(1, 3) for _ in range(dims))
    padding = tuple(s.integer(0, k // 2) for k in kernel)
    ceil, counted, dilation = s.chance(0.6), s.chance(0.5), s.integer(1, 2)
    texts = [
        f"F.avg_pool{dims}d({x}, {kernel}, {stride}, {padding}, {ceil}, {counted})",
        f"F.max_pool{dims}d({x}, {kernel}, {stride}, {padding}, ceil_mode={ceil})",
        # Without padding: of a window without elements, PyTorch's gradient writes out of bounds.
        f"F.max_pool{dims}d({x}, {kernel}, {stride}, 0, {dilation}, {ceil})",
        f"F.max_pool{dims}d({x}, {kernel}, ceil_mode={ceil}, return_indices=True)[1]",
        f"F.adaptive_avg_pool{dims}d({x}, {tuple(s.integer(1, 4) for _ in range(dims))})",
        f"F.adaptive_max_pool{dims}d({x}, {tuple(s.integer(1, 4) for _ in range(dims))})",
    ]
    if dims < 3:
        texts.append(f"F.lp_pool{dims}d({x}, 2, {kernel[0]}, {stride[0]}, {ceil})")
    if dims == 2:
        texts.append(f"F.avg_pool2d({x}, {kernel}, ceil_mode={ceil}, divisor_override=3)")
    return "$ = " + s.one_of(texts)


def pad(s: Scope) -> str:
    x = s.pick_rank(1)
    rank = s.values[x].dim()
    axes = s.integer(1, min(rank, 3))
    constant = tuple(s.integer(-2, 3) for _ in range(2 * axes))
    texts = [
        f"F.pad({x}, {constant})",
        f"F.pad({x}, {constant}, value={s.integer(-2, 2)})",
        f"torch.constant_pad_nd({x}, {constant}, 1)",
    ]
    if s.values[x].is_floating_point() and rank > 1:
        mode = s.one_of(("reflect", "replicate", "circular"))
        spatial = min(rank - 1, 3)
        amounts = tuple(s.integer(0, 2) for _ in range(2 * spatial))
        texts += [f"F.pad({x}, {amounts}, mode='{mode}')"] * 2
    return "$ = " + s.one_of(texts)


def resample(s: Scope) -> str:
    name = s.pick_exact_rank(3, 4)
    dims = s.values[name].dim() - 2
    # Weights of zero make nan of infinities, and weights that are not quite zero noise of 1e18.
    x = f"torch.nan_to_num({name}, 0, 1, -1).clamp(-1e4, 1e4)"
    modes = (
        ("nearest", "linear") if dims == 1 else ("nearest", "bilinear", "bicubic", "nearest-exact")
    )
    mode = s.one_of(modes)
    corners = "" if mode.startswith("nearest") else f", align_corners={s.chance(0.5)}"
    size = tuple(s.integer(1, 6) for _ in range(dims))
    texts = [
        f"F.interpolate({x}, size={size}, mode='{mode}'{corners})",
        f"F.interpolate({x}, scale_factor={s.one_of((0.5, 1.5, 2.0))}, mode='{mode}'{corners})",
    ]
    if dims == 2:
        kernel = (s.integer(1, 3), s.integer(1, 3))
        texts += [
            f"F.unfold({x}, {kernel}, {s.integer(1, 2)}, {s.integer(0, 2)}, {s.integer(1, 2)})",
            f"F.pixel_unshuffle({x}, 1)",
        ]
    return "$ = " + s.one_of(texts)


def convolve(s: Scope) -> str:
    dims = s.integer(1, 2)
    x = s.pick_exact_rank(dims + 2)
    channels = s.size(x, 1)
    groups = s.one_of([g for g in (1, 2, channels) if g and channels % g == 0])
    kernel = tuple(s.integer(1, 3) for _ in range(dims))
    rest = f"{s.integer(1, 2)}, {s.integer(0, 2)}"
    wide = groups * s.integer(1, 2)
    plain = _weight(x, (wide, channels // groups, *kernel))
    transposed = _weight(x, (channels, s.integer(1, 2), *kernel))
    texts = (
        f"F.conv{dims}d({x}, {plain}, None, {rest}, {s.integer(1, 2)}, {groups})",
        f"F.conv_transpose{dims}d({x}, {transposed}, None, {rest}, 0, {groups})",
    )
    return "$ = " + s.one_of(texts)


def _weight(x: str, shape: tuple[int, ...]) -> str:
    return f"torch.linspace(-1, 1, {prod(shape)}, dtype={x}.dtype).reshape({shape})"


def reduce(s: Scope) -> str:
    x = s.pick_rank(1)
    axis, keep = s.axis(x), s.chance(0.5)
    rank = s.values[x].dim()
    axes = tuple(s.choose.sample(range(rank), s.integer(1, rank)))
    texts = [
        f"{x}.sum({axes}, {keep})",
        f"{x}.sum()",
        f"{x}.mean({axes}, {keep})",
        f"{x}.prod({axis}, {keep})",
        f"{x}.amax({axes}, {keep})",
        f"{x}.amin({axes}, {keep})",
        f"{x}.max({axis}, {keep})[{s.integer(0, 1)}]",
        f"{x}.min({axis}, {keep})[{s.integer(0, 1)}]",
        f"{x}.argmax({axis}, {keep})",
        f"{x}.argmin({axis}, {keep})",
        f"{x}.var({axes}, correction={s.integer(0, 2)}, keepdim={keep})",
        f"{x}.std({axis})",
        f"{x}.any({axis}, {keep})",
        f"{x}.all({axis})",
        f"torch.logsumexp({x}, {axes})",
        f"torch.softmax({x}, {axis})",
        f"torch.log_softmax({x}, {axis})",
        f"torch.cumsum({x}, {axis})",
        f"torch.cumprod({x}, {axis})",
        f"torch.cummax({x}, {axis})[{s.integer(0, 1)}]",
        f"torch.cummin({x}, {axis})[{s.integer(0, 1)}]",
        f"torch.logcumsumexp({x}, {axis})",
        f"torch.linalg.vector_norm({x}, {s.one_of((1, 2, 0, 3))}, {axis})",
        f"torch.sort({x}, {axis}, stable=True, descending={keep})[{s.integer(0, 1)}]",
        # Which of equal elements these take is not defined, so their gradients are not compared.
        f"torch.topk({x}.detach(), {s.integer(1, max(1, s.size(x, axis)))}, {axis})[0]",
        f"torch.kthvalue({x}.detach(), {s.integer(1, max(1, s.size(x, axis)))}, {axis})[0]",
        # Contiguous: of elements that share memory, PyTorch's median reads others.
        f"torch.median({x}.detach().contiguous(), {axis})[0]",
        f"torch.count_nonzero({x}, {axis})",
        f"torch.nansum({x}, {axis})",
        f"torch.diff({x}, dim={axis})",
        f"torch.trapezoid({x}, dim={axis})",
    ]
    return "$ = " + s.one_of(texts)


def multiply(s: Scope) -> str:
    x = s.pick_float(1)
    y = s.pick_float(1)
    texts = [
        f"{x} @ {y}",
        f"{x} @ {x}.mT" if s.values[x].dim() > 1 else f"{x} @ {x}",
        f"torch.matmul({x}, {y}.mT)"
        if s.values[y].dim() > 1
        else f"torch.outer({x}.reshape(-1), {y})",
        f"F.linear({x}, torch.ones(3, {x}.shape[-1], dtype={x}.dtype) * 0.5)",
        f"torch.einsum('...i,...i->...', {x}, {x})",
        f"torch.kron({x}, {y})",
    ]
    return "$ = " + s.one_of(texts)


def normalize(s: Scope) -> str:
    x = s.pick_float(2)
    finite = f"torch.nan_to_num({x}, 0, 1, -1)"
    texts = [
        f"F.layer_norm({x}, {x}.shape[-1:])",
        f"F.layer_norm({x}, {x}.shape[1:])",
        f"F.group_norm({x}, 1)",
        f"F.rms_norm({x}, {x}.shape[-1:])",
        f"F.normalize({x}, dim={s.axis(x)})",
        f"F.batch_norm({x}, None, None, training=True)",
        f"F.instance_norm({x})",
        # Kernels of PyTorch's attention differ from each other where a score is infinite.
        f"F.scaled_dot_product_attention({finite}, {finite}, {finite})",
        f"F.scaled_dot_product_attention({finite}, {finite}, {finite}.tanh(), is_causal=True)",
        f"F.cosine_similarity({x}, {x}.flip(-1), dim=-1)",
        f"F.mse_loss({x}, {x} * 2)",
        f"F.cross_entropy({x}.flatten(0, -2), torch.zeros_like({x}.flatten(0, -2)[:, 0]).long())",
    ]
    return "$ = " + s.one_of(texts)


def combine(s: Scope) -> str:
    x, y = s.pick_rank(1), s.pick_rank(1)
    axis = s.axis(x)
    texts = [
        f"torch.cat([{x}, {y}], {axis})",
        f"torch.cat([{x}, {x} * 2], {axis})",
        f"torch.stack([{x}, {x} + 1], {axis})",
        f"torch.where({x} > 0, {x}, {y})",
        f"torch.where({x} > 0, {x}, 0)",
        f"torch.arange({x}.shape[0]) * 2",
        f"{x} + torch.arange({x}.shape[-1])",
        f"torch.zeros({x}.shape[0], 3) + {x}.shape[0]",
        f"F.one_hot(torch.arange({x}.shape[0]))",
        f"torch.searchsorted(torch.linspace(0, 3, 7, dtype={x}.dtype), {x})",
        f"torch.bucketize({x}, torch.tensor([-1, 0, 1]))",
        f"torch.broadcast_to({x}, {(2, *s.values[x].shape)})",
        f"torch.meshgrid({x}.reshape(-1)[:3], {y}.reshape(-1)[:2], indexing='ij')[0]",
        f"torch.isin({x}, {y})",
        f"torch.eye({x}.shape[-1], dtype={x}.dtype) + {x}",
    ]
    return "$ = " + s.one_of(texts)


def pair(s: Scope) -> str:
    """Combine each element of a reduction with another one."""
    x = s.pick_rank(1)
    axis = s.axis(x)
    reduced = s.one_of(("sum({})", "amax({})", "cumsum({})", "float().mean({})", "argmin({})"))
    made = f"$ = {x}.{reduced.format(axis)}\n"
    op = s.one_of(("*", "+", "-", ">"))
    texts = (
        f"$ = $.unsqueeze(-1) {op} $.unsqueeze(0)",
        f"$ = $.reshape(-1, 1) {op} $.reshape(-1)",
        f"$ = ($ * 2).unsqueeze(-1) {op} $",
        f"$ = $ {op} $.flip(0)",
        f"$ = $[..., 1:] {op} $[..., :-1]",
        f"$ = $ {op} {x}.select({axis}, 0).unsqueeze(0) {op} $.unsqueeze(-1)",
        f"$ = $ {op} $.roll(1, -1)",
        f"$ = torch.softmax($.float(), -1); $ = $ {op} $.transpose(0, -1)",
        "$ = $.reshape(-1)[:4]; $ = torch.outer($, $)",
    )
    return made + s.one_of(texts)


# Weighted toward what compilers get wrong: indices, writes, pooling, padding, views, reductions.
FAMILIES: dict[Generator, int] = {
    unary: 4,
    convert: 1,
    binary: 5,
    view: 6,
    read_index: 5,
    write_index: 7,
    write_in_place: 1,
    pool: 3,
    pad: 3,
    resample: 1,
    convolve: 1,
    reduce: 6,
    multiply: 2,
    normalize: 1,
    combine: 3,
    pair: 3,
}


def random_step(s: Scope) -> str:
    """The text of a step; raises NoChoice where the chosen family finds nothing to work on."""
    family = s.choose.choices(list(FAMILIES), list(FAMILIES.values()))[0]
    try:
        return family(s)
    except (IndexError, ValueError) as error:  # an empty axis to choose from
        raise NoChoice from error
