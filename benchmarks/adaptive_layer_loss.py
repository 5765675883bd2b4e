"""What the `AdaptiveLayerLoss` of sentence-transformers gives at each layer of the embedded pair, beside TMFT.

    python benchmarks/adaptive_layer_loss.py [--seeds 3] [--variants default,log,linear,no-KL,all-layers]

Both models are trained by `SentenceTransformerTrainer` with AdaptiveLayerLoss around CosineSimilarityLoss, as its users
do: by default one random prior layer a step, prior weight 1, KL with a detached teacher at temperature 0.3. Pairs,
epochs, batches and learning rate are those of the demo. Every layer of the trained model is then
scored on the test pairs by cosine; the best layer is chosen on the validation pairs. TMFT has the same seeds, at the
last layer and at each model's best one, which the docs of the embedded pair name. Test Spearman x 100, mean over seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import AdaptiveLayerLoss, CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers.utils import logging as transformers_logging

from layerprobe.embedded import embedded_model, embedded_task
from layerprobe.encoders.model import Model
from layerprobe.extraction.embeddings import extract
from layerprobe.finetuning.tuning import finetune
from layerprobe.finetuning.values import Protocol
from layerprobe.scoring.score import zero_shot

PROTOCOL = Protocol(epochs=1, batch_size=16, learning_rate=3e-4)
BEST = {"rtd": 4, "mlm": 7}
"""By TMFT at every layer with three seeds."""
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "log": {"layer_weighting": "log"},
    "linear": {"layer_weighting": "linear"},
    "no-KL": {"kl_temperature": 0},
    "all-layers": {"n_layers_per_step": -1},
}
"""Arguments of AdaptiveLayerLoss other than its defaults."""


def trained(folder: str, out: Path, task: Any, seed: int, settings: dict[str, Any]) -> None:
    """Train with AdaptiveLayerLoss and save the encoder."""
    random.seed(seed)  # the loss draws its layers from it
    torch.manual_seed(seed)
    transformer = Transformer(folder, max_seq_length=PROTOCOL.max_length)
    transformer.auto_model.float()  # the pair is kept in float16, which transformers 5 would train in
    width = transformer.auto_model.config.hidden_size
    model = SentenceTransformer(modules=[transformer, Pooling(width, pooling_mode="mean")], device="cpu")
    columns = {"first": task.train.first, "second": task.train.second, "score": task.train.targets}
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(out / "trainer"),
            num_train_epochs=PROTOCOL.epochs,
            per_device_train_batch_size=PROTOCOL.batch_size,
            learning_rate=PROTOCOL.learning_rate,
            weight_decay=PROTOCOL.weight_decay,
            max_grad_norm=PROTOCOL.max_grad_norm,
            warmup_steps=PROTOCOL.warmup,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Dataset.from_dict({name: list(values) for name, values in columns.items()}),
        loss=AdaptiveLayerLoss(model, CosineSimilarityLoss(model), **settings),
    )
    trainer.train()
    transformer.auto_model.save_pretrained(out / "encoder")
    transformer.tokenizer.save_pretrained(out / "encoder")


def main() -> None:
    """Train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default="rtd,mlm")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    task, seeds = embedded_task(train=1500, validation=1000, test=2000), range(chosen.seeds)
    for name in chosen.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            options = Model(device="cpu", cache_dir=Path(cache))
            result = finetune(
                Model.of(str(embedded_model(name)), options), task, [8, BEST[name]], seeds=seeds, protocol=PROTOCOL
            )
            tuned = {
                layer: [run.test["spearman"] for run in result.runs if run.layer == layer] for layer in (8, BEST[name])
            }
        for layer, scores in tuned.items():
            print(f"{name}  TMFT at layer {layer}: {statistics.fmean(scores):.1f}  {np.round(scores, 1).tolist()}")
        for variant in chosen.variants.split(","):
            scores, best, seconds = [], [], []
            for seed in seeds:
                with tempfile.TemporaryDirectory() as out:
                    begun = time.process_time()
                    with contextlib.redirect_stdout(io.StringIO()):
                        trained(str(embedded_model(name)), Path(out), task, seed, VARIANTS[variant])
                    seconds.append(time.process_time() - begun)
                    options = Model(device="cpu", cache_dir=Path(out) / "cache")
                    encoder = Model.of(str(Path(out) / "encoder"), options)
                    of_split = {
                        split: zero_shot(extract(encoder, task.split(split).texts), task, split=split).scores
                        for split in ("validation", "test")
                    }
                    scores.append(of_split["test"])
                    best.append(int(np.argmax(of_split["validation"])))
            test = np.array(scores)
            at_best = [row[layer] for row, layer in zip(test, best, strict=True)]
            print(
                f"{name}  AdaptiveLayerLoss, {variant}: by layer {np.round(test.mean(axis=0), 1).tolist()}; last "
                f"{test[:, -1].mean():.1f}, best by validation {np.mean(at_best):.1f} (layers {best}); "
                f"last by seed {np.round(test[:, -1], 1).tolist()}, {statistics.fmean(seconds):.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
