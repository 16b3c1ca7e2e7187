"""A policy is shown as it behaves, and found by seed."""

import pytest
import torch

from lossalign.cli.policy import behaviour, policy_file
from lossalign.control import Policy
from lossalign.control.state import StateLayout
from lossalign.core import InputError


def test_the_shown_behaviour_is_the_policys_own():
    policy = Policy(StateLayout(statistics=1, history=2, sensitivity=False), generator=torch.Generator().manual_seed(0))
    table = behaviour(policy)
    state = torch.tensor([1.5, 1.5, 0.0, 0.0, 0.9])  # history, change, Φ, time
    chances = torch.softmax(policy(state), -1)
    assert [list(column.cells)[1] for column in table.columns[2:]] == [f"{chance:.2f}" for chance in chances]


def test_a_run_folder_stands_for_its_first_policy_or_that_of_a_seed(tmp_path):
    for seed in (10, 2):
        (tmp_path / f"policy-{seed}.safetensors").touch()
    assert policy_file(tmp_path, None).name == "policy-2.safetensors"
    assert policy_file(tmp_path, 10).name == "policy-10.safetensors"
    with pytest.raises(InputError, match="holds no policy of seed 3"):
        policy_file(tmp_path, 3)


def test_a_folder_without_policies_says_what_trains_one(tmp_path):
    with pytest.raises(InputError, match="holds no policy; train a method that learns first"):
        policy_file(tmp_path, None)
