"""The page of `edbl serve` in a real browser: teaching, asking, correcting, by mouse and by keys."""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from typer.testing import CliRunner

from edbl.cli import app
from tests.browser import CHROMIUM, DRIVER, Page, chromium, serving
from tests.fruit import write_fruit
from tests.photos import QUICK, write_digits

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="there is no chromium with chromedriver; `make browser` installs them"
)

KINDS = ("apple", "lemon", "grapes")
MARKUP = "<img src=x onerror=alert(1)>"
TOKEN = "a token of thirty-two characters"[2:].replace(" ", "-")
Photos = Callable[[str, Sequence[int]], list[Path]]


class Servers(NamedTuple):
    """Addresses of servers: of a folder of models, and of one that is to be made, for those who have a token."""

    models: str
    locked: str


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    folder = tmp_path_factory.mktemp("fruit")
    return lambda kind, numbers: write_fruit(folder, kind, numbers)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("served")
    token = folder / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    digits = write_digits(folder / "digits", {0: 8, 1: 8})
    short = [*QUICK, "--set", "schedule.epochs=1", "--set", "options.balance.epochs=1"]
    learnt = CliRunner().invoke(app, [str(one) for one in ("learn", folder / "models" / "trained", digits, *short)])
    assert learnt.exit_code == 0, learnt.output
    with ExitStack() as stack:
        models = stack.enter_context(serving(folder / "models"))
        locked = stack.enter_context(serving(folder / "fruit", "--token-file", str(token)))
        yield Servers(models(), locked())


@pytest.fixture(scope="module")
def url(servers: Servers) -> str:
    return servers.models


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def page(driver: Chrome, url: str) -> Iterator[Page]:
    made = Page(driver, url)
    made.look(1280, dark=False)
    yield made
    driver.get("about:blank")
    assert made.complaints() == []


