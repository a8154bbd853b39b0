"""Trace steps of training: the loss of a batch, its gradients, and an optimizer's update.

A step is traced with autograd and the optimizer's own code to a graph of ops. Its inputs are all
tensors that live between steps, and the batch; the graph writes to these tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.amp import GradScaler
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim import Optimizer
from torch.utils import _pytree as torch_pytree

from turbine import errors
from turbine.capture.buffer_writes import BufferWrites
from turbine.capture.model import export_program
from turbine.capture.one_thread import traces
from turbine.capture.optimizer_step import State, check_optimizer, initial_state, trace_step
from turbine.capture.random_ops import CountedRandom, Stream
from turbine.capture.recurrence import Recurrences
from turbine.capture.trace_lines import at, gradients, replay, trace

# Where the root module holds the state of the optimizer, and that of training.
OPTIMIZER, TRAINER = "optimizer", "trainer"
BATCHES, RANDOM = f"{TRAINER}.batches", f"{TRAINER}.random"
_SCALE = f"{TRAINER}.loss_scale"
# Added to a norm before it divides, as in torch.nn.utils.clip_grad_norm_.
_SMALL = 1e-6

Values = Mapping[str, Tensor]
Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Options:
    """How gradients become an update."""

    clip_grad_norm: float | None = None
    accumulate: int = 1  # batches of an update
    skip_nonfinite: bool = False  # no update where a gradient is inf or nan
    rates: Sequence[Sequence[float]] = ()  # the learning rates of each group, step by step
    seed: int = 0  # of random numbers
    scaler: GradScaler | None = None  # of the loss, for gradients in float16

    @property
    def skips(self) -> bool:
        """Whether steps with inf or nan make no update."""
        return self.skip_nonfinite or self.scaler is not None


class Root(nn.Module):
    """All tensors that live between steps, each once, as buffers with their names."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_buffer(last, tensor)

    def values(self) -> dict[str, Tensor]:
        """Every tensor by its name."""
        return dict(self.named_buffers(remove_duplicate=False))


@dataclass
class ModelLoss:
    """A model and its loss, which can be computed with other tensors than the model's."""

    model: nn.Module
    loss_fn: Loss
    stream: Stream

    @cached_property
    def names(self) -> dict[Tensor, str]:
        """The names of parameters."""
        return {parameter: name for name, parameter in self.model.named_parameters()}

    @property
    def takes_model(self) -> bool:
        """Whether the loss is a function of the model and the batch, not of outputs and targets."""
        names = [*_signature(self.loss_fn).parameters]
        return bool(names) and names[0] == "model"

    def loss(self, values: Values, args: Sequence[Any]) -> Tensor:
        """The loss of a batch; the model holds `values`, and may write to them."""
        with self._holding(values), self._drawing(values), Recurrences(trains=True):
            if self.takes_model:
                loss = self.loss_fn(self.model, *args)
            else:
                *inputs, target = args
                loss = self.loss_fn(self.model(*inputs), target)
        return _check_loss(loss)

    @contextmanager
    def _holding(self, values: Values) -> Iterator[None]:
        """Let the model hold other tensors; buffers that it replaces are written."""
        own = {
            n: v for n, v in values.items() if not n.startswith((f"{OPTIMIZER}.", f"{TRAINER}."))
        }
        with _reparametrize_module(self.model, own, tie_weights=True):
            yield
            for name, buffer in self.model.named_buffers():
                if name in own and buffer is not own[name]:
                    own[name].copy_(buffer.detach())

    @contextmanager
    def _drawing(self, values: Values) -> Iterator[None]:
        """Let random numbers depend on the seed, and on how many were drawn before."""
        random = CountedRandom(values[RANDOM], self.stream)
        with random:
            yield
        random.advance()

    @contextmanager
    def in_mode(self, *, is_training: bool) -> Iterator[None]:
        """Leave modes as they are in training, and set evaluation mode otherwise."""
        before = {module: module.training for module in self.model.modules()}
        if not is_training:
            self.model.eval()
        try:
            yield
        finally:
            for module, mode in before.items():
                module.training = mode


