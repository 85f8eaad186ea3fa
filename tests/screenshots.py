"""Make the screenshots of docs/teaching.md anew: `python -m tests.screenshots`."""

import io
import tempfile
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.keys import Keys

from tests.browser import Page, chromium, serving
from tests.fruit import write_fruit

PLACE = Path(__file__).parents[1] / "docs" / "teaching"
PHONE, DESK = 390, 1280
COLOURS = 256  # of a picture, which keeps it small; fewer spoil photos


class Album:
    """A page that is shown, and pictures of it."""

    def __init__(self, page: Page, fruit: Path) -> None:
        self.page, self.fruit = page, fruit

    def give(self, *kinds: tuple[str, range]) -> None:
        paths = [path for kind, numbers in kinds for path in write_fruit(self.fruit, kind, numbers)]
        self.page.give(paths)
        self.rest()

    def name(self, name: str) -> None:
        if self.page.all(".together:not([open])"):
            self.page.click("All the same? Name them together")
        self.page.all(".batch:first-child [data-key='name']")[0].send_keys(name, Keys.ENTER)
        self.page.says(f"photos learnt as {name}")
        self.page.click("Close this message")
        self.rest()

    def rest(self) -> None:
        """Wait until all pictures on the page are there."""
        loaded = "return [...document.images].every((one) => one.complete && one.naturalWidth)"
        self.page.until(lambda: self.page.driver.execute_script(loaded))

    def take(self, name: str, width: int, dark: bool, height: int) -> None:
        self.page.look(width, dark, height)
        self.page.driver.execute_script("scrollTo(0, 0)")
        self.rest()
        picture = Image.open(io.BytesIO(self.page.driver.get_screenshot_as_png())).convert("RGB")
        PLACE.mkdir(exist_ok=True)
        picture.quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE).save(PLACE / f"{name}.png", optimize=True)
        self.page.look(DESK, dark=False)


def walk(album: Album) -> None:
    """Teach, ask, correct and look around."""
    page = album.page
    page.open()
    page.says("Show a few photos of one thing.")
    album.take("empty", DESK, False, 460)
    album.take("empty-phone", PHONE, True, 560)
    album.give(("apple", range(5)))
    album.take("naming-phone", PHONE, False, 780)
    album.name("apple")
    for kind in ("lemon", "grapes"):
        album.give((kind, range(5)))
        album.name(kind)
    album.give(("apple", range(6, 7)), ("pear", range(1, 2)), ("grapes", range(8, 9)))
    album.take("answers", DESK, False, 660)
    album.take("answers-phone", PHONE, True, 780)
    page.click("What is it?")
    page.press("pear", Keys.ENTER)
    page.says("learnt as pear")
    page.click("Close this message")
    album.give(("apple", range(10, 11)))
    bars = page.all(".batch:first-child button.bar")
    next(one for one in bars if one.text.startswith("lemon")).click()
    page.says("learnt as lemon")
    page.click("Close this message")
    page.click("Review")
    page.says("Learnt as lemon")
    album.take("review", DESK, True, 860)
    page.driver.execute_script("location.hash = '#classes'")
    page.until(lambda: page.all("summary.class"))[0].click()
    album.take("classes-phone", PHONE, False, 660)
    page.click("Model")
    page.says("Undo the last change")
    album.take("model-phone", PHONE, True, 780)


def main() -> None:
    """Serve a model that is not there yet, and walk."""
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name, "fruit")) as address,
        chromium(Path(name, "b")) as driver,
    ):
        walk(Album(Page(driver, address()), Path(name, "photos")))


if __name__ == "__main__":
    main()
