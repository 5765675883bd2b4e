"""Centred kernel alignment as a measure: its kernel and estimator. Its values come from `layerprobe.similarity.cka`."""

import math
from dataclasses import dataclass, field

from layerprobe.checks import check_choice
from layerprobe.errors import DataError, option
from layerprobe.files.serialisation import RARE
from layerprobe.similarity.values import CHANCE, ROTATIONS, Diagnosed, Estimator, Kernel, Measure

SOURCES: dict[Estimator, str] = {"debiased": "Song et al. 2012", "biased": "Gretton et al. 2005"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CKA(Measure):
    """Centred kernel alignment with the linear kernel, or the Gaussian one, K = exp(-d^2 / (2 sigma^2)).

    Examples:
        >>> CKA(estimator="biased").title
        'biased linear CKA'
        >>> CKA(kernel="rbf", bandwidth_multiplier=0.5, normalize="zscore").title
        'debiased RBF CKA (bandwidth x 0.5) of z-scored features'
    """

    name = "cka"
    short_name = "CKA"
    source = "Kornblith et al. 2019 (arXiv 1905.00414)"
    range = (-1.0, 1.0)
    invariances = ROTATIONS | {"translation"}

    kernel: Kernel = "linear"
    """linear, or rbf: the Gaussian one."""
    estimator: Estimator = "debiased"
    """debiased (Song et al. 2012) or biased (Gretton et al. 2005)."""
    bandwidth_multiplier: float | None = field(default=None, metadata=RARE)
    """rbf: sigma = multiplier x the square root of the median of d^2 over i < j, by default 1; None of linear CKA."""

    def __post_init__(self) -> None:
        Measure.__post_init__(self)
        check_choice(self.kernel, Kernel, name="kernel")
        check_choice(self.estimator, Estimator, name="estimator")
        if self.kernel == "rbf" and self.bandwidth_multiplier is None:
            object.__setattr__(self, "bandwidth_multiplier", 1.0)
        width = self.bandwidth_multiplier
        if self.kernel == "linear" and width is not None:
            raise DataError(f"expected no bandwidth with the linear kernel, got {width}: use {option('kernel', 'rbf')}")
        if width is not None and not 0 < width < math.inf:
            raise DataError(f"bandwidth_multiplier is {width}, expected a positive finite number such as 1.0")

    @property
    def long_name(self) -> str:
        """Full name, without the normalisation of features."""
        if self.kernel == "linear":
            return f"{self.estimator} linear CKA"
        width = "" if self.bandwidth_multiplier == 1.0 else f" (bandwidth x {self.bandwidth_multiplier:g})"
        return f"{self.estimator} RBF CKA{width}"

    @property
    def conventions(self) -> tuple[str, ...]:
        """Kernel, bandwidth and estimator."""
        kernel = "linear kernel"
        if self.kernel == "rbf":
            width = f"σ = {self.bandwidth_multiplier:g} × the root of the median of d² over i < j"
            kernel = f"RBF kernel exp(−d²/2σ²), {width}"
        return kernel, f"{self.estimator} HSIC ({SOURCES[self.estimator]})"

    @property
    def robustly(self) -> str:
        """Advice in words for comparisons dominated by a few texts."""
        if self.kernel == "rbf":
            return "on more texts"
        return "with the kernel rbf, where no text weighs much more than another"

    def chance(self, n: int, model: Diagnosed, reference: Diagnosed) -> str | None:
        """Warn about the mean biased linear CKA of independent layers, sqrt(a b) with their chance CKAs a and b.

        Source: Josse and Holmes 2016 (arXiv 1307.7383).
        """
        first, second = (max(layers, key=lambda layer: layer.chance_cka) for _, layers in (model, reference))
        level = math.sqrt(first.chance_cka * second.chance_cka)
        if self.estimator == "debiased" or level <= CHANCE:
            return None
        # the last of equals: a layer 0 that is left out repeats layer 1
        where = " and ".join(
            f"layer {len(layers) - 1 - layers[::-1].index(layer)} of {name}"
            for (name, layers), layer in ((model, first), (reference, second))
        )
        # Both flatten the spectrum, which raises the level.
        more = " or more" if self.normalize == "zscore" or self.kernel == "rbf" else ""
        return (
            f"{where}: independent layers with these spectra would show a biased CKA of {level:.2f}{more}, a "
            f"baseline of all values: compare with {option('estimator', 'debiased')}, or on more texts"
        )