def call(url: str, rest: str, value: object) -> Any:
    """Send JSON to the server."""
    request = urllib.request.Request(f"{url}/v1/models{rest}", json.dumps(value).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def upload(url: str, rest: str, files: Sequence[Path]) -> Any:
    """Send photos to the server."""
    line = "photo-photo-photo"
    parts = [
        f'--{line}\r\nContent-Disposition: form-data; name="files"; filename="{path.name}"\r\n'
        f"Content-Type: image/jpeg\r\n\r\n".encode()
        + path.read_bytes()
        for path in files
    ]
    body = b"\r\n".join([*parts, f"--{line}--\r\n".encode()])
    request = urllib.request.Request(f"{url}/v1/models{rest}", body)
    request.add_header("Content-Type", f"multipart/form-data; boundary={line}")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def teach(url: str, model: str, files: Sequence[Path], label: str) -> None:
    ids = [one["id"] for one in upload(url, f"/{model}/predict", files)["predictions"]]
    call(url, f"/{model}/teach", {"photos": [{"id": one, "label": label} for one in ids], "yes": True})


@pytest.fixture
def fruit(request: pytest.FixtureRequest, page: Page, url: str, photos: Photos) -> Page:
    """Return the page of a model of this test's own that has three classes."""
    model = re.sub(r"\W", "-", request.node.name.removeprefix("test_"))
    call(url, "", {"name": model, "keep": "photos"})
    for kind in KINDS:
        teach(url, model, photos(kind, range(5)), kind)
    page.open(f"?model={model}")
    page.says("15 photos")
    return page


def test_three_classes_are_taught_and_new_photos_are_told(page: Page, url: str, photos: Photos) -> None:
    call(url, "", {"name": "empty", "keep": "photos"})
    page.open("?model=empty")
    page.says("Show a few photos of one thing.")
    assert page.texts("nav a") == []
    for kind, sentence in (("apple", "Now a few photos of something else."), ("lemon", "Show it a new photo")):
        page.give(photos(kind, range(5)))
        page.says("Now say below what they show.")
        page.press(kind, Keys.ENTER)
        page.says(f"5 photos learnt as {kind}")
        page.says(sentence, "#guide")
    page.give(photos("grapes", range(5)))
    if not page.all(".together[open]"):
        page.click("All the same? Name them together")
    page.all(".batch:first-child [data-key='name']")[0].send_keys("grapes")
    page.click("Teach 5 photos")
    page.says("3 classes · 15 photos · 15 of 15 right")
    for kind in KINDS:
        page.give(photos(kind, range(6, 8)))
        assert page.texts(".batch:first-child .answer") == [kind, kind]
        shares = page.texts(".batch:first-child .bars li:first-child .share")
        assert [int(share.strip("over %")) > 50 for share in shares] == [True, True]
    assert page.texts(".classes strong") == [*KINDS]
    assert page.texts(".classes .told > .quiet") == ["5 photos · 5 of 5 right"] * 3


def test_what_is_unknown_gets_a_name_and_the_next_answer_changes(fruit: Page, photos: Photos) -> None:
    fruit.give(photos("pear", range(3)))
    assert fruit.texts(".answer") == ["unknown"] * 3
    first = fruit.all(".card")[0]
    fruit.click("What is it?", first)
    assert fruit.focused().get_attribute("placeholder") == "a known class, or a new name"
    fruit.press("pear", Keys.ENTER)
    fruit.until(lambda: "learnt as pear" in first.text)
    fruit.says("4 classes · 16 photos")
    fruit.says("pear before: unknown", ".card .answer")


def test_a_click_on_a_bar_corrects_an_answer_and_can_be_undone(fruit: Page, photos: Photos) -> None:
    fruit.give(photos("lemon", range(8, 9)))
    (card,) = fruit.all(".card")
    [bar] = [one for one in fruit.all("button.bar", card) if one.text.startswith("apple")]
    bar.click()
    fruit.until(lambda: "learnt as apple" in card.text)
    fruit.says("6 photos", ".classes li")
    fruit.says("Learnt 1 photo of apple.", "#notice")
    fruit.click("Undo")
    fruit.until(lambda: fruit.texts(".answer") == ["lemon"])
    fruit.says("3 classes · 15 photos")


def test_names_that_look_wrong_are_asked_about_before_they_are_learnt(fruit: Page, photos: Photos) -> None:
    fruit.give([*photos("lemon", range(6, 8)), *photos("apple", range(6, 7))])
    fruit.click("All the same? Name them together")
    fruit.click("lemon", fruit.all(".together")[0])
    fruit.says("Is this name right?", "dialog")
    fruit.says("Given as lemon. It looks more like apple.", "dialog")
    assert fruit.texts("#facts") == ["3 classes · 15 photos · 15 of 15 right"]
    fruit.click("It is apple")
    fruit.click("Teach", fruit.all("dialog")[0])
    fruit.says("18 photos")
    assert fruit.texts(".card .answer") == ["learnt as lemon", "learnt as lemon", "learnt as apple"]


def test_mistakes_and_suspicious_labels_are_reviewed(fruit: Page, url: str, photos: Photos) -> None:
    teach(url, "mistakes_and_suspicious_labels_are_reviewed", photos("apple", range(7, 8)), "lemon")
    upload(url, "/mistakes_and_suspicious_labels_are_reviewed/predict", photos("pear", range(1)))
    fruit.click("Review")
    fruit.says("Least sure 1")
    fruit.says("Mistakes 1")
    fruit.says("Learnt as lemon, told as apple")
    fruit.says("Suspicious labels 1")
    fruit.says("Learnt as lemon, looks like")
    assert [one.text for one in fruit.all("#review .acts button")].count("It is apple") == 2
    fruit.click("It is apple")
    fruit.says("No mistakes.")
    fruit.says("No name looks wrong.")
    fruit.says("16 of 16 right", "#facts")
    fruit.click("What is it?")
    fruit.press("pear", Keys.ENTER)
    fruit.says("No photos wait for a name.")


def test_classes_are_renamed_merged_and_forgotten_and_history_goes_back(fruit: Page) -> None:
    fruit.until(lambda: fruit.all("summary.class"))[0].click()
    fruit.click("Rename")
    fruit.press(Keys.CONTROL, "a", Keys.NULL, MARKUP, Keys.ENTER)
    fruit.until(lambda: fruit.texts(".classes strong")[:1] == [MARKUP])
    fruit.click("Undo")
    fruit.until(lambda: fruit.texts(".classes strong") == [*KINDS])
    fruit.all("summary.class")[1].click()
    fruit.click("Merge…", fruit.all(".classes li")[1])
    fruit.says("Merge “lemon” with another class")
    fruit.click("Merge", fruit.all("dialog")[0])
    fruit.says("2 classes · 15 photos")
    fruit.says("10 photos", ".classes li")
    fruit.all("summary.class")[-1].click()
    fruit.click("Forget…", fruit.all(".classes li")[-1])
    fruit.says("Its 5 photos will not count any more.", "dialog")
    assert fruit.focused().text == "Keep it"
    fruit.click("Forget it")
    fruit.says("1 class · 10 photos")
    fruit.click("Model")
    fruit.until(lambda: len(fruit.all(".history li")) >= 5)
    before = fruit.texts(".history li")
    assert [one.endswith("now") for one in before].count(True) == 1
    fruit.click("Undo the last change")
    fruit.says("2 classes · 15 photos")
    fruit.click("Go to version 3")
    fruit.says("3 classes · 15 photos")
    fruit.click("Remove the versions before…")
    fruit.click("Remove them")
    fruit.until(lambda: len(fruit.all(".history li")) == 1)


def test_names_stay_text(page: Page, url: str, photos: Photos, tmp_path: Path) -> None:
    call(url, "", {"name": "names", "keep": "photos"})
    teach(url, "names", photos("apple", range(3)), MARKUP)
    teach(url, "names", photos("lemon", range(3)), "</strong><script>document.title='taken'</script>")
    page.open("?model=names")
    page.until(lambda: page.texts(".classes strong")[:1] == [MARKUP])
    odd = tmp_path / "<b>&quot; x.jpg"
    odd.write_bytes(photos("apple", range(8, 9))[0].read_bytes())
    page.give([odd])
    assert page.texts(".card .answer") == [MARKUP]
    assert page.all("img[src='x'], .classes script, b > *") == []
    assert page.driver.title == "names · edbl"


def test_everything_is_done_by_keys_alone(page: Page, url: str, photos: Photos) -> None:
    call(url, "", {"name": "keys", "keep": "photos"})
    page.open("?model=keys")
    page.says("Show a few photos of one thing.")
    page.tab_to("Choose photos")  # whose dialog is the system's: files are given to the field behind it
    for kind in KINDS[:2]:
        page.give(photos(kind, range(3)))
        page.press(kind, Keys.ENTER)
        page.says(f"3 photos learnt as {kind}")
    page.give(photos("apple", range(7, 8)))
    page.tab_to("Something else…").send_keys(Keys.ENTER)
    page.press("red apple", Keys.ENTER)
    page.says("learnt as red apple")
    page.tab_to("Undo").send_keys(Keys.ENTER)
    page.says("2 classes · 6 photos")
    page.driver.execute_script("document.activeElement.blur()")
    page.tab_to("apple", "summary").send_keys(Keys.ENTER)
    page.tab_to("Rename").send_keys(Keys.ENTER)
    page.press(Keys.CONTROL, "a", Keys.NULL, "pomme", Keys.ENTER)
    page.until(lambda: "pomme" in page.texts(".classes strong"))
    page.driver.execute_script("document.activeElement.blur()")
    page.tab_to("pomme", "summary").send_keys(Keys.SPACE)
    page.tab_to("Forget…").send_keys(Keys.SPACE)
    page.press(Keys.ESCAPE)
    assert page.focused().text == "Forget…"
    page.driver.execute_script("document.activeElement.blur()")
    page.tab_to("Review").send_keys(Keys.ENTER)
    page.says("No mistakes.")
    assert page.focused().text == "Review"
    assert page.focused().tag_name == "h2"


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True)], ids=["phone", "desk"])
def test_it_is_accessible(fruit: Page, url: str, photos: Photos, width: int, dark: bool) -> None:
    fruit.look(width, dark)
    fruit.give([*photos("pear", range(1)), *photos("lemon", range(6, 8))])
    found = {"answers": fruit.violations()}
    fruit.click("What is it?")
    found["dialog"] = fruit.violations()
    fruit.press(Keys.ESCAPE)
    for part, text in (("#classes", "lemon"), ("#review", "Mistakes"), ("#model-page", "History")):
        fruit.driver.execute_script(f"location.hash = '{part}'")
        fruit.says(text, part)
        for summary in fruit.all("#classes summary"):
            if summary.is_displayed():
                summary.click()
        found[part] = fruit.violations()
        wide = fruit.driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
    call(url, "", {"name": f"none-{width}", "keep": "photos"})
    fruit.open(f"?model=none-{width}")
    fruit.says("Show a few photos")
    found["empty"] = fruit.violations()
    fruit.give(photos("apple", range(2)))
    found["naming"] = fruit.violations()
    assert {part: wrong for part, wrong in found.items() if wrong} == {}


