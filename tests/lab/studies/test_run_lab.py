"""A study is done, done again for nothing, interrupted, shared, and goes on without what fails."""

import contextlib
import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from layerprobe.context import report, settings
from layerprobe.embedded.pair import embedded_task
from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, LayerProbeError, TrainingError
from layerprobe.files.serialisation import from_json
from layerprobe.finetuning.values import Protocol
from layerprobe.jobs.crew import Share
from layerprobe.lab.dropbench.bench import bench_predictors
from layerprobe.lab.dropbench.zoo import read_zoo
from layerprobe.lab.studies import run as module
from layerprobe.lab.studies.run import plan_lab, run_lab
from layerprobe.lab.studies.values import LabResult, LabStudy, LabTask
from layerprobe.results.declared import declared_page
from layerprobe.results.estimate import Estimate
from layerprobe.results.page import render
from layerprobe.tasks.values import TaskSettings
from tests.lab.studies.studies import OPTIONS, SMALL, changed


def test_every_model_becomes_an_entry(result: LabResult, folder: Path) -> None:
    assert [entry.name for entry in result.zoo.entries] == [model.name for model in SMALL.models]
    assert {entry.family for entry in result.zoo.entries} == {"mlm", "rtd", "random"}
    by_name = {entry.name: entry for entry in result.zoo.entries}
    assert set(by_name["s-rtd-seed0"].cka) == {"mlm twin, same seed", "mlm twin, other seed"}
    assert set(by_name["s-mlm-seed0"].cka) == {"mlm twin, other seed"}
    assert set(by_name["s-random-seed1"].budgets) == {"gentle", "fast"}
    assert result.failures == ()
    assert {each.family for each in result.effects} == {"rtd", "random"}
    assert result.pretrainings["s-rtd-seed1"].protocol.objective == "rtd"


def test_the_noise_floor_is_the_same_from_both_sides(result: LabResult) -> None:
    """CKA of two MLM models is symmetric, so with two seeds both have one floor."""
    first, second = (e.cka["mlm twin, other seed"].values for e in result.zoo.entries if e.family == "mlm")
    assert first == pytest.approx(second, abs=1e-6)


def test_files_read_back(result: LabResult, folder: Path) -> None:
    assert read_zoo(folder / "zoo.json").entries == result.zoo.entries
    written = from_json(LabResult, (folder / "lab.json").read_text())
    assert (written.effects, written.zoo.entries) == (result.effects, result.zoo.entries)
    assert written.pretrainings == result.pretrainings
    assert len(bench_predictors(read_zoo(folder / "zoo.json"), strategies=(), draws=5).budgets) == 2


def test_sentences_answer_for_every_objective_and_budget(result: LabResult) -> None:
    assert len(result.sentences) == 4
    assert result.sentences[0].startswith("rtd, gentle: ")
    assert result.sentences[0].endswith(", 2 pairs).")


