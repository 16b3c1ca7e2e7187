"""``lossalign.fit`` takes names or objects, and does what the command line does."""

import re

import numpy as np
import pytest
import torch

import lossalign
from lossalign import fit
from lossalign.core import InputError
from lossalign.data import Dataset, load_digits
from lossalign.experiments import configure, plain_by_key, to_plain
from lossalign.losses import AlignedLoss
from lossalign.metrics import metric_named
from lossalign.rivals import fixed
from lossalign.runs import RunFolder

SMALL = {"iterations": 30, "every": 10, "children": 2, "methods": ("fixed", "ala")}


def blobs(classes=3, each=60, features=5):
    draw = torch.Generator().manual_seed(0)
    targets = torch.arange(classes).repeat_interleave(each)
    return torch.randn(len(targets), features, generator=draw) + 2 * targets[:, None], targets


def accuracy(outputs, targets):
    return (outputs.argmax(-1) == targets).float().mean()


accuracy.higher_is_better = True


def test_a_run_in_python_is_the_run_of_its_config(tmp_path):
    result = fit("digits-lt", out=tmp_path / "run", horizon=1, **SMALL)
    config = configure("digits-lt", {**SMALL, "horizon": 1})
    assert RunFolder(tmp_path / "run").settings() == ("digits-lt", plain_by_key(to_plain(config)))
    assert list(result.rows) == ["fixed", "ala"]
    assert (result.folder, result.split) == (tmp_path / "run", "selection")


def test_it_draws_its_pictures(tmp_path):
    result = fit("digits-lt", out=str(tmp_path / "run"), **SMALL)
    assert {"curves.png", "phi.png"} <= {path.name for path in result.files}
    assert all(path.exists() for path in result.files)


def test_without_matplotlib_it_trains_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("lossalign.api.find_spec", lambda name: None)
    result = fit("digits-lt", out=tmp_path / "run", **SMALL)
    assert not [path for path in result.files if path.suffix == ".png"]


