"""The controller: state, reward, policy, replay, learner, the two presets. Tensors are [children, parameters, …]."""

from lossalign.control.controller import LearningController
from lossalign.control.policy import Policy
from lossalign.control.presets import PRESETS, Preset, default, paper, preset_named, switch
from lossalign.control.reward import discounted_metric, evaluation_points, sign_reward

__all__ = [
    "PRESETS",
    "LearningController",
    "Policy",
    "Preset",
    "default",
    "discounted_metric",
    "evaluation_points",
    "paper",
    "preset_named",
    "sign_reward",
    "switch",
]
