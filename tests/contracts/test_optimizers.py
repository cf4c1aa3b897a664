"""The contract of every optimizer in conf/optimizer, by one table."""

import io
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from lightning_modules.methods.means_over_parts import PartMeans
from lightning_modules.methods.variance_reduction import WeighGradients
from lightning_modules.optimizers.on_parts import OnParts
from sweeper.spec.config import Component

CONF = Path(__file__).parents[2] / "conf" / "optimizer"
NAMES = sorted({path.stem for path in CONF.glob("*.yaml")} - {"module"})  # has its own

# A learning rate at which the optimizer brings the quadratic below to a tenth in 200 steps.
LEARNING_RATE = {
    "adam": 0.1,
    "adamw": 0.1,
    "bsi_adam": 0.1,
    "clars": 5.0,
    "lamb": 0.05,
    "lans": 0.05,
    "lars": 5.0,
    "muon": 0.1,
    "schedule_free": 0.5,
    "nesterov": 0.05,
    "sgd": 0.05,
    "soap": 0.1,
    "vr_lamb": 0.05,
    "vr_lars": 5.0,
    "vr_sgd": 0.05,
}


class Method:
    """An optimizer of weights, and the callback that weighs their gradients if it needs one."""

    def __init__(self, optimizer, weights):
        self.optimizer, self.weights = optimizer, weights
        self.weigh = WeighGradients() if "floor" in optimizer.param_groups[0] else None
        if isinstance(optimizer, OnParts):
            self.weigh = PartMeans()
        self._trainer = SimpleNamespace(
            accumulate_grad_batches=1, precision_plugin=None, optimizers=[optimizer]
        )
        self._module = torch.nn.ParameterList(weights)
        self._module.device = torch.device("cpu")
        self._has_started = False
        if hasattr(optimizer, "train"):
            optimizer.train()

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


_REUSE_GRADIENTS = {"schedule_free", "vr_lamb", "vr_lars", "vr_sgd"}


