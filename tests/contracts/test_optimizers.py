"""The contract of every optimizer in conf/optimizer, by one table."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from lightning_modules.callbacks.variance_reduction import WeighGradients
from sweeper.spec.config import Component

CONF = Path(__file__).parents[2] / "conf" / "optimizer"
NAMES = sorted({path.stem for path in CONF.glob("*.yaml")} - {"module"})  # has its own

# A learning rate at which the optimizer brings the quadratic below to a tenth in 200 steps.
LEARNING_RATE = {
    "adam": 0.1,
    "adamw": 0.1,
    "lamb": 0.05,
    "lans": 0.05,
    "lars": 5.0,
    "nesterov": 0.05,
    "sgd": 0.05,
    "vr_lamb": 0.05,
    "vr_lars": 5.0,
    "vr_sgd": 0.05,
}


class Method:
    """An optimizer of weights, and the callback that weighs their gradients if it needs one."""

    def __init__(self, optimizer, weights):
        self.optimizer, self.weights = optimizer, weights
        self.weigh = WeighGradients() if "floor" in optimizer.param_groups[0] else None
        self._trainer = SimpleNamespace(accumulate_grad_batches=1, precision_plugin=None)
        cpu = torch.device("cpu")
        self._module = SimpleNamespace(parameters=lambda: iter(weights), device=cpu)
        self._has_started = False

    def set_lr(self, lr):
        self.optimizer.param_groups[0]["lr"] = lr

    def step(self, micro_gradients):
        """One step on the mean of the micro-batches' gradients, each a list with one per weight."""
        if self.weigh and not self._has_started:
            self.weigh.on_train_start(self._trainer, self._module)
        self._has_started = True
        self._trainer.accumulate_grad_batches = len(micro_gradients)
        self.optimizer.zero_grad()
        for gradients in micro_gradients:
            losses = [(w * g).sum() for w, g in zip(self.weights, gradients, strict=True)]
            (sum(losses) / len(micro_gradients)).backward()
        if self.weigh:
            self.weigh.on_before_optimizer_step(self._trainer, self._module, self.optimizer)
        self.optimizer.step()

    def state_dict(self):
        return [part.state_dict() for part in (self.optimizer, self.weigh) if part]

    def load_state_dict(self, states):
        for part, state in zip((self.optimizer, self.weigh), states, strict=False):
            part.load_state_dict(state)


def make(name, weights, *, lr, adapt=True, **changes):
    node = {**yaml.safe_load((CONF / f"{name}.yaml").read_text()), "lr": lr, **changes}
    assert node.pop("name") == name  # what tables call it
    return Method(Component(**node).build([{"params": weights, "adapt": adapt}]), weights)


def parameter(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def quadratic(name, steps, *, lr, start=None, optimizer=None):
    """Weights and optimizer after noisy steps on ``(3 x**2 + y**2 + z**2) / 2``."""
    generator = torch.Generator().manual_seed(0)
    weights = start or [parameter(3.0, -2.0), parameter(1.0)]
    curvatures = [torch.tensor([3.0, 1.0]).double(), torch.tensor([1.0]).double()]
    optimizer = optimizer or make(name, weights, lr=lr, weight_decay=0.0)
    for _ in range(steps):
        gradients = [c * w.detach() for c, w in zip(curvatures, weights, strict=True)]
        noise = [0.1 * torch.randn(g.shape, generator=generator).double() for g in gradients]
        plus, minus = ([g + s * n for g, n in zip(gradients, noise, strict=True)] for s in (1, -1))
        optimizer.step([plus, minus])
    loss = sum(
        float((c * w.detach().square()).sum()) / 2 for c, w in zip(curvatures, weights, strict=True)
    )
    return weights, optimizer, loss


def test_every_optimizer_in_conf_is_in_the_table():
    assert sorted(LEARNING_RATE) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_descends_on_a_quadratic(name):
    *_, before = quadratic(name, 0, lr=1.0)

    *_, after = quadratic(name, 200, lr=LEARNING_RATE[name])

    assert after < before / 10


@pytest.mark.parametrize("name", NAMES)
def test_the_state_survives_save_and_load(name):
    """Saved after 3 steps and loaded by weights only, as Lightning does, it takes the same next."""
    weights, optimizer, _ = quadratic(name, 3, lr=0.05)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    copies = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    loaded = make(name, copies, lr=0.05, weight_decay=0.0)

    loaded.load_state_dict(torch.load(file, weights_only=True))

    resumed, *_ = quadratic(name, 2, lr=0.05, start=copies, optimizer=loaded)
    gone_on, *_ = quadratic(name, 2, lr=0.05, start=weights, optimizer=optimizer)
    for expected, weight in zip(gone_on, resumed, strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"vr_lamb", "vr_lars", "vr_sgd"}))