def test_a_camera_takes_photos_one_by_one(page: Page, url: str) -> None:
    call(url, "", {"name": "camera", "keep": "photos"})
    page.open("?model=camera")
    page.click("Use the camera")
    for taken in (1, 2):
        page.until(lambda: page.driver.execute_script("return document.querySelector('video')?.videoWidth > 0"))
        page.click("Take a photo")
        page.says(f"{taken} photo", ".batch h3")
        page.until(lambda: not page.all(".card.waiting"))
    assert len(page.all(".card img")) == 2
    assert page.focused().text == "Take a photo"
    page.click("Close the camera")
    assert page.focused().text == "Use the camera"
    assert page.all("video") == []


def test_a_new_model_is_made_and_another_one_chosen(fruit: Page) -> None:
    fruit.click("New model")
    fruit.press("vegetables", Keys.ENTER)
    fruit.says("vegetables", "h1")
    fruit.says("Show a few photos of one thing.")
    fruit.all("#model")[0].send_keys("a_new")
    fruit.says("3 classes · 15 photos")


def test_who_has_no_token_is_asked_for_it_and_the_first_class_asks_what_to_keep(
    page: Page, servers: Servers, photos: Photos
) -> None:
    locked = Page(page.driver, servers.locked)
    locked.open()
    locked.says("This server asks for a token", "dialog")
    locked.press("not it", Keys.ENTER)
    locked.says("That token is not right", "dialog")
    locked.press(TOKEN, Keys.ENTER)
    locked.says("Show a few photos of one thing.")
    locked.give(photos("apple", range(3)))
    shown = "return [...document.querySelectorAll('.card img')].filter((one) => one.naturalWidth).length"
    locked.until(lambda: locked.driver.execute_script(shown) == 3)
    locked.click("Keep small copies of photos in the model, so that mistakes can be shown")
    locked.press(Keys.SHIFT, Keys.TAB, Keys.NULL)
    locked.all(".batch [data-key='name']")[0].send_keys("apple", Keys.ENTER)
    locked.says("3 photos learnt as apple")
    locked.driver.refresh()
    locked.says("1 class · 3 photos")
    locked.click("Model")
    locked.says("what the network makes of each photo, no photos")
    locked.driver.execute_script("sessionStorage.clear()")
    locked.open(f"#token={TOKEN}")
    locked.says("1 class · 3 photos")
    assert "token" not in locked.driver.current_url


