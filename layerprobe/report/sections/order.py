"""A study as the sections of a page. Knows their order and content; not colours, scripts or files."""

from __future__ import annotations

from collections.abc import Callable

from layerprobe.pages.markup import Markup, join
from layerprobe.report.sections.diagnostics import diagnostics
from layerprobe.report.sections.provenance import glossary, provenance, study_downloads
from layerprobe.report.sections.scores import baselines, fine_tuning, layers, zero_shot
from layerprobe.report.sections.similarity import cka_curve, cka_map, read_by_rule
from layerprobe.report.sections.verdict import header
from layerprobe.study.values import Study

SECTIONS: tuple[Callable[[Study], Markup | None], ...] = (
    header,
    cka_curve,
    read_by_rule,
    cka_map,
    zero_shot,
    fine_tuning,
    layers,
    baselines,
    diagnostics,
    provenance,
    glossary,
    study_downloads,
)


def sections(study: Study) -> Markup:
    """Return the whole content of the page, verdict first."""
    return join(*(build(study) for build in SECTIONS))
