"""Models of torchvision and timm are the same networks with BatchNorm over a span.

`make test-all` takes those of up to 12 million parameters; `make models` all of them.
"""

import copy
import itertools
import os

import pytest
import timm
import torch
import torchvision
from torch import nn

from lightning_modules.layers.batch_position import StepPosition
from lightning_modules.layers.ghost_batchnorm import fix_batchnorm_span, ghost_batchnorms

pytestmark = pytest.mark.slow

EXAMPLES = 2
LARGEST = float(os.environ.get("SWEEPER_MODELS_UP_TO", "12e6"))
REFUSED = {"levit_384_s8": r"see each example of the micro-batch as a row of its own; got shape"}


def _family(name: str) -> str:
    return timm.models.model_entrypoint(name).__module__


def _smallest_of_each_family() -> list[str]:
    """A model of each of timm's files, the one whose name says that it is small."""
    names = sorted(timm.list_models(), key=_family)
    small = ("atto", "femto", "pico", "nano", "xxs", "tiny", "xs", "_0", "18", "small", "_s", "b0")
    return [
        min(family, key=lambda name: (not any(word in name for word in small), len(name), name))
        for _, family in itertools.groupby(names, key=_family)
    ]


TORCHVISION = torchvision.models.list_models(module=torchvision.models)


def _built(name: str, of: str) -> nn.Module:
    if of == "torchvision":
        more = {"init_weights": False} if name in {"googlenet", "inception_v3"} else {}
        return torchvision.models.get_model(name, weights=None, num_classes=10, **more)
    return timm.create_model(name, pretrained=False, num_classes=10)


def _num_parameters(name: str, of: str) -> int:
    """As many as a model has, by torchvision's own account or of its sketch without weights."""
    if of == "torchvision":
        return torchvision.models.get_model_weights(name)["DEFAULT"].meta["num_params"]
    with torch.device("meta"):
        return sum(p.numel() for p in _built(name, of).parameters())


def _has_batchnorm(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


def _passed(model: nn.Module, size: int) -> tuple[torch.Tensor, ...]:
    """What a model answers, with the same draws each time: the last is of the classifier's head."""
    torch.manual_seed(1)
    answer = model(torch.randn(EXAMPLES, 3, size, size))
    return tuple(answer) if isinstance(answer, tuple | list) else (answer,)


def _size_of(model: nn.Module) -> int:
    """The smallest images that it takes [pixels]."""
    for size in (32, 64, 128, 224, 256, 299):
        try:
            with torch.no_grad():
                copied = _passed(copy.deepcopy(model), size)
        except (AssertionError, RuntimeError, ValueError):
            continue
        if all(part.isfinite().all() for part in copied):
            return size
    raise AssertionError


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("of", "name"),
    [("torchvision", name) for name in TORCHVISION]
    + [("timm", name) for name in _smallest_of_each_family()],
)
def test_a_model_with_a_span_of_its_batch_is_the_same_network(of, name):
    """In training to the last bit; in evaluation by the running statistics of torch's BatchNorm."""
    if (num := _num_parameters(name, of)) > LARGEST:
        pytest.skip(f"{num / 1e6:.0f} million parameters: make models")
    torch.manual_seed(0)
    torchs, position = _built(name, of).train(), StepPosition()
    if not _has_batchnorm(torchs):
        pytest.skip("no BatchNorm")
    size = _size_of(torchs)
    ours = fix_batchnorm_span(copy.deepcopy(torchs), span=EXAMPLES, position=position)
    position.move(epoch=0, step=0, first_example=0, examples=EXAMPLES)
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            _passed(ours, size)
        return

    with torch.no_grad():
        trained, expected = _passed(ours, size), _passed(torchs, size)
        for layer in ghost_batchnorms(ours):
            layer.merge_ranks(1)
        evaluated, expected_then = _passed(ours.eval(), size), _passed(torchs.eval(), size)

    for part, other in zip(trained, expected, strict=True):
        assert torch.equal(part, other)
    for part, other in zip(evaluated, expected_then, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())
