"""The readable folder of a run: one for every choice of settings."""
from pathlib import Path

import pytest
from promptcal.trainers import build_cfg
from promptcal.trainers.config.settings import path_safe, run_path

DTD = "configs/datasets/dtd.yaml"


def tag(*opts: object) -> str:
    return build_cfg("SoC", DTD, opts=opts).TAG


@pytest.mark.parametrize(("opts", "name"), [
    ([], "default"), (["TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 10], "STEPS-2_LAMBDA-10.0"),
    (["PROMPT.CTX_INIT", "itap of a"], "CTX_INIT-itap-of-a"),
    (["MODEL.INIT_WEIGHTS", "small-coop-4shot"], "INIT_WEIGHTS-small-coop-4shot"),
    (["TEST.BINS", 10, "TEST.PART", 5, "TTA.EPISODES", 3, "TRAINER.CTPT.LAMBDA", 1], "default"),
])
def test_run_folders(opts, name):
    cfg = build_cfg("SoC", DTD, opts=[*opts, "SEED", 3])
    assert str(run_path(cfg)) == f"output/DescribableTextures/SoC/ViT-L-14/{name}/seed3"
    assert str(run_path(build_cfg("SoC", DTD, flags=["OUTPUT_DIR", "here"]))) == "here"


@pytest.mark.parametrize(("place", "shown"), [
    ("output/dtd/CoOp/ViT-L-14/NUM_SHOTS-4/seed1/prompt_learner/model.pth.tar-100", "seed1"),
    ("my prompts/textures.pth.tar", "textures"), ("prompt_learner/model.pth.tar-50", "model"),
])
def test_a_prompt_is_short_in_the_tag(place, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(place)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"one prompt")
    first = tag("MODEL.INIT_WEIGHTS", place)
    path.write_bytes(b"another prompt")
    second = tag("MODEL.INIT_WEIGHTS", place)
    for name in (first, second):
        assert name.startswith(f"INIT_WEIGHTS-{shown}-")
        assert len(name) == len(f"INIT_WEIGHTS-{shown}-") + 8
    assert first != second
    path.rename("elsewhere.pth.tar")
    # the content counts, not the path
    assert tag("MODEL.INIT_WEIGHTS", "elsewhere.pth.tar")[-8:] == second[-8:]


def test_long_paths_do_not_hide_later_settings(tmp_path):
    deep = tmp_path / ("a-folder-with-a-long-name/" * 8) / "prompt_learner" / "model.pth.tar-50"
    paths = {
        run_path(
            build_cfg(
                "SoC",
                DTD,
                opts=[
                    "MODEL.INIT_WEIGHTS", weights, "TTA.STEPS", steps,
                    "TRAINER.SOC.LAMBDA", strength,
                ],
            )
        )
        for weights in (deep, deep.with_name("model.pth.tar-60"))
        for steps in (1, 2)
        for strength in (10, 20)
    }
    assert len(paths) == 8


def test_long_tags_end_with_a_hash_of_the_whole():
    names = {
        path_safe("a photo that was taken by a friend " * 4 + end)
        for end in ("one", "two", "t-wo", "t wo")
    }
    assert len(names) == 4
    for name in names:
        assert len(name) <= 100
        assert name.startswith("a-photo-that-was-taken")
