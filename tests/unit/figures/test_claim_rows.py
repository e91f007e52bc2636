"""What a table says of a contrast."""

from typing import Any

import pytest

from recollect.figures.claim_rows import numbers, rounded
from recollect.stages.claims import table


@pytest.mark.parametrize(
    ("wanted", "margin", "said"),
    [
        ("above", 0.0, "> 0"),
        ("above", 0.15, "> 0.15"),
        ("below", 0.0, "< 0"),
        ("below", 0.1, "< −0.1"),
        ("equal", 0.1, "within ±0.1"),
    ],
)
def test_what_is_wanted_is_said_as_the_rule_judges_it(wanted: str, margin: float, said: str) -> None:
    contrast: dict[str, Any] = {"wanted": wanted, "margin": margin, "why": "a run is missing"}
    assert numbers(contrast) == ("", "", said, "a run is missing")
    measured = {"value": -12.34567, "low": -1234.5, "high": 0.1234567, "seeds": 5, "tasks": 20}
    assert numbers(contrast | measured) == ("−12.3", "−1234 to 0.123", said, "5 × 20")


def test_a_tables_row_begins_with_the_verdict_of_the_claim_and_its_contrasts_have_their_own() -> None:
    said = {"wanted": "above", "margin": 0.0, "why": "", "value": 2.0, "low": 1.0, "high": 3.0, "seeds": 5, "tasks": 20}
    contrasts = [{**said, "says": "first", "verdict": "holds"}, {**said, "says": "second", "verdict": "undecided"}]
    claim = {
        "paper": "RA-DT",
        "statement": "Both.",
        "source": "",
        "verdict": "undecided",
        "needed": None,
        "contrasts": contrasts,
    }
    _, _, first, second = table([claim]).splitlines()
    assert first.startswith("| ? undecided | RA-DT: Both. | ✓ first | 2 |") and second.startswith(
        "|  |  | ? second | 2 |"
    )
    _, _, first, _ = table([{**claim, "verdict": "holds", "needed": 1}]).splitlines()
    assert first.startswith("| ✓ holds | RA-DT: Both. (1 of 2 must hold) | ✓ first |")


def test_a_number_and_its_record_are_printed_alike() -> None:
    """docs/recorded keeps six digits: a number that was nearly a tie before would else be rounded the other way after."""
    for value in (-0.24350000000000005, 0.49250000000000005, 1.2345, 12.25):
        assert rounded(value) == rounded(float(f"{value:.6g}"))


@pytest.mark.parametrize(("value", "said"), [(99.96, "100"), (999.4, "999"), (-999.7, "−1000"), (12345.6, "12346")])
def test_a_number_of_many_digits_has_no_exponent(value: float, said: str) -> None:
    assert rounded(value) == said
