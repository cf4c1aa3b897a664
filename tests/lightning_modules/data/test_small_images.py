"""Small images in memory: read from either layout, augmented by draws of their own."""

import struct
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pictures import encoded, noise_image

from lightning_modules.data.augment import shift_and_flip
from sweeper import CONFIG_FOLDER
from sweeper.spec.config import Component

CIFAR10 = Path(__file__).parents[3] / "../shared/data/cifar10"

SETTINGS = {
    "_target_": "lightning_modules.data.small_images.SmallImages",
    "name": "MNIST",
    "source": "parquet",
    "download": False,
    "shape": [3, 6, 5],
    "num_classes": 3,
    "num_train_examples": 9,
    "num_val_examples": 3,
    "padding": 2,
    "flip": True,
    "mean": [0.5, 0.25, 0.0],
    "std": [0.25, 0.5, 1.0],
}


@pytest.fixture
def images():
    return [noise_image(i, width=5, height=6) for i in range(9)]


@pytest.fixture
def root(tmp_path, images, write_parquet):
    pngs = [encoded(image, "PNG") for image in images]
    labels = [i % 3 for i in range(9)]
    write_parquet(tmp_path / "data/train-00000-of-00002.parquet", pngs[:5], labels[:5])
    write_parquet(tmp_path / "data/train-00001-of-00002.parquet", pngs[5:], labels[5:])
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", pngs[:3], [0, 1, 2])
    return tmp_path


def opened(root, **changes):
    return Component(**{**SETTINGS, "root": str(root), **changes}).build()


def test_validation_images_are_the_normalised_pixels(root, images):
    inputs, labels = opened(root).val_examples(1, 3)

    fractions = np.stack([np.asarray(image) for image in images[1:3]]) / 255
    expected = (fractions - [0.5, 0.25, 0.0]) / [0.25, 0.5, 1.0]
    assert labels.tolist() == [1, 2]
    torch.testing.assert_close(inputs, torch.tensor(expected).permute(0, 3, 1, 2).float())


def test_rows_of_many_files_are_in_the_order_of_the_files(root, images):
    data = opened(root, padding=0, flip=False)
    data.set_epoch(0, 0)

    inputs, labels = data.train_examples(torch.arange(9))

    assert labels.tolist() == [0, 1, 2] * 3
    blue = torch.tensor(np.stack([np.asarray(image)[..., 2] for image in images]) / 255)
    torch.testing.assert_close(inputs[:, 2], blue.float())


def test_a_view_is_a_window_of_the_zero_padded_image_mirrored_or_not():
    images = torch.arange(1, 3 * 4 * 5 * 2 + 1, dtype=torch.uint8).view(3, 4, 5, 2)
    draws = torch.tensor([[0.0, 0.99, 0.9], [0.5, 0.5, 0.9], [0.99, 0.0, 0.1]], dtype=torch.double)

    views = shift_and_flip(images, draws, padding=1, flip=True)

    padded = np.pad(images.numpy(), ((0, 0), (1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(views[0], padded[0, 0:4, 2:7])
    np.testing.assert_array_equal(views[1], images[1])
    np.testing.assert_array_equal(views[2], padded[2, 2:6, 0:5][:, ::-1])


def test_each_shift_and_each_mirroring_occurs_about_equally_often():
    num = 9 * 2 * 500
    images = torch.zeros(num, 3, 3, 1, dtype=torch.uint8)
    images[:, 1, 1] = 1
    draws = torch.rand(num, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)

    views = shift_and_flip(images, draws, padding=1, flip=True)

    counts = views.flatten(1).sum(0)  # the marked pixel lands on each of nine places
    assert counts.sum() == num
    assert (abs(counts - num / 9) < 5 * (num / 9) ** 0.5).all()


def test_a_view_is_a_function_of_seed_epoch_and_example(root):
    data = opened(root)
    views = []
    for seed, epoch, positions in [(3, 2, [4, 0, 7]), (3, 2, [7]), (3, 1, [7]), (4, 2, [7])]:
        data.set_epoch(seed, epoch)
        views.append(data.train_examples(torch.tensor(positions))[0][-1])

    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0], views[3])


def test_decoded_images_are_shared_by_the_runs_of_a_sweep(root, tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("SWEEPER_SHARED", str(shared))

    first = opened(root)
    again = opened(root)

    assert len(list(shared.glob("images-*.npy"))) == 2
    assert torch.equal(first.val_examples(0, 3)[0], again.val_examples(0, 3)[0])


@pytest.mark.parametrize(
    ("changed", "label", "refusal"),
    [
        (b"no image", 1, "image file; row 1 of {} cannot be decoded"),
        (None, 1, "must hold an image; row 1 of {} has none"),
        (..., 3, "labels must be 0 to 2; {} has label 3 in row 1"),
    ],
    ids=["corrupt", "missing", "label"],
)
def test_a_wrong_row_is_named_by_file_and_row(root, write_parquet, images, changed, label, refusal):
    pngs = [encoded(image, "PNG") for image in images]
    path = root / "data/train-00001-of-00002.parquet"
    second = pngs[6] if changed is ... else pngs[6][:40] if changed else None
    write_parquet(path, [pngs[5], second, *pngs[7:]], [2, label, 1, 2])

    with pytest.raises(ValueError, match=refusal.format(path)):
        opened(root)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"num_classes": 4}, r"has none of 1 of 4 classes: 3\. Complete the data"),
        ({"shape": [3, 6, 6]}, r"must be 6 x 6 pixels; row 0 of .* is 5 x 6"),
        (
            {"num_train_examples": 50_000},
            r"Set data\.num_train_examples=9 if this is the data",
        ),
        (
            {"num_train_examples": 10, "drawn_from": 9},
            r"must not exceed data\.drawn_from, .* got .*=10, .*=9\.",
        ),
    ],
)
def test_settings_that_the_files_do_not_have_are_refused(root, changes, refusal):
    with pytest.raises(ValueError, match=refusal):
        opened(root, **changes)


