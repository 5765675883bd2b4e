"""All results keep one contract, and every template is one that a result uses."""

import pytest

from tests.report.test_shown import CASES

from .contract import assert_keeps_contract


@pytest.mark.parametrize("kind", CASES)
def test_a_result_keeps_the_contract(kind: str) -> None:
    result = CASES[kind]()
    assert_keeps_contract(result, extra=2 * (kind == "several tasks"), long_names="hostile" in kind)
