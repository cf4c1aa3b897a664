"""Dropout masks: random as they should be, and a function of the example alone."""

import copy
import math
import pickle

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torchvision.models import VisionTransformer, get_model
from torchvision.ops import StochasticDepth

from lightning_modules.data.randomness import counter_bits
from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.keyed_dropout import (
    KeyedDropout,
    check_draws,
    generator_state,
    key_dropout,
)

CPU = torch.device("cpu")


@pytest.fixture
def position() -> StepPosition:
    place = StepPosition()
    place.move(epoch=0, step=0, first_example=0, examples=16)
    return place


@pytest.fixture
def keyed(position):
    """The keyed form of a layer or model."""
    return lambda model, seed=0: key_dropout(model, seed=seed, position=position)


def at(position: StepPosition, layer: nn.Module, x: torch.Tensor, **place: int) -> torch.Tensor:
    """What the layer gives for x at another place."""
    here = {"epoch": 0, "step": 0, "first_example": 0, "examples": len(x)}
    position.move(**here | place)
    return layer(x)


def test_the_generator_is_splitmix64():
    """The first three outputs for the seed 1234567 that are known of it."""
    words = counter_bits(1234567, 0, 3, CPU)

    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(word) % 2**64 for word in words] == known


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_is_that_asked_for_and_what_is_kept_is_rescaled(position, keyed, p):
    x = torch.ones(100, 2000)

    y = at(position, keyed(nn.Dropout(p)), x)

    rate = (y == 0).double().mean().item()
    assert abs(rate - p) < 5 * math.sqrt(p * (1 - p) / x.numel())
    torch.testing.assert_close(y[y != 0].unique(), torch.tensor([1 / (1 - p)]))


def test_masks_of_layers_calls_epochs_examples_and_seeds_are_uncorrelated(position, keyed):
    x = torch.ones(64, 2048, dtype=torch.float64)
    first, second = keyed(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)))
    mask = at(position, first, x) - 1

    again = first(x) - 1
    other_layer = at(position, second, x) - 1
    other_epoch = at(position, first, x, epoch=1) - 1
    others = at(position, first, x, first_example=64) - 1
    other_seed = at(position, keyed(nn.Dropout(0.5), seed=1), x) - 1

    compared = [again, other_layer, other_epoch, others, other_seed, mask.roll(1, 0)]
    for other in [*compared, mask.roll(1, 1), mask.roll(2, 1)]:
        # Signs +1 and -1: the mean of their product has a standard error of 1 / sqrt(n).
        assert abs((mask * other).mean()) < 5 / math.sqrt(x.numel())


@pytest.mark.parametrize("width", [7, 8])
def test_a_mask_belongs_to_its_example_not_to_the_micro_batch(position, keyed, width):
    layer = keyed(nn.Dropout(0.3))
    x = torch.randn(24, width)

    whole = at(position, layer, x, first_example=100)
    parts = [at(position, layer, x[i : i + 6], first_example=100 + i) for i in (0, 6, 12, 18)]

    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout1d(0.5), (16, 64, 5)),
        (nn.Dropout2d(0.5), (16, 64, 3, 3)),
        (nn.Dropout3d(0.5), (16, 64, 2, 2, 2)),
        (StochasticDepth(0.5, "row"), (16, 64, 3)),
        (timm.layers.DropPath(0.5), (16, 64, 3)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_channels_and_rows_are_dropped_as_a_whole(keyed, layer, shape):
    units = 2 if "Dropout" in type(layer).__name__ else 1

    y = keyed(layer)(torch.ones(shape)).flatten(units)

    assert torch.equal(y, y[..., :1].expand_as(y))
    assert set(y.unique().tolist()) == {0.0, 2.0}


def test_stochastic_depth_of_batches_decides_once_per_step(position, keyed):
    layer = keyed(StochasticDepth(0.5, "batch"))
    x = torch.ones(2, 3)

    steps = [at(position, layer, x, step=step) for step in range(400)]
    later = [at(position, layer, x, step=step, first_example=8) for step in range(400)]

    kept = torch.stack(steps).flatten(1)
    assert torch.equal(kept, torch.stack(later).flatten(1))
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert abs((kept[:, 0] > 0).float().mean() - 0.5) < 5 * 0.5 / math.sqrt(400)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.2)])
def test_alpha_dropout_keeps_mean_and_variance(position, keyed, layer):
    """Of values with mean 0 and variance 1, as its authors define it."""
    x = torch.randn(2000, 200, generator=torch.Generator().manual_seed(0)).double()

    y = at(position, keyed(layer), x)

    assert abs(y.mean()) < 5 / math.sqrt(x.numel())
    assert abs(y.var() - 1) < 0.02


