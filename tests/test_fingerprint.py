"""What a run may be resumed with, and its readable folder: one for every choice of settings."""
from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import TRAINER_REGISTRY, build_cfg
from promptcal.trainers.config import fingerprint
from promptcal.trainers.config.fingerprint import check_same, make_fingerprint, path_safe, run_path

DTD = "configs/datasets/dtd.yaml"


def tag(*opts: object) -> str:
    return build_cfg("SoC", DTD, opts=opts).TAG


@pytest.mark.parametrize(("opts", "name"), [
    ([], "default"), (["TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 10], "STEPS-2_LAMBDA-10.0"),
    (["PROMPT.CTX_INIT", "itap of a"], "CTX_INIT-itap-of-a"),
    (["MODEL.INIT_WEIGHTS", "small-coop-4shot"], "INIT_WEIGHTS-small-coop-4shot"),
    (["TEST.BINS", 10, "TEST.PART", 5, "TTA.EPISODES", 3, "TRAINER.CTPT.LAMBDA", 1], "default"),
])
def test_run_folders(opts: list, name: str):
    cfg = build_cfg("SoC", DTD, opts=[*opts, "SEED", 3])
    assert str(run_path(cfg)) == f"output/DescribableTextures/SoC/ViT-L-14/{name}/seed3"
    assert str(run_path(build_cfg("SoC", DTD, flags=["OUTPUT_DIR", "here"]))) == "here"


def test_what_differs_is_named():
    """A key that one side lacks counts as its default, so that a new setting leaves finished runs finished."""
    ours = make_fingerprint(build_cfg("SoC"), data="a")
    older = {key: value for key, value in ours.items() if key != "TTA.STEPS"}
    check_same(ours, older, Path("run"))
    check_same(older, ours, Path("run"))
    steps = make_fingerprint(build_cfg("SoC", opts=["TTA.STEPS", 2]), data="b")
    for theirs in (ours, older):
        with pytest.raises(ConfigError, match="^run holds .*TTA.STEPS was 1, is 2; data was 'a', is 'b'.*--output-dir"):
            check_same(steps, theirs, Path("run"))


@pytest.mark.parametrize("change", [{"views": "another pipeline"}, {"TEST.PART": 5}])
def test_a_finished_run_stays_finished(change: dict):
    """Whatever would make its views now, and however its parts were cut; an unfinished one is not mixed."""
    ours = make_fingerprint(build_cfg("SoC"))
    check_same({**ours, **change}, ours, Path("run"), finished=True)
    with pytest.raises(ConfigError, match=f"{next(iter(change))} was"):
        check_same({**ours, **change}, ours, Path("run"))


def test_the_source_of_a_users_method_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its class and the classes outside this package that it is derived from."""
    monkeypatch.syspath_prepend(tmp_path)
    cfg, fingerprints = build_cfg("TPT"), []
    for number, weight in enumerate((1, 2)):
        (tmp_path / f"mine{number}.py").write_text(
            "from promptcal.trainers.tpt import TPT\n"
            f"class Shared(TPT):\n    weight = {weight}\nclass MyMethod(Shared):\n    pass\n")
        method = __import__(f"mine{number}").MyMethod
        monkeypatch.setattr(TRAINER_REGISTRY, "get", lambda name, method=method: method)
        fingerprints.append(make_fingerprint(cfg))
    with pytest.raises(ConfigError, match="source of Shared was '[0-9a-f]{8}', is '[0-9a-f]{8}'\\)"):
        check_same(*fingerprints, Path("run"), finished=True)


@pytest.mark.parametrize(("old", "new", "counts"), [
    ("K = 1", "K = 2", True), ("K * x", "K + x", True), ("size = 1", "size = 2", True),
    ("OTHER = 1", "OTHER = 2", False),
])
def test_what_a_users_method_uses_of_its_module_counts(
    old: str, new: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.syspath_prepend(tmp_path)
    source = ("from promptcal.trainers.tpt import TPT\nK = 1\nOTHER = 1\nclass Part:\n    size = 1\n"
              "def scaled(x):\n    return K * x * Part.size\n"
              "class MyMethod(TPT):\n    def penalty(self, text):\n        return scaled(text)\n")
    hashes = []
    for number, text in enumerate((source, source.replace(old, new))):
        name = f"uses{number}_{abs(hash(new))}"
        (tmp_path / f"{name}.py").write_text(text)
        method = __import__(name).MyMethod
        monkeypatch.setattr(TRAINER_REGISTRY, "get", lambda name, method=method: method)
        hashes.append(make_fingerprint(build_cfg("TPT"))["source of MyMethod"])
    assert (hashes[0] != hashes[1]) is counts


def test_an_edited_data_set_of_a_user_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The files may be the same, but not what is read from them."""
    monkeypatch.syspath_prepend(tmp_path)
    cfg, found = build_cfg("TPT", "landcover", opts=["CACHE.DIR", str(tmp_path)]), []
    for name, shift in (("tiles_a", 0), ("tiles_b", 9)):
        (tmp_path / f"{name}.py").write_text(
            f"from promptcal.datasets.landcover import LandCover\nSHIFT = {shift}\nclass Tiles(LandCover):\n"
            "    def read_image(self, datum):\n"
            "        return super().read_image(datum).point(lambda value: value + SHIFT)\n")
        tiles = __import__(name).Tiles
        monkeypatch.setattr(DATASET_REGISTRY, "get", lambda name, tiles=tiles: tiles)
        found.append(make_fingerprint(cfg, data="d", weights="w"))
    with pytest.raises(ConfigError, match=r"other settings \(source of data set Tiles was '\w{8}', is '\w{8}'\)"):
        check_same(*found, Path("run"), finished=True)


def test_an_edited_method_of_this_package_counts_but_another_release_does_not(monkeypatch: pytest.MonkeyPatch):
    """A method added to trainers/, or a shipped one that was changed in a clone."""
    real, cfg = inspect.getsource, build_cfg("SoC")
    before = make_fingerprint(cfg)
    monkeypatch.setattr(inspect, "getsource", lambda cls: real(cls) + "# edited" * (cls.__name__ == "SoC"))
    with pytest.raises(ConfigError, match=r"source of SoC in [\d.]+ was '[0-9a-f]{8}', is '[0-9a-f]{8}'\)"):
        check_same(make_fingerprint(cfg), before, Path("run"), finished=True)
    monkeypatch.setattr(fingerprint, "__version__", "1.0.9")
    check_same(make_fingerprint(cfg), before, Path("run"), finished=True)


@pytest.mark.parametrize(("place", "shown"), [
    ("output/dtd/CoOp/ViT-L-14/NUM_SHOTS-4/seed1/prompt_learner/model.pth.tar-100", "seed1"),
    ("my prompts/textures.pth.tar", "textures"), ("prompt_learner/model.pth.tar-50", "model"),
])
def test_a_prompt_is_short_in_the_tag(place: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = Path(place)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one prompt")
    first = tag("MODEL.INIT_WEIGHTS", place)
    path.write_bytes(b"another prompt")
    second = tag("MODEL.INIT_WEIGHTS", place)
    for name in (first, second):
        assert name.startswith(f"INIT_WEIGHTS-{shown}-") and len(name) == len(f"INIT_WEIGHTS-{shown}-") + 8
    assert first != second
    path.rename("elsewhere.pth.tar")
    assert tag("MODEL.INIT_WEIGHTS", "elsewhere.pth.tar")[-8:] == second[-8:]  # the content counts, not the path


def test_long_paths_do_not_hide_later_settings(tmp_path: Path):
    deep = tmp_path / ("a-folder-with-a-long-name/" * 8) / "prompt_learner" / "model.pth.tar-50"
    paths = {run_path(build_cfg("SoC", DTD, opts=[
        "MODEL.INIT_WEIGHTS", weights, "TTA.STEPS", steps, "TRAINER.SOC.LAMBDA", strength]))
        for weights in (deep, deep.with_name("model.pth.tar-60")) for steps in (1, 2) for strength in (10, 20)}
    assert len(paths) == 8


def test_long_tags_end_with_a_hash_of_the_whole():
    names = {path_safe("a photo that was taken by a friend " * 4 + end) for end in ("one", "two", "t-wo", "t wo")}
    assert len(names) == 4
    assert all(len(name) <= 100 and name.startswith("a-photo-that-was-taken") for name in names)
