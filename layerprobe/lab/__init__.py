"""Research behind the tool. Imports everything; only the command line imports it."""

from layerprobe.results.shown import PAGES

PAGES.add(dict.fromkeys(("Bench", "RecipeResult"), "layerprobe.results.page:declared_page"))