@pytest.mark.parametrize("name", sorted({*NAMES} - _REUSE_GRADIENTS))
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
# VR with a floor of 1 weighs nothing down, so it is its plain form; CLARS is LARS where all parts
# agree.
LARS_STEPS = [(2.997, 3.996), (2.991303, 3.988404), (2.983184397, 3.977579196)]
LARS_RATE_CHANGES = [(2.997, 3.996), (2.94003, 3.92004), (2.8593567, 3.8124756)]
STEPS = [
    ("lars", (1, 1, 1), PARALLEL, LARS, LARS_STEPS),
    ("lars", (1, 10, 10), PARALLEL, LARS, LARS_RATE_CHANGES),
    ("lars", (1,), PARALLEL, {**LARS, "weight_decay": 0.0}, [(2.997, 3.996)]),
    ("clars", (1, 1, 1), PARALLEL, LARS, LARS_STEPS),
    ("clars", (1, 10, 10), PARALLEL, LARS, LARS_RATE_CHANGES),
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


@pytest.mark.parametrize("name", ["clars", "nesterov", "sgd", "vr_lars", "vr_sgd"])
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


@pytest.mark.parametrize(("adjust_lr_fn", "size"), [("match_rms_adamw", 0.4), ("original", 1.0)])
@pytest.mark.parametrize("shape", [(4, 4), (4, 2, 1, 2)])
def test_muon_steps_along_the_nearest_orthogonal_matrix(shape, adjust_lr_fn, size):
    """Of a gradient ``g U``: ``w <- (1 - lr decay) w - lr size x U``; a convolution is flattened.

    The five polynomials (leloykun.github.io/ponder/muon-opt-coeffs) take all singular values from
    1/2 to x, computed here one by one. size is 0.2 sqrt(4) or sqrt(4 / 4). The second gradient,
    -0.9 times the first, does not outweigh 0.95 of the first in the momentum.
    """
    signs = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    orthogonal = torch.tensor(signs).double() / 2
    weights = [torch.nn.Parameter(torch.ones(shape).double())]
    settings = {"momentum": 0.95, "weight_decay": 0.5, "adjust_lr_fn": adjust_lr_fn}
    optimizer = make("muon", weights, lr=0.1, **settings)

    for factor in (3.0, -0.9 * 3.0):
        optimizer.step([[factor * orthogonal.view(shape)]])

    x = 0.5
    for a, b, c in (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ):
        x = a * x + b * x**3 + c * x**5
    step = 0.1 * size * x * orthogonal
    expected = 0.95 * (0.95 * torch.ones(4, 4).double() - step) - step
    torch.testing.assert_close(weights[0].detach().view(4, 4), expected, rtol=0, atol=0.003 * size)


@pytest.mark.parametrize(
    ("parts", "ratio"),
    [
        ([(1.0, 0.0), (0.0, 1.0)], 0.5**0.5),  # mean norm 1, norm of the mean sqrt(1/2)
        ([(3.0, 4.0), (0.0, 0.0)], 1.0),  # parallel
        ([(3.0, 4.0), (-0.3, -0.4)], 0.9 / 1.1),  # opposite: 4.5 / 2 against 5.5 / 2
    ],
)
def test_clars_is_slower_than_lars_as_far_as_the_parts_disagree(parts, ratio):
    moved = {}
    for name in ("lars", "clars"):
        weights = [parameter(3.0, 4.0)]
        method = make(name, weights, lr=1.0, momentum=0.0, weight_decay=0.0)
        method.step([[torch.tensor(part).double()] for part in parts])
        moved[name] = float((weights[0].detach() - parameter(3.0, 4.0).detach()).norm())

    assert moved["clars"] / moved["lars"] == pytest.approx(ratio)


def test_batch_size_invariant_adam_averages_the_squares_of_the_parts():
    """Parts with the gradients 1 and 3, beta2 = .9: v = .1 (1 + 9) / 2 = .5; Adam's is .1 x 2^2.

    The first step is lr 2 / sqrt(5), with the mean 2 and the mean square 5, after decay by 5 %.
    """
    weights = [parameter(1.0)]
    settings = {"betas": [0.9, 0.9], "eps": 0.0, "weight_decay": 0.5}
    method = make("bsi_adam", weights, lr=0.1, **settings)

    method.step([[torch.tensor([1.0]).double()], [torch.tensor([3.0]).double()]])

    assert method.optimizer.state[weights[0]]["second_moment"].item() == pytest.approx(0.5)
    assert weights[0].item() == pytest.approx(0.95 - 0.1 * 2 / 5**0.5)


def test_batch_size_invariant_adam_is_adamw_where_the_parts_agree():
    ours, theirs = [parameter(3.0, 4.0)], [parameter(3.0, 4.0)]
    settings = {"lr": 0.1, "betas": [0.9, 0.99], "eps": 0.01, "weight_decay": 0.5}
    pair = make("bsi_adam", ours, **settings), make("adamw", theirs, **settings)

    for gradient in [(0.6, 0.8), (0.6, -0.8), (2.0, 0.1)]:
        for method in pair:
            method.step([[torch.tensor(gradient).double()]] * 2)

    torch.testing.assert_close(ours[0], theirs[0])


def test_soap_takes_adams_steps_in_the_eigenbasis_of_the_first_gradient():
    """Gradients ((3, 1), (1, 3)) / 2, then e1 e1^T, then e2 e2^T, with betas of .9 and .8.

    The eigenvectors of the first are (1, 1) and (1, -1) over sqrt(2), and it takes no step. The
    second has 1/2 everywhere in their basis, so Adam's step is of ones, and back from there
    ((2, 0), (0, 0)). In the third step v is 1/4 everywhere, and m is 1/2 on the diagonal and
    -1/2 r off it, with r = (1 - .9) / (1 + .9): back from there diag(1 - r, 1 + r).
    """
    weights = [torch.nn.Parameter(torch.zeros(2, 2).double())]
    method = make("soap", weights, lr=0.1, betas=[0.9, 0.8], weight_decay=0.0, eps=0.0)

    reached = []
    for gradient in ([[1.5, 0.5], [0.5, 1.5]], [[1, 0], [0, 0]], [[0, 0], [0, 1]]):
        method.step([[torch.tensor(gradient).double()]])
        reached.append(weights[0].detach().clone())

    r = 0.1 / 1.9
    steps = [[[0, 0], [0, 0]], [[2, 0], [0, 0]], [[3 - r, 0], [0, 1 + r]]]
    torch.testing.assert_close(torch.stack(reached), -0.1 * torch.tensor(steps).double())


def test_schedule_free_trains_between_its_steps_and_their_average():
    """Gradients of one size make Adam's steps -lr: z = -lr t, their mean x, trained at .1 z + .9 x.

    After three steps z is -0.3, x -0.2, and y -0.21; x is evaluated.
    """
    weights = [parameter(0.0, 0.0)]
    method = make("schedule_free", weights, lr=0.1)

    reached = []
    for _ in range(3):
        method.step([[torch.tensor([0.6, 0.8]).double()]])
        reached += weights[0].tolist()
    method.optimizer.eval()
    reached += weights[0].tolist()

    expected = [-0.1, -0.1, -0.155, -0.155, -0.21, -0.21, -0.2, -0.2]
    assert reached == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "is_adamws"),
    [
        ((12,), True),
        ((3, 4), True),
        ((4, 4), False),
        ((4, 512), False),
        ((4, 516), True),
        ((8, 1, 3, 3), True),  # a depthwise convolution
        ((1, 8, 8), True),
    ],
)
def test_muon_takes_adamws_step_where_there_is_no_matrix(shape, is_adamws):
    gradient = torch.arange(1.0, 1 + math.prod(shape)).double().view(shape).sin().sign()
    weights = [torch.nn.Parameter(torch.full(shape, 3.0).double())]

    make("muon", weights, lr=0.1, weight_decay=0.5).step([[gradient]])

    expected = 0.95 * 3.0 - 0.1 * gradient.sign()
    is_close = torch.allclose(weights[0].detach(), expected, atol=1e-4)
    assert is_close == is_adamws


@pytest.mark.parametrize("name", ["lamb", "lans", "vr_lamb"])
def test_an_adapted_step_is_as_long_as_the_rate_times_the_weights(name):
    weights = [parameter(3.0, 4.0)]
    before = weights[0].detach().clone()
    one = [torch.tensor([0.3, 0.1]).double()]

    make(name, weights, lr=0.1, weight_decay=0.0).step([one, one])

    assert float((weights[0].detach() - before).norm()) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("name", ["clars", "lars", "vr_lars", "lamb", "lans", "vr_lamb"])
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
