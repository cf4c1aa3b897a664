"""The report page in a real Chromium: answered, explored, compared, and safe against its data."""

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from simulated_studies import simulated_curves, simulated_runs, with_settings, write_results

from analysis.cli import main
from analysis.figures.points import points
from analysis.figures.style import CONTRAST, contrast
from analysis.report import page as report_page
from analysis.report.page import conclusions, page, page_data, report_data
from analysis.tables.metric import Measured

EVIL = '</script><script>document.title="owned"</script><img src=x onerror=document.title="owned">'


def some_runs():
    return simulated_runs(
        [256, 1024, 4096], [0, 5], 2, accuracy=lambda b, w: 0.8 - b / 100000 + w / 100, noise=0.01
    )


def some_results():
    """Twelve runs, the first of which diverged."""
    runs = some_runs()
    runs.loc[0, ["outcome", "val_accuracy"]] = ["diverged", np.nan]
    return runs


def write_some(folder: Path) -> Path:
    """Those, with the diverged one's log."""
    runs = some_results()
    runs["log_path"] = [f"attempts/log-{i}.txt" for i in range(len(runs))]
    write_results(folder, runs, simulated_curves(runs, 4))
    (folder / "attempts").mkdir()
    (folder / "attempts" / "log-0.txt").write_text("step 7\nloss nan at step 8\n")
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_some(tmp_path / "results")


def write_report(folder: Path, results: Path) -> Path:
    target = folder / "report.html"
    assert main(["report", str(results), "-o", str(target)]) == 0
    return target


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """The page of twelve runs, written once."""
    folder = tmp_path_factory.mktemp("report")
    return write_report(folder, write_some(folder / "results"))


@pytest.fixture
def opened(browser, report):
    """The browser, with the page just opened."""
    open_page(browser, report)
    return browser


def open_page(browser, path: Path) -> None:
    browser.get("about:blank")  # or another state in the address would be the same document
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())
    wait(browser, "return document.body.dataset.ready")


def wait(browser, script: str):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(lambda b: b.execute_script(script))


def find(browser, selector: str):
    return browser.find_element("css selector", selector)


def all_of(browser, selector: str):
    return browser.find_elements("css selector", selector)


def search(browser, text: str) -> None:
    """Type into the filter, and wait until the address has it."""
    box = find(browser, "#query")
    box.clear()
    box.send_keys(text)
    wait(browser, "return state.query === byId('query').value")


def choose(browser, **choices: str) -> None:
    for key, value in choices.items():
        find(browser, f"#choose-{key} option[value='{value}']").click()


def press(browser, selector: str, *keys: str) -> None:
    find(browser, selector).send_keys(*keys)


def requests(browser) -> list[str]:
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m for m in sent if m["method"] == "Network.requestWillBeSent"]
    return [message["params"]["request"]["url"] for message in sent]


