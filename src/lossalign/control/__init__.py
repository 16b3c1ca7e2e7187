"""The learning controller and its parts; tensors are [children, parameters, …]."""

from lossalign.control.controller import LARGE, LearningController
from lossalign.control.policy import Policy, PolicyAbout
from lossalign.control.presets import PRESETS, RENAMED_OPTIONS, Preset, default, paper, preset_named
from lossalign.control.reward import discounted_metric, evaluation_points, sign_reward
from lossalign.control.rules import RULES, Rule, clipped_scores, confusion_move, gradient_move, needed_by, rule_move

__all__ = [
    "LARGE",
    "PRESETS",
    "RENAMED_OPTIONS",
    "RULES",
    "LearningController",
    "Policy",
    "PolicyAbout",
    "Preset",
    "Rule",
    "clipped_scores",
    "confusion_move",
    "default",
    "discounted_metric",
    "evaluation_points",
    "gradient_move",
    "needed_by",
    "paper",
    "preset_named",
    "rule_move",
    "sign_reward",
]
