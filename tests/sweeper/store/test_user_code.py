"""The sources of the user's package stand for the code behind a run."""

import sys
from importlib.util import spec_from_file_location

import pytest

from sweeper.spec.identity import targets
from sweeper.store import user_code
from sweeper.store.user_code import code_hash


@pytest.fixture
def project(tmp_path, monkeypatch):
    package = tmp_path / "brandnew"
    (package / "nets").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "nets" / "net.py").write_text("WIDTH = 1\n")
    (tmp_path / "loose.py").write_text("def callback(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    user_code._is_own.cache_clear()
    yield package
    user_code._is_own.cache_clear()


CONFIG = {
    "module": {"_target_": "brandnew.nets.net.Net", "optimizer": {"_target_": "torch.optim.SGD"}},
    "data": {"_target_": "lightning_modules.data.digits.Digits"},
    "trainer": {"callbacks": [{"_target_": "loose.callback"}]},
}


@pytest.mark.usefixtures("project")
def test_the_function_that_counts_items_is_code_too():
    named = {"data": CONFIG["data"], "loss_items": "loose.count"}

    assert list(user_code.user_code(targets(named))) == ["loose.py"]
    assert user_code.user_code(targets({**named, "loss_items": "loose"})) == {}


def code():
    return user_code.user_code(targets(CONFIG))


@pytest.mark.usefixtures("project")
def test_packages_count_whole_and_are_not_imported():
    assert sorted(code()) == ["brandnew/__init__.py", "brandnew/nets/net.py", "loose.py"]


def test_what_a_module_imports_of_the_users_counts_too(project):
    """Most projects of one file have another beside it."""
    loose, helpers, deep = (project.parent / f"{name}.py" for name in ("loose", "helpers", "deep"))
    loose.write_text("import sys, torch, helpers as h\nfrom brandnew.nets import net\n")
    helpers.write_text("def f():\n    from deep import *  # noqa\n\nimport loose, nosuch\n")
    deep.write_text('from . import x\n"""\nimport nobody\n"""\nimport sweeper.cli\n')
    (project / "nets" / "old.py").write_text("print 'of Python 2'\n")
    (project.parent / "nobody.py").touch()

    of_loose = user_code.user_code(["loose.callback"])

    assert {*of_loose} == {
        "brandnew/__init__.py",
        "brandnew/nets/net.py",
        "brandnew/nets/old.py",
        "deep.py",
        "helpers.py",
        "loose.py",
    }
    deep.write_text("x = 2\n")
    assert code_hash(user_code.user_code(["loose.callback"])) != code_hash(of_loose)


def test_installed_packages_and_ours_do_not_count_and_leave_no_note(tmp_path):
    named = {
        "optimizer": {"_target_": "module.configure_optimizers"},
        "model": {"_target_": "torchvision.models.resnet18"},
        "data": CONFIG["data"],
    }

    assert user_code.user_code(targets({**named, "more": {"_target_": "json.loads"}})) == {}
    assert code_hash({}) is None
    user_code.record_code({}, tmp_path, tmp_path)
    assert user_code.read_hashes(tmp_path) == [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_packages_of_another_environment_on_the_path_do_not_count(name, tmp_path, monkeypatch):
    """As the environment modules of a cluster put them there."""
    folder = tmp_path / "apps" / name
    (folder / "theirs").mkdir(parents=True)
    (folder / "theirs" / "__init__.py").touch()
    (folder / "single.py").touch()
    monkeypatch.syspath_prepend(str(folder))

    assert user_code.user_code(["theirs.Net", "single.Net"]) == {}


def test_any_change_of_a_source_changes_the_hash(project, tmp_path):
    hashes = [code_hash(code())]
    (project / "nets" / "net.py").write_text("WIDTH = 2\n")
    hashes.append(code_hash(code()))
    (project / "more.py").write_text("")
    hashes.append(code_hash(code()))
    (tmp_path / "loose.py").unlink()
    hashes.append(code_hash(code()))

    assert len(set(hashes)) == 4


@pytest.mark.usefixtures("project")
def test_an_attempt_that_resumes_notes_the_sources_before_its_own_too(tmp_path, project):
    """As with code=keep; an unchanged source is noted once."""
    folders = [tmp_path / str(number) for number in range(4)]
    for number, folder in enumerate(folders):
        (project / "nets" / "net.py").write_text(f"WIDTH = {min(number, 2)}\n")
        folder.mkdir()
        before = folders[number - 1] if number else None
        user_code.record_code(code(), folder, tmp_path, resumed=before)

    assert user_code.read_code(code_hash(code()), tmp_path) == code()
    assert user_code.read_code("other", tmp_path) == {}
    hashes = [user_code.read_hashes(folder) for folder in folders]
    first, second, third = hashes[2][::-1]
    assert len({first, second, third}) == 3
    assert hashes == [[first], [second, first], [third, second, first], [third, second, first]]


@pytest.mark.usefixtures("project")
def test_a_package_installed_for_editing_is_the_users(tmp_path, monkeypatch):
    """Pip leaves a finder in place of a path."""

    class Finder:
        @staticmethod
        def find_spec(name, *_):
            if name == "edited":
                return spec_from_file_location(name, tmp_path / "loose.py")
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])

    assert list(user_code.user_code(["edited.Net"])) == ["loose.py"]
