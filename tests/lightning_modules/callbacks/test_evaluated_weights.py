"""An optimizer with `eval()` is in that mode for evaluations and checkpoints, and nowhere else."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_modules.callbacks.evaluated_weights import EvaluatedWeights
from lightning_modules.callbacks.follow_plan import FollowPlan
from lightning_modules.callbacks.running_statistics import RunningStatistics
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span


class Shifting(torch.optim.SGD):
    """SGD whose weights to evaluate are 10 more; the way back has an error."""

    is_training = False

    def _shift(self, by):
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.add_(by)

    def eval(self):
        if self.is_training:
            self._shift(10.0)
        self.is_training = False

    def train(self):
        if not self.is_training and self.state_dict()["state"]:
            self._shift(-10.25)
        self.is_training = True


@pytest.fixture
def shifting(line):
    """Line, with a step of 0 in which the optimizer gets a state."""

    class ShiftingLine(line):
        def configure_optimizers(self):
            return Shifting(self.layers[0].parameters(), lr=0.1, momentum=0.1)

    return ShiftingLine


@pytest.fixture
def evaluated(plan):
    def make(averages=False):
        position = StepPosition()
        of_run = plan()
        parts = [FollowPlan(of_run, position), RunningStatistics(of_run, position)]
        return [
            *parts,
            EvaluatedWeights(of_run.is_evaluated_at, averages=averages),
        ], position

    return make


def weight_of(_, module):
    return module.weight


def test_weights_are_evaluated_in_their_mode_and_trained_on_as_they_were(
    fit, shifting, line, batches, evaluated, noting
):
    callbacks, _ = evaluated()
    seen, after = noting("on_validation_batch_end", weight_of), noting("on_fit_end", weight_of)

    fit(
        shifting(),
        [*callbacks, seen, after],
        batches(4),
        val=DataLoader(batches(1), batch_size=None),
    )

    plain = line()
    plain.configure_optimizers = lambda: torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.1)
    fit(plain, [], batches(4))
    assert after.noted == [plain.weight]
    assert seen.noted == [pytest.approx(plain.weight + 10)]


@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed span", "torch's own"])
def test_running_statistics_are_those_of_the_weights_that_are_evaluated(
    fit, shifting, evaluated, noting, is_fixed
):
    """Inputs w s in spans s = 3, then 5: the mean is w (.09 x 3 + .1 x 5) / .19.

    The last step's spans count .09 and .1 of a moving average that has not begun earlier.
    """
    callbacks, position = evaluated()
    module = shifting(nn.BatchNorm1d(1).double())
    if is_fixed:
        fix_batchnorm_span(module.layers, span=2, position=position)
    inputs = [(torch.full((2, 1), value).double(),) for value in (1.0, 1.0, 3.0, 5.0)]

    def read(_, module):
        tensors = module.layers[1].state_dict().values()
        return module.weight, *(tensor.clone() for tensor in tensors)

    means = [noting(hook, read) for hook in ("on_validation_batch_end", "on_train_end")]

    fit(module, [*callbacks, *means], inputs, val=DataLoader(inputs[:1], batch_size=None))

    (((w, _, _, mean, var, _),), ((trained, _, _, after, *_),)) = (n.noted for n in means)
    assert mean.item() == pytest.approx(w * (0.09 * 3 + 0.1 * 5) / 0.19)
    assert var.item() == pytest.approx(0.0)
    of_training = (0.9**3 + 0.9**2) * 0.1 * 1 + 0.1 * (0.9 * 3 + 5)
    assert after.item() == pytest.approx(of_training)  # the weights stay 1 in all steps
    assert trained == pytest.approx(1.0)


def test_an_average_of_such_weights_is_refused(fit, shifting, batches, evaluated):
    callbacks, _ = evaluated(averages=True)
    message = (
        r"^ema_decay must be null with an optimizer that has weights of its own to evaluate; got "
        r"optimizer Shifting\. Remove ema_decay\.$"
    )

    with pytest.raises(ValueError, match=message):
        fit(shifting(), callbacks, batches(4))


def test_a_checkpoint_holds_the_weights_that_are_evaluated(run_words, tmp_path):
    """Of schedule-free, before its first evaluation too; the weights to train with stand apart."""
    words = ("optimizer=schedule_free", "epochs=1", "warmup=0", "batch=3840")
    run_words(*words, one_step=True, num_train_examples=7680)
    first = torch.load(tmp_path / "run" / "checkpoint.ckpt", weights_only=True)
    run_words(*words, num_train_examples=7680)
    last = torch.load(tmp_path / "run" / "checkpoint.ckpt", weights_only=True)

    for saved, steps in ((first, 1), (last, 2)):
        (state,) = saved["optimizer_states"]
        assert [group["train_mode"] for group in state["param_groups"]] == [False]
        (own,) = (s for name, s in saved["callbacks"].items() if "EvaluatedWeights" in name)
        trained = [w for name, w in own["trained"].items() if "running" not in name]
        named = [w for name, w in saved["state_dict"].items() if name in own["trained"]]
        averages = [w for w, y in zip(named, trained, strict=False) if not torch.equal(w, y)]
        assert bool(averages) == (steps > 1)  # after one step they are the same
    bias = next(name for name in last["evaluated_weights"] if "running_mean" in name)
    assert not torch.equal(last["evaluated_weights"][bias], own["trained"][f"model.{bias}"])
