"""Models: the sizes of the papers, small images, and what each refuses."""

import copy
import math

import pytest
import torch
import yaml
from torch import nn

from lightning_modules.data.text import TextTokens
from lightning_modules.models.gpt import GPT, _rotate
from lightning_modules.models.lstm import LSTM
from lightning_modules.models.small_cnn import SmallCNN
from lightning_modules.modules.classifier import build_classifier, score
from sweeper import CONFIG_FOLDER
from sweeper.spec.config import Component

CIFAR, IMAGENET, MNIST = (3, 32, 32), (3, 224, 224), (1, 28, 28)


def model(config, input_shape, num_classes=10, **changes):
    node = yaml.safe_load((CONFIG_FOLDER / "model" / f"{config}.yaml").read_text())
    return Component(**{**node, **changes}).build(input_shape, num_classes)


def num_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_resnet_50_has_its_25_557_032_parameters():
    assert num_parameters(model("resnet50", IMAGENET, 1000)) == 25_557_032


def test_resnet_20_has_the_papers_0_27_million_parameters_and_19_convolutions():
    resnet = model("resnet20", CIFAR)

    assert num_parameters(resnet) / 1e6 == pytest.approx(0.27, abs=0.005)
    main = [m for m in resnet.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(main) == 19


@pytest.mark.parametrize(("stride", "size"), [(1, 8), (2, 4)])
def test_a_stem_of_stride_2_halves_the_resolution(stride, size):
    resnet = model("resnet8", CIFAR, stem_stride=stride)

    features = resnet.blocks(resnet.stem(torch.zeros(2, *CIFAR)))

    assert features.shape == (2, 64, size, size)


def test_a_resnet_on_small_images_keeps_their_resolution():
    resnet = model("resnet18", CIFAR)

    assert (resnet.conv1.kernel_size, resnet.conv1.stride) == ((3, 3), (1, 1))
    assert isinstance(resnet.maxpool, nn.Identity)
    assert resnet(torch.zeros(2, *CIFAR)).shape == (2, 10)


def test_a_resnet_on_large_images_begins_as_torchvisions():
    resnet = model("resnet18", IMAGENET)

    assert (resnet.conv1.kernel_size, resnet.conv1.stride) == ((7, 7), (2, 2))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", MNIST), ("vgg11_bn", (1, 32, 32)), ("mobilenet_v3_small", (1, 64, 64))],
)
def test_torchvisions_models_take_grey_images(name, shape):
    built = model("torchvision", shape, name=name).eval()

    assert built(torch.zeros(2, *shape)).shape == (2, 10)


def test_a_vision_transformer_takes_small_images():
    assert model("vit_b_16", CIFAR).eval()(torch.zeros(1, *CIFAR)).shape == (1, 10)


