"""CLIP from all formats it comes in, files that are refused, downloads, and the `clip` package
itself."""
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
from promptcal.trainers.vlm import loading, openai_clip
from promptcal.trainers.vlm.checkpoints import read_checkpoint, tensors_by_name
from promptcal.trainers.vlm.loading import download, load_clip, weights_hash
from promptcal.trainers.vlm.numerics import pick_device, refuse_shared_gpu
from promptcal.trainers.vlm.openai_clip import CLIP, WEIGHT_URLS
from safetensors.torch import save_file

from common import PROJECT, openai_state, random_clip, run_tool
from file_server import serving
from folders import names


def assert_same_tensors(tensors: dict, expected: dict) -> None:
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name


def save_safetensors(state: dict, path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)


@pytest.mark.parametrize("resnet", [False, True], ids=["vit", "resnet"])
def test_clip_from_every_format(tmp_path, resnet):
    model = random_clip(resnet=resnet, size=64)
    state = openai_state(model)
    torch.save(state, tmp_path / "plain.pt")
    of_training = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"state_dict": of_training}, tmp_path / "train.pt")
    save_safetensors(state, tmp_path / "x.safetensors")
    for name in ("plain.pt", "train.pt", "x.safetensors"):
        loaded = load_clip(str(tmp_path / name), "cpu")
        assert_same_tensors(loaded.state_dict(), model.state_dict())
        assert loaded.visual.input_resolution == 64 and not loaded.training
        for parameter in loaded.parameters():
            assert not parameter.requires_grad


def test_openais_torchscript_archives_are_read_as_data(tmp_path):
    model = random_clip(layers=2)
    model.register_buffer("input_resolution", torch.tensor(32))  # as in OpenAI's archives
    path = tmp_path / "archive.pt"
    image = torch.rand(1, 3, 32, 32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, (image, torch.randint(1, 99, (1, 77)))).save(str(path))
        scripted = torch.jit.load(str(path)).state_dict()
    tensors = tensors_by_name(read_checkpoint(path))
    assert_same_tensors({name: tensors[name] for name in scripted}, scripted)
    loaded = load_clip(str(path))
    torch.testing.assert_close(loaded.encode_image(image), model.encode_image(image))


def test_weights_do_not_follow_a_file_that_is_overwritten(tmp_path, monkeypatch):
    """In place (`cp`), after loading and while loading."""
    path = tmp_path / "weights.safetensors"
    other_path = tmp_path / "other.safetensors"
    save_safetensors(openai_state(random_clip(seed=0)), path)
    save_safetensors(openai_state(random_clip(seed=1)), other_path)
    model = load_clip(str(path), "cpu")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = weights_hash(str(path))
    shutil.copyfile(other_path, path)
    assert_same_tensors(model.state_dict(), before)
    with pytest.raises(WeightsError, match="changed while they were read: run the command again"):
        load_clip(str(path), "cpu", expected_hash=first)
    read_clip = loading.read_clip

    def overwritten(*args: object) -> CLIP:
        loaded = read_clip(*args)
        path.write_bytes(b"other")
        return loaded

    monkeypatch.setattr(loading, "read_clip", overwritten)
    with pytest.raises(WeightsError, match="changed while they were read"):
        load_clip(str(path), "cpu")


@pytest.mark.parametrize(("changes", "message"), [
    ({}, "has neither OpenAI's format nor ours: use --backbone open_clip:MODEL@FILE .* hf:FOLDER"),
    ({"text_model.x": torch.ones(2, 2)}, "has neither OpenAI's format nor ours"),
    ({"vocab_size": torch.tensor(1), "token_embedding.weight": torch.ones(64)}, "does not hold the weights of"),
    ({"token_embedding.rows": torch.tensor([10**6])}, "does not hold the weights of an OpenAI CLIP"),
])
def test_files_of_other_models_are_refused(changes, message, tmp_path):
    """They may have OpenAI's tensor names but another activation, other heads or other pixels."""
    state = {**random_clip(layers=1).state_dict(), **changes}
    if "text_model.x" in changes:  # Hugging Face's names
        del state["text_projection"]
    torch.save(state, tmp_path / "x.pt")
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
    for device, message in (
        ("quantum", "not known to torch"),
        ("cuda:99", "CUDA devices: use DEVICE cpu, or auto"),
        ("mps", "is not supported: use auto, cpu or cuda"),
        ("xpu", "is not supported: use auto, cpu or cuda"),
        ("hpu", "is not supported: use auto, cpu or cuda"),
        ("vulkan", "is not supported: use auto, cpu or cuda"),
    ):
        with pytest.raises(ConfigError, match=message):
            pick_device(device)
    refuse_shared_gpu(torch.device("cuda:0"), processes=1)
    with pytest.raises(ConfigError, match="cuda:0 in each of 2 processes: use DEVICE cuda, with"):
        refuse_shared_gpu(torch.device("cuda:0"), processes=2)