def test_the_page_opens_offline_without_errors_or_requests(opened):
    assert find(opened, "#count").text == "12 of 12 runs"
    assert opened.execute_script("return figures.explore.numDots") == 12
    assert opened.execute_script("return figures.curves.numLines") == 12
    assert [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"] == []
    others = [url for url in requests(opened) if not url.startswith(("file://", "about:"))]
    assert others == []


def test_the_answer_comes_first_and_is_that_of_the_printed_figures(opened):
    """Means, t intervals and shares of what diverged are those of analysis.figures.points."""
    expected = points(some_results())
    order = [element.get_attribute("id") for element in all_of(opened, "main [id]")]

    shown = opened.execute_script("return figures.answer.groups")

    places = [order.index(name) for name in ("estimates", "next", "claims", "explore")]
    assert places == sorted(places)
    assert order.index("answer") < order.index("estimates")
    assert "1 diverged" in find(opened, "#summary").text
    frame = pd.DataFrame(shown).astype({"mean": float}).sort_values(["x", "level"])
    assert frame["count"].tolist() == expected["num_finished"].tolist()
    for name in ("mean", "low", "high"):
        theirs, ours = frame[name].astype(float), expected[name]
        np.testing.assert_allclose(theirs, ours, rtol=1e-5)
    first = expected.iloc[0]
    np.testing.assert_allclose(
        frame.iloc[0]["share"], first[["diverged_low", "diverged_high"]].astype(float), atol=1e-5
    )
    assert "not in the means: batch 256, warmup 0, lr linear: 1 of 2" in (
        find(opened, "#answer-note").text
    )


def test_the_pointer_shows_a_run_and_a_click_compares_it_with_another(opened):
    from selenium.webdriver import ActionChains

    choose(opened, kind="runs")
    search(opened, "global_batch=1024 seed=1 warmup_epochs=5")
    dot = find(opened, "#explore g[fill-opacity] circle, #explore circle")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", dot)

    ActionChains(opened, duration=0).move_to_element(dot).click().perform()

    assert "global_batch: 1,024warmup_epochs: 5" in find(opened, "#explore [aria-label=tip]").text
    first = opened.execute_script("return state.picks[0]")
    search(opened, "outcome=diverged")
    press(opened, "#table input", " ")
    rows = [row.text for row in all_of(opened, "#picked > table tr")]
    others = opened.execute_script("return state.picks.slice(1)")
    assert rows[0].split() == [first, *others, "meaning"]
    assert any(row.startswith("global_batch 1,024 256 ") for row in rows)
    assert not any(row.startswith("model") for row in rows)
    assert "loss nan at step 8" in find(opened, "#picked").text


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("global_batch>=1024 warmup_epochs=5", 4),
        ("seed<=0", 6),
        ("outcome!=finished", 1),
        ("-diverged", 11),
        ('"trained to the end" seed=1', 6),
        ("seed=7", 0),
        ("val_accuracy>50", 11),
        ("val_accuracy>0.5", 11),
        ("global_batch>=1,024", 8),
    ],
)
def test_a_filter_narrows_figures_and_table(opened, query, count):
    search(opened, query)

    assert find(opened, "#count").text == f"{count} of 12 runs"
    assert opened.execute_script("return figures.explore.view.runs.length") == count
    assert len(all_of(opened, "#table tr")) == 1 + count


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("val_acuracy>0.5", "no column is named val_acuracy"),
        ("seed>b", "seed is a number, b is none"),
    ],
)
def test_a_filter_that_no_run_can_match_says_why(opened, query, words):
    search(opened, query)

    assert find(opened, "#count").text == f"0 of 12 runs; {words}"


def test_a_line_has_a_gap_where_a_batch_was_not_run_and_the_numbers_are_in_order(browser, tmp_path):
    runs = simulated_runs([256, 512, 1024], [0, 5], 2, accuracy=lambda b, w: 0.7, noise=0.01)
    runs = runs[(runs["global_batch"] != 512) | (runs["warmup_epochs"] == 0)][::-1]
    write_results(tmp_path, runs, simulated_curves(runs, 2))
    open_page(browser, without_estimates(tmp_path, runs))

    groups = browser.execute_script("return figures.answer.groups.map((g) => [g.level, g.x])")
    lines = browser.execute_script(
        "return [...document.querySelectorAll('#answer [aria-label=line] path')]"
        ".map((path) => path.getAttribute('d').match(/M/g).length)"
    )

    assert groups == sorted(groups)
    assert sorted(lines) == [1, 2]


def test_curves_with_evaluations_within_epochs_have_an_axis_of_examples(browser, tmp_path):
    runs = some_runs()
    curves = simulated_curves(runs, 2)
    within = curves.assign(epoch=0, examples_seen=1500 * curves["epoch"])
    open_page(browser, without_estimates(tmp_path, runs, within))

    labels = [text.text.strip(" →") for text in all_of(browser, "#curves svg text")]

    assert "examples" in labels
    assert "1,500" in labels


def test_figures_have_panels(opened):
    choose(opened, facet="seed", color="outcome")
    assert "Seed 0" in find(opened, "#explore").text
    assert "Seed 1" in find(opened, "#explore").text
    assert find(opened, "#legend").text.split() == ["Outcome", "diverged", "finished"]


