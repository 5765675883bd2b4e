"""Where the numbers come from, what the words mean, and the data to take away."""

from __future__ import annotations

from layerprobe.encoders.values import ModelDescription
from layerprobe.finetuning.values import Protocol
from layerprobe.metrics.names import metric_title
from layerprobe.pages import numbers
from layerprobe.pages.markup import Markup, element
from layerprobe.pages.parts import definitions, downloads, row, section, table
from layerprobe.report import words
from layerprobe.similarity.values import SimilarityMap
from layerprobe.study.values import Study

GLOSSARY = {
    "CKA": "Centred kernel alignment: how alike two models arrange the same texts; 1 is the same up to rotation and"
    " scale, about 0 is unrelated.",
    "Debiased": "An estimator of CKA without the upward bias of few texts and many features; it can be slightly"
    " negative.",
    "Layer": "0 is the output of the embedding module, l the output of block l; truncating at layer l keeps blocks"
    " 1 to l.",
    "Drop layer": "A layer flagged as scoring lower after fine-tuning than the best earlier layer; the onset is the"
    " first of the final run.",
    "TMFT": "Truncated model fine-tuning: the blocks above a layer are removed, and the rest is fine-tuned.",
    "Zero-shot": "Scores before any fine-tuning: of the cosine of embeddings, or of logistic regression on them.",
}

UNCERTAIN = {
    "Interval, band": "Where the value of a layer, and the whole curve at once, would lie for all texts like these.",
    "Redraw": "The curve drawn again within the errors that its sample of texts leaves. How many redraws flag a layer"
    " says how surely the curve declines there, not how probable it is that fine-tuning drops.",
}
"""Words of studies with intervals."""


def provenance(study: Study) -> Markup:
    """Return the models, the data, the conventions and the machine."""
    return section("provenance", "Where the numbers come from", _models(study), _facts(study))


def _models(study: Study) -> Markup:
    further = study.further_comparisons
    references = [] if study.comparison.alone else [study.comparison.reference, *(one.reference for one in further)]
    models = [study.comparison.model, *references]
    names = ["Model", "Reference", *(f"Reference {index + 2}" for index in range(len(further)))][: len(models)]
    facts = [_model_facts(one) for one in models]
    rows = (row(fact, (of[fact] for of in facts)) for fact in facts[0])
    return element("div", table("Models", ("", *names), rows), class_="models")


def _model_facts(model: ModelDescription) -> dict[str, str]:
    norm = {
        "none": "post-norm, nothing added",
        "final": "final norm applied at every layer",
        "raw": "final norm left out",
    }[model.norm]
    return {
        "Name": model.name,
        "Revision": model.revision,
        "Architecture": model.architecture,
        "Blocks": str(model.n_blocks),
        "Hidden size": str(model.hidden_size),
        "Parameters": numbers.millions(model.parameters[-1]),
        "Norm": norm,
        "Precision": model.dtype,
    }


def _facts(study: Study) -> Markup:
    source = study.provenance
    facts = {
        "Task": f"{source.task} ({source.task_kind}, sha256 {source.task_digest})",
        "Data": "; ".join(source.notes) or None,
        "Texts": f"{source.n_texts} distinct (sha256 {source.texts_digest})",
        "Embeddings": f"{study.comparison.pooling} pooling",
        "Similarity": _similarity(study),
        "Rule": _rule(study),
        "Fine-tuning": _protocol(study.protocol, study) if study.protocol else None,
        "Settings": ", ".join(f"{name} {value}" for name, value in source.settings.items()) or None,
        "Seeds": ", ".join(map(str, source.seeds)) or None,
        "Device": source.device,
        "Versions": ", ".join([f"layerprobe {source.layerprobe}", *(f"{k} {v}" for k, v in source.versions.items())]),
        "Created": source.created,
        "Command": element("code", source.command),
    }
    return definitions({name: fact for name, fact in facts.items() if fact is not None})


def _similarity(study: Study) -> str:
    """Return every convention that the similarities depend on."""
    found = study.comparison.map
    median = [f"the median over {found.sigma_samples} texts"] if found.sigma_samples else []
    said = [*found.measure.conventions, *median, words.features(found).lower()]
    said += [f"{found.n_samples} texts", _intervals(found)]
    if found.null is not None:
        said.append(f"{found.null.permutations} permutations for what chance reaches")
    return "; ".join([*said, f"{study.comparison.curve.alignment} alignment"])


def _intervals(found: SimilarityMap) -> str:
    errors = found.uncertainty
    if errors is None:
        return "no intervals"
    units = "" if errors.n_clusters is None else f", {errors.n_clusters} documents"
    return f"{numbers.percent(errors.level)} intervals from the {errors.method}{units}"


def _rule(study: Study) -> str:
    redrawn = study.prediction.probability
    if redrawn is None:
        return study.prediction.rule
    return f"{study.prediction.rule}, on the curve and on {redrawn.draws} redraws of it (seed {redrawn.seed})"


def _protocol(protocol: Protocol, study: Study) -> str:
    return (
        f"AdamW at {protocol.learning_rate:g}, weight decay {protocol.weight_decay:g}, {protocol.epochs} epochs of"
        f" {protocol.batch_size} examples a step, {numbers.percent(protocol.warmup)} warm-up then linear, gradients"
        f" clipped to {protocol.max_grad_norm:g}, at most {protocol.max_length} tokens, {protocol.pooling} pooling; the"
        f" epoch with the best validation {metric_title(study.metric)} counts"
    )


def glossary(study: Study) -> Markup:
    """Return what the words mean, and where the method is from."""
    paper = element("a", "arXiv:2402.13130", href="https://arxiv.org/abs/2402.13130", rel="noreferrer")
    citation = element(
        "p",
        "The method: Rep, Dukić and Šnajder (2024), ",
        element("cite", "Are ELECTRA’s Sentence Embeddings Beyond Repair? The Case of Semantic Textual Similarity"),
        ", ",
        paper,
        ".",
    )
    uncertain = UNCERTAIN if study.comparison.curve.uncertainty is not None else {}
    return section("glossary", "Words", definitions(GLOSSARY | uncertain), citation)


def study_downloads(study: Study) -> Markup:
    """Return the buttons that save the data of the page."""
    return downloads(words.file_stem(study), whole="Whole study", table="Table of layers")
