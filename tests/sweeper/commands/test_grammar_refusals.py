"""Mistakes of the shell and of Hydra's grammar, each with what to type instead."""

import sys

import pytest
from hydra.types import RunMode

from sweeper.commands.refusals import check_dashes, explain_error, explain_unreadable
from sweeper.commands.show_plan import configs_of, main
from sweeper.console.printing import HintingParser


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lr=0.1"], "lr must be a config key; got lr=0.1. Did you mean base_lr?"),
        (["trainer={max_epochs: 3}"],
         "trainer.max_epochs must be a config key; got trainer={max_epochs: 3}. Did you mean "
         "epochs?"),
        (["recipe=goyal2017"], "recipe must be a config key; got recipe=goyal2017. Write "
                               "+recipe=goyal2017, which adds it."),
        (["callbacks=default"],
         "callbacks must be a config key; got callbacks=default. Write "
         "+callbacks@trainer.callbacks=default, which gives them to the Trainer."),
        (["batch=256,512"],
         "batch must have one value in a single run; got batch=256,512. For a run at each "
         "value: sweeper -m; sweeper plan lists the runs."),
        (["seed=range(0,3)"],
         "seed must have one value in a single run; got seed=range(0,3). For a run at each "
         "value: sweeper -m; sweeper plan lists the runs."),
    ],
)  # fmt: skip
def test_what_hydra_says_of_a_key_is_said_in_our_words(loader, words, said):
    with pytest.raises(Exception, match=r".") as refused:  # of Hydra's, and of OmegaConf's
        loader.load_configuration("config", words, run_mode=RunMode.RUN)

    assert explain_error(refused.value, words) == said


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("--batch=256", "Write batch=256."),
        ("--seed", "Write seed=VALUE."),
        ("--learning-rate=0.1", "Did you mean base_lr?"),
        ("--optimizer.momentum=0.9", "Did you mean optimizer.momentum?"),
    ],
)
def test_a_key_that_is_given_as_a_flag_is_named(word, remedy, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["seed=1", word])

    assert ended.value.code == 2
    said = f"An override must be KEY=VALUE, without dashes; got {word}. {remedy}"
    assert capsys.readouterr().err == f"Nothing was started.\n{said}\n"


def test_flags_of_hydras_are_no_keys():
    check_dashes(["-m", "--multirun", "--cfg", "job", "--config-dir=x", "--resolve", "-c", "--run"])


@pytest.mark.parametrize("flag", ["--config-name=mine", "--config-name", "-cn", "--config-path"])
def test_another_primary_config_is_refused(flag, command, tmp_path):
    """An empty one left no key to set, and what another one set was not read with -m."""
    (tmp_path / "mine.yaml").touch()

    done = command("--config-dir", tmp_path, flag, "mine", "module._target_=my.Net", "batch=32")

    assert done.returncode == 2
    assert done.stderr.startswith(
        "Nothing was started.\nThe primary config must be sweeper's own, which has every key; got "
        f"{flag}. Put your settings into FOLDER/experiment/NAME.yaml"
    )


def test_a_setting_that_a_recipe_has_made_impossible_can_be_taken_away(monkeypatch, capsys):
    words = ["+recipe=nado2021_nesterov", "optimizer=adam"]
    monkeypatch.setattr(sys, "argv", ["sweeper", "plan", *words])

    assert main(words) == 2

    said = "It is set by +recipe=nado2021_nesterov: add ~optimizer.momentum to remove it.\n"
    assert capsys.readouterr().err.endswith(said)
    assert main([*words, "~optimizer.momentum", "--no-memory"]) == 0


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (b"batch: 512\nbatch: 256\n", "found duplicate key batch"),
        (b"\tbatch: 512\n", "cannot start any token"),
        (b"warmup: !!python/object:os.system x\n", "could not determine a constructor"),
        (b"tags: \xfc\n", "'utf-8' codec can't decode"),
    ],
)
def test_a_config_file_that_cannot_be_read_is_refused(text, wrong, tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_bytes(b"# @package _global_\n" + text)

    assert main(["--config-dir", str(tmp_path), "+experiment=mine"]) == 2

    refusal = capsys.readouterr().err.splitlines()[-1]
    assert refusal.startswith("A config file must be YAML in UTF-8; got ")
    assert wrong in refusal


@pytest.mark.parametrize(
    "name", ["é", "a,b", "a=b", "[a]", "it's", 'a "b"', "${a}", "a\\'", " a # "]
)
def test_a_config_folder_may_have_any_name(name, tmp_path, command):
    folder = tmp_path / name
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment/mine.yaml").write_text("# @package _global_\ntags: found\n")

    (config,) = configs_of(["+experiment=mine", "batch=3840"], config_dir=str(folder))

    assert config["tags"] == "found"
    shown = command("--config-dir", folder, "+experiment=mine", "--cfg", "job").stdout
    assert "tags: found\n" in shown


@pytest.mark.parametrize("words", [("plan",), ("doctor",), ("-m",), ()])
@pytest.mark.parametrize("flag", ["--config-dir=", "--config-dir=nosuch"])
def test_a_config_folder_that_is_none_is_refused(command, words, flag):
    said = command(*words, flag, "batch=3840")

    assert said.returncode == 2
    assert "--config-dir must be a folder; got " in said.stderr


def test_a_refusal_of_a_word_with_a_line_break_is_a_line():
    assert explain_unreadable("tags=a\nb (c", "").splitlines()[1:] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("optimizer.momentum: 0.8", "a config file must nest its keys; got optimizer.momentum: "),
        ("hydra.launcher.jobs: 2", "a config file must nest its keys; got hydra.launcher.jobs: "),
        ("a.b: 1", "a.b must be a config key; got a.b="),
        ("trainer: 1e5", "trainer must be a group; got trainer=100000.0"),
        ("hydra: {sweeper: {params: [1]}}", "hydra.sweeper.params must give a grid"),
    ],
)
def test_a_config_file_with_keys_of_another_form_is_refused(line, wrong, tmp_path, capsys):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(f"# @package _global_\n{line}\n")

    assert main(["--config-dir", str(tmp_path), "+experiment=mine"]) == 2

    assert wrong in capsys.readouterr().err


def test_a_misspelt_option_or_choice_is_told_what_may_be_meant(capsys):
    parser = HintingParser(prog="x")
    parser.add_argument("--paper", choices=["goyal2017"])

    for words, hint in ((["--papr"], "--paper"), (["--paper", "goyal"], "goyal2017")):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
        assert capsys.readouterr().err.endswith(f". Did you mean {hint}?\n")
