"""How many folds a search validates on: more items a run, or more training pairs.

python benchmarks/items_before_seeds.py order                        do layers keep their order with less training data?
python benchmarks/items_before_seeds.py replay [DRAWS] [BUDGET ...]  regret on recorded encoders by folds and labels
python benchmarks/items_before_seeds.py epochs [BUDGET ...]          the same by what a run is said to score

order: both embedded encoders and 1,600 pairs of their language; each is fine-tuned at every layer on all folds but one,
of two and of five, with two seeds each, and tested on 1,000 other pairs. By number of folds: how layers are ordered
compared with five folds of the other seed, and what is lost there by the layer that scores best here.

replay: each of the 40 recorded encoders is a world, stated before it is run. Its layers are truly as good as their mean
test scores; seeds err by what is left of the test scores when each layer and seed has its mean, the same in all rows;
items err as recorded (the covariance between layers, and what each run has of its own), for N labels in k folds of
N / k, each drawn by itself. Training on fewer pairs is taken to change nothing. Searches are `next_run` and `answer`;
regret is what the layer that is kept is truly below the best.

epochs: searches on the records as `layerprobe lab bench --searched` plays them, which are told the score of the best
epoch, or the mean of the last ones; points below the best layer on test, of seeds that were not looked at.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from dataclasses import replace

import numpy as np
from scipy.stats import spearmanr

from layerprobe.lab.dropbench.strategies import Recorded
from layerprobe.lab.dropbench.zoo import distances, read_searched, seed_variance
from layerprobe.readings.reading import SELF_CKA
from layerprobe.search.plan import answer, next_run
from layerprobe.search.posterior import layer_steps
from layerprobe.search.values import Evidence, Score, SearchSettings

SEEDS, LABELS, BUDGET = 5, 1600, "converged"


# ---- replay ---------------------------------------------------------------------------------------------


def drawn_search(model: Recorded, rng_key: list[int], n_folds: int, labels: int, budget: float) -> tuple[float, int]:
    """Search in a world drawn from a record; return the regret and the runs."""
    tuned, errors, n = model.tuned, model.tuned.validation_errors, model.n_layers
    assert errors is not None
    truth = np.array(tuned.test).mean(axis=1)
    of_seeds = np.random.default_rng([*rng_key, 0]).normal(0, np.sqrt(seed_variance(tuned) or 0.0), (n, 2 * SEEDS))
    scale = errors.units / (labels / n_folds)
    values, vectors = np.linalg.eigh(errors.layer_covariance)
    root = vectors * np.sqrt(np.maximum(values, 0) * scale)
    normal = np.random.default_rng([*rng_key, 1])
    common = root @ normal.standard_normal((n, SEEDS))  # by fold
    of_runs = normal.standard_normal((n, 2 * SEEDS)) * np.sqrt(np.array(errors.own) * scale)[:, None]
    settings, runs = SearchSettings(budget=budget, seeds=SEEDS), list[tuple[int, int]]()
    metrics = model.entry.metrics

    def evidence() -> Evidence:
        covariance = scale * errors.covariance(runs)
        folds = np.array([seed % n_folds for _, seed in runs])
        covariance = covariance * (folds[:, None] == folds)
        scores = tuple(
            Score(
                layer=layer,
                seed=seed,
                value=float(
                    truth[layer] + of_seeds[layer, seed] + common[layer, seed % n_folds] + of_runs[layer, seed]
                ),
            )
            for layer, seed in runs
        )
        return Evidence(
            n_blocks=n - 1,
            scores=scores,
            item_covariance=tuple(map(tuple, covariance.tolist())),
            steps=layer_steps(metrics[SELF_CKA].values[1:]) if SELF_CKA in metrics else None,
            infonce=model.infonce,
            n_items=labels,
            n_folds=n_folds,
        )

    while (run := next_run(evidence(), settings).run) is not None:
        runs.append((run.layer, run.seed))
    best = answer(evidence(), settings).best_layer
    return float(truth.max() - truth[best]), len(runs)


def replay(draws: int, budgets: list[float]) -> None:
    """Print regret by budget, labels and folds."""
    models = [Recorded(entry=e, tuned=e.budgets[BUDGET]) for e in read_searched().entries if BUDGET in e.budgets]
    for budget in budgets:
        cases = [(LABELS, k) for k in (5, 3, 2)] + [(2 * LABELS, 2), (LABELS // 2, 2), (LABELS // 4, 2)]
        rows: dict[tuple[int, int], np.ndarray] = {}
        for labels, folds in cases:
            outcomes = np.array(
                [[drawn_search(m, [i, d], folds, labels, budget) for d in range(draws)] for i, m in enumerate(models)]
            )
            rows[labels, folds] = outcomes[..., 0].mean(axis=1)
            regret = _with_error(rows[labels, folds])
            less = _with_error(rows[labels, folds] - rows[LABELS, 5])
            print(
                f"{budget:.0%}, {labels} labels, {folds} folds of {labels // folds}: regret {regret}, less that of "
                f"{LABELS} in 5 (paired) {less}, {outcomes[..., 1].mean():.1f} runs; "
                f"n = {len(models)} encoders x {draws}",
                flush=True,
            )


def _with_error(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}"


# ---- the score of a run: best epoch, or the mean of the last ones ---------------------------------------


def last_epochs(budgets: list[float]) -> None:
    """Print the regret of searches that are told the best epoch's score, or the mean of the last ones."""
    models = [Recorded(entry=e, tuned=e.budgets[BUDGET]) for e in read_searched().entries if BUDGET in e.budgets]
    for budget in budgets:
        regrets = dict[str, np.ndarray]()
        for name, last in (("best epoch", 0), ("last", 1), ("mean of the last 2", 2), ("mean of the last 3", 3)):
            by_model = []
            for model in models:
                epochs = np.array(model.tuned.epochs)
                scores = np.array(model.tuned.validation) if not last else epochs[..., -last:].mean(axis=-1)
                tuned = replace(model.tuned, validation=tuple(map(tuple, scores.tolist())))
                replayed = replace(model, tuned=tuned)
                of_model = []
                for first in range(len(tuned.seeds)):
                    choice = replayed.search(budget * model.full_sweep, first=first)
                    if choice is None:
                        continue
                    left = [s for s in range(len(tuned.seeds)) if s not in choice.seeds] or None
                    of_model.append(distances(model.tuned, left)[choice.layer])
                by_model.append(np.mean(of_model))
            regrets[name] = np.array(by_model)
            less = _with_error(regrets[name] - regrets["best epoch"])
            print(
                f"{budget:.0%}, {name}: {_with_error(regrets[name])}, less best epoch {less}; n = {len(models)}",
                flush=True,
            )


