"""Whether there was anything to learn is told from chance."""

import numpy as np
import pytest

from lossalign.evaluation.analysis import learnable, r_squared


def walk(effect, steps=200, children=10, parameters=4, horizon=5, seed=0):
    """A random walk whose moves change the reward ``horizon`` − 1 steps later by ``effect``."""
    rng = np.random.default_rng(seed)
    moves = rng.integers(-1, 2, (steps, children, parameters)).astype(float)
    rewards = rng.normal(size=(steps, children))
    rewards[horizon:] += effect * moves[1 : steps - horizon + 1, :, 0]
    return np.cumsum(moves, 0), rewards


def test_a_delayed_effect_of_actions_is_found():
    phi, rewards = walk(effect=2.0)
    found = learnable(phi, rewards, horizon=5)
    assert found.r2 > 0.1
    assert found.null < 0.02


def test_nothing_to_learn_looks_like_chance():
    phi, rewards = walk(effect=0.0)
    found = learnable(phi, rewards, horizon=5)
    assert found.r2 < 2 * found.null


def test_r_squared_is_scikit_learns():
    from sklearn.linear_model import LinearRegression

    rng = np.random.default_rng(1)
    actions, returns = rng.normal(size=(50, 3)), rng.normal(size=50)
    expected = LinearRegression().fit(actions, returns).score(actions, returns)
    assert r_squared(actions, returns) == pytest.approx(expected)


def test_too_few_decisions_are_no_answer():
    phi, rewards = walk(effect=1.0, steps=6, children=1)
    assert learnable(phi, rewards, horizon=5) is None
    assert learnable(phi, rewards, horizon=10) is None
