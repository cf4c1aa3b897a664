"""A network of the user's gets what the data have by the names of its constructor."""

from types import SimpleNamespace

import pytest
from torch import nn

from lightning_modules.modules.components import build_model
from sweeper.spec.config import Component

DATA = SimpleNamespace(input_shape=(1, 8, 8), num_classes=10)


class Kept(nn.Identity):
    def __init__(self, **given):
        super().__init__()
        self.given = given


class ByDefault(Kept):
    def __init__(self, in_channels=3, num_classes=5, out_features=7, width=32):
        super().__init__(**{k: v for k, v in locals().items() if k not in {"self", "__class__"}})


class Needing(Kept):
    def __init__(self, input_size, output_size, *, activation):
        super().__init__(size=(input_size, output_size), activation=activation)


def shaped(input_shape, num_classes, **_):
    return Kept(shape=input_shape, num_classes=num_classes)


def transposed(num_classes, input_shape):
    return Kept(shape=input_shape, num_classes=num_classes)


def nothing(**given):
    return given


class Other(nn.Identity):
    def __init__(self, hidden, classes=2):
        super().__init__(hidden, classes)


def build(name, **settings):
    target = f"{__name__}.{name}"
    return build_model(Component(_target_=target, **settings), DATA)


@pytest.mark.parametrize(
    ("name", "settings", "given"),
    [
        ("ByDefault", {"width": 4},
         {"in_channels": 1, "num_classes": 10, "out_features": 7, "width": 4}),
        ("ByDefault", {"num_classes": 3},
         {"in_channels": 1, "num_classes": 3, "out_features": 7, "width": 32}),
        ("shaped", {}, {"shape": (1, 8, 8), "num_classes": 10}),
        ("transposed", {}, {"shape": (1, 8, 8), "num_classes": 10}),
    ],
)  # fmt: skip
def test_a_constructor_is_called_by_name(name, settings, given):
    assert build(name, **settings).given == given


def test_what_it_needs_is_given_under_other_names_and_nested_objects_are_made():
    model = build("Needing", activation={"_target_": "torch.nn.ReLU"})

    assert model.given["size"] == (64, 10)
    assert isinstance(model.given["activation"], nn.ReLU)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Other", r"got .*\.Other\(hidden, classes=2\): missing a required argument: 'hidden'\. "),
        ("nothing", r"got .*\.nothing, a dict\. Name its class\."),
    ],
)
def test_what_cannot_be_a_network_is_refused_with_what_was_found(name, sentence):
    with pytest.raises(ValueError, match=rf"^model\._target_ must .*{sentence}"):
        build(name)


def test_a_lightning_module_is_told_where_it_belongs():
    component = Component(_target_="users.Module")

    with pytest.raises(ValueError, match=r"a LightningModule\. Write module=model,"):
        build_model(component, DATA)


def test_a_lazy_layer_is_told_in_a_sentence():
    component = Component(_target_="torch.nn.LazyLinear", out_features=2)

    with pytest.raises(ValueError, match=r"got weight of a lazy layer.* batch through it in __ini"):
        build_model(component, DATA)
