"""What commands print beside the tables of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.finetuning.values import LayerOutcome, TuningResult
    from layerprobe.results.table import Table
    from layerprobe.study.models import FoundModels
    from layerprobe.study.values import Finding, Study


def finding_parts(finding: Finding | FoundModels) -> tuple[Table | str, ...]:
    """Return the answer, the table of layers and the evidence, for the terminal."""
    from layerprobe.study.sentence import grounds, grounds_of_models
    from layerprobe.study.values import Finding

    rests_on = grounds(finding) if isinstance(finding, Finding) else grounds_of_models(finding)
    return f"{finding.kept} {finding.certainty}\n", finding.table, "", *rests_on


def study_parts(study: Study) -> tuple[Table | str, ...]:
    """Return the table and the sentences of a study, for the terminal."""
    from layerprobe.finetuning.values import outcomes_table
    from layerprobe.prediction.sentence import trusted
    from layerprobe.study.sentence import grounds

    finding = study.finding
    parts: list[Table | str] = [study.table]
    if finding is not None:
        parts.insert(0, f"{finding.kept} {finding.certainty}\n")
    elif study.outcomes:
        parts += ["\nFine-tuned:", outcomes_table(study.outcomes)]
    if study.reference_outcomes:
        parts += [f"\nThe reference, {study.comparison.reference.name}:", outcomes_table(study.reference_outcomes)]
    parts += ["", *(trusted(study.prediction) if finding is None else grounds(finding, study))]
    if finding is None and study.confirmation is not None:
        parts += [study.confirmation.sentence, f"Verdict: {study.confirmation.verdict}"]
    return tuple(parts)


def runs_json(result: TuningResult[Any], directories: Sequence[Path]) -> dict[str, Any]:
    """Return runs for JSON, with their directories if there are any, and what they come to layer by layer."""
    from layerprobe.files.serialisation import to_dict

    listed = [to_dict(run) for run in result]
    for run, directory in zip(listed, directories, strict=False):  # all of them, or none
        run["directory"] = str(directory)
    return {"runs": listed, "layers": outcomes_with_best(result.outcomes)}


def outcomes_with_best(outcomes: Sequence[LayerOutcome]) -> list[dict[str, Any]]:
    """Return outcomes for JSON, each with its best seed, by validation, and the test score of that."""
    from layerprobe.files.serialisation import to_dict

    return [
        {**to_dict(outcome), "best_seed": outcome.best_seed, "best_seed_score": outcome.best_seed_score}
        for outcome in outcomes
    ]


def weights_lines(directories: Sequence[Path], options: str = "") -> tuple[str, ...]:
    """Return where the weights of runs are, for export; nothing where they were not kept."""
    if not directories:
        return ()
    return f"\nWeights, for `layerprobe export DIRECTORY OUT{options}`:", *map(str, directories)
