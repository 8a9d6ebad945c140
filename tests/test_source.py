"""An edited method is another method, wherever in its files the edit is."""
import importlib
import sys
from pathlib import Path

import pytest
from promptcal.datasets.utils import source
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import TRAINER_REGISTRY
from promptcal.trainers.runs import make_record
from promptcal.trainers.runs.make_record import method_source
from promptcal.trainers.soc import SoC
from promptcal.trainers.tpt import TPT
from promptcal.trainers.zeroshot import ZeroShot

PLUGIN = """\
from promptcal.trainers.tpt import TPT
from helpers import scaled

FACTOR = 1
if True:
    def shape(text):
        return text
try:
    from nothing import here
except ImportError:
    WORD = "first"


class MyMethod(TPT):
    def penalty(self, text):
        return scaled(shape(text)) * FACTOR


MyMethod.patched = 3
"""
HELPERS = "import deeper\n\ndef scaled(x):\n    return 2 * x\n"
DEEPER = "CONSTANT = 5\n"


def source_of(folder: Path, plugin: str = PLUGIN, helpers: str = HELPERS, deeper: str = DEEPER) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    files = {"my_method": plugin, "helpers": helpers, "deeper": deeper, "unrelated": "X = 1\n"}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        method = importlib.import_module("my_method").MyMethod
        return method_source([method])
    finally:
        sys.path.remove(str(folder))
        for name in files:
            sys.modules.pop(name, None)


@pytest.mark.parametrize(("what", "old", "new"), [
    ("plugin", "FACTOR = 1", "FACTOR = 2"),
    ("plugin", "return text", "return -text"),
    ("plugin", '"first"', '"second"'),
    ("plugin", "patched = 3", "patched = 4"),
    ("plugin", "class MyMethod", "FACTOR = 7\n\n\nclass MyMethod"),
    ("plugin", "MyMethod.patched", "class MyMethod(MyMethod):\n    pass\n\n\nMyMethod.patched"),
    ("helpers", "2 * x", "3 * x"),
    ("deeper", "5", "6"),
])
def test_an_edit_anywhere_counts(tmp_path, what, old, new):
    texts = {"plugin": PLUGIN, "helpers": HELPERS, "deeper": DEEPER}
    assert old in texts[what]
    edited = {**texts, what: texts[what].replace(old, new, 1)}
    before = source_of(tmp_path / "before")
    after = source_of(tmp_path / "after", **edited)
    assert before["plugin"] != after["plugin"]
    assert (before["version"], before["hash"]) == (after["version"], after["hash"])


METHOD = """\
from promptcal.trainers.tpt import TPT
{}


class MyMethod(TPT):
    def weight(self, loss, penalty):
        return {}
"""
PATCH = """\
from lab.mine import MyMethod

MyMethod.weight = lambda self, loss, penalty: 1
"""
WRAPPER = """\
import functools
from lab.mine import MyMethod

original = MyMethod.weight


@functools.wraps(original)
def weight(self, loss, penalty):
    return 1 * original(self, loss, penalty)


MyMethod.weight = weight
"""