def test_progress_names_the_model_that_is_pretrained(
    result: LabResult, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is pretrained before its turn, as a reference of another."""
    said, read = list[str](), module.pretrain

    def pretrain(to: Path, *args: Any, **how: Any) -> Any:
        report(to.name, 0, 1)
        return read(to, *args, **how)

    monkeypatch.setattr(module, "pretrain", pretrain)
    with settings(progress=lambda task, done, total: said.append(task)):
        run_lab(SMALL, folder, options=OPTIONS)
    names = [model.name for model in SMALL.models]
    assert set(said) == {
        f"model {number} of {len(names)}, {name}: {name}" for number, name in enumerate(names, start=1)
    }


def test_a_second_time_nothing_is_made(result: LabResult, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "zoo_entry", None)
    monkeypatch.setattr("layerprobe.lab.pretraining.run.train", None)
    again = run_lab(SMALL, folder, options=OPTIONS)
    assert (again.zoo.entries, again.effects) == (result.zoo.entries, result.effects)


def planned(estimate: Estimate, *names: str) -> list[tuple[object, ...]]:
    return [tuple(job[name] for name in names) for job in estimate.jobs]


def test_a_plan_says_what_is_there(result: LabResult, folder: Path, tmp_path: Path) -> None:
    done = plan_lab(SMALL, folder, options=OPTIONS)
    # three layers, one seed, two budgets
    assert planned(done, "pretraining", "trainings", "stored") == [("stored", 6, 6)] * 6
    more = changed(finetuning_seeds=(0, 1, 2))
    assert [(each["trainings"], each["stored"]) for each in plan_lab(more, folder, options=OPTIONS).jobs] == [
        (18, 6)
    ] * 6
    nothing = plan_lab(SMALL, tmp_path / "none", options=OPTIONS)
    steps = f"{SMALL.pretraining.steps} steps"
    assert planned(nothing, "pretraining", "stored") == [(steps, 0)] * 6
    assert not (tmp_path / "none").exists()


def test_another_study_in_the_folder_is_refused(result: LabResult, folder: Path) -> None:
    other = changed(pretraining=dataclasses.replace(SMALL.pretraining, steps=4))
    with pytest.raises(DataError, match=r"s-mlm-seed0 holds a model that was pretrained .* with other settings"):
        run_lab(other, folder, options=OPTIONS)


@pytest.mark.slow
def test_more_budgets_keep_the_models(result: LabResult, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerprobe.lab.pretraining.run.train", None)
    fewer = changed(budgets={"fast": SMALL.budgets["fast"]}, objectives=("mlm", "rtd"))
    found = run_lab(fewer, folder, options=OPTIONS)
    expected = {entry.name: entry.budgets["fast"] for entry in result.zoo.entries}
    assert {e.name: e.budgets for e in found.zoo.entries} == {
        name: {"fast": tuned} for name, tuned in expected.items() if "random" not in name
    }


@pytest.mark.slow
def test_after_an_interruption_only_what_is_missing_is_made(
    result: LabResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Counter[str] = Counter()
    whole = module.zoo_entry

    def counted(*arguments: Any, **values: Any) -> Any:
        if values["name"] == "s-rtd-seed0" and not made["s-rtd-seed0"]:
            made[values["name"]] += 1
            raise KeyboardInterrupt
        made[values["name"]] += 1
        return whole(*arguments, **values)

    monkeypatch.setattr(module, "zoo_entry", counted)
    with pytest.raises(KeyboardInterrupt):
        run_lab(SMALL, tmp_path, options=OPTIONS)
    # the unfinished zoo can be used
    assert [entry.name for entry in read_zoo(tmp_path / "zoo.json").entries] == ["s-mlm-seed0", "s-mlm-seed1"]
    found = run_lab(SMALL, tmp_path, options=OPTIONS)
    assert made.pop("s-rtd-seed0") == 2
    assert set(made.values()) == {1}
    assert found.zoo.entries == result.zoo.entries


@pytest.mark.slow
def test_a_garbled_entry_is_made_again(result: LabResult, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "entries" / "s-rtd-seed1.json").write_text("{")
    assert run_lab(SMALL, folder, options=OPTIONS).zoo.entries == result.zoo.entries
    assert "s-rtd-seed1.json cannot be read" in caplog.text


def without(folder: Path, name: str, to: Path) -> Path:
    """Copy the folder of a study, with all but one model and its entry."""
    names = (name, f"{name}.json")
    return Path(shutil.copytree(folder, to / "copy", ignore=shutil.ignore_patterns(*names)))


def exploding(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Give the model of this name a learning rate with which its loss is not finite."""
    whole = module.pretrain

    def pretrain(out: Path, *arguments: Any, protocol: Any, **values: Any) -> Any:
        if out.name == name:
            protocol = dataclasses.replace(protocol, learning_rate=1e38, steps=30, warmup=0.0)
        return whole(out, *arguments, protocol=protocol, **values)

    monkeypatch.setattr(module, "pretrain", pretrain)


def test_a_loss_that_is_not_finite_leaves_out_that_model_alone(
    result: LabResult, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exploding(monkeypatch, "s-rtd-seed0")
    out = without(folder, "s-rtd-seed0", tmp_path)
    found = run_lab(SMALL, out, options=OPTIONS)
    assert [each["model"] for each in found.failures] == ["s-rtd-seed0"]
    assert found.failures[0]["reason"].startswith("the loss became nan at step ")
    assert found.zoo.entries == tuple(entry for entry in result.zoo.entries if entry.name != "s-rtd-seed0")
    assert json.loads((out / "lab.json").read_text())["failures"][0]["model"] == "s-rtd-seed0"


def test_a_model_that_cannot_be_fine_tuned_is_still_a_reference(
    result: LabResult, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what an earlier study of the folder says of it does not count."""
    whole, referred = module.zoo_entry, dict[str, list[str]]()

    def failing(model: Any, references: Any, *arguments: Any, **values: Any) -> Any:
        referred[values["name"]] = list(references)
        if values["name"] == "s-mlm-seed0":
            raise TrainingError("the loss became nan")
        return whole(model, references, *arguments, **values)

    monkeypatch.setattr(module, "zoo_entry", failing)
    out = Path(shutil.copytree(folder, tmp_path / "copy"))
    fewer = changed(budgets={"fast": SMALL.budgets["fast"]}, objectives=("mlm", "rtd"))
    found = run_lab(fewer, out, options=OPTIONS)
    assert [each["model"] for each in found.failures] == ["s-mlm-seed0"]
    assert [entry.name for entry in found.zoo.entries] == ["s-mlm-seed1", "s-rtd-seed0", "s-rtd-seed1"]
    assert all(set(entry.budgets) == {"fast"} for entry in found.zoo.entries)
    assert referred["s-rtd-seed0"] == ["mlm twin, same seed", "mlm twin, other seed"]


def test_without_a_twin_its_models_have_one_reference(
    result: LabResult, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exploding(monkeypatch, "s-mlm-seed1")
    out = without(folder, "s-mlm-seed1", tmp_path)
    found = run_lab(changed(objectives=("mlm", "rtd")), out, options=OPTIONS)
    assert [each["model"] for each in found.failures] == ["s-mlm-seed1"]
    references = {entry.name: set(entry.cka) for entry in found.zoo.entries}
    assert references == {
        "s-mlm-seed0": set(),
        "s-rtd-seed0": {"mlm twin, same seed"},
        "s-rtd-seed1": {"mlm twin, other seed"},
    }
    assert [each.models for each in found.effects if each.measure == "drop"] == [("s-rtd-seed0",)] * 4


@pytest.mark.parametrize(
    ("study", "options"),
    [
        (changed(tasks=(LabTask(examples=(24, 20, 16)),)), OPTIONS),
        *((SMALL, dataclasses.replace(OPTIONS, **each)) for each in ({"norm": "raw"}, {"store_dtype": "float16"})),
    ],
    ids=["examples", "norm", "store_dtype"],
)
def test_entries_of_an_earlier_study_are_not_put_into_the_zoo(
    result: LabResult, folder: Path, study: LabStudy, options: Model
) -> None:
    assert module._LabRun.of(study, folder, options).all_stored() == []
    own = module._LabRun.of(SMALL, folder, OPTIONS).all_stored()
    assert tuple(each.entry for each in own) == result.zoo.entries


def test_pretraining_and_entries_have_locks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may be called anything: a lock that its own process holds would be waited for without end."""
    study = changed(tasks=(LabTask(name="pretraining", examples=(24, 20, 20)),))
    run, locked = module._LabRun.of(study, tmp_path, OPTIONS), list[str]()

    def lock(self: Any, name: str, *, wait: bool) -> Any:
        locked.append(name)
        return contextlib.nullcontext(True)

    monkeypatch.setattr(module._LabRun, "lock", lock)
    monkeypatch.setattr(module, "pretrain", lambda *_, **__: None)
    run.pretrained(study.models[0])
    assert locked
    assert not set(locked) & set(run.jobs)


def test_a_corpus_smaller_than_a_batch_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"line {number}" for number in range(7)))
    with pytest.raises(DataError, match="expected at least 8 distinct texts, a batch, got 7"):
        run_lab(changed(corpus=(str(texts),)), tmp_path / "out", options=OPTIONS)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabStudy, Path, LabResult]:
    """A study of two tasks, one of whose test pairs are all that are not used otherwise, with scans."""
    root = tmp_path_factory.mktemp("both")
    pairs, told = root / "pairs.csv", embedded_task(train=60).train
    assert told.second is not None
    rows = zip(told.first, told.second, told.targets, strict=True)
    pairs.write_text("\n".join(f"{first},{second},{5 * target}" for first, second, target in rows))
    settings = TaskSettings(source=str(pairs), score_range=(0.0, 5.0))
    study = changed(
        objectives=("mlm", "rtd"),
        tasks=(
            LabTask(name="words", examples=(24, 20, 20)),
            LabTask(name="pairs", settings=settings, examples=(20, 10, None)),
        ),
        budgets={"fast": SMALL.budgets["fast"]},
        scans={"falling": (0, 1), "sandwich": (0,)},
        finetuning_seeds=(0, 1),
    )
    return study, root / "out", run_lab(study, root / "out", options=OPTIONS)


