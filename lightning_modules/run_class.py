"""The only place where a run changes a user's module or DataModule: its class, once.

The object becomes an instance of a subclass that is made for this run, and nothing else is set on
it. The subclass calls what the run adds around the user's own methods. What is pickled is an object
of the user's class; so is a copy, and what `type(self)(...)` makes.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ClassVar

import pytorch_lightning as pl
from pytorch_lightning.utilities.model_helpers import is_overridden

#: Methods that a run may add to.
_MODULE_METHODS = (
    "configure_model",
    "configure_optimizers",
    "cpu",
    "double",
    "log",
    "on_save_checkpoint",
    "on_train_epoch_end",
    "on_train_start",
    "setup",
    "to",
    "training_step",
)
_DATA_METHODS = ("prepare_data", "setup", "train_dataloader", "val_dataloader")

Around = Callable[..., Any]  # called with the object's own method and the arguments of the call


class RunClass:
    """What a run adds to the methods of an object.

    Attributes:
        kind: the subclass that the object is of; a method that is set on it replaces the user's.
        around: what is called in place of a method, by its name.
    """

    kind: Any

    def __init__(self) -> None:
        self.around: dict[str, list[Around]] = {}

    def wrap(self, name: str, around: Around) -> None:
        """Have a function called in place of a method, with that method as its first argument."""
        self.around.setdefault(name, []).append(around)

    def follow_hook(self, name: str, then: Callable[[], None]) -> None:
        """Have a function called after a hook; after what was added to the hook before."""

        def call_both(own: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            returned = own(*args, **kwargs)
            then()
            return returned

        self.wrap(name, call_both)

    @contextmanager
    def mute(self, name: str) -> Generator[None]:
        """Have a method do nothing within the block."""
        self.wrap(name, do_nothing)
        try:
            yield
        finally:
            self.around[name].pop()


def do_nothing(own: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Stand in for a method that a run or a trial leaves out."""


class _InRun:
    """What the subclasses have in common; each also derives from a class of Lightning's."""

    run_class: ClassVar[RunClass]
    users_class: ClassVar[type]

    def __init_subclass__(cls, **_: Any) -> None:
        """Leave out the user's own `__init_subclass__`, which may keep a list of classes."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        users: Any = cls.users_class
        return users(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        make, args, *rest = reduced
        if make.__name__ == "__newobj__":  # refuses a class that is not the object's
            make = object.__new__
        users = [self.users_class if argument is type(self) else argument for argument in args]
        return make, tuple(users), *rest


class _ModuleInRun(_InRun, pl.LightningModule):
    pass


class _DataInRun(_InRun, pl.LightningDataModule):
    pass


def run_class(instance: pl.LightningModule | pl.LightningDataModule) -> RunClass:
    """What the run adds to an object; the first call changes the object's class."""
    if isinstance(instance, _InRun):
        return instance.run_class
    users, added = type(instance), RunClass()
    is_module = isinstance(instance, pl.LightningModule)
    names, base = (_MODULE_METHODS, _ModuleInRun) if is_module else (_DATA_METHODS, _DataInRun)
    members: dict[str, Any] = {
        "run_class": added,
        "users_class": users,
        **{name: getattr(users, name) for name in ("__module__", "__qualname__", "__doc__")},
        **{name: _make_method(name, added, users) for name in names},
    }
    metaclass: Any = type(users)
    added.kind = metaclass(users.__name__, (base, users), members)
    object.__setattr__(instance, "__class__", added.kind)
    return added


def call_once_layers_exist(module: pl.LightningModule, then: Callable[[], None]) -> None:
    """Have a function called when the module has all layers, before a checkpoint is loaded."""
    last = "configure_model" if is_overridden("configure_model", module) else "setup"
    run_class(module).follow_hook(last, then)


def _make_method(name: str, added: RunClass, users: type) -> Callable[..., Any]:
    own: Any = getattr(users, name)

    @wraps(own)  # Lightning looks at what is wrapped, for its signature and whose it is
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the user's method with all that was added to it; the last added is outermost."""
        wrapped = partial(own, self)
        for around in added.around.get(name, ()):
            wrapped = partial(around, wrapped)
        return wrapped(*args, **kwargs)

    return method
