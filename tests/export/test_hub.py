"""An export on the Hub: the real client's upload against a stand-in on loopback."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from layerprobe.encoders.model import Model
from layerprobe.errors import DataError, HubError
from layerprobe.export.hub import Push, check_access
from layerprobe.export.run import export_model
from layerprobe.files.folders import folder_problems
from tests.few import few
from tests.hub_server import TOKEN, Hub, hub_server, use

from .test_sentence_transformers import built, mean

NAME = "someone/small-1"
# httpx says so of what the Hub's client gives it
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_server() as server:
        use(server, monkeypatch)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between the client's retries
        yield server


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_export_is_uploaded_whole_and_private(hub: Hub, bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = export_model(bert, out, layer=1, push_to_hub=NAME)
    (commit,) = hub.repositories[NAME].commits
    assert done.uploaded == f"{hub.address}/{NAME}/commit/{commit['oid']}"
    assert hub.repositories[NAME].private
    assert commit["summary"] == "bert, layer 1 of 3"
    local, there = contents(out), dict(hub.files(NAME))
    card = there.pop("README.md").decode()
    assert there == {name: data for name, data in local.items() if name != "README.md"}
    assert hub.objects, "expected the weights by LFS"
    assert f'SentenceTransformer("{NAME}")' in card
    assert "path/to/this/folder" not in card
    assert "path/to/this/folder" in (out / "README.md").read_text(), "the folder stays what it is"
    data: Any = ModelCard(card).data
    data = data.to_dict()
    assert data["library_name"] == "sentence-transformers"
    assert "model-index" not in data, "nothing was scored"


def test_what_was_uploaded_loads(hub: Hub, bert: Path, tmp_path: Path) -> None:
    export_model(bert, tmp_path / "out", layer=2, push_to_hub=Push(repo=NAME, public=True, revision="layer-2"))
    assert not hub.repositories[NAME].private
    assert hub.files(NAME) == {}, "another branch was asked for"
    again = tmp_path / "downloaded"
    for name, data in hub.files(NAME, "layer-2").items():
        (again / name).parent.mkdir(parents=True, exist_ok=True)
        (again / name).write_bytes(data)
    assert not list(folder_problems(again, again=True))
    assert f'SentenceTransformer("{NAME}", revision="layer-2")' in (again / "README.md").read_text()
    exported = export_model(again, tmp_path / "third", layer=2)
    assert (exported.n_blocks, exported.difference) == (2, 0)


def test_a_finished_export_is_uploaded_as_it_is(hub: Hub, bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(bert, out, layer=1)
    with (out / "README.md").open("a") as card:
        card.write("\nEdited by hand.\n")
    (out / "scores.txt").write_text("mine")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in out.iterdir() if path.is_file()}
    done = export_model(bert, out, layer=1, push_to_hub=NAME)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in before} == before
    assert f"{out} was there already: it is uploaded as it is" in done.warnings
    assert b"Edited by hand." in hub.files(NAME)["README.md"]
    assert hub.files(NAME)["scores.txt"] == b"mine"
    assert done.difference == 0


@pytest.mark.parametrize(
    "other", few(["layer", "pooling", "weights", "damage"], lambda other: other in ("weights", "damage"))
)
def test_an_export_of_something_else_is_not_uploaded(hub: Hub, bert: Path, tmp_path: Path, other: str) -> None:
    out = tmp_path / "out"
    export_model(bert, out, layer=1)
    if other == "damage":
        weights = out / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    model = Model(bert, pooling="cls" if other == "pooling" else None, random_init=3 if other == "weights" else None)
    with pytest.raises(DataError, match="choose another folder, or replace it with --overwrite") as caught:
        export_model(model, out, layer=2 if other == "layer" else 1, push_to_hub=NAME)
    assert "\n" not in str(caught.value)
    assert hub.repositories == {}
    export_model(model, out, layer=1, push_to_hub=NAME, overwrite=True)
    assert hub.files(NAME)


@pytest.mark.parametrize(
    "other",
    few([{"pooling": "max"}, {"prompt": "query: "}, {"max_length": 9}], lambda other: "prompt" in other),
    ids=str,
)
def test_another_export_of_a_sentence_transformer_is_not_uploaded(
    hub: Hub, tmp_path: Path, other: dict[str, Any]
) -> None:
    """Whose modules say how it pools, so that the folder would equal itself."""
    folder, out = built(tmp_path, mean(), prompts={"q": "a "}, default_prompt_name="q"), tmp_path / "out"
    export_model(Model(folder, pooling="mean"), out, layer=2)
    with pytest.raises(DataError, match=r"is another export of .*model: its .*json is not what is requested now"):
        export_model(Model(folder, **other), out, layer=2, push_to_hub=NAME)
    assert hub.repositories == {}
    export_model(Model(folder, pooling="mean"), out, layer=2, push_to_hub=NAME)
    assert hub.files(NAME)


FAILURES: dict[str, tuple[str, int, str]] = {
    "no such token": ("/api/repos/create", 401, "does not accept the token"),
    "no right to make it": ("/api/repos/create", 403, "the token may not write there"),
    "no right to write": ("/commit/", 403, "the token may not write there"),
    "the server breaks": ("/commit/", 500, r"the Hub refused it \(500: stand-in says 500\)"),
    "the commit dies": ("/commit/", 0, "disconnected"),
    "the weights die": ("PUT /lfs/", 0, "disconnected|closed|reset|Broken pipe"),
    "the weights are refused": ("PUT /lfs/", 500, "500"),
    "there is no such branch": ("/preupload/", 404, "404"),
}


@pytest.mark.parametrize(
    "what", few(FAILURES, lambda what: what in ("no right to write", "the commit dies", "the weights are refused"))
)
def test_a_failed_upload_leaves_the_folder_and_the_same_call_goes_on(
    hub: Hub, bert: Path, tmp_path: Path, what: str
) -> None:
    part, status, reason = FAILURES[what]
    hub.fails[part] = status
    out = tmp_path / "an export"
    with pytest.raises(HubError, match=reason) as caught:
        export_model(bert, out, layer=1, push_to_hub=NAME)
    said = str(caught.value)
    assert "\n" not in said
    assert f"the export is complete in {out}" in said
    assert f"`hf upload {NAME} '{out}' . --private`" in said
    assert TOKEN not in said
    assert not list(folder_problems(out, again=True))
    assert NAME not in hub.repositories or hub.files(NAME) == {}
    before = contents(out)
    hub.fails.clear()
    done = export_model(bert, out, layer=1, push_to_hub=NAME)
    assert contents(out) == before
    assert set(hub.files(NAME)) == set(before)
    assert done.uploaded


def test_nobody_is_there(hub: Hub, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="Connection refused"):
        export_model(bert, tmp_path / "out", layer=1, push_to_hub=NAME)
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_public_repository_is_not_written_to_by_surprise(hub: Hub, bert: Path, tmp_path: Path) -> None:
    export_model(bert, tmp_path / "out", layer=1, push_to_hub=Push(repo=NAME, public=True, message="first try"))
    assert hub.repositories[NAME].commits[0]["summary"] == "first try"
    with pytest.raises(HubError, match="is public: use --public"):
        export_model(bert, tmp_path / "two", layer=2, push_to_hub=NAME)
    assert len(hub.repositories[NAME].commits) == 1
    assert (tmp_path / "two" / "model.safetensors").is_file()


def _no_token(patch: pytest.MonkeyPatch, home: Path) -> None:
    patch.delenv("HF_TOKEN")
    patch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(home / "nothing"))


def _offline(patch: pytest.MonkeyPatch, home: Path) -> None:
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(("state", "said"), [(_no_token, "expected a token of the Hub"), (_offline, "HF_HUB_OFFLINE")])
def test_what_cannot_be_uploaded_is_said_before_anything_is_written(
    hub: Hub,
    bert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: Callable[[pytest.MonkeyPatch, Path], None],
    said: str,
) -> None:
    state(monkeypatch, tmp_path)
    with pytest.raises(HubError, match=said):
        export_model(bert, tmp_path / "out", layer=1, push_to_hub=NAME)
    assert not (tmp_path / "out").exists()
    assert hub.asked == []


def test_a_token_of_a_login_does(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_token(monkeypatch, tmp_path)
    (tmp_path / "nothing").write_text(TOKEN)
    check_access()


@given(st.text(alphabet="aZ9-_./é ", max_size=8), st.text(alphabet="aZ9-_.gité ", max_size=8))
@example("a", "b.git").via("known")
@example("a", "b" * 97).via("known")
def test_names_are_those_that_the_hub_takes(owner: str, name: str) -> None:
    repo = f"{owner}/{name}"
    taken = allowed = False
    with contextlib.suppress(DataError):
        Push(repo=repo)
        taken = True
    with contextlib.suppress(HFValidationError):
        validate_repo_id(repo)
        allowed = True
    assert taken <= allowed, "what is taken here would be refused there, after the work"


@pytest.mark.parametrize("repo", ["org/a", "Org-2/all-mpnet_base.v2", "a/" + "b" * 96])
def test_usual_names_are_taken(repo: str) -> None:
    assert Push(repo=repo).repo == repo


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"repo": "name"}, "as user/name"),
        ({"repo": "a/b/c"}, "as user/name"),
        ({"repo": "https://huggingface.co/a/b"}, "as user/name"),
        ({"repo": ""}, "as user/name"),
        ({"repo": NAME, "revision": ""}, "the name of a branch"),
        ({"repo": NAME, "revision": "../x"}, "the name of a branch"),
    ],
)
def test_wrong_settings(settings: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Push(**settings)  # type: ignore[arg-type]


def test_xet_that_the_server_does_not_have_is_one_line(
    hub: Hub, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", False)
    with pytest.raises(HubError, match="but its upload to") as caught:
        export_model(bert, tmp_path / "out", layer=1, push_to_hub=NAME)
    assert "\n" not in str(caught.value)
    assert any("xet-write-token" in line for line in hub.asked)
    assert not list(folder_problems(tmp_path / "out", again=True))
