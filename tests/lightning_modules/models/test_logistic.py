"""Logistic regression against NumPy, and which batch needs the fewest examples.

The preset's prediction is Alfarra's with what is known of the problem: its curvatures, and the
gradients at the best weights, found here by Newton's method.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_modules.data.synthetic import RandomImages
from lightning_modules.models.logistic import LogisticRegression
from sweeper.spec.run_spec import run_spec

PENALTY, NUM = 0.02, 512


@pytest.fixture(scope="module")
def problem():
    """Features, signs, the best weights, their loss and the mean square of their gradients."""
    data = RandomImages(
        shape=[16], num_classes=2, num_train_examples=NUM, num_val_examples=NUM, distinct=NUM
    )
    inputs, labels = data.train_examples(torch.arange(NUM))
    features = inputs.double().numpy() / np.arange(1, 17)
    signs = 2 * labels.numpy() - 1.0
    weights = np.zeros(16)
    for _ in range(30):
        wrong = 1 / (1 + np.exp(signs * (features @ weights)))
        gradients = -(wrong * signs)[:, None] * features + PENALTY * weights
        hessian = (features.T * wrong * (1 - wrong)) @ features / NUM + PENALTY * np.eye(16)
        weights = weights - np.linalg.solve(hessian, gradients.mean(0))
    loss = np.log1p(np.exp(-signs * (features @ weights))).mean() + PENALTY / 2 * weights @ weights
    mean_square = (gradients**2).sum(1).mean()
    return SimpleNamespace(
        inputs=inputs, labels=labels, features=features, signs=signs, weights=weights,
        loss=loss, mean_square=mean_square,
    )  # fmt: skip


def test_the_loss_is_that_of_numpy_and_flat_at_the_best_weights(problem):
    model = LogisticRegression((16,), 2, decay=1, penalty=PENALTY).double()
    with torch.no_grad():
        model.weights.copy_(torch.from_numpy(problem.weights))

    loss, right = model.score(model(problem.inputs.double()), problem.labels)
    loss.backward()

    assert loss.item() == pytest.approx(problem.loss, rel=1e-6)
    assert model.weights.grad.norm() < 1e-6
    assert right == ((problem.features @ problem.weights > 0) == (problem.signs > 0)).sum()


def test_other_data_than_vectors_of_two_classes_are_refused():
    with pytest.raises(ValueError, match=r"^model=logistic needs .* got num_classes=10, inp.* Set"):
        LogisticRegression((1, 8, 8), 10, decay=1, penalty=PENALTY)


def test_the_presets_numbers_are_those_of_its_problem(problem, grid):
    (config,) = grid("+experiment=alfarra2020", "batch=32", "seed=0")
    schedule = run_spec(config).config.schedule
    squares = (problem.features**2).sum(1)

    largest = np.linalg.eigvalsh(problem.features.T @ problem.features / NUM)[-1]
    assert schedule.smoothness == pytest.approx(largest / 4 + PENALTY, abs=1e-4)
    assert schedule.largest_smoothness == pytest.approx(squares.max() / 4 + PENALTY, abs=1e-4)
    assert schedule.strong_convexity == PENALTY
    assert schedule.best_batch(problem.mean_square, NUM) == pytest.approx(143, abs=0.5)
    assert problem.loss == pytest.approx(0.6898, abs=1e-4)


@pytest.fixture
def examples_to(run_words, problem):
    """Examples until the loss is within 0.008 of the best, and the batch then."""

    def train(name, *words):
        record = run_words("+experiment=alfarra2020", "seed=0", *words, name=name)
        first = next(row for row in record["curve"] if row["val_loss"] < problem.loss + 0.008)
        return first["examples_seen"], record["curve"][-1]["realised_batch"]

    return train


@pytest.mark.slow
def test_the_batch_nearest_to_the_predicted_one_needs_the_fewest_examples(examples_to):
    """Of powers of 2 that is 128; and the batch that is learnt is nearest, too."""
    needed = {batch: examples_to(str(batch), f"batch={batch}")[0] for batch in (32, 128, 512)}
    learnt, batch = examples_to("learnt", "batch=32", "schedule.max_batch=512")

    assert min(needed, key=lambda size: needed[size]) == 128
    assert abs(math.log2(batch / 143)) < 0.5
    assert learnt < min(needed[32], needed[512])
