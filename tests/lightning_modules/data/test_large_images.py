"""Large images: folders of classes or parquet, the same views from any number of workers."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torchvision.transforms import v2

from lightning_modules import worker
from lightning_modules.data.augment import (
    RESIZED_CROP_DRAWS,
    random_resized_crop,
)
from lightning_modules.data.large_images import worker_count
from sweeper import CONFIG_FOLDER
from sweeper.spec.config import Component

CPU, GPU = torch.device("cpu"), torch.device("cuda")
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

SETTINGS = {
    "_target_": "lightning_modules.data.large_images.LargeImages",
    "name": "made for the test",
    "source": "folder",
    "num_workers": 0,
    "size": 32,
    "resize": 36,
    "num_classes": 3,
    "num_train_examples": 12,
    "num_val_examples": 6,
}


def opened(root, **changes):
    return Component(**{**SETTINGS, "root": str(root), **changes}).build()


@pytest.fixture
def data(folder_tree):
    return opened(folder_tree)


def test_classes_are_numbered_by_the_names_of_their_folders(data):
    _, labels = data.val_examples(0, 6)

    assert labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_validation_image_is_torchvisions_resize_and_centre_crop(data, folder_tree):
    inputs, _ = data.val_examples(3, 4)

    image = torch.from_numpy(np.array(Image.open(folder_tree / "val/bee/1.JPEG"))).permute(2, 0, 1)
    standard = v2.Compose([v2.Resize(36, antialias=True), v2.CenterCrop(32)])
    expected = (standard(image) / 255 - MEAN[:, None, None]) / STD[:, None, None]
    torch.testing.assert_close(inputs[0], expected, atol=1e-5, rtol=0)


def test_parquet_and_folders_give_the_same_examples(data, folder_tree, tmp_path, write_parquet):
    for split in ("train", "val"):
        files = sorted((folder_tree / split).rglob("*.JPEG"))
        labels = [["ant", "bee", "cat"].index(file.parent.name) for file in files]
        name = {"train": "train-0.parquet", "val": "validation-0.parquet"}[split]
        write_parquet(tmp_path / name, [file.read_bytes() for file in files], labels)
    other = opened(tmp_path, source="parquet")
    for each in (data, other):
        each.set_epoch(1, 2)

    positions = torch.tensor([11, 3, 4, 0])

    for one, two in zip(
        data.train_examples(positions), other.train_examples(positions), strict=True
    ):
        assert torch.equal(one, two)
    assert torch.equal(data.val_examples(0, 6)[0], other.val_examples(0, 6)[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_change_nothing_and_keep_the_order(folder_tree, num_workers):
    data = opened(folder_tree, num_workers=num_workers)
    data.settle(CPU, ranks_on_node=1)
    asked = [torch.tensor([5, 1, 9]), torch.arange(12).repeat(4), torch.tensor([2])]

    for epoch in (0, 1):  # the workers stay for the next epoch
        data.set_epoch(7, epoch)
        streamed = list(data.train_stream(asked))
        for (inputs, labels), positions in zip(streamed, asked, strict=True):
            expected_inputs, expected_labels = data.train_examples(positions)
            assert torch.equal(inputs, expected_inputs)
            assert torch.equal(labels, expected_labels)

    halves = list(data.val_stream([(0, 4), (4, 6)]))
    assert torch.equal(torch.cat([x for x, _ in halves]), data.val_examples(0, 6)[0])


def test_a_stream_left_early_starts_anew(folder_tree):
    data = opened(folder_tree, num_workers=1)
    data.settle(CPU, ranks_on_node=1)
    data.set_epoch(0, 0)
    next(data.train_stream([torch.arange(6), torch.arange(6, 12)]))

    labels = [label for _, label in data.train_stream([torch.tensor([11])])]

    assert [label.tolist() for label in labels] == [[2]]


def test_views_are_functions_of_seed_epoch_and_example(data):
    views = []
    for seed, epoch, positions in [(0, 0, [3, 8]), (0, 0, [8]), (0, 1, [8]), (1, 0, [8])]:
        data.set_epoch(seed, epoch)
        views.append(data.train_examples(torch.tensor(positions))[0][-1])

    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
    assert not torch.equal(views[0], views[3])


def test_letters_are_not_mirrored_and_scans_are_taken_whole(data, folder_tree):
    """The same parts with `crop`, half of which were mirrored; training as in validation: `none`"""
    positions = torch.arange(12)
    mirrored, _ = data.train_examples(positions)
    upright, _ = opened(folder_tree, augment="crop").train_examples(positions)
    whole = opened(folder_tree, augment="none")
    plain, _ = whole.train_examples(positions)
    whole.set_epoch(0, 1)

    same = [torch.equal(a, b) for a, b in zip(mirrored, upright, strict=True)]
    assert 0 < sum(same) < 12
    assert [torch.equal(a.flip(-1), b) for a, b in zip(mirrored, upright, strict=True)] == [
        not is_same for is_same in same
    ]
    assert torch.equal(whole.train_examples(positions)[0], plain)
    assert not torch.equal(plain, upright)


@pytest.mark.slow
def test_random_parts_are_distributed_as_torchvisions():
    ramp = torch.arange(200, dtype=torch.uint8)
    image = torch.stack([ramp[:, None].expand(200, 200), ramp.expand(200, 200)])
    draws = np.random.default_rng(0).random((2000, RESIZED_CROP_DRAWS))
    torch.manual_seed(0)
    standard = v2.RandomResizedCrop(32, antialias=True)

    ours = _covered([random_resized_crop(image, own, size=32) for own in draws])
    theirs = _covered([standard(image) for _ in draws])

    for one, two in zip(ours, theirs, strict=True):
        assert one.mean() == pytest.approx(two.mean(), abs=5 * (2 / 2000) ** 0.5 * two.std())
        quantiles = [0.05, 0.25, 0.5, 0.75, 0.95]
        difference = np.quantile(one, quantiles) - np.quantile(two, quantiles)
        assert abs(difference).max() < 0.2 * two.std()
    assert np.corrcoef(ours[4], ours[5])[0, 1] == pytest.approx(
        np.corrcoef(theirs[4], theirs[5])[0, 1], abs=5 * (2 / 2000) ** 0.5
    )


def _covered(views):
    """Height, width, area, log ratio, top and left of each view, from its ramps."""
    ends = np.array([[(c.min().item(), c.max().item()) for c in view.float()] for view in views])
    heights, widths = (ends[..., 1] - ends[..., 0]).T
    tops, lefts = ends[..., 0].T
    return heights, widths, heights * widths, np.log(widths / heights), tops, lefts


def test_an_image_too_long_for_any_part_gives_its_centre_at_the_largest_ratio():
    image = torch.arange(100, dtype=torch.uint8).expand(1, 9, 100)  # at 4/3 of 9 pixels: 12 columns
    draws = np.full(RESIZED_CROP_DRAWS, 0.99)

    view = random_resized_crop(image, draws, size=12)
    tall = random_resized_crop(image.transpose(1, 2), draws, size=12)

    assert (view == torch.arange(44, 56)).all()
    assert (tall == torch.arange(44, 56)[:, None]).all()


def test_half_of_the_views_are_mirrored():
    image = torch.arange(64, dtype=torch.uint8).expand(1, 64, 64)
    draws = np.random.default_rng(1).random((400, RESIZED_CROP_DRAWS))

    views = [random_resized_crop(image, own, size=8)[0, 0] for own in draws]

    assert abs(sum(bool(v[0] > v[-1]) for v in views) - 200) < 50  # five standard deviations


def test_a_corrupt_image_is_named_by_a_worker_too_without_its_traceback(folder_tree, tmp_path):
    path = folder_tree / "train/bee/2.JPEG"
    path.write_bytes(b"no image")
    data = opened(folder_tree, num_workers=1)
    data.settle(CPU, ranks_on_node=1)

    with pytest.raises(
        ValueError, match=rf"must be a complete image file; {path} cannot be decoded"
    ) as raised:
        list(data.train_stream([torch.tensor([6])]))

    worker._leave_failure(tmp_path, 0, raised.value)
    reason = json.loads((tmp_path / "record-0.json").read_text())["reason"]
    assert reason.startswith(f"ValueError: every image must be a complete image file; {path} cann")
    assert reason.endswith("and state the new number of examples.")
    assert "Traceback" not in reason


def _empty_class(folder):
    shutil.rmtree(folder / "train/cat")
    (folder / "train/cat").mkdir()


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (_empty_class, r"every class must have images; .*/train/cat has none"),
        (
            lambda folder: shutil.rmtree(folder / "train/cat"),
            r"/train must hold 3 folders.*it holds 2: ant, bee\. ",
        ),
        (
            lambda folder: (folder / "val/cat").rename(folder / "val/dog"),
            r"/val must hold the same .*; it lacks cat and has dog",
        ),
    ],
    ids=["empty", "missing", "another"],
)
def test_classes_that_are_not_as_they_should_be_are_named(folder_tree, change, refusal):
    change(folder_tree)

    with pytest.raises(ValueError, match=refusal):
        opened(folder_tree)


def test_an_empty_folder_is_answered_with_what_to_put_there(tmp_path):
    with pytest.raises(ValueError, match=rf"train and val, .*; {tmp_path}/train does not exist"):
        opened(tmp_path)
    with pytest.raises(ValueError, match=r"has no train\*\.parquet.*or use data\.source=folder"):
        opened(tmp_path, source="parquet")


def test_a_wrong_number_of_images_is_answered_with_the_right_one(folder_tree):
    with pytest.raises(ValueError, match=r"Set data\.num_val_examples=6 if this is the data"):
        opened(folder_tree, num_val_examples=50_000)


def test_imagenet_is_as_its_challenge_had_it():
    node = yaml.safe_load((CONFIG_FOLDER / "data/imagenet.yaml").read_text())

    assert (node["num_train_examples"], node["num_val_examples"]) == (1_281_167, 50_000)
    assert (node["num_classes"], node["size"], node["resize"]) == (1000, 224, 256)


@pytest.mark.parametrize(
    ("device", "ranks", "expected"), [(GPU, 4, 4), (GPU, 1, 16), (CPU, 4, 3), (CPU, 16, 1)]
)
def test_auto_shares_the_cores_among_the_ranks(monkeypatch, device, ranks, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)

    assert worker_count("auto", ranks_on_node=ranks, device=device) == expected


def test_a_wrong_number_of_workers_is_refused():
    with pytest.raises(ValueError, match=r"must be auto or a number, 0 or more; got -1"):
        worker_count(-1, ranks_on_node=1, device=CPU)