@pytest.fixture
def host(clip_file, tmp_path, monkeypatch):
    """A host of RN50's weights, which are those of a small CLIP, and an empty folder for them."""
    content = clip_file.read_bytes()
    file = f"{hashlib.sha256(content).hexdigest()}/RN50.pt"
    monkeypatch.setattr(loading, "CACHE", tmp_path / "home" / "cache")
    with serving() as server:
        server.files[file] = content
        monkeypatch.setitem(WEIGHT_URLS, "RN50", f"{server.address}/{file}")
        yield server


def test_downloads_are_verified_and_atomic(host, clip_file, tmp_path):
    assert load_clip("RN50").visual.input_resolution == 32
    assert weights_hash("RN50") == weights_hash(str(clip_file))
    (file,) = host.files
    assert file.startswith(weights_hash("RN50"))
    del host.files[file]
    load_clip("RN50")  # from the cache
    cache = tmp_path / "home" / "cache"
    (cache / "RN50.pt").write_bytes(b"damaged")
    message = r"HTTP Error 404.* run: .*download\S* RN50; or fetch the file by hand"
    with pytest.raises(WeightsError, match=message):
        load_clip("RN50")
    host.files[file] = b"something else"
    with pytest.raises(WeightsError, match="wrong sha256 checksum"):
        download("RN50", cache)
    assert names(cache) == ["RN50.pt"]


def test_weights_are_fetched_for_runs_without_a_network(host, train, tmp_path, monkeypatch, caplog):
    """On a login node by the command that a run without a network names."""
    cache = tmp_path / "home" / "cache"
    monkeypatch.setitem(WEIGHT_URLS, "RN101", f"{host.address}/none/RN101.pt")
    assert run_tool("download.py", "RN101").returncode == 1
    assert "cannot download the weights of RN101" in caplog.text
    assert "HOME" not in caplog.text and not cache.parent.exists()
    caplog.set_level(logging.INFO)
    assert run_tool("download.py", "RN50").returncode == 0
    assert f"RN50: ready in {cache / 'RN50.pt'}" in caplog.text
    host.files.clear()
    assert train("ZeroShot", "--backbone", "RN50").returncode == 0
    (cache / "RN50.pt").unlink()
    refused = train("ZeroShot", "--backbone", "RN50", "--output-dir", tmp_path / "other")
    assert refused.returncode == 2
    assert "run: python tools/download.py RN50;" in refused.stderr


def test_download_needs_a_root_for_data_sets_only(caplog):
    done = run_tool("download.py", "dtd")
    assert done.returncode == 2
    assert "give --root, the folder that holds the data sets, for dtd" in done.stderr
    done = run_tool("download.py", "ViT-B/61")
    assert done.returncode == 1 and "Did you mean 'ViT-B/16'?" in caplog.text


def test_a_plain_state_dict_is_told_which_command_works(tmp_path, monkeypatch):
    """Where its shapes are those of a model of OpenAI's. Otherwise see
    test_files_of_other_models_are_refused."""
    file = tmp_path / "plain.pt"
    torch.save(random_clip().state_dict(), file)
    monkeypatch.setitem(loading.OPENAI_SHAPES, "ViT-B-16", (2, 64, 32, 16, 48))
    message = f"OpenAI's, use --backbone open_clip:ViT-B-16/openai@{file}; else "
    with pytest.raises(WeightsError, match=message):
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
    assert loading.model_with_shapes(state) == name


def test_weights_that_cannot_be_saved(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    message = r"cannot download the weights of RN50 .*file/clip.*RN50\.pt into another"
    with pytest.raises(WeightsError, match=message):
        download("RN50", tmp_path / "file" / "clip")

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    message = "no home folder to keep weights in .*: set HOME, or give --backbone PATH"
    with pytest.raises(WeightsError, match=message):
        load_clip("RN50")


def test_the_wrong_clip_package_is_explained(monkeypatch):
    """PyPI's `clip` is a clipboard tool."""
    monkeypatch.setattr(openai_clip, "import_module", lambda _: types.ModuleType("clip"))
    with pytest.raises(ImportError, match="pip uninstall -y clip && pip install openai-clip"):
        openai_clip.import_clip()


def test_clip_can_be_imported_without_the_package():
    """By the version of setuptools that the package asks for."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    (requirement,) = [line for line in project["dependencies"] if line.startswith("setuptools")]
    if metadata.version("setuptools") not in Requirement(requirement).specifier:
        pytest.skip("this environment has another setuptools: set up .venv again")
    code = "import clip; clip.tokenize('a cat')"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=100)
    assert done.returncode == 0


IMPORT_AFTER_THE_PACKAGE = """
import sys, promptcal.trainers
assert "torch" not in sys.modules
import clip
assert clip.tokenize("a cat").shape == (1, 77)
assert clip.clip.__spec__.loader.get_source("clip.clip")
real = sys.modules.get("pkg_resources")
assert real is None or real.__file__
from promptcal.trainers.vlm.openai_clip import CLIP
assert CLIP is clip.model.CLIP
"""


def test_clip_can_be_imported_after_the_package():
    """It needs pkg_resources, of which no stand-in is left behind. Torch is not imported before."""
    environment = {**os.environ, "PYTHONPATH": str(Path(promptcal.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", IMPORT_AFTER_THE_PACKAGE], check=True, env=environment)
