"""``DecisionClassifier`` is a scikit-learn estimator, and serves scikit-learn's metrics."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, f1_score, log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lossalign.core import InputError
from lossalign.integrations.sklearn import DecisionClassifier
from lossalign.metrics import MacroF1

MACRO_F1 = partial(f1_score, average="macro", zero_division=0)


def not_kept(estimator: Any) -> dict[str, str]:
    """As scikit-learn says of its TunedThresholdClassifierCV."""
    return {"check_classifiers_train": "the decision is not the largest probability"}


@parametrize_with_checks(
    [DecisionClassifier(), DecisionClassifier(GaussianNB(), "macro-f1", cv=2)], expected_failed_checks=not_kept
)
def test_it_keeps_the_contract_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def imbalanced() -> tuple[NDArray[Any], NDArray[Any]]:
    x, y = make_classification(
        1200, n_informative=6, n_classes=3, weights=[0.85, 0.1, 0.05], class_sep=0.8, random_state=0
    )
    return x, np.array(["ant", "bee", "cat"])[y]


@pytest.mark.parametrize("metric", [balanced_accuracy_score, MACRO_F1], ids=["balanced accuracy", "macro F1"])
def test_it_is_better_by_the_metric_on_fresh_samples(metric: Any) -> None:
    x, y = imbalanced()
    plain = LogisticRegression().fit(x[:600], y[:600])
    decided = DecisionClassifier(LogisticRegression(), metric).fit(x[:600], y[:600])
    assert metric(y[600:], decided.predict(x[600:])) > metric(y[600:], plain.predict(x[600:])) + 0.03
    assert set(decided.predict(x)) <= set(decided.classes_)
    np.testing.assert_allclose(decided.predict_proba(x).sum(-1), 1, atol=1e-5)


def test_a_fitted_estimator_gets_validation_samples() -> None:
    x, y = imbalanced()
    plain = LogisticRegression().fit(x[:600], y[:600])
    decided = DecisionClassifier(plain, balanced_accuracy_score, cv="prefit").fit(x[600:900], y[600:900])
    assert decided.estimator_ is plain
    assert balanced_accuracy_score(y[900:], decided.predict(x[900:])) > 0.4
    with pytest.raises(InputError, match="a class that the fitted estimator does not know"):
        DecisionClassifier(plain, cv="prefit").fit(x[:6], ["dog"] * 6)


def test_it_stands_in_pipelines_grids_and_clones() -> None:
    x, y = imbalanced()
    inner = DecisionClassifier(LogisticRegression(), MacroF1(), cv=StratifiedKFold(3))
    grid = GridSearchCV(
        make_pipeline(StandardScaler(), inner), {"decisionclassifier__estimator__C": [0.1, 1.0]}, cv=2
    ).fit(x[:300], y[:300])
    assert grid.predict(x).shape == y.shape
    assert clone(inner).get_params()["estimator__C"] == 1.0


def test_a_pipeline_may_select_columns_by_name() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = imbalanced()
    table = pandas.DataFrame(x, columns=[f"c{k}" for k in range(x.shape[1])])
    decided = DecisionClassifier(LogisticRegression(), balanced_accuracy_score).fit(table[:300], y[:300])
    assert list(decided.feature_names_in_) == list(table.columns)
    assert decided.predict(table).shape == y.shape


def test_a_loss_has_its_direction() -> None:
    x, y = imbalanced()

    def wrong(truth: NDArray[Any], predicted: NDArray[Any]) -> float:
        return 1 - balanced_accuracy_score(truth, predicted)

    decided = DecisionClassifier(LogisticRegression(), wrong, greater_is_better=False).fit(x, y)
    assert not decided.decision_.rows[0].gain
    assert decided.decision_.chosen != "none"
    assert log_loss(y, decided.predict_proba(x)) < 1