def test_a_smaller_training_set_is_drawn_once_from_the_files(root, images):
    """Six of nine images, each with its own label, whatever the seed; validation stays whole."""
    settings = {"num_train_examples": 6, "drawn_from": 9, "padding": 0, "flip": False}
    data = opened(root, **settings)
    inputs, labels = data.train_examples(torch.arange(6))
    data.set_epoch(seed=5, epoch=2)

    blue = [torch.tensor(np.asarray(image)[..., 2] / 255).float() for image in images]
    found = [next(i for i in range(9) if torch.allclose(blue[i], view[2])) for view in inputs]
    assert len(set(found)) == 6
    assert labels.tolist() == [i % 3 for i in found]
    torch.testing.assert_close(data.train_examples(torch.arange(6))[0], inputs)
    assert data.num_val_examples == 3


def test_a_file_that_is_no_parquet_or_lacks_a_column_is_named(root, write_parquet):
    path = root / "data/test-00000-of-00001.parquet"
    write_parquet(path, [b"", b"", b""], [0, 1, 2], columns=("picture", "label"))
    with pytest.raises(ValueError, match=rf"{path} must have a column image or img; it has pict"):
        opened(root)

    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=rf"must be a complete parquet file; {path} is not"):
        opened(root)


def test_cifar_100_is_read_by_its_fine_labels(root, write_parquet, images):
    pngs = [encoded(image, "PNG") for image in images]
    for path in (root / "data").iterdir():
        path.unlink()
    write_parquet(root / "train.parquet", pngs, [0, 1, 2] * 3, columns=("img", "fine_label"))
    write_parquet(root / "test.parquet", pngs[:3], [1, 2, 0], columns=("img", "fine_label"))

    assert opened(root).val_examples(0, 3)[1].tolist() == [1, 2, 0]


@pytest.fixture
def mnist_files(tmp_path):
    """Three training and two validation images in MNIST's own format."""
    folder = tmp_path / "MNIST/raw"
    folder.mkdir(parents=True)
    for prefix, num in (("train", 3), ("t10k", 2)):
        pixels = np.arange(num * 6 * 5, dtype=np.uint8)
        header = struct.pack(">4i", 0x803, num, 6, 5)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        labels = struct.pack(">2i", 0x801, num) + bytes(range(num))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    return tmp_path


GREY = {
    "source": "torchvision",
    "shape": [1, 6, 5],
    "num_train_examples": 3,
    "num_val_examples": 2,
    "mean": [0.0],
    "std": [1.0],
}


def test_torchvisions_own_files_are_read(mnist_files):
    inputs, labels = opened(mnist_files, **GREY).val_examples(0, 2)

    assert labels.tolist() == [0, 1]
    torch.testing.assert_close(inputs.flatten(), torch.arange(60) / 255)


def test_missing_torchvision_files_are_answered_with_what_to_put_there(tmp_path):
    message = (
        r"must hold torchvision's files of MNIST; got data\.root=.* with data\.download=false: .*"
        r"Put MNIST/raw/ with train-images-idx3-ubyte\.gz and the three other archives there, "
        r"or set data\.download=true"
    )
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, **GREY)


def test_without_a_network_a_download_is_answered_with_what_to_put_there(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first use

    with pytest.raises(ValueError, match=r"data\.download=true: .* Put MNIST/raw/ with .* there"):
        opened(tmp_path, **GREY, download=True)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion_mnist"])
def test_each_configured_set_says_what_is_missing(name, tmp_path):
    node = yaml.safe_load((CONFIG_FOLDER / "data" / f"{name}.yaml").read_text())

    for source in ("parquet", "torchvision"):
        with pytest.raises(ValueError, match=r"data\.root must hold"):
            Component(**{**node, "root": str(tmp_path), "source": source}).build()


@pytest.mark.slow
@pytest.mark.skipif(not CIFAR10.is_dir(), reason="needs CIFAR-10 in ../shared/data/cifar10")
def test_cifar_10_has_the_mean_and_deviation_that_its_config_states():
    node = yaml.safe_load((CONFIG_FOLDER / "data/cifar10.yaml").read_text())
    data = Component(**{**node, "root": str(CIFAR10), "padding": 0, "flip": False}).build()
    data.set_epoch(0, 0)

    inputs, labels = data.train_examples(torch.arange(50_000))

    assert labels.bincount().tolist() == [5000] * 10
    assert inputs.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=0.01)
    assert inputs.std(dim=(0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=0.01)
