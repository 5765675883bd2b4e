"""A model's default pooling, length and prompts: from its configuration, or by whether it is causal.

Knows configurations, tokenizers and the folders of sentence-transformers; loads no weights.
"""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers
from tokenizers.models import BPE
from transformers import PreTrainedConfig, PreTrainedModel

from layerprobe.encoders.architecture import count_blocks, empty_model, kept_by_text, truncated_configs
from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.model import Pooling
from layerprobe.errors import DataError, ModelError
from layerprobe.files.atomic import is_below
from layerprobe.rng import SharedWeights, drawing
