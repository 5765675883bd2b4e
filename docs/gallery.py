"""Write the live pages of the gallery from the results beside it, which commands printed with --json."""

from pathlib import Path

from layerprobe.comparison.values import Comparisons
from layerprobe.files.serialisation import from_dict, parse_json
from layerprobe.results.document import write_page
from layerprobe.results.kept import load, save

GALLERY = Path(__file__).parent / "gallery"


def main() -> None:
    """Write a page for each result."""
    save(load(GALLERY / "finding.json"), GALLERY / "finding.html")
    measured = parse_json((GALLERY / "compare.json").read_text(encoding="utf-8"))
    first, *others = (from_dict(Comparisons, item) for item in measured)
    write_page(first, GALLERY / "compare.html", beside=others)


if __name__ == "__main__":
    main()