def test_many_lines_are_told_apart_by_shape_and_dash(browser, tmp_path):
    runs = simulated_runs([256, 1024], range(8), 1, accuracy=lambda b, w: 0.8 + w / 100)

    open_page(browser, without_estimates(tmp_path, runs))

    shapes = [spot.get_attribute("data-shape") for spot in all_of(browser, "#answer-legend i")]
    assert len({*shapes[:6]}) == 6
    assert shapes[6:] == shapes[:2]
    dashed = "return document.querySelectorAll('#{} svg [stroke-dasharray] path').length"
    assert browser.execute_script(dashed.format("answer")) == 4
    assert browser.execute_script(dashed.format("curves")) == 8  # two batches of each warmup


def test_losses_stand_on_a_logarithm_if_asked_and_are_plain_numbers(opened):
    """`200m` is no loss that a paper would print, and a bar below 0 makes no axis linear."""
    choose(opened, y="val_loss")
    find(opened, "#tick-ylog").click()
    kind = opened.execute_script("return figures.explore.svg.scale('y').type")
    labels = [text.text for text in all_of(opened, "#explore svg text")]

    assert kind == "log"
    assert "0.2" in labels


def test_a_legend_entry_hides_what_it_names(opened):
    press(opened, "#legend button", " ")

    assert find(opened, "#count").text == "6 of 12 runs"
    assert find(opened, "#legend button").get_attribute("aria-pressed") == "false"


def test_a_heading_sorts_the_table(opened):
    heads = [head.text for head in all_of(opened, "#table th")]
    column = heads.index("global_batch")
    for _ in range(2):
        press(opened, "#sort-global_batch", " ")

    rows = all_of(opened, "#table tr")[1:]
    shown = [row.find_elements("css selector", "td, th")[column].text for row in rows]
    assert shown == ["256"] * 4 + ["1,024"] * 4 + ["4,096"] * 4
    assert all_of(opened, "#table th")[column].get_attribute("aria-sort") == "ascending"


def test_the_choices_stand_in_the_address_and_the_table_can_be_saved(opened, tmp_path):
    behaviour = {"behavior": "allow", "downloadPath": str(tmp_path)}
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    search(opened, "global_batch=256")
    address = opened.current_url
    opened.get("about:blank")
    opened.get(address)
    wait(opened, "return document.body.dataset.ready")

    find(opened, "#csv").click()
    wait_for((tmp_path / "runs.csv").exists)

    table = pd.read_csv(tmp_path / "runs.csv")
    assert table["global_batch"].tolist() == [256] * 4
    assert {"outcome", "val_accuracy", "seed"} <= set(table)


def wait_for(is_so) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(None, 60).until(lambda _: is_so())


@pytest.mark.parametrize(("theme", "paper"), [("light", "#ffffff"), ("dark", "#16181c")])
def test_colours_can_be_told_from_the_paper_in_light_and_dark(opened, theme, paper):
    choose(opened, theme=theme)

    color = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    inks = opened.execute_script(
        "return [...ORDERED[theme()], ...NAMED[theme()], DIVERGED[theme()]]"
    )
    drawn = opened.execute_script("return [...figures.answer.view.palette.values()]")

    assert opened.execute_script("return d3.color(arguments[0]).formatHex()", color) == paper
    assert min(contrast(ink, paper) for ink in [*inks, *drawn]) >= CONTRAST


def test_all_that_is_used_has_a_name_for_a_screen_reader(opened):
    nodes = opened.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = {"button", "checkbox", "combobox", "searchbox", "region", "img"}
    used = [n for n in nodes if n.get("role", {}).get("value") in roles and not n["ignored"]]

    nameless = [n["role"]["value"] for n in used if not n.get("name", {}).get("value")]

    assert len(used) > 20
    assert nameless == []
    assert (
        find(opened, "#explore")
        .get_attribute("aria-label")
        .startswith(
            "Validation accuracy [%] against Global batch [examples] by Warmup [epochs]: 12 runs;"
        )
    )
    assert "mean " in find(opened, "#answer-numbers").get_attribute("textContent")


