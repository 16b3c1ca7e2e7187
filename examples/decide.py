from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from lossalign.integrations.sklearn import DecisionClassifier

x, y = make_classification(3000, n_informative=6, n_classes=4, weights=[0.7, 0.2, 0.07, 0.03], random_state=0)
plain = LogisticRegression().fit(x[:1500], y[:1500])
decided = DecisionClassifier(LogisticRegression(), balanced_accuracy_score).fit(x[:1500], y[:1500])
for name, model in (("most probable class", plain), ("decided for the metric", decided)):
    print(f"{name:23} {balanced_accuracy_score(y[1500:], model.predict(x[1500:])):.3f}")
print(decided.decision_.show())
