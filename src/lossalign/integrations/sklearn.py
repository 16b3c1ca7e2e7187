"""scikit-learn: a classifier that decides for a metric, around any probabilistic classifier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossalign.core import InputError
from lossalign.decision import Decision
from lossalign.metrics import FunctionMetric, Metric

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.utils import get_tags
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError("lossalign.integrations.sklearn needs scikit-learn: pip install 'lossalign[sklearn]'.") from error

_LEAST = 1e-12


class DecisionClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose ``predict`` decides for a metric, by a ``Decision`` fitted to out-of-fold probabilities.

    The multiclass, any-metric form of ``TunedThresholdClassifierCV``. After the decision is chosen the estimator is
    fitted to all samples.

    Args:
        estimator: a classifier with ``predict_proba``; None: ``LogisticRegression()``.
        metric: a function ``(y_true, y_pred) -> float`` as in ``sklearn.metrics``, called with labels of the classes of
            ``y``; or a lossalign or torchmetrics metric, or a name, which see classes as 0 … C − 1.
        greater_is_better: the direction of a function.
        cv: number of folds, a splitter, or an iterable of splits, for out-of-fold probabilities; None: 5 folds, fewer
            if a class has fewer samples; ``"prefit"``: ``estimator`` is fitted already, and ``fit`` gets validation
            samples.

    Attributes:
        classes_: the classes.
        estimator_: the fitted estimator.
        decision_: the ``Decision``.
        n_features_in_: number of features.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.metrics import balanced_accuracy_score
        >>> x, y = load_iris(return_X_y=True)
        >>> classifier = DecisionClassifier(metric=balanced_accuracy_score).fit(x, y)
        >>> classifier.predict(x[:3])
        array([0, 0, 0])
    """

    def __init__(
        self,
        estimator: Any = None,
        metric: Any = "balanced-error",
        *,
        greater_is_better: bool = True,
        cv: Any = None,
    ) -> None:
        self.estimator, self.metric, self.greater_is_better, self.cv = estimator, metric, greater_is_better, cv

    def fit(self, X: Any, y: Any) -> DecisionClassifier:
        """Fit the decision to out-of-fold probabilities, then the estimator to all samples.

        Args:
            X: samples [n, …].
            y: labels [n].
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        check_classification_targets(y)
        X, y = self._checked(X, y)
        estimator = LogisticRegression() if self.estimator is None else self.estimator
        if isinstance(self.cv, str) and self.cv == "prefit":
            check_is_fitted(estimator)
            self.estimator_, self.classes_ = estimator, np.asarray(estimator.classes_)
            places, probabilities = self._places(y), estimator.predict_proba(X)
        else:
            self.classes_ = np.unique(y)
            places = self._places(y)
            if len(self.classes_) < 2:
                raise ValueError("Classifier can't train when only one class is present.")
            probabilities = cross_val_predict(clone(estimator), X, y, cv=self._folds(places), method="predict_proba")
            self.estimator_ = clone(estimator).fit(X, y)
        self.decision_ = Decision.fit(_logits(probabilities), torch.as_tensor(places), self._wrapped())
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The decisions [n], as classes."""
        check_is_fitted(self)
        places = self.decision_.labels(_logits(self.estimator_.predict_proba(self._seen(X))))
        found: NDArray[Any] = self.classes_[places.numpy()]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities [n, C]. Their largest is not the decision, unless the metric is the error."""
        check_is_fitted(self)
        logits = _logits(self.estimator_.predict_proba(self._seen(X)))
        return self.decision_.probabilities(logits).numpy()

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Samples and labels; a table with columns stays one, so that the estimator can select by name."""
        if hasattr(X, "columns"):
            validate_data(self, X, y, skip_check_array=True)
            return X, column_or_1d(y, warn=True)
        found: tuple[Any, Any] = validate_data(self, X, y, accept_sparse=True, dtype=None)
        return found

    def _seen(self, X: Any) -> Any:
        if hasattr(X, "columns"):
            validate_data(self, X, reset=False, skip_check_array=True)
            return X
        return validate_data(self, X, reset=False, accept_sparse=True, dtype=None)

    def _places(self, y: NDArray[Any]) -> NDArray[np.int64]:
        places = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (self.classes_[places] != y).any():
            raise InputError("y holds a class that the fitted estimator does not know; leave those samples out.")
        return places.astype(np.int64)

    def _folds(self, places: NDArray[np.int64]) -> Any:
        """``cv``; without one, 5 folds or as many as the rarest class has samples, and at least 2."""
        return max(2, min(5, int(np.bincount(places).min()))) if self.cv is None else self.cv

    def _wrapped(self) -> Any:
        """The metric as one of (outputs, places); scikit-learn's functions get labels, the true ones first."""
        if isinstance(self.metric, str | Metric) or hasattr(self.metric, "update") or not callable(self.metric):
            return self.metric
        return as_decision_metric(self.metric, self.classes_, self.greater_is_better)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.estimator is None or get_tags(self.estimator).input_tags.sparse
        return tags


def as_decision_metric(
    function: Callable[..., float], classes: NDArray[Any], greater_is_better: bool
) -> FunctionMetric:
    """A function ``(y_true, y_pred) -> float`` as a metric of outputs [V, C] and labels [V].

    Example:
        >>> from sklearn.metrics import accuracy_score
        >>> metric = as_decision_metric(accuracy_score, np.array(["cat", "dog"]), greater_is_better=True)
        >>> metric(torch.tensor([[2.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """

    def scored(outputs: Tensor, targets: Tensor) -> float:
        return float(function(classes[targets.numpy()], classes[outputs.argmax(-1).numpy()]))

    name = getattr(function, "__name__", type(function).__name__)
    return FunctionMetric(scored, higher_is_better=greater_is_better, name=name)


def _logits(probabilities: Any) -> Tensor:
    return torch.as_tensor(np.log(np.clip(np.asarray(probabilities, dtype=np.float64), _LEAST, None))).float()
