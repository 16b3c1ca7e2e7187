"""What README claims, small enough to be checked at every landing. The published figures are in docs/results."""

import pytest

from lossalign import fit

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def long_tailed(tmp_path_factory):
    """Six seeds of 20 children on splits that no published figure uses; the selection split is scored."""
    methods = ("fixed", "logit-adjustment", "random-walk", "ala")
    out = tmp_path_factory.mktemp("claims") / "run"
    return fit("digits-lt", out=out, seed=5000, seeds=6, children=20, methods=methods)


def test_ala_is_under_cross_entropy_with_the_interval_clear_of_zero(long_tailed):
    for row in (long_tailed.rows["ala"], long_tailed.last["ala"]):
        assert row.difference + row.half_width < 0


def test_the_same_actions_without_learning_do_not_help(long_tailed):
    assert long_tailed.rows["random-walk"].mean > long_tailed.rows["fixed"].mean
    assert long_tailed.last["random-walk"].mean > long_tailed.last["ala"].mean


def test_there_is_something_to_learn(long_tailed):
    assert long_tailed.learnable.r2 > 5 * long_tailed.learnable.null


def test_the_engines_agree_on_what_a_whole_run_leads_to(tmp_path):
    """To rounding they train the same children; a policy would amplify rounding, so none has one."""
    settings = {"seed": 5000, "seeds": 2, "children": 5, "methods": ("fixed", "logit-adjustment")}
    runs = [fit("digits-lt", out=tmp_path / engine, engine=engine, **settings) for engine in ("sequential", "vmap")]
    for method in settings["methods"]:
        assert runs[0].last[method].mean == pytest.approx(runs[1].last[method].mean, abs=0.005)


def test_an_image_network_trains_and_resumes_on_an_image_folder(tmp_path):
    import numpy as np
    from PIL import Image

    from lossalign.data import load_digits

    digits = load_digits()
    for index in range(300):
        folder = tmp_path / "photos" / str(int(digits.targets[index]))
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (digits.inputs[index, 0].numpy() * 255).astype(np.uint8)
        Image.fromarray(pixels).resize((16, 16)).save(folder / f"{index}.png")
    settings = {"model": "resnet8", "image_size": 16, "iterations": 60, "every": 10, "children": 2, "batch_size": 32}
    task = f"images:{tmp_path / 'photos'}"
    first = fit(task, out=tmp_path / "run", **settings)
    again = fit(task, out=tmp_path / "run", existing="resume", final=True, **settings)
    assert first.rows["ala"].mean < 0.9
    assert again.split == "test"


def test_a_policy_does_not_forget_where_the_metric_plateaus(tmp_path):
    """Sixty times fewer images of one class, and four children: its recall is 0 for long, whatever the loss does."""
    methods = (
        "fixed",
        "ala:policy=pretrained,tie_breaker=0",
        "ala:policy=pretrained",
        "ala:policy=pretrained,freeze=true",
    )
    settings = {"ratio": 60.0, "metric": "worst-recall", "iterations": 600, "every": 5, "children": 4}
    run = fit("digits-lt", out=tmp_path / "run", seed=5000, seeds=8, methods=methods, **settings)
    *learning, frozen = (run.rows[name] for name in methods[1:])
    for row in learning:
        assert row.difference - row.half_width > 0
        assert row.mean > frozen.mean - 0.08