def test_photos_are_added_to_a_class_that_is_named_first(fruit: Page, photos: Photos) -> None:
    fruit.all(".adding input")[0].send_keys("pear", Keys.ENTER)
    fruit.says("Show photos of pear.", "#guide")
    fruit.give(photos("pear", range(3)))
    fruit.says("3 photos learnt as pear")
    fruit.says("4 classes · 18 photos")
    fruit.click("Stop teaching this class")
    fruit.says("Show photos, and see what it says.", "#guide")
    fruit.give(photos("pear", range(4, 5)))
    fruit.until(lambda: "pear" in fruit.texts(".bars .which"))


def drop(page: Page, paths: Sequence[Path], selector: str) -> None:
    """Drop files and folders onto an element."""
    box = page.all(selector)[0].rect
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, **place, "data": data})


def test_folders_that_are_dropped_name_their_photos(page: Page, url: str, photos: Photos, tmp_path: Path) -> None:
    call(url, "", {"name": "folders", "keep": "photos"})
    page.open("?model=folders")
    page.says("Show a few photos of one thing.")
    for kind in KINDS[:2]:
        write_fruit(tmp_path, kind, range(3))
    drop(page, [tmp_path / kind for kind in KINDS[:2]], "#stage")
    page.click("Teach all of them")
    page.says("2 classes · 6 photos")
    drop(page, photos("lemon", range(5, 6)), ".classes li:last-child")
    page.says("2 classes · 7 photos")
    page.says("4 photos", ".classes li:last-child")