@pytest.mark.slow
def test_every_model_and_task_becomes_an_entry(both: tuple[LabStudy, Path, LabResult]) -> None:
    study, _, result = both
    names = [f"{model.name}-{task}" for model in study.models for task in ("words", "pairs")]
    assert [entry.name for entry in result.zoo.entries] == names
    assert [entry.task for entry in result.zoo.entries[:2]] == ["words", "pairs"]
    assert set(result.pretrainings) == {model.name for model in study.models}
    for entry in result.zoo.entries:
        tuned = entry.budgets["fast"]
        assert [(scan.weighting, scan.seed) for scan in tuned.scans] == [
            *(("falling", seed) for seed in (0, 1)),
            ("sandwich", 0),
        ]
        assert tuned.validation_errors is not None
        assert tuned.test_errors is not None
        assert (tuned.validation_errors.n_items, tuned.test_errors.n_items) == ((10, 30), (20, 20))[
            entry.task == "words"
        ]
        assert tuned.test_errors.weighting == "falling"
        np.testing.assert_allclose(np.array(tuned.epochs).max(axis=2), tuned.validation)
        assert len(tuned.halves) == 2


@pytest.mark.slow
def test_tasks_are_told_apart(both: tuple[LabStudy, Path, LabResult]) -> None:
    _, _, result = both
    assert {(each.task, len(each.values)) for each in result.effects} == {("words", 2), ("pairs", 2)}
    assert len(result.sentences) == 2
    assert result.sentences[1].startswith("rtd, fast, pairs: ")
    page = render(declared_page(result))
    assert "Test Spearman × 100 after fine-tuning, size s, budget fast, pairs." in page
    assert "4 models · 2 objectives · sizes s" in page
    assert "<dd>words, pairs</dd>" in page


