"""CLIP from all formats it comes in, files that are refused, downloads, and the `clip` package itself."""
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tomllib
import types
import warnings
import zipfile
from importlib import metadata
from pathlib import Path

import promptcal
import pytest
import torch
from packaging.requirements import Requirement
from promptcal.datasets.utils.errors import ConfigError, WeightsError
from promptcal.trainers.vlm import openai, openai_clip
from promptcal.trainers.vlm.checkpoints import read_checkpoint, tensors_by_name
from promptcal.trainers.vlm.loading import load_clip, weights_hash
from promptcal.trainers.vlm.numerics import pick_device, refuse_shared_gpu
from promptcal.trainers.vlm.openai import download
from promptcal.trainers.vlm.openai_clip import CLIP, WEIGHT_URLS
from safetensors.torch import save_file

from common import PROJECT, openai_state, random_clip, run_tool
from file_server import serving


@pytest.mark.parametrize("resnet", [False, True], ids=["vit", "resnet"])
def test_clip_from_every_format(tmp_path, resnet):
    model = random_clip(resnet=resnet, size=64)
    state = openai_state(model)
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "train.pt")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "x.safetensors")
    for name in ("plain.pt", "train.pt", "x.safetensors"):
        loaded = load_clip(str(tmp_path / name), "cpu")
        ours, theirs = loaded.state_dict(), model.state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
        assert loaded.visual.input_resolution == 64
        assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())


def test_openais_torchscript_archives_are_read_as_data(tmp_path):
    model = random_clip(layers=2)
    model.register_buffer("input_resolution", torch.tensor(32))  # OpenAI's archives hold such numbers too
    path = tmp_path / "archive.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, (torch.rand(1, 3, 32, 32), torch.randint(1, 99, (1, 77)))).save(str(path))
        scripted = torch.jit.load(str(path)).state_dict()
    tensors = tensors_by_name(read_checkpoint(path))
    assert scripted.keys() <= tensors.keys()
    assert all(torch.equal(scripted[key], tensors[key]) for key in scripted)
    image = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(load_clip(str(path)).encode_image(image), model.encode_image(image))


def test_weights_do_not_follow_a_file_that_is_overwritten(tmp_path, monkeypatch):
    """In place (`cp`), after loading and while loading."""
    files = [tmp_path / f"{seed}.safetensors" for seed in (0, 1)]
    for seed, file in enumerate(files):
        save_file({key: value.contiguous() for key, value in openai_state(random_clip(seed)).items()}, file)
    model = load_clip(str(files[0]), "cpu")
    before, first = {key: value.clone() for key, value in model.state_dict().items()}, weights_hash(str(files[0]))
    shutil.copyfile(files[1], files[0])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    with pytest.raises(WeightsError, match="changed while they were read: run the command again"):
        load_clip(str(files[0]), "cpu", expected_hash=first)
    real = openai.read_clip

    def overwritten(*args: object) -> CLIP:
        loaded = real(*args)
        files[0].write_bytes(b"other")
        return loaded

    monkeypatch.setattr(openai, "read_clip", overwritten)
    with pytest.raises(WeightsError, match="changed while they were read"):
        load_clip(str(files[0]), "cpu")


@pytest.mark.parametrize(("changes", "message"), [
    ({}, "has neither OpenAI's format nor ours: use --backbone open_clip:MODEL@FILE .* hf:FOLDER"),
    ({"text_projection": None, "text_model.x": torch.ones(2, 2)}, "has neither OpenAI's format nor ours"),
    ({"vocab_size": torch.tensor(1), "token_embedding.weight": torch.ones(64)}, "does not hold the weights of"),
    ({"token_embedding.rows": torch.tensor([10**6])}, "does not hold the weights of an OpenAI CLIP"),
])
def test_files_of_other_models_are_refused(changes, message, tmp_path):
    """They may have OpenAI's tensor names but another activation, other heads or other pixels."""
    state = {**random_clip(layers=1).state_dict(), **changes}
    torch.save({key: value for key, value in state.items() if value is not None}, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match=message) as error:
        load_clip(str(tmp_path / "x.pt"), "cpu")
    assert "\n" not in str(error.value)


def test_names_and_devices_that_cannot_be(tmp_path):
    with pytest.raises(WeightsError, match="no weight file at"):
        read_checkpoint(tmp_path / "absent.pt")
    with pytest.raises(WeightsError, match="Did you mean 'ViT-B/16'"):
        load_clip("ViT-B16")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(WeightsError, match="holds no PyTorch data"):
        read_checkpoint(tmp_path / "x.zip")
    messages = {"quantum": "not known to torch", "cuda:99": "CUDA devices: use DEVICE cpu, or auto"}
    for device in ("mps", "xpu", "hpu", "vulkan"):
        messages[device] = "is not supported: use auto, cpu or cuda"
    for device, message in messages.items():
        with pytest.raises(ConfigError, match=message):
            pick_device(device)
    refuse_shared_gpu(torch.device("cuda:0"), processes=1)
    with pytest.raises(ConfigError, match="cuda:0 in each of 2 processes: use DEVICE cuda, with"):
        refuse_shared_gpu(torch.device("cuda:0"), processes=2)