@pytest.fixture(scope="module")
def many() -> str:
    """The page of 1,600 runs of 90 epochs, without conclusions."""
    rng = np.random.default_rng(0)
    batches = [64 * 2**k for k in range(8)]
    runs = simulated_runs(
        batches, [0, 1, 2, 5], 50, accuracy=lambda b, w: 0.7 - b / 1e5, noise=0.02, rng=rng
    )
    curves = simulated_curves(runs, 90)
    for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
        curves[name] *= rng.uniform(0.98, 1, len(curves))
    runs[["wall_s", "train_s", "examples_per_s"]] = rng.random((len(runs), 3)) * 1000
    runs["results"] = curves["results"] = "results"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "MAX_NUMBERS", int(report_page.MAX_NUMBERS * len(runs) / 10_000))
        shown = page_data(Measured(runs, curves), ["results"], "many")
    return page(shown | conclusions(Measured(runs[:0], curves)))


@pytest.mark.slow
def test_many_runs_are_means_until_few_are_in_view(browser, tmp_path, many):
    (tmp_path / "many.html").write_text(many, encoding="utf-8")
    open_page(browser, tmp_path / "many.html")

    assert browser.execute_script("return [figures.explore.numDots, figures.curves.isMean]") == [
        0,
        True,
    ]
    assert "means are drawn until 1,500 runs" in find(browser, "#count").text

    search(browser, "global_batch<100")

    assert find(browser, "#count").text == "200 of 1,600 runs"
    assert browser.execute_script("return [figures.explore.numDots, figures.curves.isMean]") == [
        200,
        False,
    ]


def test_a_page_of_ten_thousand_runs_is_below_eight_megabytes(many):
    """Of 1,600 runs with as many measures as 10,000 would have."""
    shared = len(page({}))

    assert shared + (len(many) - shared) * 10_000 / 1600 < 8e6


def test_commands_are_copied_and_axes_and_titles_are_words(browser, tmp_path):
    command = "python -m sweeper -m batch=1,2 'tags=a b'"
    open_page(browser, without_estimates(tmp_path, some_runs(), next=[["Why?", "so", [command]]]))

    assert browser.title == find(browser, "h1").text == "results: validation accuracy"
    copied = "document.addEventListener('copy', () => (window.copied = String(getSelection())));"
    browser.execute_script(f"navigator.clipboard.writeText = () => Promise.reject(); {copied}")
    find(browser, "#next .command button").click()
    wait(browser, "return document.querySelector('#next .command button').textContent === 'copied'")
    assert browser.execute_script("return window.copied") == command
    axes = [element.text for element in all_of(browser, "svg [aria-label$='axis label'] text")]
    drawn = " ".join(axes)
    assert "Global batch [examples]" in drawn
    assert "Validation accuracy [%]" in drawn
    assert "_" not in drawn


def test_a_paper_says_of_what_was_not_run_no_more_than_how_much(tmp_path):
    batches = some_runs()["global_batch"].replace({1024: 3840, 4096: 30720})
    runs = some_runs().assign(global_batch=batches, num_train_examples=61440)
    write_results(tmp_path, runs, simulated_curves(runs, 4))
    found = report_data([str(tmp_path)], "report")

    (paper,) = found["claims"]
    kinds = [verdict for verdict, _ in paper["verdicts"]]
    assert kinds.count("not run") == 1
    assert re.match(r"\d+ more claims: ", paper["verdicts"][-1][1])


def test_markup_in_a_config_is_text(browser, tmp_path):
    runs = some_runs().assign(reason=EVIL, data_about=EVIL, model=EVIL, lr_rule=EVIL)
    runs["config_json"] = [json.dumps({"note": EVIL + str(i)}) for i in range(len(runs))]
    write_results(tmp_path / "evil", runs, simulated_curves(runs, 2))

    open_page(browser, write_report(tmp_path, tmp_path / "evil"))

    assert browser.title == "evil: validation accuracy"
    assert browser.find_elements("css selector", "img") == []
    assert EVIL in find(browser, "#summary").text