@dataclass
class Trainer(ModelLoss):
    """A model with its loss and its optimizer, whose steps can be traced."""

    optimizer: Optimizer
    options: Options
    shares_steps: bool = True

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer, self.names)
        self.state = initial_state(self.optimizer, self.names)
        self.holders = self._holders()
        self._check_names()
        tensors = {name: parameter.detach() for parameter, name in self.names.items()}
        tensors |= dict(self.model.named_buffers())
        check_apart(tensors)
        self.root = Root({**tensors, **self._optimizer_tensors(), **self._own_tensors()})
        self.reached: list[str] = []  # names of parameters with a gradient, once it was traced

    def _check_names(self) -> None:
        taken = [name for name in (OPTIMIZER, TRAINER) if hasattr(self.model, name)]
        if taken:
            raise errors.ExportError(
                f"{type(self.model).__name__} has an attribute {taken[0]!r}",
                hint="rename it: the state of training is kept under this name",
            )

    @cached_property
    def trained(self) -> list[str]:
        """The names of parameters that the optimizer changes."""
        groups = self.optimizer.param_groups
        return [self.names[p] for group in groups for p in group["params"] if p.requires_grad]

    def _holders(self) -> dict[str, dict[str, str]]:
        """The name of each tensor of the optimizer; parameters of a group share counts of steps."""
        holders = {
            name: {key: f"{OPTIMIZER}.{name}.{key}" for key in values}
            for name, values in self.state.items()
        }
        for index, group in enumerate(self.optimizer.param_groups if self.shares_steps else ()):
            names = [self.names[parameter] for parameter in group["params"]]
            steps = [self.state[name].get("step") for name in names]
            numbers = {float(s) for s in steps if s is not None and s.ndim == 0}
            if len(numbers) == 1 and None not in steps:
                for name in names:
                    holders[name]["step"] = f"{TRAINER}.optimizer_step.{index}"
        return holders

    @property
    def shared(self) -> dict[str, list[str]]:
        """Tensors of the optimizer that several parameters share, with the name for each."""
        keys: dict[str, list[str]] = {}
        for name, held in self.holders.items():
            for key, holder in held.items():
                keys.setdefault(holder, []).append(f"{OPTIMIZER}.{name}.{key}")
        return {holder: names for holder, names in keys.items() if names != [holder]}

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        return {
            holder: self.state[name][key]
            for name, held in self.holders.items()
            for key, holder in held.items()
        }

    def _own_tensors(self) -> dict[str, Tensor]:
        own: dict[str, Tensor] = {
            "step": torch.zeros((), dtype=torch.int64),
            "random": Stream.initial_state(self.options.seed),
        }
        for index, group in enumerate(self.optimizer.param_groups):
            rate = torch.as_tensor(group["lr"], dtype=torch.float64)
            own[f"learning_rate.{index}"] = rate.detach().clone()
        for index, rates in enumerate(self.options.rates):
            own[f"schedule.{index}"] = torch.tensor(rates, dtype=torch.float64)
        if self.options.skips:
            own["skipped"] = torch.zeros((), dtype=torch.int64)
        if self.options.scaler is not None:
            own["loss_scale"] = torch.tensor(self.options.scaler.get_scale())
            own["finite_steps"] = torch.tensor(self.options.scaler._get_growth_tracker())
        if self.options.accumulate > 1:
            own["batches"] = torch.zeros((), dtype=torch.int64)
            weights = dict(self.model.named_parameters())
            for name in self.trained:
                own[f"gradients.{name}"] = torch.zeros_like(weights[name]).detach()
        return {f"{TRAINER}.{name}": value for name, value in own.items()}

    # What is traced. `values` are the tensors of the root by name.

    def train_step(self, values: Values, args: Sequence[Any]) -> Tensor:
        """Update the weights with the gradients of a batch; return its loss."""
        loss, grads = self.gradients(values, args)
        if self.options.accumulate > 1:
            grads = self._accumulate(values, grads)
        self.apply(values, grads)
        if self.options.accumulate > 1:
            for held in (*self._accumulated(values).values(), values[BATCHES]):
                held.zero_()
        return loss

    def accumulate(self, values: Values, args: Sequence[Any]) -> Tensor:
        """Add the gradients of a batch to those of earlier ones; return its loss."""
        loss, grads = self.gradients(values, args)
        for name, total in self._accumulate(values, grads).items():
            self._accumulated(values)[name].copy_(total)
        values[BATCHES].add_(1)
        return loss

    def _accumulate(self, values: Values, grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
        held = self._accumulated(values)
        return {name: held[name] + g / self.options.accumulate for name, g in grads.items()}

    def _accumulated(self, values: Values) -> dict[str, Tensor]:
        prefix = f"{TRAINER}.gradients."
        return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}

    def gradients(self, values: Values, args: Sequence[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch and the gradients of parameters; buffers are updated.

        With `skip_nonfinite`, a batch with gradients of inf or nan leaves the buffers as they were.
        """
        leaves = {name: values[name].detach().requires_grad_() for name in self.trained}
        # The model writes to copies: whether the gradients are finite is known after the backward.
        buffers = self._buffer_copies(values) if self.options.skip_nonfinite else {}
        writes = BufferWrites(buffers)
        with torch.enable_grad(), self.in_mode(is_training=True):
            with writes:
                loss = self.loss({**values, **leaves, **buffers}, args)
            scale = None if self.options.scaler is None else values[_SCALE].clone()
            scaled = loss if scale is None else loss * scale
            found = gradients(scaled, [*leaves.values()])
        named = zip(leaves, found, strict=True)
        grads = {name: grad for name, grad in named if grad is not None}
        if scale is not None:
            grads = {name: grad / scale for name, grad in grads.items()}
        self.reached = [*grads]
        written = writes.find_written()
        if written:
            is_finite = _all_finite(grads)
            for name, buffer in written.items():
                values[name].copy_(torch.where(is_finite, buffer, values[name]))
        return loss.detach(), grads

    def _buffer_copies(self, values: Values) -> dict[str, Tensor]:
        return {name: values[name].clone() for name, _ in self.model.named_buffers()}

    def apply(self, values: Values, grads: Mapping[str, Tensor]) -> None:
        """Update the weights with gradients."""
        if self.options.clip_grad_norm is not None:
            grads = _clip(grads, self.options.clip_grad_norm)
        if self.options.skips:
            self._update_if_finite(values, grads)
        else:
            self._update(values, values, grads)
        # As a scheduler in PyTorch, which is stepped after each update, leaves them.
        for index, rate in enumerate(self._rates(values)):
            values[f"{TRAINER}.learning_rate.{index}"].copy_(rate)

    def _update_if_finite(self, values: Values, grads: Mapping[str, Tensor]) -> None:
        is_finite = _all_finite(grads)
        written = {holder for name in grads for holder in (name, *self.holders[name].values())}
        after = {name: value.clone() for name, value in values.items() if name in written}
        steps = values[f"{TRAINER}.step"].clone()
        self._update(values, {**values, **after, f"{TRAINER}.step": steps}, grads)
        for name, value in after.items():
            values[name].copy_(torch.where(is_finite, value, values[name]))
        values[f"{TRAINER}.step"].add_(is_finite.to(torch.int64))
        values[f"{TRAINER}.skipped"].add_((~is_finite).to(torch.int64))
        if self.options.scaler is not None:
            self._scale(values, self.options.scaler, is_finite)

    def _scale(self, values: Values, scaler: GradScaler, is_finite: Tensor) -> None:
        """Change the factor of the loss, as a GradScaler does."""
        scale, count = values[_SCALE], values[f"{TRAINER}.finite_steps"]
        counted = torch.where(is_finite, count + 1, 0)
        is_due = counted == scaler.get_growth_interval()
        grown = torch.where(is_due, scale * scaler.get_growth_factor(), scale)
        scale.copy_(torch.where(is_finite, grown, scale * scaler.get_backoff_factor()))
        count.copy_(torch.where(is_due, 0, counted))

    def _update(self, values: Values, written: Values, grads: Mapping[str, Tensor]) -> None:
        state: State = {
            name: {key: written[holder] for key, holder in held.items()}
            for name, held in self.holders.items()
        }
        rates = self._rates(values)
        step = values[f"{TRAINER}.step"].clone()
        with at(type(self.optimizer).step):
            trace_step(self.optimizer, self.names, written, grads, state, rates, step)
        written[f"{TRAINER}.step"].add_(1)

    def _rates(self, values: Values) -> list[Tensor]:
        """The learning rate of each group in the next update."""
        step, rates = values[f"{TRAINER}.step"], []
        for index in range(len(self.optimizer.param_groups)):
            table = values.get(f"{TRAINER}.schedule.{index}")
            if table is None:
                rates.append(values[f"{TRAINER}.learning_rate.{index}"].clone())
            else:
                place = step.clamp(max=table.shape[0] - 1).reshape(1)
                rates.append(table.index_select(0, place).reshape(()))
        return rates

    def evaluate(self, values: Values, args: Sequence[Any]) -> Tensor:
        """The loss of a batch, with the model in evaluation mode."""
        with torch.no_grad(), self.in_mode(is_training=False):
            return self.loss(values, args)

    def predict(self, values: Values, args: Sequence[Any]) -> Any:
        """The results of the model in evaluation mode."""
        mode = self.in_mode(is_training=False)
        with torch.no_grad(), mode, self._holding(values), self._drawing(values):
            return self.model(*args)


def check_apart(tensors: Values) -> None:
    """Raise if two tensors are parts of one: a step writes to them by themselves."""
    owners: dict[int, str] = {}
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        other = owners.setdefault(tensor.untyped_storage().data_ptr(), name)
        if other != name:
            raise errors.ExportError(
                f"{other} and {name} share memory",
                hint=f"give one memory of its own: nn.Parameter({name}.detach().clone())",
            )


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function.forward if isinstance(function, nn.Module) else function)


def _check_loss(loss: Any) -> Tensor:
    """The loss as a tensor of rank 0; raises if it has more than one element."""
    if not isinstance(loss, Tensor):
        raise errors.ExportError(
            f"the loss is a {type(loss).__name__}", hint="loss_fn returns a tensor of one element"
        )
    if loss.numel() != 1:
        raise errors.ExportError(
            f"the loss has shape {list(loss.shape)}, expected one element",
            hint="average it in loss_fn: return loss.mean()",
        )
    return loss.reshape(())


def _all_finite(grads: Mapping[str, Tensor]) -> Tensor:
    """Whether no gradient has inf or nan."""
    return torch.stack([grad.isfinite().all() for grad in grads.values()]).all()


def _clip(grads: Mapping[str, Tensor], most: float) -> dict[str, Tensor]:
    """Scale gradients so that their norm is at most this."""
    norms = [torch.linalg.vector_norm(grad) for grad in grads.values()]
    total = torch.linalg.vector_norm(torch.stack(norms))
    factor = torch.clamp(most / (total + _SMALL), max=1.0)
    return {name: grad * factor.to(grad.dtype) for name, grad in grads.items()}


# Entry points


@traces
def trace_entry(
    root: Root,
    function: Callable[[Values, Sequence[Any]], Any],
    args: tuple[Any, ...],
    signature: inspect.Signature,
    dynamic_shapes: Any = None,
    otherwise: Callable[..., Any] | None = None,
) -> nn.Module:
    """Trace a function of the root's tensors and of arguments to a module for torch.export.

    Ops outside of a model get the line of the function `otherwise`.
    """
    fakes = fake_leaves(args, signature, dynamic_shapes)
    _, in_tree = torch_pytree.tree_flatten(args)
    mode = next((x.fake_mode for x in fakes if isinstance(x, FakeTensor)), FakeTensorMode())
    values = root.values()
    held = [mode.from_tensor(value.detach(), static_shapes=True) for value in values.values()]
    places = [place for place, leaf in enumerate(fakes) if isinstance(leaf, Tensor)]
    out_tree: list[Any] = []

    def flat(*tensors: Tensor) -> list[Any]:
        own, passed = tensors[: len(held)], tensors[len(held) :]
        leaves = [*fakes]
        for place, tensor in zip(places, passed, strict=True):
            leaves[place] = tensor
        given = torch_pytree.tree_unflatten(leaves, in_tree)
        results, tree = torch_pytree.tree_flatten(
            function(dict(zip(values, own, strict=True)), given)
        )
        out_tree.append(tree)
        return results

    with mode, torch.no_grad(), without_onednn():
        given = [*held, *(fakes[place] for place in places)]
        graph = replay(trace(flat, given, otherwise or function))

    entry = Root(values)

    def call(*given: Any) -> Any:
        leaves, current = torch_pytree.tree_leaves(given), entry.values()
        own = (current[name] for name in values)
        results = graph(*own, *(leaves[place] for place in places))
        return torch_pytree.tree_unflatten(results, out_tree[0])

    entry.training = False  # the trace has the modes of the model
    return with_forward(entry, call, signature)


def with_forward(
    module: nn.Module, function: Callable[..., Any], signature: inspect.Signature
) -> nn.Module:
    """The module, with a function of this signature as its forward."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return function(*signature.bind(*args, **kwargs).args)

    forward.__dict__["__signature__"] = signature
    module.__dict__["forward"] = forward
    return module


@contextmanager
def without_onednn() -> Iterator[None]:
    """Trace plain ops: oneDNN's recurrent layers are ops that only it computes."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def fake_leaves(
    args: tuple[Any, ...], signature: inspect.Signature, dynamic_shapes: Any
) -> list[Any]:
    """The leaves of arguments, with fake tensors that have symbolic sizes."""

    def identity(*given: Any) -> list[Tensor]:
        return [leaf for leaf in torch_pytree.tree_leaves(given) if isinstance(leaf, Tensor)]

    module = with_forward(nn.Module(), identity, signature)
    exported = export_program(module, args, {}, dynamic_shapes, False)
    nodes = exported.graph.find_nodes(op="placeholder")
    leaves = torch_pytree.tree_leaves(args)
    return [
        node.meta["val"] if isinstance(leaf, Tensor) else leaf
        for leaf, node in zip(leaves, nodes, strict=True)
    ]