def test_the_last_layer_may_start_as_goyals():
    resnet = model("resnet50", CIFAR, 1000, head_std=0.01)

    assert resnet.fc.weight.std().item() == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "alexnet", "stem": "small"}, r"model\.stem=small is for ResNets; got .*alexnet"),
        ({"name": "alexnet", "head_std": 0.1}, r"model\.head_std is for ResNets"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model("torchvision", IMAGENET, **changes)


def test_timm_models_take_the_images_and_classes_of_the_data():
    pytest.importorskip("timm")

    assert model("timm", MNIST, name="resnet10t").eval()(torch.zeros(2, *MNIST)).shape == (2, 10)


@pytest.fixture
def transformer():
    torch.manual_seed(0)
    return GPT((16,), 256, width=32, depth=2, heads=4)


def test_no_byte_sees_those_after_it(transformer):
    symbols = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = symbols.clone()
    changed[:, 9:] += 1

    before, after = transformer(symbols), transformer(changed % 256)

    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_a_transformer_learns_a_text_that_repeats_itself(transformer):
    symbols = (torch.arange(17) % 4).expand(8, 17)
    optimizer = torch.optim.Adam(transformer.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        loss, correct = score(transformer, transformer(symbols[:, :-1]), symbols[:, 1:])
        loss.backward()
        optimizer.step()

    assert loss.item() < 0.1
    assert correct.item() == pytest.approx(8)


def test_gradients_of_the_small_network_have_the_layout_of_its_images():
    small = SmallCNN((1, 8, 8), 10, channels=[4, 8], hidden=16)
    plain = copy.deepcopy(small)
    small.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    seen = []

    def see_gradient(_layer, _images, maps):
        maps.grad_fn.register_prehook(seen.extend)

    small.features.register_forward_hook(see_gradient)
    images = torch.randn(4, 1, 8, 8)

    small(images).square().sum().backward()
    plain(images).square().sum().backward()

    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(small.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match=r"must divide model\.width; got heads=3, width=128\."):
        model("gpt", (8,), heads=3)


FORM = {
    "norm": "rms",
    "positions": "rotary",
    "feed_forward": "swiglu",
    "bias": False,
    "qk_norm": True,
}


def test_gpt_124m_has_the_parameters_that_its_sizes_say():
    """Embeddings; by layer four matrices of attention, three of 768 x 2,048, four norms; a norm."""
    preset = yaml.safe_load((CONFIG_FOLDER / "experiment/gpt_124m.yaml").read_text())
    settings = preset["model"]
    length, vocabulary = preset["data"]["length"], preset["data"]["vocabulary"]

    assert {name: settings.pop(name) for name in FORM} == FORM
    assert settings == {"width": 768, "depth": 12, "heads": 12}
    layer = 4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768 + 2 * 64
    gpt = model("gpt", (length,), vocabulary, **settings, **FORM)
    assert num_parameters(gpt) == 50304 * 768 + 12 * layer + 768 == 123_588_864


def test_rotary_attention_sees_only_how_far_apart_positions_are():
    """The same vectors score alike wherever they are; a quarter turn per position is known."""
    vectors = torch.randn(2, 1, 1, 6, 8, dtype=torch.float64)
    same = vectors[..., :1, :].expand(2, 1, 1, 6, 8)
    query, key = (_rotate(vector) for vector in same)

    scores = query @ key.transpose(-1, -2)

    for apart in range(-5, 6):
        on_diagonal = scores[0, 0].diagonal(apart)
        torch.testing.assert_close(on_diagonal, on_diagonal[:1].expand_as(on_diagonal))
    pair = _rotate(torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64))
    expected = [[math.cos(t), math.sin(t)] for t in range(3)]  # a head of one pair turns by t
    torch.testing.assert_close(pair, torch.tensor(expected, dtype=torch.float64))


def test_a_gpt_of_today_sees_no_later_byte_and_learns():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        gpt = GPT((16,), 256, width=32, depth=2, heads=4, **FORM)
    symbols = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    changed = symbols.clone()
    changed[:, 9:] += 1
    assert not any(name.endswith("bias") for name, _ in gpt.named_parameters())
    repeated = (torch.arange(17) % 4).expand(8, 17)
    optimizer = torch.optim.Adam(gpt.parameters(), lr=0.01)

    for _ in range(100):
        optimizer.zero_grad()
        loss, _ = score(gpt, gpt(repeated[:, :-1]), repeated[:, 1:])
        loss.backward()
        optimizer.step()

    assert loss < 0.1  # ln 256 at first
    before, after = gpt(symbols), gpt(changed % 256)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_an_lstm_is_torchs_of_several_layers_between_embeddings_and_a_dense_layer():
    """Torch's own LSTM of two layers with the same weights, which knows no layer of ours."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ours = LSTM((9,), 50, width=8, depth=2, dropout=0.5).double().eval()
        theirs = nn.LSTM(8, 8, num_layers=2, batch_first=True).double()
    for depth, layer in enumerate(ours.layers):
        for name, weight in layer.lstm.named_parameters():
            getattr(theirs, name.replace("l0", f"l{depth}")).data.copy_(weight)
    symbols = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(0))

    expected, _ = theirs(ours.tokens(symbols))

    torch.testing.assert_close(ours(symbols), ours.out[1](expected))
    assert num_parameters(model("lstm", (9,), 256)) == 2 * 256 * 128 + 256 + 4 * 128 * 258 * 2


def test_an_lstm_with_dropout_is_the_same_in_parts_and_resumed(run_words, tmp_path):
    (tmp_path / "letters").write_text("abcdefghij" * 500)
    words = ["model=lstm", "model.width=16", "model.dropout=0.3", "data=text", "data.name=a"]
    words += [f"data.root={tmp_path / 'letters'}", "data.length=9", "data.num_val_examples=43"]
    words += ["data.num_train_examples=128", "batch=64", "epochs=3", "precision=64-true"]

    whole, parts = (run_words(*words, f"micro_batch={m}", name=f"{m}") for m in (64, 16))
    run_words(*words, "micro_batch=16", name="stopped", stop_after=1)
    resumed = run_words(*words, "micro_batch=16", name="stopped")

    losses = [[row["val_loss"] for row in run["curve"]] for run in (whole, parts, resumed)]
    assert losses[1] == losses[2]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_a_model_of_texts_comes_with_a_text_and_a_training_of_its_own(grid, name):
    (config,) = grid(f"model={name}", "epochs=2")

    assert config["data"]["name"] == "python_source"
    assert config["optimizer"]["name"] == "adamw"
    assert (config["metric"], config["bn_span"], config["epochs"]) == ("val_loss", 1, 2)
    (plain,) = grid(f"model={name}", "module=classifier")
    assert plain["data"]["_target_"].endswith("Digits")


def test_a_masked_loss_is_the_mean_over_the_masked_tokens_of_a_batch_that_see_all_others(tmp_path):
    (tmp_path / "letters").write_text("abcdefghij" * 50)
    given = {"length": 20, "vocabulary": 256, "num_train_examples": 16, "num_val_examples": 8}
    data = TextTokens(name="a", root=str(tmp_path / "letters"), masked=0.2, **given)
    gpt = Component(_target_="lightning_modules.models.gpt.GPT", width=16, depth=1, heads=2)
    module = build_classifier(gpt, data, label_smoothing=0.0, zero_init_last_norm=False)
    inputs, labels = data.train_examples(torch.arange(16))

    step = module.training_step((inputs, labels), 0)
    parts = [module.training_step((inputs[i : i + 4], labels[i : i + 4]), 0) for i in (0, 4, 8, 12)]

    asked = labels != -100
    outputs = module.model(inputs)[asked]
    assert len(outputs) == 64
    expected = nn.functional.cross_entropy(outputs, labels[asked])
    torch.testing.assert_close(step["loss"], expected)
    torch.testing.assert_close(sum(part["loss"] for part in parts) / 4, expected)
    right = (outputs.argmax(dim=1) == labels[asked]).float().mean()
    torch.testing.assert_close(step["sums"]["accuracy"] / 16, right)
    changed = inputs.clone()
    changed[:, -1] += 1
    assert not torch.allclose(module.model(changed)[:, 0], module.model(inputs)[:, 0])


def test_a_gpt_with_masks_is_the_same_in_parts_and_resumed_and_an_lstm_is_refused(
    run_words, tmp_path
):
    (tmp_path / "letters").write_text("abcdefghij" * 500)
    words = ["model=gpt", "model.width=16", "model.heads=2", "model.depth=1", "data=text"]
    words += ["data.name=a", f"data.root={tmp_path / 'letters'}", "data.length=9", "batch=64"]
    words += ["data.num_val_examples=43", "data.num_train_examples=128", "+data.masked=0.15"]
    words += ["precision=64-true", "epochs=3"]

    whole, parts = (run_words(*words, f"micro_batch={m}", name=f"{m}") for m in (64, 16))
    run_words(*words, "micro_batch=16", name="stopped", stop_after=1)
    resumed = run_words(*words, "micro_batch=16", name="stopped")

    for name in ("train_loss", "val_loss", "train_accuracy"):
        of = [[row[name] for row in run["curve"]] for run in (whole, parts, resumed)]
        assert of[1] == of[2]
        assert of[0] == pytest.approx(of[1], rel=1e-9)
    lstm = [word for word in words if not word.startswith("model")]
    with pytest.raises(ValueError, match=r"^data\.masked must be 0 with a model .*, model=lstm"):
        run_words("model=lstm", *lstm, name="lstm")


def test_a_gpt_learns_a_text_and_its_perplexity_is_that_of_its_loss(run_words, tmp_path):
    (tmp_path / "letters").write_text("abcdefghij" * 500)
    words = ["model=gpt", "model.width=16", "model.heads=2", "model.depth=1", "data=text"]
    words += ["data.name=a", f"data.root={tmp_path / 'letters'}", "data.length=9", "batch=64"]
    words += [
        "data.num_val_examples=43",
        "data.num_train_examples=512",
        "base_lr=0.03",
        "precision=64-true",
        "epochs=5",
    ]

    whole, parts = (run_words(*words, f"micro_batch={m}", name=f"{m}") for m in (64, 16))

    for row in whole["curve"]:
        assert row["metrics"]["val_perplexity"] == pytest.approx(math.exp(row["val_loss"]), 1e-12)
    assert whole["curve"][-1]["metrics"]["val_perplexity"] < 3 < 200
    for one, other in zip(whole["curve"], parts["curve"], strict=True):
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-9)
