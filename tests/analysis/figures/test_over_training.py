"""The figure of the critical batch over training, on branches that were trained."""

import pandas as pd

WORDS = (
    "+experiment=noisy_quadratic", "base_batch=64", "data.num_train_examples=1024", "epochs=2",
    "noise_span=16", "seed=0,1",
)  # fmt: skip


def test_the_command_draws_what_it_says(sweep_here, command, tmp_path):
    results, out = tmp_path / "results", tmp_path / "figures"
    assert sweep_here(results, *WORDS, "batch=64", "keep_checkpoint=[1]") == 0
    assert sweep_here(results, *WORDS, "batch=128,512", "branch=@1") == 0

    said = command("analysis", "branches", results, "--out", out)

    drawn = pd.read_csv(out / "critical_batch_over_training.csv")
    assert said.returncode == 0
    assert "validation loss 1 epoch after each position" in said.stdout + said.stderr
    assert drawn[["position", "parent_batch", "num_seeds"]].to_numpy().tolist() == [[1, 64, 2]]
    assert drawn.noise_scale.gt(0).all()
    lines = pd.read_csv(out / "loss_after_branches.csv")
    assert lines["global_batch"].tolist() == [64, 128, 512]
    assert lines["num_finished"].tolist() == [2, 2, 2]
    assert len([*out.iterdir()]) == 10


def test_a_folder_without_branches_is_refused(sweep_here, command, tmp_path):
    assert sweep_here(tmp_path / "results", *WORDS[:-1], "batch=64") == 0

    said = command("analysis", "branches", tmp_path / "results", "--out", tmp_path / "figures")

    assert said.returncode == 2
    assert "results must hold branches that have ended" in said.stdout + said.stderr
