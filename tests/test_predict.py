"""Classification of a user's own images, in Python and by the command."""
import csv

import pytest
import torch
from PIL import Image
from promptcal.datasets.landcover import LandCover
from promptcal.datasets.utils.errors import DataError, UnknownNameError, UserError
from promptcal.datasets.views.images import open_image
from promptcal.datasets.views.maker import ViewMaker
from promptcal.tools.predict import main
from promptcal.trainers import adapt, load_clip
from promptcal.trainers.api import Adapter
from promptcal.trainers.config.layers import default_pairs
from promptcal.trainers.functional.calibration import sals
from promptcal.trainers.predict.output import prediction_table
from promptcal.trainers.predict.predict import class_names, predict
from promptcal.trainers.tpt import TPT

from common import run_tool

NAMES = ["cat", "dog", "tree frog", "tractor"]
CAT_OR_DOG = ("--classes", "cat", "dog")


@pytest.fixture
def images(image_folder):
    return sorted(image_folder.rglob("*.png"))[:10]  # more than are handled at once


@pytest.fixture
def names(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\ufeff" + "\n".join([*NAMES[:2], "", *NAMES[2:]]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def run(clip_file, capsys):
    """The command with the tiny CLIP. Returns what it prints."""
    def call(*words: object) -> str:
        main([*map(str, words), "--backbone", str(clip_file)])
        return capsys.readouterr().out

    return call


def adapter_of(trainer, model):
    return Adapter(trainer, model, NAMES, 16, ["TTA.AUGMIX", "on"])


def rows_of(table):
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_class_names_from_a_file(names):
    assert class_names([str(names)]) == NAMES
    for content, message in ((b" \n\n", "no class names"), (b"\xff\xfe\x00", "UTF-8")):
        names.write_bytes(content)
        with pytest.raises(DataError, match=message):
            class_names([str(names)])


def test_predictions_are_those_of_adapt_in_any_order(clip_model, images):
    adapter = adapter_of("SoC", clip_model)
    predictions = list(predict(images, adapter))
    assert [prediction.path for prediction in predictions] == images
    backwards = list(predict(images[2::-1], adapter))
    for number in range(3):
        torch.testing.assert_close(predictions[number].after, backwards[2 - number].after, atol=1e-3, rtol=0)
    first = predictions[0]
    views = ViewMaker(16, clip_model.visual.input_resolution, True, 0)(open_image(images[0]), 0)
    alone = adapt("SoC", clip_model, NAMES, views)
    torch.testing.assert_close(first.before, alone.zero_shot_logits[0], atol=1e-2, rtol=0)
    torch.testing.assert_close(first.after, alone.logits[0], atol=1e-2, rtol=0)
    scaled = torch.as_tensor(sals(alone.logits, alone.zero_shot_logits))[0]
    torch.testing.assert_close(first.with_sals, scaled, atol=1e-2, rtol=0, check_dtype=False)


def test_lost_numbers_fall_back_to_zero_shot(clip_model, images, monkeypatch):
    real = TPT.adapt

    def broken(*args):
        result = real(*args)
        result.logits[0] = torch.nan
        return result

    monkeypatch.setattr(TPT, "adapt", broken)
    first, second = predict(images[:2], adapter_of("SoC", clip_model))
    assert first.failed and not second.failed and torch.equal(first.after, first.before)
    assert "(tuning failed)" in prediction_table([first, second], "SoC", NAMES, 2)


def test_the_command(run, images, names):
    out = run(*images[:2], "--classes", names, "--trainer", "OTPT", "--views", 16, "--top", 1, "--opts", "TTA.STEPS", 2)
    header, _, *rows = out.strip().splitlines()
    assert "O-TPT" in header
    assert [row.split()[0] for row in rows[:2]] == [str(images[0]), str(images[1])]
    assert "4 classes, 16 views per image" in rows[-2] and "O-TPT: 2 steps." in rows[-1]


def test_the_small_clip_says_what_it_knows(tmp_path, names, train):
    words = "was trained only on aerial tiles"
    image = tmp_path / "x.png"
    page = tmp_path / "x.html"
    Image.new("RGB", (64, 64)).save(image)
    done = run_tool("predict.py", image, "--classes", names, "--backbone", "small", "--html", page)
    assert done.returncode == 0 and words in done.stdout
    assert words in page.read_text(encoding="utf-8")
    done = train("ZeroShot", "--backbone", "small", "--no-train")
    assert done.returncode == 0 and words in done.stdout


def test_a_page_shows_images_kept_views_and_every_method(run, images, tmp_path):
    page = tmp_path / "images.html"
    out = run(*images[:2], "--classes", "cat", "<b>dog</b>", "tractor", "--trainer", "TPT", "SoC", "--views", 20,
              "--html", page)
    assert f"written: {page}" in out
    text = page.read_text(encoding="utf-8")
    assert text.count('<section class="image">') == 2
    assert text.count("<figcaption>") == 2 * 2  # a tenth of 20 views is kept
    for head in ("Zero-shot", "TPT", "TPT + SaLS", "SoC", "SoC + SaLS"):
        assert f'<th scope="col">{head}</th>' in text
    assert "<b>dog" not in text and "&lt;b&gt;dog" in text
    assert "scaled back to the range" in text  # what SaLS is, where it is first met
    assert "http" not in text.replace("http-equiv", "")


def test_a_data_set_goes_by_any_name_and_brings_its_own_settings(run, images, tmp_path, monkeypatch):
    for name in ("LandCover", "landcover"):  # few views are enough: tuning keeps one of them
        assert "24 classes, 3 views" in run(images[0], "--dataset", name, "--views", 3, "--top", 1)
    with pytest.raises(UnknownNameError, match="Did you mean 'LandCover'"):
        run(images[0], "--dataset", "landcovers")
    assert default_pairs("TPT", "UCF101") == []
    pairs = default_pairs("SoC", "ImageNetA")
    settings = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert settings["TRAINER.SOC.LAMBDA"] == 14.0 and settings["TRAINER.SOC.NORM"] == "minmax"
    monkeypatch.setattr(LandCover, "augmix", False)  # as on ImageNet
    tables = []
    for opts in ((), ("--opts", "TTA.AUGMIX", "off"), ("--opts", "TTA.AUGMIX", "on")):
        run(images[0], "--dataset", "LandCover", "--views", 8, "--csv", tmp_path / "table.csv", *opts)
        tables.append((tmp_path / "table.csv").read_text())
    assert tables[0] == tables[1] != tables[2]


def test_the_caption_states_the_settings_of_each_method(run, images, tmp_path):
    page = tmp_path / "page.html"
    out = run(images[0], *CAT_OR_DOG, "--trainer", "TPT", "SoC", "--views", 10, "--html", page,
              "--opts", "TRAINER.SOC.LAMBDA", 7, "TTA.STEPS", 2)
    for content in (out, page.read_text(encoding="utf-8")):
        assert "TPT: 2 steps." in content and "SoC: 2 steps, λ 7." in content


def test_pairs_win_over_flags_and_the_caption_states_what_was_used(run, images):
    out = run(images[0], *CAT_OR_DOG, "--views", 16, "--seed", 3, "--opts", "TTA.VIEWS", 4, "SEED", 7)
    assert "4 views per image, seed 7" in out


@pytest.mark.parametrize(("key", "value"), [("MODEL.BACKBONE.NAME", "ViT-B/16"), ("TRAINER.NAME", "ZeroShot")])
def test_pairs_cannot_exchange_what_the_output_names(run, images, key, value):
    with pytest.raises(UserError, match=f"{key} '{value}' cannot be given as a setting here"):
        run(images[0], *CAT_OR_DOG, "--opts", key, value)


@pytest.mark.parametrize(("args", "message"), [
    (["--classes", "river"], "there is no file river: give --classes two names or more"),
    ([*CAT_OR_DOG, "--html", "nowhere/page.html"], "there is no folder .*nowhere"),
    (["gone.jpg", *CAT_OR_DOG], "gone.jpg"),
    ([*CAT_OR_DOG, "--trainer", "SoCC"], "Did you mean 'SoC'"),
    ([*CAT_OR_DOG, "--probabilities"], "give --csv FILE too"),
])
def test_what_cannot_work_is_reported_before_anything_is_loaded(args, message, images):
    with pytest.raises(UserError, match=message):
        main([str(images[0]), *args, "--backbone", "no.pt"])


def test_a_folder_of_images_and_a_table_of_them(run, clip_file, images, tmp_path, caplog):
    """Files that are no images are skipped with a line each."""
    folder = tmp_path / "photos"
    (folder / "older").mkdir(parents=True)
    for n, path in enumerate(images[:3]):
        (folder / f"{n}, plain.png").write_bytes(path.read_bytes())
    (folder / "notes.txt").write_text("taken in May")
    (folder / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    names = ["cat", "dog, black"]
    table = tmp_path / "table.csv"
    out = run(folder, "--classes", *names, "--trainer", "TPT", "SoC", "--views", 10, "--csv", table)
    for name in ("notes.txt", "cut.jpg", "older"):
        assert name in caplog.text
    assert f"written: {table}" in out
    rows = rows_of(table)
    assert [row["image"] for row in rows] == [str(folder / f"{n}, plain.png") for n in range(3)]
    adapter = Adapter("SoC", load_clip(str(clip_file)), names, 10, ["TTA.AUGMIX", "on"])
    prediction, = predict([folder / "0, plain.png"], adapter)
    assert rows[0]["SoC_class"] == names[int(prediction.after.argmax())]
    for column, logits in (("SoC", prediction.after), ("zero_shot", prediction.before)):
        confidence = float(logits.softmax(-1).max())
        assert float(rows[0][f"{column}_confidence"]) == pytest.approx(confidence, abs=2e-4)
    assert rows[0]["TPT_failed"] == "0"
    for path, message in ((folder / "older", "has no image"), (folder / "notes.txt", "cannot read image")):
        with pytest.raises(DataError, match=message):
            run(path, *CAT_OR_DOG)


@pytest.mark.posix
def test_escapes_in_names_do_not_reach_the_terminal(clip_file, images, tmp_path):
    image = tmp_path / "\x1b[31mred.png"
    image.write_bytes(images[0].read_bytes())
    done = run_tool("predict.py", image, "--classes", "a\x1b[2Jcat", "dog", "--backbone", clip_file, "--views", 10)
    assert done.returncode == 0 and "red.png" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_folders_in_folders_and_all_probabilities(run, image_folder, tmp_path):
    """Nothing in the table is a formula for a spreadsheet."""
    table = tmp_path / "table.csv"
    command = (image_folder, "--classes", "=1+1", "dog", "dog", "--views", 8, "--csv", table, "--probabilities")
    with pytest.raises(DataError, match="--recursive searches its folders too"):
        run(*command)
    run(*command, "--recursive")
    rows = rows_of(table)
    assert [row["image"] for row in rows] == list(map(str, sorted(image_folder.rglob("*.png"))))
    for row in rows:
        for method in ("zero_shot", "SoC"):
            probabilities = [float(row[f"{method}_probability_{name}"]) for name in ("=1+1", "dog", "dog_2")]
            assert sum(probabilities) == pytest.approx(1, abs=1e-5)
            assert float(row[f"{method}_confidence"]) == max(probabilities)
            predicted = ["'=1+1", "dog", "dog"][probabilities.index(max(probabilities))]
            assert row[f"{method}_class"] == predicted


@pytest.mark.parametrize(("trainer", "is_online"), [("TDA", True), ("SoC", False)])
def test_the_output_says_that_the_order_counts(run, images, names, tmp_path, trainer, is_online):
    page = tmp_path / "page.html"
    out = run(*images[:2], "--classes", names, "--trainer", trainer, "--views", 16, "--html", page)
    for text in (out, page.read_text(encoding="utf-8")):
        assert ("order of the images" in text) == is_online
