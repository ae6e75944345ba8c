"""Tests of the page of `modular-fairseq report` in Chromium.

They use every section and control by mouse and by keyboard, and compare what the page shows with the arrays.
They check both themes, print and narrow windows, and that the console of the browser has no error.
"""

import json
import re
import shutil

import numpy as np
import pytest

from modular_fairseq_cli.main import main
from modular_fairseq_cli.report.page import largest_error
from tests.report_folders import CROSS, DECODER, ENCODER, write_analysis

pytest.importorskip("selenium", reason="selenium is missing: pip install selenium")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
if not (CHROMIUM and CHROMEDRIVER):
    missing = " and ".join(
        name for name, path in (("chromium", CHROMIUM), ("chromedriver", CHROMEDRIVER)) if not path
    )
    pytest.skip(
        f"{missing} is not on PATH: apt-get install chromium chromium-driver", allow_module_level=True
    )

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --disable-quic "
    "--window-size=1280,900"
)
HOSTILE = ("</script><b>", "<unk>", "שלום", "你好")
STAMP = "2026-01-01 10:00:00 | INFO |"
TRAINING = STAMP + " train_inner | epoch 001: {0} / 400 loss=4, ppl={1}, num_updates={0}, gate_entropy=1.9\n"
VALIDATION = STAMP + " valid | epoch 001 | valid on 'valid' subset | loss 3 | ppl {1} | num_updates {0}\n"
LOG = "".join(TRAINING.format(u, 200 / u) for u in range(50, 400, 50)) + "".join(
    VALIDATION.format(u, 100 / u) for u in (100, 200, 300)
)
SECTIONS = ["overview", "training", "gates", "clusters", "competition", "patterns", "redundancy", "sentences"]


