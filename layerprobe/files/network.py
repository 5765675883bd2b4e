"""Going on without the Hub, and addresses as messages show them. Knows HTTP, no models."""

import contextlib
import re
from collections.abc import Iterator


@contextlib.contextmanager
def hub_offline() -> Iterator[None]:
    """Take what was downloaded before inside a `with` block, as with HF_HUB_OFFLINE=1."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def without_password(text: str) -> str:
    """Return a text without the user and the password of its addresses.

    Examples:
        >>> without_password("cannot reach https://me:secret@hub.example/api")
        'cannot reach https://hub.example/api'
    """
    return re.sub(r"(?<=://)[^/?#\s]*@", "", text)
