"""torch and torchmetrics: fake tensors, DDP, loaders, metrics."""

# pyright: reportPrivateUsage=false

import os
import random
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import currentframe
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from lightning_fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import get_worker_info
from torchmetrics import Metric

__all__ = ["TorchDispatchMode", "tree_leaves", "tree_map_only"]


def is_in_backward() -> bool:
    """Whether a backward pass is running: activation checkpointing repeats forward passes in it.

    `torch._C._current_graph_task_id`; torch's own checkpointing uses it.
    """
    return torch._C._current_graph_task_id() != -1


def backward_task() -> tuple[int, int] | None:
    """Numbers of the backward pass that is running and of its step; None if there is none.

    A part of a model that is checkpointed is repeated within one step.
    `torch._C._current_autograd_node`, which torch.autograd.graph uses, and its `_sequence_nr`.
    """
    if not is_in_backward():
        return None
    step: Any = torch._C._current_autograd_node()
    return torch._C._current_graph_task_id(), step._sequence_nr()


def allow_graphs(most: int) -> None:
    """Compile a function up to so often, for other shapes and settings: `torch._dynamo.config`.

    Imported here, to spare other runs the time of it.
    """
    import torch._dynamo.config as limits

    limits.recompile_limit = max(limits.recompile_limit, most)


def converts_numbers(loss: Tensor) -> bool:
    """Whether a gradient passes through numbers of another kind, as where a model has `.float()`.

    `ToCopyBackward0` is autograd's name of such a step.
    """
    seen, left = set[object](), [loss.grad_fn]
    while left:
        step = left.pop()
        if step is not None and step not in seen:
            seen.add(step)
            left += [before for before, _ in step.next_functions]
            if step.name() == "ToCopyBackward0":
                return True
    return False


def lazy_target(layer: nn.Module) -> type[nn.Module] | None:
    """What a lazy layer becomes with its first batch: `LazyModuleMixin.cls_to_become`."""
    return getattr(layer, "cls_to_become", None)


@contextmanager
def pretend_ranks(ranks: int) -> Generator[None]:
    """Have code that asks for the number of ranks get this one, where there is a single process.

    `torch.distributed.is_initialized`, `get_world_size` and `get_rank` are replaced.
    """

    def count_ranks(group: Any = None) -> int:  # noqa: ARG001
        return ranks

    names: Any = {
        "is_initialized": lambda: ranks > 1,
        "get_world_size": count_ranks,
        "get_rank": lambda *_: 0,  # pyright: ignore[reportUnknownLambdaType]
    }
    with patch.multiple(torch.distributed, **names), patch.dict(os.environ, WORLD_SIZE=str(ranks)):
        yield


def ignore_buffers(module: nn.Module, buffers: Iterable[Tensor]) -> None:
    """Keep DDP from broadcasting these buffers from rank 0.

    `DistributedDataParallel._set_params_and_buffers_to_ignore_for_model` (pytorch#43690).
    """
    left_out = {id(buffer) for buffer in buffers}
    names = [name for name, buffer in module.named_buffers() if id(buffer) in left_out]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)


def power_sgd_state(state: PowerSGDState) -> dict[str, Any]:
    """The errors, factors and steps of PowerSGD's hook, which has no `state_dict` for them."""
    return {
        "errors": state.error_dict,
        "left_factors": dict(state.p_memory_dict),
        "right_factors": dict(state.q_memory_dict),
        "steps": state.iter,
    }


def set_power_sgd_state(state: PowerSGDState, saved: Mapping[str, Any]) -> None:
    """Restore what `power_sgd_state` returned."""
    state.error_dict = saved["errors"]
    state.p_memory_dict = saved["left_factors"]
    state.q_memory_dict = saved["right_factors"]
    state.iter = saved["steps"]


def set_worker_dataset(dataset_of: Callable[[Any], Any]) -> None:
    """Have `get_worker_info` in a data worker return another data set; `WorkerInfo` is frozen."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", dataset_of(info.dataset))


def metric_state(metric: Metric) -> dict[str, Any]:
    """A metric's state, with its number of updates and other counters, as windowed ones have.

    torchmetrics leaves states that are not persistent out of `state_dict`, and counters always.
    """
    counts = {name: value for name, value in vars(metric).items() if type(value) is int}
    return {"state": metric.metric_state, "counts": counts}


def set_metric_state(metric: Metric, saved: Mapping[str, Any]) -> None:
    """Restore what `metric_state` returned."""
    metric.reset()
    vars(metric).update(saved["counts"])
    for key, value in saved["state"].items():
        setattr(metric, key, move_data_to_device(value, metric.device))


def join_fake_ranks(ranks: int) -> None:
    """Be the first of ranks that do not exist: what it receives has memory and no values."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(LOCAL_RANK="0", NODE_RANK="0", RANK="0", WORLD_SIZE=str(ranks))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)


def fake_tensor_mode() -> Any:
    """Tensors with shapes and no values: `torch._subclasses.fake_tensor`.

    Imported here, to spare runs the memory of it.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def make_fake(module: nn.Module, mode: Any) -> None:
    """Replace a module's parameters and buffers by fake ones, in place."""
    for layer in module.modules():
        for named in (layer.named_parameters, layer.named_buffers):
            for name, tensor in list(named(recurse=False, remove_duplicate=False)):
                setattr(layer, name, mode.from_tensor(tensor))


class FakeAnswers(TorchDispatchMode):
    """Answers what fake tensors cannot: any value asked for is 1, and tensors are equal."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.equal.default:
            return True
        if func is torch.ops.aten._local_scalar_dense.default:
            kind = args[0].dtype
            return True if kind is torch.bool else 1.0 if kind.is_floating_point else 1
        return func(*args, **(kwargs or {}))


@contextmanager
def record_seeds(recorded: list[object]) -> Generator[None]:
    """Record what others than the run seed the global generators with inside the block."""
    places: list[tuple[Any, str]] = [(torch, "manual_seed"), (random, "seed"), (np.random, "seed")]
    before = [getattr(place, name) for place, name in places]

    def seed(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked_by: Any = currentframe()
        if not asked_by.f_back.f_globals["__name__"].startswith("lightning_modules."):
            recorded.extend([*args, *kwargs.values()][:1])
        return own(*args, **kwargs)

    for (place, name), own in zip(places, before, strict=True):
        setattr(place, name, partial(seed, own))
    try:
        yield
    finally:
        for (place, name), own in zip(places, before, strict=True):
            setattr(place, name, own)
