"""The pictures of docs/studio.md, taken anew: python docs/pictures/studio.py [FOLDER]

Needs chromium and the extra `studio`. A person's clicks and keys on the embedded census, as in the
tests; every view on a desk, in the dark and on a phone. Noise differs from run to run.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE.parents[1] / "tests" / "studio")]

import pyarrow.csv  # noqa: E402
from person import Person, served  # noqa: E402
from PIL import Image  # noqa: E402

from chromium import Chromium  # noqa: E402
from halfmask.datasets import load_adult  # noqa: E402

PUBLIC = ("age", "workclass", "education", "education-num", "hours-per-week", "native-country")
VIEWS = ("columns", "price", "train", "result")
FORMS = {"": (1200, 900, "light"), "-dark": (1200, 900, "dark"), "-phone": (390, 844, "light")}


def main(out: Path, *, train: bool = True) -> None:
    """Roles, a price, two trainings, and a picture of each view."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, _, schema = load_adult()
        pyarrow.csv.write_csv(rows, folder / "census.csv")
        (folder / "known.toml").write_text(schema.to_toml(), encoding="utf-8")
        words = ("census.csv", "--dictionary", "known.toml", "--label", "income")
        with served(folder, *words) as address, Chromium(folder / "profile") as browser:
            browser.view(width=1200, height=900)
            person = Person(browser, address)
            person.click("#rows tr[data-id='2'] button.out")
            person.go("price")
            person.until("document.querySelector('#curve svg')")
            person.go("columns")
            for column in PUBLIC:
                place = rows.column_names.index(column)
                person.click(f"#rows tr[data-id='{place}'] button.public")
            person.until("document.querySelectorAll('#rows svg').length > 0")
            for number in (1, 2) if train else ():
                person.go("train")
                person.until(
                    f"document.querySelector('#commands').textContent.includes('model-{number}')"
                )
                if number == 2:
                    person.retype("#train-epsilon", "2")
                    person.press("Tab")
                person.click("#start")
                person.until(f"document.querySelector('#one').value === 'model-{number}'", 1800)
            if train:
                person.see("document.querySelector('#other').value = 'model-1'")
                person.see("document.querySelector('#other').dispatchEvent(new Event('change'))")
                person.until("document.querySelectorAll('#cards .card').length === 2")
            for form, (width, height, scheme) in FORMS.items():
                browser.view(width=width, height=height, scheme=scheme)
                for view in VIEWS:
                    person.see(f"location.hash = '#{view}'")
                    person.settled()
                    person.settled()
                    person.see("scrollTo(0, 0)")
                    shot = browser.call("Page.captureScreenshot", format="png")["data"]
                    save(shot, out / f"studio-{view}{form}.png")


def save(shot: str, target: Path) -> None:
    """With 256 colours: a third of the bytes, and no difference to see."""
    import base64

    image = Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