class Page:
    """Show a report in the browser, with methods that the tests need to use and read it."""

    def __init__(self, driver, path):
        self.driver, self.path = driver, path

    def open(self, state=""):
        self.driver.get("about:blank")
        self.driver.get(f"file://{self.path}{state}")
        if "block-0-0" in self.path.read_text():
            WebDriverWait(self.driver, 10).until(
                lambda driver: driver.find_elements(By.CSS_SELECTOR, ".chosen")
            )
        self.settle()  # charts adapt to the width of the window
        return self

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(f"return {script}", *arguments)

    def press(self, element, *keys):
        self.run("arguments[0].focus()", element)
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def choose(self, key, value):
        Select(self.one(f"#choose-{key}")).select_by_value(value)
        self.settle()

    def chosen(self, key):
        return self.one(f"#choose-{key}").get_property("value")

    def settle(self):
        """Wait until the browser has drawn the choice: unpacking takes a few turns of its event loop."""
        self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1]; setTimeout(() => requestAnimationFrame(done), 60)"
        )

    def read(self, run, row, column):
        """Return the text that the chosen map of a run shows when the pointer is on a cell."""
        script = """(() => {
            const map = document.querySelectorAll('.chosen')[arguments[0]].querySelector('.cells'), box = map.getBoundingClientRect();
            const [rows, columns] = [map.querySelector('canvas').height, map.querySelector('canvas').width];
            const [x, y] = [(arguments[2] + .5) * box.width / columns, (arguments[1] + .5) * box.height / rows];
            map.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + x, clientY: box.top + y}));
            return map.closest('figure').querySelector('output').textContent;
        })()"""
        return self.run(script, run, row, column)

    def shades(self, selector):
        """Return the shades in [0, 1] of the cells [rows, columns] of each canvas of a selector."""
        script = """[...document.querySelectorAll(arguments[0])].map((canvas) => [canvas.height, canvas.width,
            [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]])"""
        colours = np.array(self.run("ramp()"))
        found = []
        for height, width, pixels in self.run(script, selector):
            away = np.abs(np.reshape(pixels, (height, width, 1, 4))[..., :3] - colours).sum(-1)
            assert (away.min(-1) == 0).all()
            found.append(away.argmin(-1) / 255)
        return found

    def wrong(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(executable_path=CHROMEDRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Write reports of several checkpoints, and return their folder and the arrays of each checkpoint.

    Two checkpoints have everything, one has streams, and one is a language model.
    """
    folder = tmp_path_factory.mktemp("reports")
    arrays = {
        "old": write_analysis(folder / "old", layers=2, first_tokens=HOSTILE, seed=1),
        "new": write_analysis(folder / "new", layers=3, first_tokens=HOSTILE, seed=2),
        "streams": write_analysis(
            folder / "streams", 4, 3, 1, streams=2, parts="gates competition redundancy patterns samples"
        ),
        "gates": write_analysis(folder / "gates", parts="gates"),
        "lm": write_analysis(folder / "lm", language_model=True),
    }
    (folder / "train.log").write_text(LOG)
    main(
        [
            "report",
            str(folder / "old"),
            str(folder / "new"),
            "--label",
            "old",
            "new",
            "--log",
            str(folder / "train.log"),
            "--out",
            f"{folder}/two.html",
        ]
    )
    for i, name in enumerate(("eight", "eight, own")):
        write_analysis(folder / name, heads=8, sentences=1 + i, parts="gates samples", seed=i)
    index = folder / "eight, own/samples.json"
    index.write_text(index.read_text().replace("valid 1", "--sentence 1"))
    main(["report", f"{folder}/eight", f"{folder}/eight, own", "--out", f"{folder}/eight.html"])
    write_analysis(folder / "sixteen", heads=16, sentences=1, parts="gates samples")
    main(["report", f"{folder}/sixteen", "--out", f"{folder}/sixteen.html"])
    for name in ("one", "expert"):
        write_analysis(folder / name, parts="single-expert")
    main(["report", f"{folder}/one", f"{folder}/expert", "--out", f"{folder}/one.html"])
    write_analysis(folder / "wide", heads=6, parts="gates")
    (folder / "gates.log").write_text(TRAINING.format(50, 2) + TRAINING.format(100, 2))
    logged = ["--log", f"{folder}/gates.log", f"{folder}/train.log", *[f"{folder}/gates.log"] * 4]
    six = [str(folder / name) for name in ("gates", "wide", *["gates"] * 4)]
    main(["report", *six, "--label", *"abcdef", *logged, "--out", f"{folder}/six.html"])
    main(["report", *logged[:3], "--label", "a", "b", "--out", f"{folder}/logs.html"])
    for i, name in enumerate(("early", "late"), start=1):
        write_analysis(
            folder / name, layers=3, parts="pictures", language_model=True, updates=100 * i, seed=i
        )
    words = [str(folder / "late"), str(folder / "early"), "--label", "late", "early"]
    main(["report", *words, "--out", f"{folder}/pictures.html"])
    write_analysis(folder / "plugin", parts="plugin")
    for name in ("streams", "gates", "lm", "plugin"):
        main(["report", str(folder / name), "--out", f"{folder}/{name}.html"])
    return folder, arrays


@pytest.fixture
def page(driver, reports):
    driver.get_log("browser")
    page = Page(driver, reports[0] / "two.html")
    yield page
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert page.wrong() == []


@pytest.fixture
def arrays(reports):
    return reports[1]


def weight(readout):
    return float(re.search(r"(\d\.\d+)$", readout)[1])


def test_every_section_is_there_and_its_link_leads_to_it(page):
    page.open()
    assert [link.get_attribute("href").split("#")[1] for link in page.all("nav a")] == SECTIONS
    for link in page.all("nav a"):
        link.click()
        name = link.get_attribute("href").split("#")[1]
        assert page.run("document.activeElement.closest('section').id") == name
        assert -5 <= page.run(f"document.getElementById('{name}').getBoundingClientRect().top") < 900
        assert f"section={name}" in page.driver.current_url
    assert page.run("document.querySelector('nav a[aria-current]').hash") == "#sentences"


def test_a_section_without_data_is_not_there(driver, reports):
    page = Page(driver, reports[0] / "gates.html").open()
    assert [section.get_attribute("id") for section in page.all("section")] == ["overview", "gates"]
    assert [link.text for link in page.all("nav a")] == ["Overview", "Gates and experts"]
    assert page.wrong() == []


def test_pictures_have_maps_of_mechanisms_and_a_chart_over_the_training(driver, reports):
    """The maps are beside the pictures, and have the shades of the activations."""
    folder = reports[0]
    found = {
        name: json.loads((folder / name / "analysis.json").read_text())["analyses"]["pictures"]
        for name in ("late", "early")
    }
    page = Page(driver, folder / "pictures.html").open()
    assert [section.get_attribute("id") for section in page.all("section")] == ["overview", "pictures"]
    overview = page.one("#overview").text
    assert re.search(r"\d pictures", overview) and "sentences" not in overview
    for mechanism in (0, 1):
        page.choose("pictureMechanism", str(mechanism + 1))
        expected = []
        for run in found.values():
            values = [run["palette"][colour][0] for colour in run["pictures"][0]]
            assert len(run["layers"]) == 2
            shades = [[255 * c for c in layer["mean"][mechanism]] for layer in run["layers"]]
            shades.append(values)
            shades += [[255 * c for c in layer["single"][0][mechanism]] for layer in run["layers"]]
            expected += shades + [None] * 2 * 3  # two more pictures
        shown = page.run(
            "[...document.querySelectorAll('#pictures canvas.picture')].map((canvas) =>"
            " [canvas.width, canvas.height, [...canvas.getContext('2d')"
            ".getImageData(0, 0, canvas.width, canvas.height).data].filter((_, i) => i % 4 === 0)])"
        )
        assert len(shown) == len(expected)
        for (width, height, shades), right in zip(shown, expected, strict=True):
            assert (width, height) == (4, 3)
            assert right is None or np.allclose(shades, right, atol=0.51)
    chart = page.one("#pictures svg.chart")
    for name in ("early", "late"):  # in the order of their updates
        page.press(chart, Keys.ARROW_RIGHT)
        text = page.one("#pictures .readout").text
        assert text.startswith(f"updates {100 if name == 'early' else 200}: ")
        values = [float(value) for value in re.findall(r" (0?\.\d+)", text)]
        etas = [layer["eta_squared"] for layer in found[name]["layers"]]
        assert values == pytest.approx(etas, abs=5e-3)
    page.one("#theme").click()  # draws maps again, but pictures keep their colours
    assert page.wrong() == []


def test_analyses_of_plugins_have_tables_and_timelines(driver, reports):
    page = Page(driver, reports[0] / "plugin.html").open()
    assert [section.get_attribute("id") for section in page.all("section")] == ["overview", "others"]
    numbers, timeline = page.all("#others table")
    rows = [row.text.split() for row in numbers.find_elements(By.CSS_SELECTOR, "tr")]
    assert rows[:3] == [["module", "value"], ["encoder.layers.0.self_attn", "0.000"], [rows[2][0], "0.125"]]
    labels = [row.text for row in timeline.find_elements(By.CSS_SELECTOR, "tbody th")]
    assert labels == ["noisy", "clean", "speech", "c1"]
    shades = "[...document.querySelectorAll('#others canvas')].map((each) => [each.width, each.height, "
    shades += "...each.getContext('2d').getImageData(0, 0, 6, 1).data.filter((_, i) => i % 4 === 0)])"
    found = page.run(shades)
    assert [each[:2] for each in found] == [[6, 4], [6, 4], [6, 1], [6, 1]]
    assert found[2][2:] == [0, 255, 255, 0, 0, 255] and found[3][2:] == [128] * 6
    assert len({len(each) for each in found}) == 1 and page.wrong() == []


def test_logs_alone_show_the_training(driver, reports):
    page = Page(driver, reports[0] / "logs.html").open()
    assert [section.get_attribute("id") for section in page.all("section")] == ["overview", "training"]
    assert (
        page.one(".lead").text == "2 trainings side by side. All numbers are from the logs of fairseq-train."
    )
    assert [row.text for row in page.all(".facts tbody th")] == ["validation perplexity in the log"]
    assert len(page.all("#training figure")) == 3
    assert page.wrong() == []


def test_the_overview_says_what_the_models_do(page):
    rows = {
        row[0]: row[1:]
        for row in page.open().run(
            "[...document.querySelectorAll('.facts tr')].map(r => [...r.cells].map(c => c.innerText))"
        )
    }
    assert rows[""] == ["old", "new"]
    assert rows["parameters"] == ["1,054,768"] * 2
    assert rows["validation perplexity in the log"] == ["0.3333\nat update 300", "–"]
    assert rows["redundancy of heads"][0].startswith(
        "LR 0.551, HR 0.499 (distance, all maps)\nLR 0.853, HR 0.752 (divergence, encoder)"
    )
    assert "\nencoder, first → last layer; uniform 0.693" in rows["competition entropy"][1]
    # This model competes in one layer.
    assert rows["competition entropy"][0].endswith("\nencoder; uniform 0.693")
    gates = page.run("RUNS[0].analyses.gates")
    assert rows["shares of experts"][0].endswith(
        f"{gates['rare_experts']} of {gates['experts']} have under 1 % of the instances"
    )


def test_own_sentences_come_first(driver, reports):
    """This holds for sentences that only the second checkpoint has, too."""
    page = Page(driver, reports[0] / "eight.html").open()
    options = page.run(
        "[...document.querySelectorAll('#choose-sentence option')].map(option => option.textContent)"
    )
    assert [re.search(r"\((.*)\)$", option)[1] for option in options] == ["--sentence 1", "valid 0"]
    assert page.run(
        "[...document.querySelectorAll('.stage .side > div')].map(box => "
        "Boolean(box.querySelector('.chosen')))"
    ) == [
        False,
        True,
    ]


def test_sentences_with_the_same_words_are_two(driver, reports):
    folder = reports[0]
    write_analysis(folder / "twice", heads=2, sentences=2, parts="gates samples")
    samples = json.loads((folder / "twice/samples.json").read_text())
    samples["sentences"][1]["source"] = samples["sentences"][0]["source"]
    (folder / "twice/samples.json").write_text(json.dumps(samples))
    main(["report", f"{folder}/twice", f"{folder}/eight", "--out", f"{folder}/twice.html"])
    page = Page(driver, folder / "twice.html").open()
    assert page.run("SENTENCES.map(({ at }) => at)")[:2] == [[0, 0], [1, -1]] and page.wrong() == []


def test_eight_experts_fit_beside_each_other(driver, reports):
    page = Page(driver, reports[0] / "eight.html").open()
    assert page.run("innerWidth") == 1280
    boxes = page.run(
        "[...document.querySelectorAll('#gates .scroll')].map(box => [box.scrollWidth, box.clientWidth])"
    )
    assert len(boxes) == 2 and all(content <= width < 640 for content, width in boxes)


def test_shades_of_all_checkpoints_are_of_one_scale(driver, reports):
    page = Page(driver, reports[0] / "eight.html").open()
    shares = np.ravel(page.run("RUNS.map(run => run.analyses.gates.modules.map(module => module.shares))"))
    shades = page.run(
        "[...document.querySelectorAll('#gates .heat')].map(cell => "
        "Number(cell.style.getPropertyValue('--v')))"
    )
    # The page groups them by kind of attention.
    np.testing.assert_allclose(np.sort(shades), np.sort(shares / shares.max()), atol=1e-5)
    page = Page(driver, reports[0] / "two.html").open()
    usage = np.ravel(page.run("RUNS.map(run => run.analyses.clusters.modules[0].heads[0].usage)"))
    bars = page.run(
        "[...document.querySelectorAll('#clusters .track i')].map(bar => "
        "Number(bar.style.getPropertyValue('--to')))"
    )
    np.testing.assert_allclose(bars, usage / usage.max(), atol=1e-5)


def test_bleu_of_one_expert(driver, reports):
    page = Page(driver, reports[0] / "one.html").open()
    assert [section.get_attribute("id") for section in page.all("section")] == ["overview", "single-expert"]
    tables = page.run(
        "[...document.querySelectorAll('#single-expert table')].map(t => [...t.rows].map(r => "
        "[...r.cells].map(c => c.innerText)))"
    )
    head = ["experts", "BLEU", "deviation", "difference", "BLEU of each draw"]
    assert (
        tables
        == [
            [
                head,
                ["mixture", "30.25", "–", "0.00", ""],
                ["random", "28.75", "0.35", "-1.50", "28.50, 29.00"],
            ]
        ]
        * 2
    )
    assert [code.text for code in page.all("#single-expert code")] == ["--beam 5"] * 2
    assert page.wrong() == []


def test_a_legend_for_each_scale(page, driver, reports):
    ramps = "[...document.querySelectorAll('#sentences .ramp')].map(r => [...r.querySelectorAll('span')].map(s => s.textContent))"
    root = ["weight (exact to ± 0.004)", "0", "0.06", "0.25", "0.56", "1"]
    page.open()
    assert page.run(ramps) == [root, ["gates, clusters, competition", "0", "0.25", "0.5", "0.75", "1"]]
    assert Page(driver, reports[0] / "streams.html").open().run(ramps)[1][0] == "gates, competition"


def test_what_a_row_stands_for(page):
    page.open()
    assert not page.all(".chosen .note")
    for kind in (DECODER, CROSS):
        page.choose("kind", kind)
        assert [note.text for note in page.all(".chosen .note")] == [
            "A row is for a word that is read; the model predicts the next word."
        ] * 2


@pytest.mark.parametrize("name, heads, state", [("eight", 2 * 8, "#sentence=1"), ("sixteen", 16, "")])
def test_print_cuts_nothing_off(driver, reports, name, heads, state):
    """A sheet of A4 without its margins is 718 px wide."""
    page = Page(driver, reports[0] / f"{name}.html")
    try:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        size = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.open(state)
        for thumbs, rows in (("layer", 1), ("all", 2)):
            page.run(f"show({{thumbs: '{thumbs}'}})")
            page.settle()
            ends = page.run(
                "[...document.querySelectorAll('main *')].map(element => "
                "element.getBoundingClientRect().right)"
            )
            assert max(ends) <= 718
            boxes = page.run(
                "[...document.querySelectorAll('.thumb')].map(e => [e.getBoundingClientRect().x, "
                "e.getBoundingClientRect().y])"
            )
            assert len(boxes) == len({tuple(box) for box in boxes}) == heads * rows
            assert (
                page.run(
                    "Math.min(...[...document.querySelectorAll('.thumb canvas')].map(e => "
                    "e.getBoundingClientRect().width))"
                )
                > 20
            )
            assert page.run("document.documentElement.scrollWidth") <= 718
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_cells_say_what_the_arrays_hold(page, arrays):
    page.open()
    for kind, part in (
        (ENCODER, "encoder.layers.1.self_attn"),
        (DECODER, "decoder.layers.1.self_attn"),
        (CROSS, "decoder.layers.1.encoder_attn"),
    ):
        page.choose("kind", kind)
        page.choose("layer", "2")
        page.choose("head", "3")
        for what in ("attention", "mask"):
            page.choose("show", what)
            for run, name in enumerate(("old", "new")):
                weights = arrays[name][f"{what}/0/{part}"][2]
                for row, column in ((0, 0), (5, 2), (len(weights) - 1, weights.shape[1] - 1)):
                    assert (
                        abs(weight(page.read(run, row, column)) - weights[row, column])
                        <= largest_error(255) + 5e-4
                    ), (kind, what, name)
        page.choose("head", "mean")
        mean = arrays["new"][f"mask/0/{part}"].astype(np.float32).mean(0)
        assert abs(weight(page.read(1, 4, 1)) - mean[4, 1]) <= largest_error(255) + 5e-4


def test_maps_have_the_shades_of_the_arrays(page, arrays):
    """A shade is the square root of a weight. The other maps of a sentence have the shades of their values."""
    page.open()
    page.choose("kind", CROSS)
    page.choose("layer", "2")
    page.choose("head", "3")
    for run, name in enumerate(("old", "new")):
        column = f".stage .side > div:nth-child({run + 1})"
        weights = arrays[name]["attention/0/decoder.layers.1.encoder_attn"].astype(np.float32)
        (chosen,) = page.shades(f"{column} .chosen canvas")
        small = page.shades(f"{column} .thumb canvas")
        assert len(small) == len(weights)
        for found, expected in ((chosen, weights[2]), *zip(small, weights, strict=True)):
            assert found.shape == expected.shape and np.abs(found - np.sqrt(expected)).max() < 0.015
    page.choose("kind", DECODER)
    gates = arrays["old"]["gates/0/decoder.layers.1.self_attn"].astype(np.float32)
    (found,) = page.shades(".stage .side > div:nth-child(1) .cells[aria-label^=Gates] canvas")
    assert len(gates) > 1 and np.abs(found - gates.T).max() < 0.02
    cells = page.one(".stage .cells[aria-label^=Gates]")
    page.press(cells, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    readout = page.run("arguments[0].closest('figure').querySelector('output').textContent", cells)
    assert ": E2 " in readout and abs(weight(readout) - gates[2, 1]) <= largest_error(255) + 5e-4


def test_another_sentence_has_its_own_map_and_tokens(page, arrays):
    page.open()
    source = page.run("RUNS[0].sentences[1].source")
    page.choose("sentence", "1")
    readout = page.read(0, 1, 2)
    assert readout.startswith(f"{source[1]} → {source[2]}: ")
    assert (
        abs(weight(readout) - arrays["old"]["attention/1/encoder.layers.0.self_attn"][0, 1, 2])
        <= largest_error(255) + 5e-4
    )


def test_tokens_are_shown_as_they_are(page):
    page.open()
    names = page.run("[...document.querySelector('.chosen .rows').children].map(name => name.textContent)")
    assert names[:4] == list(HOSTILE) and names[-1] == "</s>"
    assert not page.all("#sentences b:not(.sentence > b):not(.track > b)")
    assert page.read(0, 0, 1).startswith("</script><b> → <unk>: ")
    page.choose("kind", CROSS)
    assert page.read(0, 1, 0).startswith("</script><b>' (predicts <unk>') → </script><b>: ")


def test_gates_clusters_and_competition_of_a_sentence(page, arrays):
    page.open("#kind=decoder+self-attention&layer=2&head=2")
    text = page.run("[...document.querySelectorAll('.parts')].map(part => part.innerText)")
    gate = arrays["old"]["gates/0/encoder.layers.0.self_attn"][0]
    row = re.search(r"encoder, layer 1\s+([\d.\s]+)\n", text[0])[1].split()
    assert [float(value) for value in row] == pytest.approx(gate.tolist(), abs=largest_error(255) + 6e-3)
    posterior = arrays["new"]["clusters/0/decoder.layers.1.self_attn"][1]
    clusters = page.run(
        "[...document.querySelectorAll('.parts')[1].querySelectorAll('.token sub')].map(c => "
        "Number(c.textContent))"
    )
    sure = np.diff(np.sort(posterior.astype(np.float32), axis=1)[:, -2:], axis=1)[:, 0] > 0.02
    assert sure.sum() > 4 and (np.array(clusters)[sure] == posterior.argmax(1)[sure] + 1).all()
    strips = page.run("""[...document.querySelectorAll('.cells')].filter(c => c.ariaLabel.startsWith('Competition, encoder')).map(map => {
        map.focus(); map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true}));
        return map.closest('figure').querySelector('output').textContent})""")
    for strip, name in zip(strips, ("old", "new"), strict=True):
        assert (
            abs(weight(strip) - arrays[name]["competition/0/encoder.layers.1"][0, 0])
            <= largest_error(255) + 5e-4
        )
        assert "layer 2 c1" in strip


def test_arrow_keys_step_and_shift_reads_cells(page, arrays):
    page.open()
    cells = ".chosen .cells"
    page.press(page.one(cells), Keys.ARROW_DOWN)
    page.settle()
    assert page.chosen("layer") == "2"
    # The map is drawn again, and keeps the focus.
    assert page.run("document.activeElement.className") == "cells"
    page.press(page.one(cells), Keys.ARROW_DOWN, Keys.ARROW_UP)
    page.settle()
    assert page.chosen("layer") == "2"
    page.press(page.one(cells), Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.settle()
    page.press(page.one(cells), Keys.ARROW_LEFT)
    page.settle()
    assert (page.chosen("head"), page.chosen("layer")) == ("2", "2")
    page.press(page.one(cells), "]")
    page.settle()
    assert page.chosen("sentence") == "1"
    page.press(page.one(cells), "[")
    page.settle()
    page.press(page.one(cells), "k")
    page.settle()
    assert (page.chosen("sentence"), page.chosen("kind")) == ("0", DECODER)
    page.run("document.querySelector('.chosen .cells').focus()")
    hold = webdriver.ActionChains(page.driver).key_down(Keys.SHIFT)
    hold.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT).key_up(
        Keys.SHIFT
    ).perform()
    readout = page.one(".chosen output").text
    assert (
        abs(weight(readout) - arrays["old"]["attention/0/decoder.layers.1.self_attn"][1, 2, 1])
        <= largest_error(255) + 5e-4
    )
    assert (page.chosen("head"), page.chosen("layer")) == ("2", "2")


def test_buttons_step_and_stop_at_the_ends(page):
    page.open()
    before, after = page.all("#sentences .stepper:has(#choose-layer) button")
    assert not before.is_enabled()
    after.click()
    after.click()
    page.settle()
    assert page.chosen("layer") == "3" and not after.is_enabled()
    # One of the checkpoints has only two layers.
    assert "This checkpoint has no such layer." in page.one("#sentences").text
    before.click()
    page.settle()
    assert len(page.all(".chosen")) == 2


def test_small_maps_choose_a_head(page):
    page.open()
    assert len(page.all(".thumb")) == 8
    page.choose("thumbs", "all")
    assert len(page.all(".thumb")) == (2 + 3) * 4
    page.one(".thumb[aria-label='layer 2, head 4']").click()
    page.settle()
    assert (page.chosen("layer"), page.chosen("head")) == ("2", "4")
    assert {thumb.get_attribute("aria-label") for thumb in page.all(".thumb[aria-pressed=true]")} == {
        "layer 2, head 4"
    }


def test_streams_are_stepped_through(driver, reports, arrays):
    page = Page(driver, reports[0] / "streams.html").open()
    assert not page.one("#choose-stream").is_displayed()  # the first layer belongs to no stream
    page.choose("layer", "3")
    page.choose("stream", "2")
    weights = arrays["streams"]["attention/0/encoder.streams.1.1.self_attn"][0]
    assert abs(weight(page.read(0, 3, 4)) - weights[3, 4]) <= largest_error(255) + 5e-4
    assert "layer 3, stream 2, head 1" in page.one(".chosen h4").text
    page.choose("layer", "4")
    assert not page.one("#choose-stream").is_displayed()
    assert page.wrong() == []


def test_layers_are_named_by_where_a_word_passes_them(driver, reports):
    """With streams, the last layer of the encoder is called encoder.layers.1, but a word passes it as the
    fourth.
    """
    page = Page(driver, reports[0] / "streams.html").open()
    cells = "[...document.querySelectorAll(arguments[0])].map(cell => cell.textContent)"
    encoder = [
        "layer 1",
        "layer 2, stream 1",
        "layer 2, stream 2",
        "layer 3, stream 1",
        "layer 3, stream 2",
        "layer 4",
    ]
    assert page.run(cells, "#gates tbody th[scope=row]")[:6] == encoder
    assert page.run(cells, "#patterns .side > div > div > .scroll tbody th[scope=row]")[:6] == encoder
    assert page.run(cells, "#redundancy details tbody th[scope=row]")[:6] == encoder
    assert page.run(cells, "#competition table:has(.positive) tbody th[scope=row]")[:5] == encoder[1:]
    assert page.run(cells, "#competition table:has(.positive) thead th")[1:6] == [
        "L2S1",
        "L2S2",
        "L3S1",
        "L3S2",
        "L4",
    ]
    assert page.run(cells, "#choose-competition option")[:5] == [f"encoder, {place}" for place in encoder[1:]]
    page.choose("competition", "encoder, layer 4")
    mean = page.run(
        "RUNS[0].analyses.competition.tokens.find(t => t.module === 'encoder.layers.1').tokens[0].mean[0]"
    )
    assert f"{mean:.2f}" in page.all("#competition table:has(.range) tbody tr")[0].text.split()
    strips = "[...document.querySelectorAll('.heatmap')].filter(f => f.querySelector('.cells').ariaLabel.startsWith('Competition, encoder'))"
    assert (
        page.run(f"[...{strips}[0].querySelectorAll('.rows span')].map(s => s.textContent).filter(Boolean)")[
            -1
        ]
        == "L4 c1"
    )
    assert page.wrong() == []


def test_correlation_has_a_colour_for_each_sign(page):
    page.open()
    script = """[...document.querySelectorAll('#competition td:is(.positive, .negative)')].map(c => [Number(c.textContent),
        c.style.getPropertyValue('--v'), getComputedStyle(c).getPropertyValue('--heat')])"""
    cells = page.run(script)
    matrices = page.run("RUNS[1].analyses.competition.correlation.map(c => c.matrix)")
    assert [value for value, *_ in cells] == pytest.approx(np.ravel(matrices), abs=0.005)
    assert [float(strength) for _, strength, _ in cells] == pytest.approx(
        np.abs(np.ravel(matrices)), abs=1e-6
    )
    colours = {
        value < 0: {colour for other, _, colour in cells if (other < 0) == (value < 0)} for value, *_ in cells
    }
    assert len(colours[True]) == len(colours[False]) == 1 and colours[True] != colours[False]


def test_six_runs_can_be_told_apart(driver, reports):
    page = Page(driver, reports[0] / "six.html").open()
    assert (
        len(
            set(
                page.run(
                    "[...document.querySelectorAll('.facts thead i')].map(i => "
                    "getComputedStyle(i).backgroundColor)"
                )
            )
        )
        == 6
    )
    marks = page.run("Array.from({length: 6}, (_, i) => marker(i, 9, 9, {}).outerHTML)")
    assert len(set(marks)) == 6
    uniform = page.run(
        "[...document.querySelectorAll('#training figcaption')].find(c => c.textContent.startsWith('Gate "
        "entropy')).textContent"
    )
    every = "1.386 (a), 1.792 (b), 1.386 (c), 1.386 (d), 1.386 (e), 1.386 (f)"
    assert uniform == f"Gate entropy, nats, uniform {every}"
    assert page.wrong() == []


def test_keys_are_of_the_section_that_has_the_focus(page):
    page.open()
    page.press(page.one("nav a"), "]", "k", Keys.ARROW_DOWN)
    page.settle()
    assert (page.chosen("sentence"), page.chosen("kind"), page.chosen("layer")) == ("0", ENCODER, "1")
    page.press(page.one("#sentences h2"), "]")
    page.settle()
    assert page.chosen("sentence") == "1"


def test_what_takes_keys_is_no_picture_to_a_screen_reader(page):
    page.open()
    focusable = "[...document.querySelectorAll('[tabindex=\"0\"]')].map(e => [e.getAttribute('role'), e.ariaRoleDescription])"
    assert {tuple(pair) for pair in page.run(focusable)} == {
        ("application", "line chart"),
        ("application", "map of cells"),
    }
    titles = page.run(
        "[...document.querySelectorAll('section')].map(s => "
        "document.getElementById(s.getAttribute('aria-labelledby')).textContent)"
    )
    assert titles[:3] == ["old · new", "Training", "Gates and experts"]


def test_a_language_model_has_no_source(driver, reports, arrays):
    page = Page(driver, reports[0] / "lm.html").open()
    assert page.chosen("kind") == DECODER and not page.one("#choose-kind").is_displayed()
    assert [word.text for word in page.all(".sentence b")] == ["text"]
    weights = arrays["lm"]["attention/0/decoder.layers.0.self_attn"][0]
    assert abs(weight(page.read(0, 5, 3)) - weights[5, 3]) <= largest_error(255) + 5e-4
    assert [link.get_attribute("href").split("#")[1] for link in page.all("nav a")] == [
        name for name in SECTIONS if name != "training"
    ]
    assert page.wrong() == []


def test_every_control_draws_what_it_names(page):
    page.open()
    page.choose("gates", "cross-attention, layer 1")
    assert "tokens (target)" in page.one("#gates").text
    page.choose("clusters", "encoder, layer 2")
    page.choose("clusterHead", "3")
    usage = page.run(
        "RUNS[0].analyses.clusters.modules.find(m => m.module === "
        "'encoder.layers.1.self_attn').heads[2].usage[0]"
    )
    assert f"{100 * usage:.1f} %" in page.one("#clusters .side table tbody td").text
    page.choose("competition", "decoder, layer 2")
    page.choose("mechanism", "2")
    mean = page.run(
        "RUNS[0].analyses.competition.tokens.find(t => t.module === 'decoder.layers.1').tokens[0].mean[1]"
    )
    assert f"{mean:.2f}" in page.all("#competition table:has(.range) tbody tr")[0].text.split()
    page.choose("redundancy", CROSS)
    assert (
        page.one("#redundancy .cells")
        .get_attribute("aria-label")
        .startswith("Redundancy of pairs of heads by distance, cross-attention")
    )
    for summary in page.all("summary"):
        page.run("arguments[0].scrollIntoView({block: 'center'})", summary)  # not below the navigation
        summary.click()
    shown = page.run(
        "[...document.querySelectorAll('details')].every(d => d.open && "
        "d.querySelector('table').offsetHeight > 0)"
    )
    assert shown


def test_tables_show_the_numbers_of_the_analyses(page):
    page.open()
    shares = page.run("RUNS[1].analyses.gates.modules[0].shares")
    shown = page.run(
        "[...document.querySelectorAll('#gates .side > div')[1].querySelectorAll('tr:nth-child(2) "
        ".heat')].map(c => c.textContent)"
    )
    assert shown == [f"{100 * share:.1f}" for share in shares]
    parts = page.run(
        "[...document.querySelector('#patterns .stack').children].map(part => "
        "part.getBoundingClientRect().width)"
    )
    assert np.array(parts) / sum(parts) == pytest.approx(
        page.run("RUNS[0].analyses.patterns.modules[0].shares"), abs=0.01
    )
    counts = page.run("RUNS[0].analyses.patterns.modules[0].heads[0].counts")
    row = page.run(
        "[...document.querySelectorAll('#patterns details tbody tr')[1].querySelectorAll('td')].map(c => "
        "Number(c.textContent))"
    )
    assert row == counts


def test_numbers_of_gates_and_of_redundancy(page):
    page.open()
    cells = "[...document.querySelectorAll(arguments[0])].map(r => [...r.cells].map(c => c.textContent))"
    gates = page.run("RUNS[0].analyses.gates.modules")
    shown = page.run(cells, "#gates .side > div:nth-child(1) tr:has(.heat)")
    kinds = dict.fromkeys(each["kind"] for each in gates)
    in_order = [each for kind in kinds for each in gates if each["kind"] == kind]
    assert [row[-2:] for row in shown] == [
        [f"{each['entropy']:.3f}", f"{100 * each['entropy'] / each['uniform']:.1f} %"] for each in in_order
    ]
    assert all(each["entropy"] < each["uniform"] for each in gates)
    redundancy = page.run("RUNS[0].analyses.redundancy")
    kinds = {each["type"]: each for each in redundancy["types"]}
    tables = page.all("#redundancy .side > div:nth-child(1) table:not(details table)")
    for definition, drawn in zip(("distance", "divergence"), tables, strict=True):
        rows = page.run("[...arguments[0].rows].map(r => [...r.cells].map(c => c.textContent))", drawn)
        assert rows[0][0] == f"by {definition}" and len(rows) == 2 + len(kinds)
        for name, lr, _, hr, _ in rows[2:]:
            known = [kinds[name][f"{measure}_{definition}"] for measure in ("LR", "HR")]
            assert [lr, hr] == [f"{value:.4f}" for value in known]
    page.choose("redundancy", CROSS)
    pairs = np.array(kinds[CROSS]["pairs_distance"], dtype=float)
    found, _ = page.shades("#redundancy .cells canvas")
    assert found.shape == pairs.shape and np.abs(found - pairs).max() < 0.01
    page.press(page.one("#redundancy .cells"), *[Keys.ARROW_DOWN] * 3, Keys.ARROW_RIGHT)
    readout = page.one("#redundancy figure output").text
    assert readout.endswith(f": {pairs[2, 1]:.3f}") and " and " in readout


def test_lines_of_a_chart_are_where_their_values_are(page):
    """Of each line, heights are linear in the values, or in their logarithms, and larger values are higher."""
    page.open()
    values = np.array([200 / update for update in range(50, 400, 50)])
    for axis, scale in (("log", np.log), ("linear", np.array)):
        page.choose("axis", axis)
        path = page.one("#training .chart .line.train").get_attribute("d")
        x, y = np.array(re.findall(r"[ML]([\d.]+) ([\d.]+)", path), dtype=float).T
        assert np.allclose(np.diff(x), x[1] - x[0], atol=0.11)
        slopes = np.diff(y) / np.diff(scale(values))
        assert (slopes < 0).all() and np.allclose(slopes[:3], slopes[0], rtol=0.02)


def test_a_chart_is_read_by_keys_and_by_pointer(page):
    page.open()
    chart = page.one("#training .chart")
    page.press(chart, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    readout = page.one("#training figure output")
    assert readout.text == "update 100: old, training 2; old, validation 1"
    webdriver.ActionChains(page.driver).move_to_element_with_offset(
        chart, int(chart.rect["width"] / 2) - 16, 0
    ).perform()
    assert readout.text.startswith("update 350: ")


def test_a_view_is_in_its_address(page):
    page.open("#section=sentences&sentence=1&kind=cross-attention&layer=2&head=mean&theme=dark&clusterHead=2")
    assert [page.chosen(key) for key in ("sentence", "kind", "layer", "head", "clusterHead")] == [
        "1",
        CROSS,
        "2",
        "mean",
        "2",
    ]
    page.choose("head", "4")
    assert "head=4" in page.driver.current_url and "theme=dark" in page.driver.current_url
    page.settle()
    assert 0 <= page.run("document.getElementById('sentences').getBoundingClientRect().top") < 400
    page.open("#sentence=99&kind=x&layer=-1&head=y&stream=%00&gates=none&mechanism=7&theme=pink&__proto__=1")
    assert [page.chosen(key) for key in ("sentence", "kind", "layer", "head")] == ["0", ENCODER, "1", "1"]
    assert [page.chosen(key) for key in ("gates", "mechanism")] == ["encoder, layer 1", "1"]
    assert page.all("#gates td.tokens") and page.all("#competition .range")


CONTRASTS = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const colour = rgba(getComputedStyle(element).backgroundColor);
    if (colour[3] > 250) return colour;
  }
  return [255, 255, 255];
};
const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
const texts = [...document.querySelectorAll('body *')].filter((element) => element.offsetParent && !element.disabled
  && !/SCRIPT|STYLE|OPTION/.test(element.tagName) && hasText(element));
const contrasts = texts.map((element) => {
  const [high, low] = [rgba(getComputedStyle(element).color), behind(element)].map(luminance).sort((x, y) => y - x);
  return [(high + .05) / (low + .05), `${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}`];
});
return [texts.length, ...contrasts.sort((x, y) => x[0] - y[0])[0]];
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(page, theme):
    page.open(f"#theme={theme}")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    count, contrast, where = page.driver.execute_script(CONTRASTS)
    assert count > 300
    assert contrast >= 4.5, where
    light = page.run("document.documentElement.dataset.theme")
    assert light == theme
    steps = page.run("ramp().map(([r, g, b]) => .2126 * r ** 2.2 + .7152 * g ** 2.2 + .0722 * b ** 2.2)")
    steps = steps if theme == "dark" else steps[::-1]
    assert (
        all(later >= earlier for earlier, later in zip(steps, steps[1:], strict=False))
        and steps[-1] > 10 * steps[0]
    )


def corner(page):
    """Return the colour of a cell with a weight of nearly 0 in the chosen map."""
    return page.run(
        "[...document.querySelector('.ramps canvas').getContext('2d').getImageData(0, 0, 1, "
        "1).data].slice(0, 3)"
    )


def test_the_theme_follows_the_system_until_chosen(page):
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    page.open()
    assert (
        page.run("getComputedStyle(document.querySelector('section')).backgroundColor") == "rgb(22, 28, 35)"
    )
    assert corner(page) == [22, 28, 35]
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    page.settle()
    assert corner(page) == [255, 255, 255]
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    page.settle()
    button = page.one("#theme")
    assert button.text == "Light theme"
    button.click()
    assert button.text == "Dark theme"
    assert (
        page.run("getComputedStyle(document.querySelector('section')).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert corner(page) == [255, 255, 255]


def test_print_is_light_and_without_controls(page):
    page.open("#theme=dark")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.settle()
    assert (
        page.run("getComputedStyle(document.querySelector('section')).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    assert corner(page) == [255, 255, 255]
    colours = """[...document.styleSheets[0].cssRules].find((rule) => rule.selectorText === ':root').style"""
    names = page.run(f"[...{colours}].filter((name) => name.startsWith('--'))")
    printed = "getComputedStyle(document.documentElement).getPropertyValue(arguments[0])"
    shown = {name: page.run(printed, name) for name in names}
    page.run("document.documentElement.dataset.theme = 'light'")
    assert shown == {name: page.run(printed, name) for name in names} and len(shown) > 20
    assert not page.one("header").is_displayed() and not page.one(".help").is_displayed()
    assert not any(button.is_displayed() for button in page.all("button:not(.thumb)"))
    assert page.one(".chosen canvas").is_displayed()
    assert page.run("getComputedStyle(document.querySelector('.heatmap')).breakInside") == "avoid"
    assert page.driver.execute_cdp_cmd("Page.printToPDF", {})["data"][:5] == "JVBER"  # %PDF


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_never_scrolls_sideways(page, width):
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    page.open()
    page.choose("thumbs", "all")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("innerWidth") == width
    assert page.run("document.documentElement.scrollWidth") <= width


def test_everything_can_be_reached_by_tab_and_has_a_name(page):
    page.open()
    wanted = page.run("""[...document.querySelectorAll('a[href], button, select, summary, .cells, .chart')]
        .filter(e => e.offsetParent !== null || e.ownerSVGElement === null && e.tagName === 'svg').filter(e => !e.disabled).length""")
    seen, shown = set(), set()
    for _ in range(wanted + 30):
        webdriver.ActionChains(page.driver).send_keys(Keys.TAB).perform()
        what = page.run("""(() => { const e = document.activeElement; if (e === document.body) return null;
            e.dataset.seen ??= String(document.querySelectorAll('[data-seen]').length);
            const name = e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent;
            const wanted = e.matches('a[href], button, select, summary, .cells, .chart');
            return [e.dataset.seen, name.trim(), getComputedStyle(e).outlineStyle, wanted]; })()""")
        if what is None:
            continue
        if what[0] in shown:
            break
        shown.add(what[0])
        assert what[1] and what[2] != "none", what
        if what[3]:
            seen.add(what[0])
    assert len(seen) == wanted


def test_the_page_works_as_a_file_without_network(page):
    page.open()
    assert page.run("performance.getEntriesByType('resource').length") == 0
    page.driver.execute_script(
        "const script = document.createElement('script'); script.textContent = 'hacked = 1'; "
        "document.body.append(script)"
    )
    assert page.run("typeof hacked") == "undefined"
    # Reading the log removes this entry, so that it does not count as an error of the page.
    assert "Content Security Policy" in page.wrong()[0]["message"]
