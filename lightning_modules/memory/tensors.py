"""The memory of tensors (real or fake) by class, as training steps make and free them."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from sweeper.spec.run_memory import (
    ACTIVATIONS,
    CLASSES,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    TEMPORARIES,
)
from sweeper.upstream.torchs import TorchDispatchMode, is_in_backward, tree_leaves


class TensorMemory(TorchDispatchMode):
    """Counts the storages that are alive while it is entered, and records their peak.

    Tensors made by a forward pass with gradients enabled are activations; those made by the
    backward pass and the optimizer are temporaries. A parameter's ``.grad`` is a gradient. What
    outlives a step is optimizer state, even if a callback keeps it, such as an average of the
    weights. torch's own MemTracker, on which this is modelled, refuses a module that is called
    twice, as in accumulation.

    Args:
        module: whose parameters and buffers are there from the start.

    Attributes:
        peak: bytes by class at the moment of the largest total, after the first step, in which the
            optimizer's state is made.
        sizes: sizes of the activations and temporaries at that moment, with the number of each
            [bytes].
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.peak, self.sizes = dict.fromkeys(CLASSES, 0), Counter[int]()
        self._now = dict.fromkeys(CLASSES, 0)
        self._living: dict[int, tuple[str, int]] = {}  # class and bytes, by id of a storage
        self._module, self._was_in_backward = module, False
        self._is_first_step = True
        self._add([*module.parameters(), *module.buffers()], PARAMETERS)

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._after_step)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._hook.remove()
        super().__exit__(*raised)

    def begin(self) -> None:
        """Training begins: what is alive by now, other than parameters, will outlive it."""
        self._keep({ACTIVATIONS, TEMPORARIES})

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        in_backward = is_in_backward()
        if self._was_in_backward and not in_backward:
            self._find_gradients()
        self._was_in_backward = in_backward
        outputs = func(*args, **(kwargs or {}))
        is_activation = torch.is_grad_enabled() and not in_backward
        self._add(tree_leaves(outputs), ACTIVATIONS if is_activation else TEMPORARIES)
        return outputs

    def _after_step(self, *_: Any) -> None:
        self._keep({TEMPORARIES})
        if self._is_first_step:
            self._is_first_step = False
            self._record_peak()

    def _add(self, tensors: Iterable[Any], kind: str) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
                storage = tensor.untyped_storage()
                if id(storage) not in self._living:
                    self._living[id(storage)] = (kind, storage.nbytes())
                    self._now[kind] += storage.nbytes()
                    weakref.finalize(storage, self._drop, id(storage))
                    if sum(self._now.values()) >= sum(self.peak.values()):
                        self._record_peak()

    def _record_peak(self) -> None:
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

    def _keep(self, kinds: set[str]) -> None:
        """What is alive of these classes outlives a step: it is optimizer state."""
        for storage, (kind, _) in list(self._living.items()):
            if kind in kinds:
                self._move(storage, OPTIMIZER_STATE)

    def _find_gradients(self) -> None:
        for parameter in self._module.parameters():
            if parameter.grad is not None and parameter.grad.layout == torch.strided:
                storage = id(parameter.grad.untyped_storage())
                if storage in self._living:
                    self._move(storage, GRADIENTS)
