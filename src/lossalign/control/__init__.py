"""The learning controller and its parts; tensors are [children, parameters, …]."""

from lossalign.control.controller import LARGE, LearningController
from lossalign.control.policy import Policy, PolicyAbout
from lossalign.control.presets import PRESETS, RENAMED_OPTIONS, Preset, default, paper, preset_named
from lossalign.control.reward import discounted_metric, evaluation_points, sign_reward

__all__ = [
    "LARGE",
    "PRESETS",
    "RENAMED_OPTIONS",
    "LearningController",
    "Policy",
    "PolicyAbout",
    "Preset",
    "default",
    "discounted_metric",
    "evaluation_points",
    "paper",
    "preset_named",
    "sign_reward",
]
