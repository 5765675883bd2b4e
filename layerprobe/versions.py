"""The version, those of what the numbers depend on, and what names of kept results count.

What is kept on disk is named by everything that its numbers depend on. Where a change of the code alters numbers for
the same name, the constant below that stands for it is raised, so that old results are recognised and never misread.
"""

import platform
from importlib import metadata

__version__ = "0.4.0"

FORMAT_VERSION = 4
"""Of all that is kept as JSON with a checksum: results, runs, manifests of the store. Others are refused; those before
0.4.0 had lower ones, or none."""
EMBEDDING_VERSION = 2
"""Of pooled embeddings."""
FIRST_USE_VERSION = 2
"""Of what is looked at when a model is first used."""
REMOVALS_VERSION = 1
"""Of the order in which blocks are taken out; raised where another one would be found."""
GRAPH_VERSION = 1
"""Of graphs of encoders that other libraries than torch run."""
SIMILARITY_VERSION = 8
"""Of similarities and diagnostics."""
RANK_VERSION = 4
"""Of effective ranks with their errors."""
PROBE_VERSION = 2
"""Of logistic regression on frozen embeddings."""
STS_PROBE_VERSION = 1
"""Of ridge regression on frozen pairs."""
WORD_PROBE_VERSION = 1
"""Of logistic regression on frozen token states."""
ANSWER_PROBE_VERSION = 3
"""Of linear probes of where answers begin and end."""
FINETUNING_VERSION = 4
"""Of the loop that fine-tunes truncated models."""
ADAPTATION_VERSION = 1
"""Of masked language modelling on texts of one's own."""
PRETRAINING_VERSION = 1
"""Of encoders that are pretrained from scratch."""
PRETRAINING_TEXTS_VERSION = 2
"""The same for texts alone: the language has no unknown words, so its numbers stayed when [UNK] began to be masked."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that the numbers depend on."""
    libraries = ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in libraries}}
