"""Data on disk, looked at before anything starts: there or not, and how much of it."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lightning_modules.data.image_files import FolderImages, fill_counts
from sweeper.commands.show_plan import plan_grid

COUNTS = ("num_classes", "num_train_examples", "num_val_examples")
MODEL = ("model=resnet8", "batch=8", "base_lr=0.1", "optimizer=sgd", "bn_span=8", "warmup=0")


@pytest.fixture
def folder(tmp_path):
    """12 training images of 3 classes, 6 for validation; only their names matter here."""
    for split, each in (("train", 4), ("val", 2)):
        for name in ("ant", "bee", "cat"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(each):
                (tmp_path / split / name / f"{number}.jpg").touch()
    return tmp_path


def images(root, /, **changes):
    group = {"_target_": "lightning_modules.data.large_images.LargeImages", "source": "folder"}
    return {**group, "root": str(root), **dict.fromkeys(COUNTS)} | changes


def test_a_run_whose_images_are_counted_is_the_run_whose_numbers_are_given(folder, results):
    words = (*MODEL, "data=images", "data.name=zoo", f"data.root={folder}", f"results={results}")
    given = ("data.num_classes=3", "data.num_train_examples=12", "data.num_val_examples=6")

    (found,), (stated,) = (plan_grid([*words, *more], config_dir=None)[0].specs
                           for more in ((), given))  # fmt: skip

    assert [found.config.resolved["data"][key] for key in COUNTS] == [3, 12, 6]
    assert found.run_id == stated.run_id


def test_images_in_parquet_are_counted(tmp_path):
    for name, labels in (("train", [0, 2, 1, 1]), ("validation", [2, 0])):
        rows = [{"bytes": b"", "path": ""}] * len(labels)
        pq.write_table(pa.table({"image": rows, "label": labels}), tmp_path / f"{name}.parquet")

    found = fill_counts(images(tmp_path, source="parquet"))

    assert [found[key] for key in COUNTS] == [3, 4, 2]


@pytest.mark.parametrize(("stated", "counted"), [(None, 75), (40, 40)])
def test_the_sequences_of_a_text_are_counted_and_a_part_may_be_trained_on(
    tmp_path, stated, counted
):
    (tmp_path / "text").write_bytes(bytes(1001))  # 100 sequences of 10, and a last symbol
    group = {"_target_": "lightning_modules.data.text.TextTokens", "root": str(tmp_path / "text")}

    found = fill_counts(
        {
            **group,
            "vocabulary": 256,
            "length": 10,
            "num_train_examples": stated,
            "num_val_examples": 25,
        }
    )

    assert found["num_train_examples"] == counted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_train_examples": 13}, r"data\.num_train_examples must be the size of the data set; "
         r"got 13, .* holds 12\. Set data\.num_train_examples=12"),
        ({"num_classes": 4}, r"train must hold 4 folders, one per class; it holds 3: ant, bee, "),
        ({"root": "/nowhere"}, r"/nowhere does not exist\. Put the images there, set data.r"),
        ({"root": 5}, r"^data\.root must be a string; got root=5\.$"),
        ({"source": "parquet"}, r"which has no train\*\.parquet\. .* or use data\.source=folder"),
        ({"source": "tar"}, r"data\.source must be one of folder, parquet; got source='tar'"),
    ],
)  # fmt: skip
def test_what_is_not_as_stated_is_refused(folder, changes, said):
    with pytest.raises(ValueError, match=said):
        fill_counts(images(folder, **changes))


def test_a_huge_folder_is_not_listed(folder):
    stated = {"num_train_examples": 1_281_167, "num_val_examples": 50_000}

    assert fill_counts(images(folder, **stated))["num_classes"] == 3


def test_counting_needs_no_torch():
    look = "import sys, lightning_modules.data.image_files; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


def test_a_folder_of_classes_is_split_by_files_that_later_ones_do_not_move(tmp_path):
    def split():
        return [
            {*(opened.name(row) for row in range(len(opened.labels)))}
            for opened in (FolderImages(tmp_path, split, num_classes=2, val_fraction=0.25)
                           for split in ("train", "val"))
        ]  # fmt: skip

    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(0, 400, 2):
            (tmp_path / name / f"{number}.png").touch()
    train, val = split()
    for number in range(1, 400, 2):
        (tmp_path / "ant" / f"{number}.png").touch()
    train_later, val_later = split()

    assert train < train_later
    assert val < val_later
    assert not train_later & val_later
    assert len(train_later | val_later) == 600
    assert 0.2 < len(val_later) / 600 < 0.3


@pytest.mark.parametrize(
    ("sides", "given", "sizes"),
    [
        ((40, 32), {}, (32, 32)),
        ((500, 300), {}, (224, 256)),
        ((40, 32), {"size": 224}, (224, 256)),
        ((40, 32), {"size": 28, "resize": 30}, (28, 30)),
    ],
)
def test_a_size_that_is_not_given_is_that_of_the_images(tmp_path, sides, given, sizes):
    for split in ("train", "val"):
        (tmp_path / split / "ant").mkdir(parents=True)
        Image.new("RGB", sides).save(tmp_path / split / "ant" / "1.png")

    found = fill_counts(images(tmp_path, **{"size": None, "resize": None, **given}))

    assert (found["size"], found["resize"]) == sizes