MIXIN = "class Factor:\n    def factor(self):\n        return 1\n"
FROM_MORE = """\
import pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent / 'more'))
from lab_scale import SCALE"""
SCALE = METHOD.format("from lab.scale import SCALE", "SCALE")
BY_NAME = METHOD.format("import importlib", "importlib.import_module('lab.scale').SCALE")
# What the method reads -> its files, links to files, and the file that is edited. A 1 becomes a 9.
PLACES = {
    "a name of the package": (
        {"lab/__init__.py": "SCALE = 1\n", "lab/mine.py": METHOD.format("from . import SCALE", "SCALE")},
        {}, "lab/__init__.py"),
    "a name that a package above has from a module": (
        {"lab/__init__.py": "from .constants import SCALE\n", "lab/constants.py": "SCALE = 1\n",
         "lab/mine/__init__.py": METHOD.format("from .. import SCALE", "SCALE")},
        {}, "lab/constants.py"),
    "packages without __init__.py": (
        {"lab/mine/__init__.py": "from .method import MyMethod",
         "lab/mine/method.py": METHOD.format("from ..maths.scale import SCALE", "SCALE"),
         "lab/maths/scale.py": "SCALE = 1\n"},
        {}, "lab/maths/scale.py"),
    "a module by its name": ({"lab/mine.py": BY_NAME, "lab/scale.py": "SCALE = 1\n"}, {}, "lab/scale.py"),
    "a function from elsewhere": (
        {"lab/mine.py": METHOD.format("", "2"), "lab/patches.py": PATCH}, {}, "lab/patches.py"),
    "a function around the method's own": (
        {"lab/mine.py": METHOD.format("", "2"), "lab/patches.py": WRAPPER}, {}, "lab/patches.py"),
    "a module behind a link": (
        {"lab/mine.py": SCALE, "shared/scale.py": "SCALE = 1\n"},
        {"lab/scale.py": "../shared/scale.py"}, "shared/scale.py"),
    "a module beside a link to the method": (
        {"shared/mine.py": SCALE, "lab/scale.py": "SCALE = 1\n"},
        {"lab/mine.py": "../shared/mine.py"}, "lab/scale.py"),
    "a folder that the method adds to sys.path": (
        {"lab/mine.py": METHOD.format(FROM_MORE, "SCALE"), "lab/more/lab_scale.py": "SCALE = 1\n"},
        {}, "lab/more/lab_scale.py"),
    "a base class of its own in another folder": (
        {"lab/mine.py": METHOD.format("from lab_mixin import Factor", "2").replace("(TPT)", "(Factor, TPT)"),
         "lab_mixin.py": MIXIN},
        {}, "lab_mixin.py"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_edit_anywhere_that_python_looks_counts(tmp_path, monkeypatch, place):
    files, links, edited = PLACES[place]
    sources = []
    for folder in (tmp_path / "before", tmp_path / "after"):
        for file, text in files.items():
            if folder.name == "after" and file == edited:
                text = text.replace("1", "9")
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        for link, target in links.items():
            (folder / link).symlink_to(target)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            for module in [module for module in sys.modules if module.startswith("lab")]:
                del sys.modules[module]
            method = importlib.import_module("lab.mine").MyMethod
            if "lab/patches.py" in files:
                importlib.import_module("lab.patches")
            sources.append(method_source([method])["plugin"])
    assert sources[0] and sources[0] != sources[1]


def test_the_code_that_a_process_has_loaded_counts(tmp_path, monkeypatch):
    """A method is edited while a run of several seeds goes on with what was loaded."""
    file = tmp_path / "lab_loaded.py"
    text = METHOD.format("from promptcal.trainers import TRAINER_REGISTRY", "1")
    file.write_text(text.replace("class MyMethod", "@TRAINER_REGISTRY.register()\nclass LabLoaded"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(TRAINER_REGISTRY, "_classes", dict(TRAINER_REGISTRY._classes))
    method = importlib.import_module("lab_loaded").LabLoaded
    file.write_text(file.read_text().replace("return 1", "return 2"))
    edited = method_source([method])["plugin"]
    file.write_text(file.read_text().replace("return 2", "return 1"))
    source.read_source.cache_clear()
    assert method_source([method])["plugin"] == edited


def test_an_attribute_that_a_script_sets_counts(tmp_path):
    """Such as in a loop over values, where the text of the class stays what it is."""
    class Mine(TPT):
        strength = 1

    before = method_source([Mine])["plugin"]
    assert method_source([Mine])["plugin"] == before
    Mine.strength = 2
    assert method_source([Mine])["plugin"] != before


@pytest.mark.parametrize("cls", [SoC, TPT])
def test_a_built_in_method_of_which_other_code_replaces_a_function_is_refused(monkeypatch, cls):
    """It would be shown under the method's name, with published numbers beside it."""
    with monkeypatch.context() as patch:
        patch.setattr(cls, "penalty", lambda self, text: text.sum((-1, -2)))
        with pytest.raises(ConfigError, match=f"^penalty of {cls.__name__} was replaced by other"):
            method_source([SoC])
        with pytest.raises(ConfigError):
            method_source([ZeroShot, SoC])  # as a term that is added to another method
        assert method_source([ZeroShot])
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[SoC.__module__], "balance", lambda *args: 1.0)
        with pytest.raises(ConfigError, match="^balance of SoC was replaced by other code"):
            method_source([SoC])
    assert method_source([SoC])["plugin"] == ""


def test_the_same_code_is_the_same_method(tmp_path):
    """In another folder, with the line ends of Windows, beside a file that it does not import."""
    before = source_of(tmp_path / "laptop")
    (tmp_path / "laptop" / "unrelated.py").write_text("X = 2\n")
    assert source_of(tmp_path / "laptop") == before
    assert source_of(tmp_path / "cluster", PLUGIN.replace("\n", "\r\n")) == before


def test_a_class_without_a_file_is_known_by_its_code():
    def make(body: str) -> type:
        scope: dict = {"TPT": TPT, "__name__": "__main__"}
        exec(body, scope)  # noqa: S102 - as in a notebook
        return scope["Mine"]

    body = """\
FACTOR = 3
def scaled(x):
    return [FACTOR * number for number in x]
class Mine(TPT):
    share = 4
    @property
    def rate(self):
        return 5
    def weight(self, loss, penalty):
        return sum(scaled([loss.relu(), 6]))
"""
    plugin = method_source([make(body)])["plugin"]
    assert method_source([make(body)])["plugin"] == plugin
    for old, new in (("3", "7"), ("4", "7"), ("5", "7"), ("6", "7"), ("relu", "tanh"), ("FACTOR *", "FACTOR +")):
        assert method_source([make(body.replace(old, new))])["plugin"] != plugin, old


def test_built_in_methods_have_their_own_files_and_formulas(monkeypatch):
    """The life cycle of runs is not among them."""
    monkeypatch.setattr(make_record, "hash_files", lambda files, texts=(): [file.name for file in files])
    assert method_source([SoC])["plugin"] == ""
    files = method_source([SoC])["hash"]
    assert "objectives.py" in files and "soc.py" in files and "base.py" not in files
