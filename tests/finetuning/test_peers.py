"""Fine-tuning beside the trainer of sentence-transformers: the same loss at every step where nothing is dropped out."""

import numpy as np
import pytest

from benchmarks.peer import arguments_of, trained_by_peer
from layerprobe.encoders.encoder import Encoder, TruncatedEncoder
from layerprobe.finetuning.step import FineTuner
from layerprobe.finetuning.values import Protocol
from layerprobe.kinds.retrieval_loss import MultipleNegatives
from tests.finetuning.test_tmft import without_dropout
from tests.finetuning.test_whole_batch import items

N_STEPS = 5
PROTOCOL = Protocol(learning_rate=1e-3, batch_size=4, epochs=1, warmup=1 / N_STEPS)


def theirs(encoder: Encoder, columns: dict[str, list[str]]) -> list[float]:
    """The loss of every step of their trainer on the truncated model."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    told: list[float] = []
    trained_by_peer(
        encoder,
        2,
        columns,
        MultipleNegativesRankingLoss,
        told.append,
        max_length=PROTOCOL.max_length,
        **arguments_of(PROTOCOL, N_STEPS),
    )
    return told


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("negatives", [False, True])
def test_every_step_has_the_loss_of_sentence_transformers(encoder: Encoder, negatives: bool) -> None:
    encoder, asked = without_dropout(encoder), items(negatives=negatives)
    rows = np.arange(N_STEPS * PROTOCOL.batch_size) % len(asked.examples)
    examples = [asked.examples[row] for row in rows]
    columns = {"anchor": [asked.queries[query] for query, *_ in examples]}
    for i, name in enumerate(("positive", "negative")[: 1 + negatives], 1):
        columns[name] = [asked.documents[example[i]] for example in examples]
    model = TruncatedEncoder(encoder, 2).train()
    tuner = FineTuner(
        encoder, model, PROTOCOL, steps_per_epoch=N_STEPS, criteria=[MultipleNegatives(width=16, n_labels=0)]
    )
    prepared = MultipleNegatives.prepare(encoder, asked, max_length=PROTOCOL.max_length)
    ours = [tuner.update(prepared, step).item() for step in np.split(rows, N_STEPS)]
    assert abs(ours[-1] - ours[0]) > 1e-3
    np.testing.assert_allclose(theirs(encoder, columns), ours, rtol=2e-5)
