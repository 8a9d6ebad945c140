"""The readable folder of a run: one for every choice of settings."""
import itertools
from pathlib import Path

import pytest
from promptcal.trainers import build_cfg
from promptcal.trainers.config.settings import run_path


def tag(*opts: object) -> str:
    return build_cfg("SoC", "dtd", opts=opts).TAG


@pytest.mark.parametrize(("opts", "name"), [
    ([], "default"),
    (["TTA.STEPS", 2, "TRAINER.SOC.LAMBDA", 10], "STEPS-2_LAMBDA-10.0"),
    (["PROMPT.CTX_INIT", "itap of a"], "CTX_INIT-itap-of-a"),
    (["MODEL.INIT_WEIGHTS", "small-coop-4shot"], "INIT_WEIGHTS-small-coop-4shot"),
    (["TEST.BINS", 10, "TEST.PART", 5, "TTA.EPISODES", 3, "TRAINER.CTPT.LAMBDA", 1], "default"),
])
def test_run_folders(opts, name):
    cfg = build_cfg("SoC", "dtd", opts=[*opts, "SEED", 3])
    assert str(run_path(cfg)) == f"output/DescribableTextures/SoC/ViT-L-14/{name}/seed3"
    assert str(run_path(build_cfg("SoC", "dtd", flags=["OUTPUT_DIR", "here"]))) == "here"


@pytest.mark.parametrize(("place", "shown"), [
    ("output/dtd/CoOp/ViT-L-14/NUM_SHOTS-4/seed1/prompt_learner/model.pth.tar-100", "seed1"),
    ("my prompts/textures.pth.tar", "textures"), ("prompt_learner/model.pth.tar-50", "model"),
])
def test_a_prompt_is_short_in_the_tag_and_named_by_its_content(place, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(place)
    path.parent.mkdir(parents=True)
    tags = []
    for content in (b"one prompt", b"another prompt"):
        path.write_bytes(content)
        tags.append(tag("MODEL.INIT_WEIGHTS", place))
        assert tags[-1].startswith(f"INIT_WEIGHTS-{shown}-")
        assert len(tags[-1]) == len(f"INIT_WEIGHTS-{shown}-") + 8
    assert tags[0] != tags[1]
    path.rename("elsewhere.pth.tar")
    assert tag("MODEL.INIT_WEIGHTS", "elsewhere.pth.tar")[-8:] == tags[1][-8:]


def test_different_settings_have_different_folders_however_long_their_values_are(tmp_path):
    deep = tmp_path / ("a-folder-with-a-long-name/" * 8) / "prompt_learner" / "model.pth.tar-50"
    words = "a photo that was taken by a friend " * 4
    choices = {
        "MODEL.INIT_WEIGHTS": (deep, deep.with_name("model.pth.tar-60")),
        "TTA.STEPS": (1, 2),
        "TRAINER.SOC.LAMBDA": (10, 20),
    }
    tags = set()
    for values in itertools.product(*choices.values()):
        tags.add(tag(*itertools.chain(*zip(choices, values, strict=True))))
    for end in ("one", "two", "t-wo", "t wo"):
        tags.add(tag("PROMPT.CTX_INIT", words + end))
    assert len(tags) == 12
    for name in tags:
        assert len(name) <= 100
