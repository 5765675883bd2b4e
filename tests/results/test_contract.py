"""All results keep one contract, and every template is one that a result uses."""

import pytest

from layerprobe.results.shown import has_conclusion
from tests.report.test_shown import CASES

from .contract import assert_keeps_contract


@pytest.mark.parametrize("kind", CASES)
def test_a_result_keeps_the_contract(kind: str) -> None:
    result = CASES[kind]()
    if not has_conclusion(result):
        pytest.skip("it still shows itself as before")
    assert_keeps_contract(result, extra=2 * (kind == "several tasks"), long_names="hostile" in kind)
