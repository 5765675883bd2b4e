"""Small results that the store keeps. Knows that a damaged one is made again."""

import logging
from typing import TypeVar

from layerprobe.errors import DataError
from layerprobe.serialisation import from_json
from layerprobe.store.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")


def stored_result(store: Store, kind: str, key: str, result: type[T]) -> T | None:
    """Return a result from the store; None where there is none, or where it is damaged, which is logged."""
    text = store.load_result(kind, key)
    try:
        return None if text is None else from_json(result, text)
    except DataError as error:
        logger.warning("the result %s/%s in the store is damaged (%s): it is made again", kind, key, error)
        return None
