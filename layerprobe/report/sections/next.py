"""What to do next: the commands that write the model as a folder, and those by which others serve it."""

from layerprobe.results.markup import Markup, element, join
from layerprobe.results.parts import commands, section
from layerprobe.results.values import Section
from layerprobe.study.commands import next_commands, serve_commands
from layerprobe.study.values import Study


def next_steps(study: Study) -> Section:
    """Return the next commands; with a search also how to serve what they write."""
    block, heading = commands(*next_commands(study)), "What to do next"
    if study.finding is None:
        said = "Fine-tune, and find the layer to keep: the prediction chooses where to begin."
        return section("next", heading, said, block)
    served = (
        join(element("h3", name), commands(*command.splitlines())) for name, command in serve_commands(study).items()
    )
    return section("next", heading, _export(study), block, *served, _served(study) if serve_commands(study) else None)


def _export(study: Study) -> Markup:
    weights, layer = study.finding.weights if study.finding else None, study.kept_layer
    if weights is not None and weights.kept:
        of = "the run that trained all layers at once, truncated" if weights.scan else "the best run, by validation,"
        said = f"This writes the fine-tuned model as a folder: {of} at layer {layer}."
    else:
        said = (
            f"The weights of the runs were not kept. The first command fine-tunes one model at layer {layer} and keeps "
            "them; the second one writes it as a folder."
        )
        if weights is None:
            said += " DIRECTORY is what the first command prints."
    card = " puts the evidence of this page into its model card."
    return element("p", said, " ", element("code", "--study study.json"), card)


def _served(study: Study) -> Markup | None:
    if study.comparison.pooling == "max":
        return None
    architecture = study.comparison.model.architecture
    said = f"The servers read the pooling from the folder; each has to know the architecture, {architecture}."
    return element("p", said, class_="reading")
