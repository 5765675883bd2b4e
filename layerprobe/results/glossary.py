"""Every term that a page explains, once. Knows words, no numbers."""

import re
from collections.abc import Collection

TERMS = {
    "Layer": "0 is the output of the embedding module, l the output of block l; truncating at layer l keeps blocks"
    " 1 to l.",
    "CKA": "Centred kernel alignment: how alike two layers arrange the same texts; 1 is the same up to rotation and"
    " scale, about 0 is unrelated.",
    "Debiased": "An estimator of CKA without the upward bias of few texts and many features; it can be slightly"
    " negative.",
    "Drop layer": "A layer that scores lower after fine-tuning than the best earlier layer, or one that is flagged"
    " beforehand because it may; the onset is the first of the final run.",
    "TMFT": "Truncated model fine-tuning: the blocks above a layer are removed, and the rest is fine-tuned.",
    "Zero-shot": "Scores before any fine-tuning: of the cosine of embeddings, or of logistic regression on them.",
    "Interval, band": "Range of the value of a layer (interval), and of the whole curve at once (band), for"
    " other texts like these.",
    "Interval of the mean": "Range of the mean for other test data and other seeds, by Student’s t.",
    "Bootstrap": "The curve drawn again within its sampling errors (parametric bootstrap). The share of samples"
    " that flag a layer says what other texts like these would flag, not how likely a drop after fine-tuning is.",
    # searches
    "Scan": "One fine-tuning run with a loss at every layer: it gives the whole curve for the cost of one run.",
    "Expected score": "What a layer, fine-tuned by itself, is expected to score with other seeds on other examples like"
    " these: the mean of a Gaussian model of all runs, in which layers that are alike by CKA score alike.",
    "InfoNCE": "A rule’s reading of the model alone, in nats: what one copy of a text, which lacks some of its words,"
    " tells of another copy at least. Where it falls before the last layer, later layers are expected to serve worse.",
    "Tolerance": "Score loss that is accepted for a smaller model, in points of the metric.",
    "May be the best": "Layers of which one is the best, with the requested confidence. One that is left out may be as"
    " good where several are.",
    "Ensemble": "A weighted average of what several fine-tuned models, or several layers of one, output for an item;"
    " the weights are chosen on the validation split. Layers of one scan share their blocks, so that only the deepest"
    " is paid for.",
    "ROUGE": "How many words (1), pairs of neighbouring words (2) and words in the same order (L) a summary and the"
    " chosen sentences have in common, as F1.",
    # diagnostics
    "Copies": "Rows that are equal to an earlier row; they match in every model and raise similarity.",
    "Mean cosine": "Of two different texts. Near 1 all embeddings point the same way; CKA takes that direction out,"
    " cosines do not.",
    "Top feature, top three": "Share of the variance in the features that vary most. Where it is large, they decide a"
    " raw linear CKA; compare the z-scored map.",
    "Effective rank": "How many directions the variance is spread over, at most one less than the texts and no more"
    " than the features.",
    "Intrinsic dimension": "How fast neighbours move away (TwoNN). Where texts come in pairs of paraphrases, as in STS"
    " data, the nearest neighbour is the other text of the pair, and the number describes the pairs rather than the"
    " layer.",
    "Chance CKA": "Biased linear CKA of unrelated layers with this spectrum. The debiased estimator takes it off.",
    # labs
    "Adaptation": "Masked language modelling on texts without labels, before any fine-tuning.",
    "MLM twin": "The masked language model of the same size and seed: it began with the same weights and saw the same"
    " batches with the same tokens masked. Only the objective differs.",
    "Drop": "What keeping the last layer costs: the best layer is chosen for each seed by other seeds"
    " on other items, and scored by that seed.",
    # DropBench
    "Regret": "Points by which the chosen layer scores below the best one on the test items, none of which was used to"
    " choose; by seeds that the strategy did not see, where any are left.",
    "Cost": "Of choosing, as a share of the paper’s sweep, every layer with five seeds; a step at layer l costs l + 1"
    " blocks.",
    "Held": "Chance that the set of layers a strategy states contains the best one, by the errors of the test scores.",
    "Within half a point": "Chance that the smallest layer which a strategy says is no worse than the best by more than"
    " half a point is so, by the errors of the test scores.",
    "Area": "Under the ROC curve: how often, of one model that drops and one that does not, the first has the larger"
    " fall. 0.5 is chance.",
    # profiles
    "Latency": "Seconds from a batch of token ids on the device to its embeddings on the device: the median of all"
    " repeats, with their 5 and 95\u00a0% quantiles. Tokenising is not in it.",
    "Throughput": "Texts per second: the batch size divided by its median time.",
    "FLOPs": "Floating-point operations of one text by torch’s FlopCounterMode: matrix products and convolutions, a"
    " multiplication with its addition counted as two.",
}


SPECIAL = frozenset(("Adaptation", "Drop", "Cost", "Held", "Within half a point", "Area", "Ensemble", "Copies"))
"""Everyday words, which mean this only on pages that say so."""
WORDS = {
    "Interval, band": r"band of the curve",
    "Interval of the mean": r"interval of the mean|interval over new \w+ and new seeds",
    "Zero-shot": r"zero-shot|(without|before)( any)? fine-tuning",
    "Drop layer": r"drop layers?|flagged",
    "Top feature, top three": r"top feature",
    "Within half a point": r"enough",
    "FLOPs": r"G?FLOPs",
    "TMFT": r"TMFT|truncated( at layer \d+)? and fine-tuned",
}
"""What stands on pages for a term, as a regular expression, where that is not the term."""


def used(content: str, special: Collection[str] = ()) -> dict[str, str]:
    """Return the terms that a text uses, with what they mean; everyday words only where they are `special`.

    Examples:
        >>> list(used("Layer 3 of the ensemble; InfoNCE falls")), list(used("the ensemble", ["Ensemble"]))
        (['Layer', 'InfoNCE'], ['Ensemble'])
    """
    return {
        term: meaning
        for term, meaning in TERMS.items()
        if (term not in SPECIAL or term in special)
        and re.search(rf"\b(?:{WORDS.get(term, re.escape(term))})s?\b", content, re.IGNORECASE)
    }
