"""Where the numbers of a study come from."""

from layerprobe.comparison.values import Comparison
from layerprobe.encoders.values import ModelDescription
from layerprobe.finetuning.values import Protocol
from layerprobe.metrics.names import metric_title
from layerprobe.names import plural
from layerprobe.report import words
from layerprobe.results import numbers
from layerprobe.results.markup import Markup, element, join
from layerprobe.results.parts import definitions, facts_table
from layerprobe.results.values import Part
from layerprobe.similarity.values import SimilarityMap
from layerprobe.study.values import Study


def provenance(study: Study) -> tuple[Part, ...]:
    """Return the models, the data, the conventions and the machine."""
    comparisons = () if study.comparison.alone else (study.comparison, *study.further_comparisons)
    models = [study.comparison.model, *(comparison.reference for comparison in comparisons)]
    names = ["Model", "Reference", *(f"Reference {number}" for number in range(2, len(models)))]
    facts = [model_facts(model) for model in models]
    if any(model.source for model in models):
        facts = [each | {"From": model.source or model.name} for each, model in zip(facts, models, strict=True)]
    return facts_table("Models", names[: len(models)], facts), _facts(study)


def model_facts(model: ModelDescription) -> dict[str, str]:
    """Return what a model is, by name of the fact."""
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
    source, items = study.provenance, numbers.capitalised(plural(study.comparison.unit))
    return definitions(
        {
            "Task": f"{source.task} ({source.task_kind}, sha256 {source.task_digest})",
            "Data": "; ".join(source.notes) or None,
            items: f"{source.n_texts} distinct (sha256 {source.texts_digest})",
            "Embeddings": f"{study.comparison.pooling} pooling",
            "Similarity": conventions(study.comparison),
            "Rule": _rule(study),
            "Fine-tuning": _protocol(study.protocol, study) if study.protocol else None,
            "Settings": ", ".join(f"{name} {value}" for name, value in source.settings.items()) or None,
            "Seeds": ", ".join(map(str, source.seeds)) or None,
            "Device": source.device,
            "Versions": ", ".join(
                [f"layerprobe {source.layerprobe}", *(f"{k} {v}" for k, v in source.versions.items())]
            ),
            "Created": source.created,
            "Command": element("code", source.command),
            "Method": _method(),
        }
    )


def conventions(comparison: Comparison) -> str:
    """Return every convention that the similarities depend on."""
    shown, items = comparison.map, plural(comparison.unit)
    median = [f"the median over {shown.sigma_samples} {items}"] if shown.sigma_samples else []
    said = [*shown.measure.conventions, *median, words.features(shown).lower()]
    said += [f"{shown.n_samples} {items}", _intervals(shown)]
    if shown.null is not None:
        said.append(f"{shown.null.permutations} permutations for what chance reaches")
    return "; ".join([*said, f"{comparison.curve.alignment} alignment"])


def _intervals(shown: SimilarityMap) -> str:
    errors = shown.uncertainty
    if errors is None:
        return "no intervals"
    units = "" if errors.n_clusters is None else f", {errors.n_clusters} documents"
    return f"{numbers.confidence(errors.level)} intervals from the {errors.method}{units}"


def _rule(study: Study) -> str:
    redrawn = study.prediction.probability
    if redrawn is None:
        return study.prediction.rule
    return f"{study.prediction.rule}, on the curve and on {redrawn.draws} bootstrap samples of it (seed {redrawn.seed})"


def _protocol(protocol: Protocol, study: Study) -> str:
    return (
        f"AdamW at {protocol.learning_rate:g}, weight decay {protocol.weight_decay:g}, {protocol.epochs} epochs of"
        f" {protocol.batch_size} examples per step, {numbers.percent(protocol.warmup)} warm-up then linear, gradients"
        f" clipped to {protocol.max_grad_norm:g}, at most {protocol.max_length} tokens, {protocol.pooling} pooling"
        f"{_adapters(protocol)}; the epoch with the best validation {metric_title(study.metric)} counts"
    )


def _adapters(protocol: Protocol) -> str:
    parts = [f"adapters of rank {protocol.lora}"] if protocol.lora else []
    return "".join(f", {part}" for part in (*parts, *(["gradient checkpointing"] * protocol.gradient_checkpointing)))


def _method() -> Markup:
    cited = element("cite", "Are ELECTRA’s Sentence Embeddings Beyond Repair? The Case of Semantic Textual Similarity")
    paper = element("a", "arXiv:2402.13130", href="https://arxiv.org/abs/2402.13130", rel="noreferrer")
    return join("Rep, Dukić and Šnajder (2024), ", cited, ", ", paper)
