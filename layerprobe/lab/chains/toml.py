"""Reads and writes a chain as a TOML file. Knows keys; runs nothing."""

from pathlib import Path

from layerprobe.errors import DataError
from layerprobe.files.toml import LAYERS, SEEDS, Keys, field_values, parse_toml, read_toml, texts, to_toml
from layerprobe.finetuning.values import Protocol, with_rate
from layerprobe.lab.adaptation.values import AdaptationProtocol
from layerprobe.lab.chains.values import AdaptStep, Chain, FinetuneStep
from layerprobe.tasks.toml import model_reader, taken_task


def chain_to_toml(chain: Chain) -> str:
    """Return a chain as TOML, with every setting: a default of a later version changes nothing.

    Examples:
        >>> from layerprobe.lab.chains.values import FinetuneStep
        >>> from layerprobe.tasks.values import TaskSettings
        >>> step = FinetuneStep(task=TaskSettings(source="stsb"))
        >>> chain_to_toml(Chain(name="plain", model="bert", steps=(step,))).splitlines()[:3]
        ['name = "plain"', 'model = "bert"', 'layers = "all"']
    """
    values = field_values(chain)
    del values["steps"]
    top = {**values, "layers": "all" if chain.layers is None else chain.layers}
    return to_toml(("", top), *(("[[step]]", _step_values(step)) for step in chain.steps))


def _step_values(step: AdaptStep | FinetuneStep) -> dict[str, object]:
    if isinstance(step, AdaptStep):
        return {"adapt": step.texts, "seed": step.seed, **field_values(step.protocol)}
    settings = field_values(step.task)
    return {"finetune": settings.pop("source"), **settings, **field_values(step.protocol)}


def load_chain(path: str | Path) -> Chain:
    """Read a chain from a TOML file; paths in it are relative to the file.

        model = "google/electra-base-discriminator"
        reference = "google-bert/bert-base-cased"   # CKA against it; none by default
        layers = [3, 9, 12]                         # or "all", the default
        seeds = 5                                   # or a list of them
        control = [0]                               # the same from random weights; none by default
        [[step]]
        adapt = ["captions.txt"]                    # with the fields of AdaptationProtocol, and seed
        max_steps = 200
        [[step]]
        finetune = "words"                          # with the fields of TaskSettings and Protocol
        merge = true
        epochs = 50
        batch_size = 128
        [[step]]
        finetune = "stsb"

    Further keys are those of `Chain`: name, random_init, baseline, cka. With `lora`, learning_rate is 2e-4 by default.
    """
    return _chain(read_toml(path, "the chain", absolute=True), name=Path(path).stem)


def chain_from_toml(content: str, *, name: str = "chain", folder: Path | None = None) -> Chain:
    r"""Return the chain that a TOML text describes, called `name` where the text does not say; see `chain_to_toml`.

    What is left out is the default. Relative paths are from the folder; without one they stay as they are.

    Examples:
        >>> chain = chain_from_toml('model = "bert"\nseeds = 2\n[[step]]\nfinetune = "stsb"\nepochs = 3')
        >>> chain.seeds, chain.finetunings[0].protocol.epochs
        ((0, 1), 3)
    """
    return _chain(parse_toml(content, where="the chain", folder=folder), name=name)


def _chain(keys: Keys, *, name: str) -> Chain:
    model = model_reader(keys)
    values = {"name": keys.take("name", str, default=name), "steps": tuple(map(_step, keys.tables("step")))}
    readers = {"model": model, "reference": model, "layers": LAYERS, "seeds": SEEDS}
    return keys.whole(Chain, values, readers=readers)


def _step(keys: Keys) -> AdaptStep | FinetuneStep:
    kinds = [kind for kind in ("adapt", "finetune") if kind in keys.data]
    if len(kinds) != 1:
        raise DataError(f"{keys.where}: expected either adapt or finetune, got {' and '.join(kinds) or 'neither'}")
    if kinds == ["adapt"]:
        files = keys.take("adapt", texts(keys.path, "a file or a list of files"))
        return keys.whole(AdaptStep, {"texts": files, "protocol": keys.fields(AdaptationProtocol)})
    keys.data = with_rate(keys.data)
    return keys.whole(FinetuneStep, {"task": taken_task(keys, "finetune"), "protocol": keys.fields(Protocol)})
