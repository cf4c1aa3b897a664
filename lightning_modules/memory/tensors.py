"""The memory of tensors by class, as training steps make and free them; of real ones or fake."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lightning_modules.layers.position import is_in_backward
from sweeper.spec.memory_classes import (
    ACTIVATIONS,
    CLASSES,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    TEMPORARIES,
)


class TensorMemory(TorchDispatchMode):
    """Counts the storages that live while it is entered, and keeps the moment of their peak.

    What a pass makes for which gradients are wanted are activations; what the backward pass and
    the optimizer make are temporaries. What a parameter has as its gradient is a gradient; what
    outlives a step is the optimizer's state, also where a callback keeps it, such as an average of
    the weights. torch's own MemTracker, from which this follows, refuses a module that is called
    twice, as accumulation does.

    Args:
        module: whose parameters and buffers are there from the start.

    Attributes:
        peak: bytes by class at the moment when they were the most together, after the first step,
            in which the optimizer's state is made.
        sizes: of the activations and temporaries of that moment, with how many have them [bytes].
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.peak, self.sizes = dict.fromkeys(CLASSES, 0), Counter[int]()
        self._now = dict.fromkeys(CLASSES, 0)
        self._living: dict[int, tuple[str, int]] = {}  # class and bytes, by id of a storage
        self._module, self._was_in_backward = module, False
        self._is_first_step = True
        self._see([*module.parameters(), *module.buffers()], PARAMETERS)

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._after_step)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._hook.remove()
        super().__exit__(*raised)

    def begin(self) -> None:
        """Training begins: what lives by now, and is no parameter, will outlive it."""
        self._move_all({ACTIVATIONS, TEMPORARIES})

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        in_backward = is_in_backward()
        if self._was_in_backward and not in_backward:
            self._note_gradients()
        self._was_in_backward = in_backward
        made = func(*args, **(kwargs or {}))
        is_activation = torch.is_grad_enabled() and not in_backward
        self._see(tree_leaves(made), ACTIVATIONS if is_activation else TEMPORARIES)
        return made

    def _after_step(self, *_: Any) -> None:
        self._move_all({TEMPORARIES})
        if self._is_first_step:
            self._is_first_step = False
            self._note_peak()

    def _see(self, tensors: Iterable[Any], kind: str) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if id(storage) not in self._living:
                    self._living[id(storage)] = (kind, storage.nbytes())
                    self._now[kind] += storage.nbytes()
                    weakref.finalize(storage, self._drop, id(storage))
                    if sum(self._now.values()) >= sum(self.peak.values()):
                        self._note_peak()

    def _note_peak(self) -> None:
        self.peak = dict(self._now)
        passing = {ACTIVATIONS, TEMPORARIES}
        self.sizes = Counter(size for kind, size in self._living.values() if kind in passing)

    def _drop(self, storage: int) -> None:
        kind, size = self._living.pop(storage)
        self._now[kind] -= size

    def _move(self, storage: int, kind: str) -> None:
        before, size = self._living[storage]
        self._living[storage] = (kind, size)
        self._now[before] -= size
        self._now[kind] += size

    def _move_all(self, kinds: set[str]) -> None:
        for storage, (kind, _) in list(self._living.items()):
            if kind in kinds:
                self._move(storage, OPTIMIZER_STATE)

    def _note_gradients(self) -> None:
        for parameter in self._module.parameters():
            if parameter.grad is not None and parameter.grad.layout == torch.strided:
                storage = id(parameter.grad.untyped_storage())
                if storage in self._living:
                    self._move(storage, GRADIENTS)