@pytest.mark.slow
def test_a_plan_counts_scans_and_tasks(both: tuple[LabStudy, Path, LabResult]) -> None:
    study, out, _ = both
    # two tasks, of three layers and two seeds and three scans each
    assert [(each["trainings"], each["stored"]) for each in plan_lab(study, out, options=OPTIONS).jobs] == [
        (18, 18)
    ] * 4


@pytest.mark.slow
def test_files_are_named_without_their_folders(tmp_path: Path) -> None:
    texts, pairs = tmp_path / "texts.txt", tmp_path / "pairs.csv"
    texts.write_text("\n".join(f"the {number} dogs of number {number}" for number in range(60)))
    pairs.write_text("\n".join(f"{n} dogs,dogs of number {n + n % 3},{n % 6}" for n in range(60)))
    study = changed(
        corpus=(str(texts),),
        tasks=(LabTask(settings=TaskSettings(source=str(pairs), score_range=(0.0, 5.0)), examples=(20, 4, 5)),),
        objectives=("mlm",),
        budgets={"one": Protocol(epochs=1)},
        finetuning_seeds=(0,),
    )
    zoo = run_lab(study, tmp_path / "out", options=OPTIONS).zoo
    assert {(entry.corpus, entry.task) for entry in zoo.entries} == {("texts.txt", "pairs.csv")}
    assert "fine-tuned on pairs.csv: 20 training, 4 validation and 5 test examples" in zoo.provenance.notes
    assert str(tmp_path) not in (tmp_path / "out" / "zoo.json").read_text()


@pytest.mark.slow
def test_effects_outlive_other_names_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries are known by the content of the corpus: those made before it was renamed pair with those made after."""
    first, renamed = tmp_path / "first.txt", tmp_path / "renamed.txt"
    first.write_text("\n".join(f"the {number} dogs of number {number}" for number in range(60)))
    alone = changed(corpus=(str(first),), objectives=("mlm",), budgets={"one": Protocol(epochs=1)})
    run_lab(alone, tmp_path / "out", options=OPTIONS)
    first.rename(renamed)
    both = dataclasses.replace(alone, corpus=(str(renamed),), objectives=("mlm", "rtd"))
    found = run_lab(both, tmp_path / "out", options=OPTIONS)
    assert {entry.corpus for entry in found.zoo.entries} == {"renamed.txt"}
    assert {effect.family for effect in found.effects} == {"rtd"}
    assert "has no effect" not in caplog.text
    monkeypatch.setattr(module, "objective_effects", lambda entries, level: ())
    run_lab(both, tmp_path / "out", options=OPTIONS)
    assert "rtd has no effect: no mlm model of the same size and seed is there" in caplog.text


def test_no_process_and_no_level(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at least one worker, got 0"):
        run_lab(SMALL, tmp_path, workers=0)
    with pytest.raises(LayerProbeError, match="level"), settings(level=2):
        run_lab(SMALL, tmp_path)


def test_what_a_worker_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """True for an entry that is made, None for one that another process makes; why there is none is raised."""
    exploding(monkeypatch, "s-mlm-seed0")
    (tmp_path / "entries").mkdir()
    study = changed(objectives=("mlm",))
    worker = module._worker((study, tmp_path, OPTIONS, "cpu float32", None), Share())
    with pytest.raises(TrainingError, match=r"^the loss became nan at step "):
        worker("s-mlm-seed0")
    assert worker("s-mlm-seed1") is True
    with FileLock(tmp_path / "locks" / "s-mlm-seed1.lock"):
        assert worker("s-mlm-seed1") is None


@pytest.mark.slow
def test_two_processes_give_the_same(result: LabResult, tmp_path: Path) -> None:
    found = run_lab(SMALL, tmp_path, workers=2, options=OPTIONS)
    assert found.zoo.entries == result.zoo.entries


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray opens what it closes when its process ends
def test_ray_gives_the_same(result: LabResult, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    found = run_lab(SMALL, tmp_path, ray="local", workers=2, options=OPTIONS)  # of one thread each
    assert found.zoo.entries == result.zoo.entries
