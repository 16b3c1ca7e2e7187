"""A user's own things are found by name, and a name that leads nowhere says why."""

import re
import sys

import pytest

from lossalign.core import InputError, import_plug, offer_plug


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_plugs", raising=False)
    return tmp_path


class TestModules:
    def test_a_module_in_the_current_folder_is_found_and_the_path_is_left_alone(self, folder):
        (folder / "my_plugs.py").write_text("thing = 5\n")
        before = list(sys.path)
        assert import_plug("metric", "my_plugs:thing") == 5
        assert sys.path == before

    @pytest.mark.parametrize(
        ("code", "path", "sentence"),
        [
            ("", "my_plugs", "metric='my_plugs': write module:attribute, e.g. my_package:my_metric."),
            ("", "my_plugs:", "write module:attribute"),
            ("", ":thing", "write module:attribute"),
            ("", ".my_plugs:thing", "write module:attribute"),
            ("", "my_plugs:thing", "module 'my_plugs' has no 'thing'; define it."),
            ("", "no_plugs_here:thing", "there is no module 'no_plugs_here'; run from the folder that holds it"),
            ("import no_plugs_here", "my_plugs:thing", "there is no module 'no_plugs_here'"),
            ("1 / 0", "my_plugs:thing", "importing 'my_plugs' failed: ZeroDivisionError: division by zero"),
            ("def (", "my_plugs:thing", "importing 'my_plugs' failed: SyntaxError"),
        ],
    )
    def test_a_name_that_leads_nowhere_says_why(self, folder, code, path, sentence):
        (folder / "my_plugs.py").write_text(code)
        before = list(sys.path)
        with pytest.raises(InputError, match=re.escape(sentence)):
            import_plug("metric", path)
        assert sys.path == before


class TestObjects:
    def test_an_object_is_found_under_the_name_that_it_was_given(self):
        thing = object()
        assert import_plug("loss", offer_plug("loss", thing, "mine")) is thing

    def test_its_name_is_its_own_and_fits_into_a_method_and_a_file(self):
        def outer():
            return lambda: None

        assert offer_plug("metric", outer).endswith("outer")
        for thing in (outer, outer(), object(), TestObjects):
            assert re.fullmatch(r"object:[A-Za-z0-9_.-]+", offer_plug("metric", thing))

    def test_it_stands_for_the_argument_that_it_was_handed_over_for(self):
        offer_plug("metric", 5, "only-a-metric")
        with pytest.raises(InputError, match=r"it was an object in Python; \w+ it to lossalign\.fit again"):
            import_plug("loss", "object:only-a-metric")