# ---- do layers keep their order with less to train on? --------------------------------------------------


def order() -> None:
    """Fine-tune on all folds but one, of two and of five; print test scores by layer and how they go together."""
    import layerprobe as lp
    from layerprobe.tasks.splitting import folds_of

    task = lp.embedded_task(train=LABELS * 3 // 4, validation=LABELS // 4, test=1000)
    protocol = lp.Protocol(learning_rate=5e-4, epochs=3, batch_size=32)
    with tempfile.TemporaryDirectory() as folder, lp.settings(progress=lambda *_: None):
        for name in ("rtd", "mlm"):
            began, scores = time.process_time(), dict[tuple[int, int], np.ndarray]()
            model = lp.Model(str(lp.embedded_model(name)), cache_dir=f"{folder}/{name}")  # type: ignore[arg-type]
            for k, seed in itertools.product((2, 5), (0, 1)):
                fold = folds_of(task, k)[seed]
                result = lp.finetune(model, fold, seeds=[seed], protocol=protocol, workers=1)
                rows = {run.layer: run.test[run.primary] for run in result.runs}
                scores[k, seed] = np.array([rows[layer] for layer in sorted(rows)])
                print(f"{name}, {k} folds, {len(fold.train)} pairs, seed {seed}:", scores[k, seed].round(1).tolist())
            for k in (2, 5):
                pairs = [(scores[k, seed], scores[5, 1 - seed]) for seed in (0, 1)]
                alike = np.mean([spearmanr(less, five)[0] for less, five in pairs])
                lost = np.mean([five.max() - five[less.argmax()] for less, five in pairs])
                print(
                    f"{name}, {k} folds and five of the other seed: Spearman {alike:.2f}, lost {lost:.2f}", flush=True
                )
            print(f"{name}: {time.process_time() - began:.0f} s", flush=True)


def main() -> None:
    """Run what the first argument says."""
    what, *rest = sys.argv[1:]
    if what == "order":
        order()
    elif what == "epochs":
        last_epochs([float(share) for share in rest] or [0.1, 0.15])
    else:
        replay(int(rest[0]) if rest else 4, [float(share) for share in rest[1:]] or [0.15])


if __name__ == "__main__":
    main()
