"""German Credit: 1000 applicants, 7 numbers and 13 categories each, credit good or bad."""

from __future__ import annotations

from puma.data.base import Dataset
from puma.data.splitting import NOTHING, Extras
from puma.data.tabular import read_table, split_and_scale

NUMERIC = (
    "duration_in_month",
    "credit_amount",
    "installment_rate_in_percentage_of_disposable_income",
    "present_residence_since",
    "age_in_years",
    "number_of_existing_credits_at_this_bank",
    "number_of_people_being_liable_to_provide_maintenance_for",
)
LABEL = "creditability"


def german_credit(*, seed: int, test_fraction: float, extras: Extras = NOTHING) -> Dataset:
    """Load the table; it has no person column, so each row is its own subject.

    applicant-0001 is the first.
    """
    table = read_table("german_credit.csv")
    return split_and_scale(
        "german_credit",
        table,
        label=LABEL,
        subject_ids=[f"applicant-{row:04d}" for row in range(1, len(table) + 1)],
        numeric=NUMERIC,
        categorical=[name for name in table.columns if name not in (*NUMERIC, LABEL)],
        seed=seed,
        test_fraction=test_fraction,
        extras=extras,
    )