def phone(browser, width: int) -> None:
    """As on a screen of so many pixels."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def without_estimates(folder: Path, runs: pd.DataFrame, curves=None, **conclusions) -> Path:
    """The page of some runs, with conclusions that are given."""
    runs = runs.assign(results="results")
    curves = (simulated_curves(runs, 2) if curves is None else curves).assign(results="results")
    none = {"claims": [], "findings": [], "estimates": [], "next": []}
    shown = page_data(Measured(runs, curves), ["results"], "some") | none | conclusions
    (folder / "some.html").write_text(page(shown), encoding="utf-8")
    return folder / "some.html"


def test_on_a_phone_long_names_and_proposals_are_within_the_page(browser, tmp_path):
    long = "x" * 80
    runs = some_runs().assign(model=long, data=long, data_about=long, lr_rule=long)
    runs.loc[runs.index[::2], "lr_rule"] = "y" * 80
    question = "Beyond 8,192 accuracy falls: 16,384 is below 256 (figure 1)"
    path = without_estimates(tmp_path, runs, next=[[question, "2 runs", ["x" * 200]]])
    phone(browser, 390)
    try:
        open_page(browser, path)

        widths = "return [document.documentElement.scrollWidth, innerWidth]"
        assert browser.execute_script(widths) == [390, 390]
        assert find(browser, "#next dd").size["width"] > 300
        titles = "return [...document.querySelectorAll('#answer svg [font-weight=bold] text')]"
        shown = browser.execute_script(f"{titles}.map((t) => t.getBoundingClientRect().width)")
        assert len(shown) == 2
        assert max(shown) < 195
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_runs_that_may_not_be_compared_are_panels_of_their_own(browser, tmp_path):
    runs = some_runs()
    decayed = runs.assign(run_id="d" + runs["run_id"].str[1:])
    decayed = with_settings(decayed, optimizer={"weight_decay": 0.1})
    both = pd.concat([runs, decayed], ignore_index=True)

    open_page(browser, without_estimates(tmp_path, both))

    assert find(browser, "#choose-facet").get_attribute("value") == "compared"
    assert find(browser, "#count").text == "24 of 24 runs"
    choose(browser, facet="lr_rule")
    assert (
        "some means are of runs that differ in more than the seed" in find(browser, "#count").text
    )


def test_no_character_of_the_data_is_in_the_page():
    """It is compressed, so nothing of it can end its element."""
    (text,) = re.findall('id="data">(.*)</script>', page({"runs": EVIL}).split("\n<script>")[0])

    assert re.fullmatch("[A-Za-z0-9+/=]+", text)
    assert json.loads(zlib.decompress(base64.b64decode(text)))["runs"] == EVIL


def test_the_page_names_no_other_place():
    """But the name spaces of XML, and who wrote a library."""
    text = page({})

    assert "default-src 'none'" in text
    assert "connect-src 'none'" in text
    places = set(re.findall(r"https?://([\w.]+)", text))
    assert places == {"www.w3.org", "d3js.org"}


def test_the_licences_of_the_libraries_stand_beside_them():
    folder = Path(report_page.__file__).parent / "vendor"
    licences = (folder / "LICENSES.txt").read_text()

    for script in folder.glob("*.js"):
        version = re.search(r"v(\d+\.\d+\.\d+) Copyright", script.read_text())
        assert version
        assert f"{version[1]}. Copyright" in licences
        assert f"{script.name}: " in licences


def test_the_report_says_on_the_console_once_which_files_could_not_be_read(
    results, tmp_path, capsys
):
    torn, empty = sorted((results / "runs").iterdir())[:2]
    torn.write_bytes(torn.read_bytes()[:1000])
    empty.write_bytes(b"")

    assert main(["report", str(results), "-o", str(tmp_path / "page.html")]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"skipped {torn}: it cannot be read (Parquet magic bytes not found")
    assert said[1:] == [
        f"skipped {empty}: the file is empty (0 bytes)",
        f"wrote {tmp_path / 'page.html'}",
    ]


def test_a_report_of_no_runs_is_said_to_be_empty(tmp_path, capsys):
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 0

    assert f"no runs in {tmp_path}: the page is empty\n" in capsys.readouterr().out
    assert "No runs yet." in (tmp_path / "page.html").read_text()


def test_the_note_of_a_figure_says_which_points_are_not_to_be_compared(tmp_path):
    runs = some_runs()
    spans = np.where(runs["global_batch"] == runs["global_batch"].min(), 64, 256)
    write_results(tmp_path, runs.assign(bn_span=spans), simulated_curves(runs, 3))

    (group,) = report_data([str(tmp_path)], "command")["groups"]

    said = "Not to be compared: Arms differ in more than the setting in question: BatchNorm"
    assert said in group["note"]
