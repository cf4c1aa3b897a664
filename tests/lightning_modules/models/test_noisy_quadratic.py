"""The noisy quadratic trains as its theory says."""

import numpy as np
import pytest
import torch

from lightning_modules.data.synthetic import GaussianNoise
from lightning_modules.models.noisy_quadratic import NoisyQuadratic, curvatures_and_noise
from lightning_modules.modules.classifier import score


def expected_losses(
    curvatures: np.ndarray,
    noise_variances: np.ndarray,
    num_steps: int,
    *,
    global_batch: int,
    lr: float,
) -> np.ndarray:
    """Expected loss before each step of SGD without momentum, and after the last.

    ``E w_i^2 <- (1 - lr h_i)^2 E w_i^2 + lr^2 c_i / global_batch``: Zhang et al. 2019,
    arXiv:1907.04164, equation 3.
    """
    squares = [np.ones_like(curvatures)]
    for _ in range(num_steps):
        noise = lr**2 * noise_variances / global_batch
        squares.append((1 - lr * curvatures) ** 2 * squares[-1] + noise)
    return np.array(squares) @ curvatures / 2


def test_without_noise_each_weight_shrinks_by_its_own_factor():
    known = curvatures_and_noise(3, decay=1, noise_scale=0)

    losses = expected_losses(*known, 2, global_batch=1, lr=0.5)

    # curvatures 1, 1/2, 1/3 keep 1/2, 3/4, 5/6 of their weights at each step
    assert losses[0] == pytest.approx((1 + 1 / 2 + 1 / 3) / 2)
    expected = ((1 / 2) ** 4 + (3 / 4) ** 4 / 2 + (5 / 6) ** 4 / 3) / 2
    assert losses[2] == pytest.approx(expected)


def test_in_the_end_noise_and_rate_set_the_loss():
    """The stationary variance of weight i is lr c_i / (B h_i (2 - lr h_i))."""
    known = curvatures_and_noise(1, decay=1, noise_scale=100)  # h = 1, c = 100

    losses = expected_losses(*known, 400, global_batch=50, lr=0.2)

    assert losses[-1] == pytest.approx(0.2 * 100 / (50 * (2 - 0.2)) / 2)


@pytest.mark.parametrize("decay", [0, 1, 2])
def test_at_the_noise_scale_the_best_first_step_gains_half(decay):
    """McCandlish et al. 2018, equation 2.6: the gain is largest / (1 + noise_scale / B)."""
    noise_scale = 640
    known = curvatures_and_noise(50, decay=decay, noise_scale=noise_scale)

    def best_gain(global_batch):
        rates = np.linspace(0, 2, 20_001)
        first = [expected_losses(*known, 1, global_batch=global_batch, lr=r) for r in rates]
        return max(before - after for before, after in first)

    largest = best_gain(10**12)
    assert best_gain(noise_scale) == pytest.approx(largest / 2, rel=1e-4)
    assert best_gain(3 * noise_scale) == pytest.approx(largest * 3 / 4, rel=1e-4)


def test_gradients_have_the_mean_and_variance_that_are_known():
    model = NoisyQuadratic((5,), 1, decay=1, noise_scale=20)
    curvatures, variances = curvatures_and_noise(5, decay=1, noise_scale=20)
    data = GaussianNoise(length=5, num_train_examples=20_000)
    data.set_epoch(0, 0)
    noise, _ = data.train_examples(torch.arange(20_000))

    gradients = torch.stack(
        [torch.autograd.grad(model(one[None]).mean(), model.weights)[0] for one in noise[:4000]]
    ).double()

    errors = 5 * np.sqrt(variances / 4000)
    assert (abs(gradients.mean(0).numpy() - curvatures) < errors).all()
    np.testing.assert_allclose(gradients.var(0).numpy(), variances, rtol=0.15)


def test_trained_losses_follow_the_expected_ones():
    num_weights, global_batch, rate = 4000, 64, 0.3
    model = NoisyQuadratic((num_weights,), 1, decay=0, noise_scale=32)
    known = curvatures_and_noise(num_weights, decay=0, noise_scale=32)
    data = GaussianNoise(length=num_weights, num_train_examples=20 * global_batch)
    data.set_epoch(5, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    trained = []
    for step in range(20):
        noise, labels = data.train_examples(torch.arange(step * 64, step * 64 + 64))
        optimizer.zero_grad()
        loss, _ = score(model, model(noise), labels)
        loss.backward()
        optimizer.step()
        inputs, labels = data.val_examples(0, 1)
        trained.append(score(model.eval(), model(inputs), labels)[0].item())
        model.train()

    expected = expected_losses(*known, 20, global_batch=global_batch, lr=rate)[1:]
    np.testing.assert_allclose(trained, expected, rtol=5 * (2 / num_weights) ** 0.5)


def test_there_is_no_accuracy():
    model = NoisyQuadratic((3,), 1, decay=1, noise_scale=1)

    _, correct = score(model, model(torch.zeros(2, 3)), torch.zeros(2))

    assert torch.isnan(correct)