def test_a_step_leaves_the_gradients_alone(name):
    weights = [parameter(3.0, 4.0)]
    gradients = [[torch.tensor([0.6, 0.8]).double()], [torch.tensor([0.8, 0.6]).double()]]

    make(name, weights, lr=0.1).step(gradients)

    torch.testing.assert_close(weights[0].grad, torch.tensor([0.7, 0.7]).double())


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_gradient_and_zero_weights_give_finite_weights(name):
    weights = [parameter(0.0, 0.0), parameter(1.0, 2.0)]
    zeros = [torch.zeros(2).double(), torch.zeros(2).double()]

    make(name, weights, lr=0.1).step([zeros, zeros])

    assert all(bool(weight.isfinite().all()) for weight in weights)


LARS = {"weight_decay": 0.01, "momentum": 0.9, "trust_coeff": 0.001}
LAMB = {"weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-6}
PARALLEL = [(0.6, 0.8)] * 3
TURNING = [(0.6, 0.8), (0.6, -0.8)]
LAMB_STEPS = [(2.648158776, 3.644742694), (2.197694017, 3.651844987)]

# Weights (3, 4). Rates and gradients of each step, settings, and where the weights stand after it.
# VR with a floor of 1 weighs nothing down, so it is its plain form.
LARS_STEPS = [(2.997, 3.996), (2.991303, 3.988404), (2.983184397, 3.977579196)]
LARS_RATE_CHANGES = [(2.997, 3.996), (2.94003, 3.92004), (2.8593567, 3.8124756)]
STEPS = [
    ("lars", (1, 1, 1), PARALLEL, LARS, LARS_STEPS),
    ("lars", (1, 10, 10), PARALLEL, LARS, LARS_RATE_CHANGES),
    ("lars", (1,), PARALLEL, {**LARS, "weight_decay": 0.0}, [(2.997, 3.996)]),
    ("vr_lars", (1, 1, 1), PARALLEL, {**LARS, "floor": 1.0}, LARS_STEPS),
    ("lamb", (0.1, 0.1), TURNING, LAMB, LAMB_STEPS),
    (
        "lamb",
        (0.1, 0.1),
        TURNING,
        {**LAMB, "bias_correction": False},
        [(2.647002271, 3.645891820), (2.196887662, 3.665597680)],
    ),
    (
        "vr_lamb",
        (0.1, 0.1),
        TURNING,
        {**LAMB, "betas": [0.9, 0.999, 0.9], "floor": 1.0},
        LAMB_STEPS,
    ),
    (
        "lans",
        (0.1, 0.1),
        TURNING,
        LAMB,
        [(2.648158776, 3.644742694), (2.209892917, 3.681968605)],
    ),
    (
        "lans",
        (0.1, 0.1),
        [(6.0, 8.0), (0.06, -0.08)],
        LAMB,
        [(2.648158776, 3.644742694), (2.209892917, 3.681968605)],
    ),
]


@pytest.mark.parametrize(("name", "rates", "gradients", "settings", "expected"), STEPS)
def test_the_steps_are_those_computed_by_hand(name, rates, gradients, settings, expected):
    """Known steps from (3, 4): LARS in timm's form, LAMB and LANS as their papers have them."""
    weights = [parameter(3.0, 4.0)]
    optimizer = make(name, weights, lr=rates[0], **settings)

    reached = []
    for lr, gradient in zip(rates, gradients, strict=False):
        optimizer.set_lr(lr)
        optimizer.step([[torch.tensor(gradient).double()]] * 2)
        reached += weights[0].tolist()

    assert reached == pytest.approx([value for pair in expected for value in pair], rel=1e-6)


@pytest.mark.parametrize(
    "name", sorted(set(NAMES) - {"adam", "adamw", "lamb", "lans", "vr_lamb", "lars"})
)
def test_the_rate_stands_outside_of_the_buffer(name):
    """Gradient 1, momentum 0.9, rates 0.1 then 1: from 0 to -0.1 and -2.0, uncorrected."""
    weights = [parameter(0.0)]
    settings = {"momentum": 0.9, "weight_decay": 0.0, "nesterov": False}
    node = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    changes = {key: value for key, value in settings.items() if key in node}
    if "floor" in node:
        changes["floor"] = 1.0
    optimizer = make(name, weights, lr=0.1, adapt=False, **changes)

    reached = []
    for lr in (0.1, 1.0):
        optimizer.set_lr(lr)
        optimizer.step([[torch.ones(1).double()]] * 2)
        reached.append(weights[0].item())

    assert reached == pytest.approx([-0.1, -2.0])


@pytest.mark.parametrize("name", ["lamb", "lans", "vr_lamb"])
def test_an_adapted_step_is_as_long_as_the_rate_times_the_weights(name):
    weights = [parameter(3.0, 4.0)]
    before = weights[0].detach().clone()
    one = [torch.tensor([0.3, 0.1]).double()]

    make(name, weights, lr=0.1, weight_decay=0.0).step([one, one])

    assert float((weights[0].detach() - before).norm()) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("name", ["lars", "vr_lars", "lamb", "lans", "vr_lamb"])
def test_groups_that_do_not_adapt_ignore_the_size_of_the_weights(name):
    """Without weight decay the step of an exempt layer is the same at any weights."""
    moved = []
    for size in (1.0, 100.0):
        weights = [parameter(3.0 * size, 4.0 * size)]
        before = weights[0].detach().clone()
        optimizer = make(name, weights, lr=0.1, adapt=False, weight_decay=0.0)
        optimizer.step([[torch.tensor([0.6, 0.8]).double()]] * 2)
        moved.append((weights[0].detach() - before).tolist())

    assert moved[0] == pytest.approx(moved[1])


def test_vr_sgd_weighs_gradients_by_their_signal_to_noise():
    """Jiang et al.: over 4 devices r = 100, 0, 1 becomes 1, 0.1, 0.1 after norming and clipping."""
    weights = [parameter(0.0, 0.0, 0.0)]
    devices = [(0.9, 1, 2), (1.1, -1, 0), (0.9, 1, 2), (1.1, -1, 0)]
    settings = {"momentum": 0.0, "weight_decay": 0.0, "floor": 0.1}

    make("vr_sgd", weights, lr=1.0, **settings).step(
        [[torch.tensor(g, dtype=torch.float64)] for g in devices]
    )

    assert weights[0].tolist() == pytest.approx([-1, 0, -0.1])


@pytest.mark.parametrize("name", ["vr_lamb", "vr_lars", "vr_sgd"])
def test_a_single_micro_batch_is_refused(name):
    weights = [parameter(3.0, 4.0)]
    optimizer = make(name, weights, lr=0.1)

    with pytest.raises(ValueError, match=r"need at least two in each global batch; got one\."):
        optimizer.step([[torch.tensor([0.6, 0.8]).double()]])