def test_in_evaluation_nothing_is_dropped(keyed):
    x = torch.randn(16, 4)

    assert torch.equal(keyed(nn.Dropout(0.9)).eval()(x), x)


def test_the_gradient_passes_where_the_value_did(keyed):
    x = torch.randn(16, 50, requires_grad=True)

    y = keyed(nn.Dropout(0.4))(x)
    y.sum().backward()

    torch.testing.assert_close(x.grad, (y != 0) / 0.6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: get_model("efficientnet_b0", num_classes=2),
        lambda: VisionTransformer(32, 16, 1, 2, 8, 16, dropout=0.1, num_classes=2),
        lambda: timm.create_model(
            "vit_tiny_patch16_224", img_size=32, depth=2, drop_rate=0.1, drop_path_rate=0.1
        ),
    ],
    ids=["efficientnet_b0", "VisionTransformer", "timm's vit_tiny"],
)
def test_models_of_the_libraries_draw_in_keyed_layers_alone(position, keyed, make):
    position.move(epoch=0, step=0, first_example=0, examples=2)
    images = torch.randn(2, 3, 32, 32)
    model = keyed(make())
    dropped = [layer for layer in model.modules() if isinstance(layer, KeyedDropout)]

    before = generator_state(CPU)
    model(images)

    check_draws(model, before, CPU)

    assert dropped


class Functional(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.5, self.training)


def test_a_function_that_draws_is_refused():
    model, before = Functional(), generator_state(CPU)

    model(torch.ones(2))

    with pytest.raises(ValueError, match=r"^the model must draw at random only in dropout layers"):
        check_draws(model, before, CPU)


def test_attention_that_draws_is_refused_by_name(keyed):
    model = keyed(nn.TransformerEncoderLayer(8, 2, dropout=0.1, batch_first=True))
    x, before = torch.randn(16, 3, 8), generator_state(CPU)

    model(x)

    with pytest.raises(
        ValueError, match=r"It has self_attn \(MultiheadAttention, dropout=0\.1\)\. Set"
    ):
        check_draws(model, before, CPU)


def test_activations_that_are_not_example_by_example_are_refused(keyed):
    with pytest.raises(ValueError, match=r"got shape \(5, 16, 2\) for a micro-batch of 16 exa"):
        keyed(nn.Dropout(0.5))(torch.ones(5, 16, 2))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_mask_is_the_same_when_checkpointing_draws_it_again(keyed, use_reentrant):
    """The gradient is that of the recomputed pass; what comes after has a mask of its own."""
    layer = keyed(nn.Dropout(0.4))
    x = torch.ones(16, 50, requires_grad=True)

    y = checkpoint(layer, x, use_reentrant=use_reentrant)
    y.sum().backward()

    torch.testing.assert_close(x.grad, (y != 0) / 0.6)
    assert not torch.equal(layer(x), y)


def test_copies_of_a_compiled_layer_are_layers_of_their_own(keyed):
    """What is compiled calls the layer that it was made for."""
    layer = keyed(nn.Dropout(0.5))
    layer.compile()

    copies = [copy.copy(layer), copy.deepcopy(layer)]

    assert [type(each) for each in copies] == [type(layer)] * 2
    assert all(each._compiled_call_impl is None for each in copies)
    assert len({int(each.handle) for each in [layer, *copies]}) == 3
    assert type(pickle.loads(pickle.dumps(layer))) is nn.Dropout
