"""Layers of a model that take part in a run: true subclasses of the layers that they were."""

import copy
import weakref
from functools import cache
from itertools import count
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn


class RunLayer(nn.Module):
    """A layer whose class was changed to a subclass of it, so that a run decides how it works.

    The layer stays the same object, with its name, parameters, hooks and mode. A deep copy is such
    a layer too, and shares with the original what is the run's. What is serialised is the plain
    layer: `pickle` and `torch.save` find none of our classes in it.
    """

    plain_class: ClassVar[type[nn.Module]]  # what the layer was
    handle: Tensor  # for operators of a compiled model
    state: Any  # what the run keeps for this layer; it has a method `copy_state`

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = self._new_copy()
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self._plain_state(), memo))
        return copied

    def __copy__(self) -> Self:
        copied = self._new_copy()
        copied.__dict__.update(self._plain_state())
        return copied

    def _new_copy(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__["state"] = self.state.copy_state(copied)
        copied.__dict__["handle"] = _make_handle(copied)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Serialise the plain layer."""
        del protocol
        return object.__new__, (self.plain_class,), self._plain_state()

    def _plain_state(self) -> dict[str, Any]:
        """What the plain layer has; torch leaves out what is compiled of it."""
        state: Any = self.__getstate__()
        return {name: value for name, value in state.items() if name not in {"state", "handle"}}


def change_class(
    layer: nn.Module, mixin: type[RunLayer], state: Any, base: type[nn.Module] | None = None
) -> None:
    """Make a layer the run's, in place; `base` is the class to derive from, if not the layer's."""
    plain = type(layer)
    object.__setattr__(layer, "__class__", _make_subclass(mixin, plain, base or plain))
    layer.__dict__["state"] = state
    layer.__dict__["handle"] = _make_handle(layer)


@cache
def _make_subclass(mixin: type[RunLayer], plain: type[nn.Module], base: type[nn.Module]) -> type:
    name = f"{mixin.__name__}_{plain.__name__}"
    return type(name, (mixin, base), {"plain_class": plain, "__module__": mixin.__module__})


_LAYERS = weakref.WeakValueDictionary[int, nn.Module]()  # by the number in their handle
_NUMBERS = count()


def _make_handle(layer: nn.Module) -> Tensor:
    """What operators of a compiled model get in place of a layer, as its counts are no constants.

    They say that they change it, so that they are called in order, and only as often as written.
    """
    _LAYERS[number := next(_NUMBERS)] = layer
    return torch.tensor(number, device="cpu")


def layer_of(handle: Tensor) -> Any:
    """The layer of a handle."""
    return _LAYERS[int(handle)]
