"""Made-up data: noise with the moments it should have, random images that cost nothing."""

import pytest
import torch

from lightning_modules.data.synthetic import GaussianNoise, RandomImages


def test_noise_is_standard_normal_and_independent():
    data = GaussianNoise(length=7, num_train_examples=40_000)
    data.set_epoch(0, 0)

    noise, labels = data.train_examples(torch.arange(40_000))

    assert noise.shape == (40_000, 7)
    assert labels.shape == (40_000,)
    assert noise.mean(dim=0).tolist() == pytest.approx([0] * 7, abs=5 / 200)
    torch.testing.assert_close(noise.T.cov(), torch.eye(7), atol=5 * 2**0.5 / 200, rtol=0)
    assert (noise.abs() < 1).float().mean() == pytest.approx(0.6827, abs=0.005)


def test_noise_is_a_function_of_seed_epoch_and_example():
    data = GaussianNoise(length=3, num_train_examples=100)
    drawn = []
    for seed, epoch, positions in [(0, 0, [5, 9]), (0, 0, [9]), (0, 1, [9]), (1, 0, [9])]:
        data.set_epoch(seed, epoch)
        drawn.append(data.train_examples(torch.tensor(positions))[0][-1])

    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def test_random_images_repeat_after_the_distinct_ones():
    data = RandomImages(
        shape=[3, 4, 5], num_classes=10, num_train_examples=10**9, num_val_examples=2, distinct=8
    )

    images, labels = data.train_examples(torch.tensor([3, 10**9 - 5]))

    assert images.shape == (2, 3, 4, 5)
    assert torch.equal(images[0], images[1])  # 10**9 - 5 is 3 modulo 8
    assert labels.tolist() == [3, 3]
