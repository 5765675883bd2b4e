"""A folder that was exported -> a repository on the Hugging Face Hub. Knows files and huggingface_hub, no models."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError

from layerprobe.encoders.failures import first_sentence
from layerprobe.encoders.loading import quiet_transformers
from layerprobe.errors import DataError, HubError, option
from layerprobe.export.card import PLACE

_REPO = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_]([\w.-]*\w)?/(?=.{1,96}$)[A-Za-z0-9_]([\w.-]*\w)?(?<!\.git)", re.ASCII)
_BRANCH = re.compile(r"(?!-|/|.*\.\.|.*//)[\w./-]+(?<![./])")
_REASONS = {
    401: "the Hub does not accept the token: log in with `hf auth login`, or set HF_TOKEN",
    403: "the token may not write there: make one that may, in the settings of the Hub",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Where on the Hub an export goes; DataError for names that it does not take."""

    repo: str
    """As user/name or organisation/name; made where it is not there."""
    public: bool = False
    """Whether everybody may see it."""
    revision: str | None = None
    """The branch, made where it is not there; the main one by default."""
    message: str | None = None
    """Of the commit; by default it says what was exported."""

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo):
            raise DataError(
                f"expected a repository of the Hub as user/name (letters, digits, - _ .), got {self.repo!r}"
            )
        if self.revision is not None and not _BRANCH.fullmatch(self.revision):
            raise DataError(f"expected the name of a branch for revision, got {self.revision!r}")


def check_access() -> None:
    """Raise HubError where nothing can be uploaded: without a token, or where the Hub is not to be asked."""
    if constants.HF_HUB_OFFLINE:
        raise HubError("HF_HUB_OFFLINE is set, so nothing can be uploaded to the Hub: unset it")
    if get_token() is None:
        raise HubError("expected a token of the Hub that may write, got none: set HF_TOKEN or use `hf auth login`")


def upload(folder: Path, push: Push, *, message: str) -> str:
    """Upload the files of an export in one commit, and return the address of that commit.

    A repository that is made is private unless `public`; one that is there stays what it is, and a public one is
    refused where `public` was not asked for. On the Hub, the card names the repository in place of the folder.
    """
    api = HfApi(token=get_token())
    try:
        api.create_repo(push.repo, private=not push.public, exist_ok=True)
        if not push.public and api.model_info(push.repo).private is False:
            public = f"{push.repo} is public: use {option('public', True)} if everybody may see it, or another name"
            raise HubError(f"{public}; the export is complete in {folder}")
        if push.revision is not None and not push.revision.startswith("refs/"):
            api.create_branch(push.repo, branch=push.revision, exist_ok=True)
        with quiet_transformers():  # bars are for terminals
            done = api.create_commit(
                push.repo, _files(folder, push), commit_message=push.message or message, revision=push.revision
            )
    except HubError:
        raise
    except Exception as error:  # the client, HTTP and Xet under it raise unrelated kinds
        again = ["hf", "upload", push.repo, str(folder), ".", *([] if push.public else ["--private"])]
        again += [] if push.revision is None else ["--revision", push.revision]
        raise HubError(
            f"the export is complete in {folder}, but its upload to {push.repo} failed: {_reason(error)}; to go on, "
            f"run the same command again, or `{shlex.join(again)}`"
        ) from error
    return str(done.commit_url)


def _files(folder: Path, push: Push) -> Iterator[CommitOperationAdd]:
    place = f'"{push.repo}"' + (f', revision="{push.revision}"' if push.revision else "")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith("."):  # such as what others keep there of an upload
            card = path.read_bytes().replace(f'"{PLACE}"'.encode(), place.encode()) if name == "README.md" else None
            yield CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path) if card is None else card)


def _reason(error: BaseException) -> str:
    """Return why an upload failed: what the Hub answered, else the first cause."""
    while error.__cause__ is not None and not isinstance(error, HfHubHTTPError):
        error = error.__cause__
    if not isinstance(error, HfHubHTTPError):
        return first_sentence(error)
    status, message = error.response.status_code, f": {error.server_message}" if error.server_message else ""
    return f"{_REASONS.get(status, 'the Hub refused it')} ({status}{message})"