def test_a_trained_model_learns_what_was_put_aside_and_tells_how_far_it_is(
    page: Page, url: str, tmp_path: Path
) -> None:
    page.open("?model=trained")
    page.says("2 classes · 14 photos")
    page.give(sorted(write_digits(tmp_path, {2: 6}).rglob("*.png")))
    if not page.all(".together[open]"):
        page.click("All the same? Name them together")
    page.all(".batch:first-child [data-key='name']")[0].send_keys("two", Keys.ENTER)
    page.says("6 photos to learn.")
    page.driver.execute_script(
        "window.seen = []; new MutationObserver(() => seen.push(document.getElementById('waiting').innerText))"
        ".observe(document.getElementById('waiting'), { childList: true, subtree: true })"
    )
    page.click("Learn them now")
    page.says("3 classes")
    page.says("Learnt. The answers are those of the new model now.")
    assert any("epoch" in one for one in page.driver.execute_script("return seen"))
    page.until(lambda: not page.texts("#waiting > *"))


def test_the_export_is_downloaded_and_its_page_only_answers(fruit: Page, photos: Photos, tmp_path: Path) -> None:
    settings = {"behavior": "allow", "downloadPath": str(tmp_path)}
    fruit.driver.execute_cdp_cmd("Browser.setDownloadBehavior", settings)
    fruit.click("Model")
    fruit.click("Export")
    (file,) = fruit.until(lambda: list(tmp_path.glob("*.onnx")))
    with serving(file) as address:
        answering = Page(fruit.driver, address())
        answering.open()
        answering.says("Show photos, and see what they are.")
        answering.give([*photos("apple", range(7, 8)), *photos("pear", range(1))])
        assert answering.texts(".card .answer")[0] == "apple"
        pictures = "return [...document.querySelectorAll('.card img')].map((one) => one.naturalWidth > 0)"
        answering.until(lambda: fruit.driver.execute_script(pictures) == [True, True])
        assert answering.texts("#facts") == ["3 classes"]
        assert "0 photos" not in answering.texts("body")[0]
        assert answering.all("button.bar, #classes form, details") == []
        assert "Review" not in answering.texts("nav a")
        answering.click("Model")
        answering.says("efficientnet-lite0")
        assert answering.violations() == []


def test_a_server_that_is_gone_is_said_to_be(fruit: Page, photos: Photos) -> None:
    gone = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    fruit.driver.execute_cdp_cmd("Network.enable", {})
    fruit.driver.execute_cdp_cmd("Network.emulateNetworkConditions", gone)
    fruit.give(photos("apple", range(1)))
    fruit.says("The server does not answer. Is it still running?", ".card")
    fruit.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**gone, "offline": False})
