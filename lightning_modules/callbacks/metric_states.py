"""The torchmetrics of a module: their states survive a resume."""

from collections.abc import Iterator, Sequence
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torchmetrics import Metric, MetricTracker

from lightning_modules.callbacks.batch_contract import BatchContract
from lightning_modules.gradients.rank_states import gather_states, own_state
from lightning_modules.run_class import run_class
from sweeper.upstream.lightnings import metrics_that_reset
from sweeper.upstream.torchs import metric_state, set_metric_state

_State = dict[str, dict[str, Any]]  # by a metric's name: its state, and how often it was updated


class MetricStates(Callback):
    """Saves the states of a module's metrics, and puts them back once training has started.

    Checkpoints leave out metric states, and modules reset their metrics in `on_train_start`: the
    best value so far would be lost, and the mean of a resumed epoch would only cover its rest. On
    another number of ranks, only states that are the same on all ranks survive, such as a best
    value.

    Args:
        contract: counts the steps of the epoch.
    """

    def __init__(self, contract: BatchContract) -> None:
        self._contract = contract
        self._trainer: Trainer | None = None
        self._module: LightningModule | None = None
        self._loaded: _State = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Act after the module's own `on_train_start`."""
        self._trainer, self._module = trainer, pl_module
        run_class(pl_module).after("on_train_start", self._put_back)

    def state_dict(self) -> dict[str, Any]:
        """Every rank's states, without metrics that Lightning resets before their next update."""
        assert self._trainer is not None
        reset = metrics_that_reset(self._trainer, in_epoch=bool(self._contract.steps))
        states = {
            name: metric_state(metric)
            for name, metric in self._metrics()
            if id(metric) not in reset
        }
        return {"ranks": gather_states(states)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep this rank's states until training has started."""
        self._loaded = own_state(state_dict["ranks"], lambda states, share: _common(states))

    def _put_back(self) -> None:
        assert self._module is not None, "it is trained"
        loaded, self._loaded = self._loaded, {}
        for name, tracker in [*self._module.named_modules()]:
            if isinstance(tracker, MetricTracker):  # it has one more metric for each epoch
                while any(f"{key}.".startswith(f"{name}.{len(tracker)}.") for key in loaded):
                    tracker.increment()
        for name, metric in self._metrics():
            if name in loaded:
                set_metric_state(metric, loaded[name])

    def _metrics(self) -> Iterator[tuple[str, Metric]]:
        assert self._module is not None, "it is trained"
        parts = self._module.named_modules()
        return ((name, part) for name, part in parts if isinstance(part, Metric))


def _common(states: Sequence[_State]) -> _State:
    """The states of metrics that are the same on all ranks."""
    first = states[0]
    return {n: one for n, one in first.items() if all(_same(one, s.get(n)) for s in states)}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_same(one[key], other.get(key)) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return one == other