def test_downloads_are_verified_and_atomic(tmp_path, clip_file, monkeypatch):
    digest = hashlib.sha256(clip_file.read_bytes()).hexdigest()
    monkeypatch.setattr(openai, "CACHE", tmp_path / "cache")
    with serving() as server:
        file, url = f"{digest}/RN50.pt", f"{server.address}/{digest}/RN50.pt"
        server.files[file] = clip_file.read_bytes()
        monkeypatch.setitem(WEIGHT_URLS, "RN50", url)
        assert load_clip("RN50").visual.input_resolution == 32
        assert weights_hash("RN50") == digest[:16] == weights_hash(str(clip_file))
        del server.files[file]
        load_clip("RN50")  # from the cache
        (tmp_path / "cache" / "RN50.pt").write_bytes(b"damaged")
        with pytest.raises(WeightsError, match=r"HTTP Error 404.* run: .*download\S* RN50; or fetch the file by hand"):
            load_clip("RN50")
        server.files[file] = b"something else"
        with pytest.raises(WeightsError, match="wrong sha256 checksum"):
            download("RN50", tmp_path / "cache")
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["RN50.pt"]


def test_weights_are_fetched_for_runs_without_a_network(
    tmp_path, clip_file, image_folder, monkeypatch, caplog,
):
    """On a login node by the command that a run without a network names."""
    digest = hashlib.sha256(clip_file.read_bytes()).hexdigest()
    monkeypatch.setattr(openai, "CACHE", tmp_path / "home" / "cache")
    run = ["train.py", "--trainer", "ZeroShot", "--dataset-config-file", "image_folder", "--root", image_folder,
           "--backbone", "RN50", "--output-dir", tmp_path / "run"]
    with serving() as server:
        server.files[f"{digest}/RN50.pt"] = clip_file.read_bytes()
        monkeypatch.setitem(WEIGHT_URLS, "RN50", f"{server.address}/{digest}/RN50.pt")
        monkeypatch.setitem(WEIGHT_URLS, "RN101", f"{server.address}/{digest}/RN101.pt")
        assert run_tool("download.py", "RN101").returncode == 1
        assert "cannot download the weights of RN101" in caplog.text
        assert "HOME" not in caplog.text and not (tmp_path / "home").exists()
        caplog.set_level(logging.INFO)
        assert run_tool("download.py", "RN50").returncode == 0
        assert f"RN50: ready in {tmp_path / 'home' / 'cache' / 'RN50.pt'}" in caplog.text
    assert run_tool(*run).returncode == 0
    (tmp_path / "home" / "cache" / "RN50.pt").unlink()
    refused = run_tool(*run, "--output-dir", tmp_path / "other")
    assert refused.returncode == 2 and "run: python tools/download.py RN50;" in refused.stderr


def test_download_needs_a_root_for_data_sets_only(caplog):
    done = run_tool("download.py", "dtd")
    assert done.returncode == 2 and "give --root, the folder that holds the data sets, for dtd" in done.stderr
    done = run_tool("download.py", "ViT-B/61")
    assert done.returncode == 1 and "Did you mean 'ViT-B/16'?" in caplog.text


def test_a_plain_state_dict_is_told_which_command_works(tmp_path, monkeypatch):
    model = random_clip()
    file = tmp_path / "plain.pt"
    torch.save(model.state_dict(), file)
    with pytest.raises(WeightsError, match="has neither OpenAI's format nor ours: use --backbone open_clip:MODEL@FILE"):
        load_clip(str(file))
    monkeypatch.setitem(openai.OPENAI_SHAPES, "ViT-B-16", (2, 64, 32, 16, 48))
    with pytest.raises(WeightsError, match=f"OpenAI's, use --backbone open_clip:ViT-B-16/openai@{file}; else "):
        load_clip(str(file))


@pytest.mark.parametrize(("name", "arguments"), [
    ("ViT-B-16", (512, 224, 12, 768, 16, 77, 49408, 512, 8, 12)),
    ("ViT-L-14-336", (768, 336, 24, 1024, 14, 77, 49408, 768, 12, 12)),
    ("RN50", (1024, 224, (3, 4, 6, 3), 64, None, 77, 49408, 512, 8, 12)),
    ("", (512, 256, 12, 768, 16, 77, 49408, 512, 8, 12)),
])
def test_openais_shapes(name, arguments):
    with torch.device("meta"):
        state = CLIP(*arguments).state_dict()
    assert openai.model_with_shapes(state) == name


def test_weights_that_cannot_be_saved(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match=r"cannot download the weights of RN50 .*file/clip.*RN50\.pt into another"):
        download("RN50", tmp_path / "file" / "clip")

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(WeightsError, match="no home folder to keep weights in .*: set HOME, or give --backbone PATH"):
        load_clip("RN50")


def test_the_wrong_clip_package_is_explained(monkeypatch):
    """PyPI's `clip` is a clipboard tool."""
    monkeypatch.setattr(openai_clip, "import_module", lambda _: types.ModuleType("clip"))
    with pytest.raises(ImportError, match="pip uninstall -y clip && pip install openai-clip"):
        openai_clip.import_clip()


def test_clip_can_be_imported_without_the_package():
    """By the version of setuptools that the package asks for."""
    dependencies = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    requirement = next(line for line in dependencies if line.startswith("setuptools"))
    if metadata.version("setuptools") not in Requirement(requirement).specifier:
        pytest.skip("this environment has another setuptools: set up .venv again")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", "import clip; clip.tokenize('a cat')"], timeout=100)
    assert done.returncode == 0


def test_clip_can_be_imported_after_the_package():
    """Though it needs pkg_resources, which is not left behind, and without importing torch before."""
    code = ("import sys, promptcal.trainers; assert 'torch' not in sys.modules; import clip; "
            "assert clip.tokenize('a cat').shape == (1, 77); assert clip.clip.__spec__.loader.get_source('clip.clip'); "
            "real = sys.modules.get('pkg_resources'); assert real is None or real.__file__; "
            "from promptcal.trainers.vlm.openai_clip import CLIP; assert CLIP is clip.model.CLIP")
    package = Path(promptcal.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(package)})
