"""What distinguishes runs in a terminal: the keys in which their configs differ, with values."""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from sweeper.spec.identity import Words

#: These keys and their settings come first, whatever the order in the config.
_FIRST = ("batch", "warmup", "lr_rule", "seed", "module", "model", "data", "optimizer", "base_lr")
#: These are stated for all runs together if the runs agree in them.
_ALWAYS_SHOWN = (*_FIRST, "schedule", "epochs", "steps", "examples")
#: These are stated too where they are in use.
_SHOWN_IF_ON = (
    "perturbation", "perturbation.rho", "ema_decay", "gradient_clip", "trainer.gradient_clip_val",
    "label_smoothing", "loss_items", "gradient_delay",
)  # fmt: skip
_OFF = ("none", "0")

#: A key, with its value and the choices of groups that it belongs to.
_Setting = tuple[str, tuple[str, tuple[str, ...]]]


class Differences:
    """The keys in which runs differ, updated as runs are added.

    The choice of a group is a single key, such as model=resnet8; a setting of a group
    is a key only if runs with the same choice differ in it.
    """

    def __init__(self, runs: Iterable[Words] = (), *, always: Iterable[str] = ()) -> None:
        """Start with these runs; the `always` keys count as differing even if they do not."""
        self._always = {*always}
        self._num_runs = 0
        self._settings: Counter[_Setting] = Counter()
        for run in runs:
            self.add(run)

    def add(self, run: Words) -> None:
        """Add a run."""
        self._num_runs += 1
        self._settings.update(run.items())
        vars(self).pop("keys", None)

    @cached_property
    def keys(self) -> list[str]:
        """The keys in which the runs differ, the usual keys first."""
        differing, first = {*self._always}, self._first
        choosing = Counter[tuple[str, ...]]({(): self._num_runs})
        having = Counter[tuple[str, tuple[str, ...]]]()
        for (key, (value, choices)), num in self._settings.items():
            choosing[*choices, f"{key}={value}"] += num
            having[key, choices] += num
            if first[key, choices] != value:
                differing.add(key)
        lacked = {key for (key, of), num in having.items() if num < choosing[of]}
        found = dict.fromkeys(key for key, _ in first if key in differing or key in lacked)
        places = {key: place for place, key in enumerate(_FIRST)}
        return sorted(found, key=lambda key: places.get(key.partition(".")[0], len(places)))

    @property
    def _first(self) -> dict[tuple[str, tuple[str, ...]], str]:
        """By key and choices of groups, the value in the first run that has it."""
        found: dict[tuple[str, tuple[str, ...]], str] = {}
        for key, (value, choices) in self._settings:
            found.setdefault((key, choices), value)
        return found

    def label(self, run: Words) -> str:
        """What distinguishes a run: `batch=256 model=resnet8`; empty if the runs do not differ."""
        return " ".join(f"{key}={run[key][0]}" for key in self.keys if key in run)

    def common(self) -> str:
        """The usual keys in which all runs agree: `warmup=5 lr_rule=linear`.

        A constant schedule of a module's own optimizer is left out, since it is a factor of 1 on
        the rates of the module's own schedulers.
        """
        differing, shown = set(self.keys), (*_ALWAYS_SHOWN, *_SHOWN_IF_ON)
        values = {
            key: value
            for (key, _), value in self._first.items()
            if key in shown and key not in differing and value != "null"
            if key in _ALWAYS_SHOWN or value not in _OFF
        }
        if (values.get("optimizer"), values.get("schedule")) == ("module", "constant"):
            del values["schedule"]
        return " ".join(f"{key}={values[key]}" for key in shown if key in values)