class TestObjects:
    def test_tensors_train_as_the_same_examples_in_a_table_do(self, tmp_path):
        inputs, targets = blobs()
        np.savez(tmp_path / "mine.npz", X=inputs.numpy(), y=targets.numpy())
        own = fit((inputs, targets), out=tmp_path / "a", **SMALL)
        table = fit(f"table:{tmp_path / 'mine.npz'}", out=tmp_path / "b", **SMALL)
        assert own.rows == table.rows

    def test_a_data_set_keeps_its_name_and_its_classes(self, tmp_path):
        fit(load_digits(), out=tmp_path / "run", model="mlp-8", **SMALL)
        about = RunFolder(tmp_path / "run").about()
        assert about["task"]["name"] == "object:digits"
        assert about["task"]["class_names"] == list(load_digits().class_names)

    def test_a_loss_a_metric_a_model_and_a_controller_may_be_objects(self, tmp_path):
        made = []

        def network(input_shape, num_classes):
            made.append(input_shape)
            return torch.nn.Linear(input_shape[0], num_classes)

        def still(spec, children, generator):
            return fixed(spec, children)

        loss = AlignedLoss(3, groups=("offsets",))
        given = {"loss": loss, "metric": accuracy, "model": network, "controller": still}
        with pytest.warns(UserWarning, match="metric 'accuracy' is called up to"):
            result = fit(blobs(), out=tmp_path / "run", **given, **SMALL)
        assert made
        assert set(made) == {(5,)}
        assert (result.metric, result.higher_is_better) == ("accuracy", True)
        assert [(name, role) for name, role in result.roles.items()][:2] == [("fixed", "baseline"), ("ala", "learner")]
        (own,) = set(result.rows) - {"fixed", "ala"}
        assert own.endswith("still")
        assert result.roles[own] == "rival"
        assert result.rows[own].mean == pytest.approx(result.rows["fixed"].mean)

    def test_a_metric_object_is_the_metric_of_its_name(self, tmp_path):
        named = fit(blobs(), out=tmp_path / "a", metric="macro-f1", **SMALL)
        thing = fit(blobs(), out=tmp_path / "b", metric=metric_named("macro-f1", 3), **SMALL)
        assert thing.rows == named.rows

    def test_a_controller_alone_is_trained_alone(self, tmp_path):
        settings = {name: value for name, value in SMALL.items() if name != "methods"}
        assert list(fit("digits-lt", out=tmp_path / "run", controller="fixed", **settings).rows) == ["fixed"]

    def test_whole_classes_are_held_out_for_a_loss_on_embeddings(self, tmp_path):
        digits = load_digits()
        settings = {"validation_classes": 2, "selection_classes": 2, "test_classes": 2, "batch_size": 16}
        result = fit(
            (digits.inputs, digits.targets),
            loss="distance-mixture",
            embedding=8,
            out=tmp_path / "run",
            **settings,
            **SMALL,
        )
        assert result.metric == "recall@1"

    @pytest.mark.filterwarnings("ignore:metric 'accuracy' is called up to:UserWarning")
    def test_a_run_of_objects_resumes_when_they_are_given_again(self, tmp_path):
        first = fit(blobs(), metric=accuracy, out=tmp_path / "run", **SMALL)
        again = fit(blobs(), metric=accuracy, out=tmp_path / "run", existing="resume", final=True, **SMALL)
        assert (first.split, again.split) == ("selection", "test")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "data is of type int; give a task's name"),
        ((torch.zeros(4, 2),), "data is of type tuple"),
        ((torch.zeros(4, 2), torch.zeros(4)), "labels have shape (4,) and type torch.float32; give class indices [n]."),
        ((torch.zeros(4, 2), torch.zeros(4, 1).long()), "labels have shape (4, 1)"),
        ((torch.zeros(0, 2), torch.zeros(0).long()), "labels have shape (0,)"),
        ("mnist", "task 'mnist' is unknown"),
    ],
)
def test_data_that_are_none_are_named(tmp_path, data, message):
    with pytest.raises(InputError, match=re.escape(message)):
        fit(data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "'colour': it is unknown"),
        ({"returns": 1}, "'returns': it is now called 'horizon'"),
        ({"metric": lambda outputs, targets: 1.0}, "higher_is_better"),
        ({"model": lambda: None}, "the factory returned a NoneType"),
        (
            {"loss": torch.nn.CrossEntropyLoss()},
            "loss 'object:CrossEntropyLoss' is a CrossEntropyLoss; give a lossalign.AdaptiveLoss",
        ),
        ({"controller": lambda spec, children, generator: 1 / 0}, "ZeroDivisionError"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        fit("digits-lt", out=tmp_path / "run", **{**SMALL, **changes})
    assert not (tmp_path / "run").exists()


def test_an_image_of_bytes_stays_one(tmp_path):
    draw = torch.Generator().manual_seed(0)
    inputs, targets = torch.randint(256, (60, 3, 8, 8), dtype=torch.uint8, generator=draw), torch.arange(60) % 2
    data = Dataset(name="bytes", inputs=inputs, targets=targets, class_names=("0", "1"))
    settings = {**SMALL, "model": "mlp-8", "batch_size": 8}
    as_tensors = fit((inputs, targets), out=tmp_path / "a", **settings)
    as_data = fit(data, out=tmp_path / "b", **settings)
    assert as_tensors.rows == as_data.rows


def test_fit_is_public():
    assert lossalign.fit is fit


@pytest.mark.parametrize("final", ["perhaps", 1, None])
def test_final_is_true_or_false(tmp_path, final):
    with pytest.raises(InputError, match=r"final=.*: give true or false"):
        fit("digits-lt", out=tmp_path / "run", final=final)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("data", "out"), [(3, "run"), ("digits-lt", 3), ("digits-lt", None)])
def test_what_is_no_task_or_folder_is_refused(data, out):
    with pytest.raises(InputError, match=r"data is of type int|out="):
        fit(data, out=out)
