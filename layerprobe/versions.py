"""Versions: of layerprobe, of its file formats, and of the computations that name stored results.

Stored results are named by everything that their numbers depend on. A change of the code that alters numbers for
the same name raises the constant below, so that old results are recognised and never misread.
"""

import platform
from importlib import metadata

__version__ = "0.4.0"

FORMAT_VERSION = 4
"""Format of everything stored as JSON with a checksum: results, runs, manifests of the store. Others are refused; those
before 0.4.0 had lower numbers, or none."""
EMBEDDING_VERSION = 2
"""Pooled embeddings."""
FIRST_USE_VERSION = 3
"""Checks at the first use of a model."""
REMOVALS_VERSION = 1
"""Order in which blocks are removed; raised where the search would find another one."""
GRAPH_VERSION = 1
"""Graphs of encoders for libraries other than torch."""
SIMILARITY_VERSION = 8
"""Similarities and diagnostics."""
RANK_VERSION = 4
"""Effective ranks with their errors."""
PROBE_VERSION = 2
"""Logistic regression on frozen embeddings."""
STS_PROBE_VERSION = 1
"""Ridge regression on frozen pairs."""
WORD_PROBE_VERSION = 1
"""Logistic regression on frozen token states."""
ANSWER_PROBE_VERSION = 3
"""Linear probes of the first and last token of answers."""
FINETUNING_VERSION = 4
"""Fine-tuning loop of truncated models."""
ADAPTATION_VERSION = 1
"""Masked language modelling on the user's texts."""
PRETRAINING_VERSION = 1
"""Encoders pretrained from scratch."""
PRETRAINING_TEXTS_VERSION = 2
"""Pretraining on texts; the language has no unknown words, so its numbers stayed when [UNK] began to be masked."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the numbers depend on."""
    libraries = ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in libraries}}
