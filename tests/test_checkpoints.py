"""Reading tensors from files that may hold anything, and CLIP from all formats it comes in."""
from __future__ import annotations

import hashlib
import os
import pickle
import types
import warnings
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from common import openai_state, random_clip
from file_server import serving
from promptcal.datasets.utils.errors import ConfigError, WeightsError
from promptcal.trainers.vlm import openai_clip, openai_weights
from promptcal.trainers.vlm.checkpoints import read_checkpoint, tensors_by_name
from promptcal.trainers.vlm.loading import load_clip, pick_device, weights_hash
from promptcal.trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from promptcal.trainers.vlm.openai_clip import CLIP, WEIGHT_URLS, clip
from promptcal.trainers.vlm.openai_weights import download
from promptcal.trainers.vlm.prompts import class_tokens, initial_context
from safetensors.torch import save_file


class Hostile:
    """Would create a file if it were ever rebuilt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def assert_same_model(model, other) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_torch_files_with_live_objects(tmp_path: Path, zip_format: bool, dtype: torch.dtype):
    context = torch.randn(4, 8, dtype=dtype)
    shared = torch.arange(12.0).view(3, 4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(context.float())], lr=0.1)
    torch.save({
        "state_dict": {"ctx": context, "rows": shared[1:], "columns": shared.T, "p": torch.nn.Parameter(shared)},
        "epoch": 3, "optimizer": optimizer, "groups": defaultdict(list, a=[1]), "best": 0.5, "size": shared.shape,
    }, tmp_path / "x.pt", _use_new_zipfile_serialization=zip_format)
    content = read_checkpoint(tmp_path / "x.pt")
    state = content["state_dict"]
    assert state["ctx"].dtype == dtype and torch.equal(state["ctx"], context)
    assert torch.equal(state["rows"], shared[1:]) and torch.equal(state["columns"], shared.T)
    assert torch.equal(state["p"], shared)
    assert (content["epoch"], content["best"], content["size"], content["groups"]) == (3, 0.5, (3, 4), {"a": [1]})
    assert not isinstance(content["optimizer"], torch.optim.Optimizer)


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_a_hostile_file_does_nothing(tmp_path: Path, zip_format: bool):
    trace = tmp_path / "trace"
    torch.save({"ctx": torch.ones(2), "x": Hostile(trace)}, tmp_path / "x.pt",
               _use_new_zipfile_serialization=zip_format)
    assert torch.equal(read_checkpoint(tmp_path / "x.pt")["ctx"], torch.ones(2))
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(WeightsError, match="bare.pt"):
        read_checkpoint(tmp_path / "bare.pt")
    assert not trace.exists()


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
def test_damaged_files_get_one_line(tmp_path: Path, zip_format: bool):
    torch.save({"ctx": torch.randn(50, 50)}, tmp_path / "x.pt", _use_new_zipfile_serialization=zip_format)
    whole = (tmp_path / "x.pt").read_bytes()
    for length in (0, 1, 30, len(whole) // 2, len(whole) - 200):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(WeightsError) as error:
            read_checkpoint(tmp_path / "cut.pt")
        assert "cut.pt" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compressed_files_get_one_line(tmp_path: Path, method: int):
    """torch never compresses, but tools that pack a checkpoint again do; any byte of it may be wrong."""
    torch.save({"ctx": torch.randn(50, 50)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as plain, zipfile.ZipFile(tmp_path / "y.pt", "w", method) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert read_checkpoint(tmp_path / "y.pt")["ctx"].shape == (50, 50)
    whole = (tmp_path / "y.pt").read_bytes()
    refused = 0
    for place in range(0, len(whole), 97):
        (tmp_path / "bad.pt").write_bytes(whole[:place] + bytes(byte ^ 0xFF for byte in whole[place:place + 8])
                                          + whole[place + 8:])
        try:
            read_checkpoint(tmp_path / "bad.pt")
        except WeightsError as error:
            assert "bad.pt" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 50


def test_not_weights(tmp_path: Path):
    with pytest.raises(WeightsError, match="no weight file at"):
        read_checkpoint(tmp_path / "absent.pt")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(WeightsError, match="holds no PyTorch data"):
        read_checkpoint(tmp_path / "x.zip")
    torch.save({"ctx": torch.ones(2)}, tmp_path / "ctx.pt")
    with pytest.raises(WeightsError, match="does not hold the weights of an OpenAI CLIP"):
        load_clip(str(tmp_path / "ctx.pt"))
    with pytest.raises(WeightsError, match="Did you mean 'ViT-B/16'"):
        load_clip("ViT-B16")


@pytest.mark.parametrize("resnet", [False, True], ids=["vit", "resnet"])
def test_clip_from_every_format(tmp_path: Path, resnet: bool):
    model = random_clip(resnet=resnet, size=64)
    state = openai_state(model)
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "train.pt")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "x.safetensors")
    for name in ("plain.pt", "train.pt", "x.safetensors"):
        loaded = load_clip(str(tmp_path / name), "cpu")
        assert_same_model(loaded, model)
        assert loaded.visual.input_resolution == 64
        assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())


def test_a_file_that_does_not_say_what_it_is(tmp_path: Path):
    model = random_clip()
    path = tmp_path / "laion.pt"
    torch.save(model.state_dict(), path)
    with pytest.raises(WeightsError, match="quick_gelu .* or MODEL.ACTIVATION gelu .*open_clip:MODEL@"):
        load_clip(str(path), "cpu")
    images, tokens = torch.rand(2, 3, 32, 32), clip.tokenize(["a photo of a cat.", "dog"])
    quick, gelu = (load_clip(str(path), "cpu", activation) for activation in ("quick_gelu", "gelu"))
    assert torch.equal(quick.encode_text(tokens), model.encode_text(tokens))
    for block in [*model.transformer.resblocks, *model.visual.transformer.resblocks]:
        block.mlp.gelu = torch.nn.GELU()
    assert not torch.allclose(quick.encode_text(tokens), model.encode_text(tokens), atol=1e-4)
    assert torch.equal(gelu.encode_text(tokens), model.encode_text(tokens))
    assert torch.equal(gelu.encode_image(images), model.encode_image(images))
    backbone = OpenAIBackbone(gelu)
    context = initial_context(backbone, "a photo of a")
    packed = backbone.text_tower(class_tokens(["cat", "dog"], TOKENIZER), "fp32")(context[None])[0]
    whole = model.encode_text(clip.tokenize(["a photo of a cat.", "a photo of a dog."]))
    torch.testing.assert_close(packed, whole / whole.norm(dim=-1, keepdim=True), atol=2e-6, rtol=1e-5)
    names = [weights_hash(str(path), activation) for activation in ("", "quick_gelu", "gelu")]
    assert names[0] == names[1] == names[2].removesuffix("-gelu") != names[2]  # what 0.1 read, and the other


def test_words_of_another_tokenizer(tmp_path: Path):
    state = {**random_clip().state_dict(), "token_embedding.weight": torch.ones(50000, 64)}
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="a vocabulary of 50000 tokens, so its words are not OpenAI's 49408"):
        load_clip(str(tmp_path / "x.pt"), "cpu", "gelu")


def test_files_of_other_libraries_get_a_hint(tmp_path: Path):
    torch.save({"text_model.embeddings.token_embedding.weight": torch.ones(2, 2)}, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="--backbone hf:FOLDER"):
        load_clip(str(tmp_path / "x.pt"), "cpu")
    custom = {key if key.startswith("visual.") else f"text.{key}": value for key, value in
              random_clip().state_dict().items()}
    torch.save(custom, tmp_path / "y.pt")
    with pytest.raises(WeightsError, match="--backbone open_clip:MODEL@FILE"):
        load_clip(str(tmp_path / "y.pt"), "cpu")


def test_heads_that_a_file_does_not_tell(tmp_path: Path):
    torch.manual_seed(0)
    model = CLIP(embed_dim=8, image_resolution=32, vision_layers=1, vision_width=1280, vision_patch_size=16,
                 context_length=77, vocab_size=49408, transformer_width=64, transformer_heads=1, transformer_layers=1)
    path = tmp_path / "h.pt"
    torch.save(model.state_dict(), path)
    with pytest.raises(WeightsError, match="width 1280 are.*MODEL.HEAD_WIDTH"):
        load_clip(str(path), "cpu", "gelu")
    with pytest.raises(ConfigError, match="MODEL.HEAD_WIDTH 81 does not fit"):
        load_clip(str(path), "cpu", "gelu", 81)
    loaded = load_clip(str(path), "cpu", "gelu", 80)
    attn = loaded.visual.transformer.resblocks[0].attn
    assert (attn.num_heads, attn.head_dim) == (16, 80)
    x = torch.rand(3, 1, 1280)
    other = torch.nn.MultiheadAttention(1280, 16)
    other.load_state_dict(attn.state_dict())
    torch.testing.assert_close(attn(x, x, x)[0], other(x, x, x)[0])
    assert load_clip(str(path), "cpu", "gelu", 64).visual.transformer.resblocks[0].attn.num_heads == 20
    assert weights_hash(str(path), "gelu", 80).endswith("-gelu-heads80")


def test_an_unmarked_file_with_parts_that_openais_models_lack(tmp_path: Path):
    state = {**random_clip().state_dict(), "visual.transformer.resblocks.0.ls_1.gamma": torch.ones(64)}
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="ls_1.gamma"):
        load_clip(str(tmp_path / "x.pt"), "cpu", "gelu")
    torch.save(openai_state(random_clip()), tmp_path / "y.pt")
    with pytest.raises(ConfigError, match="leave MODEL.ACTIVATION and MODEL.HEAD_WIDTH alone"):
        load_clip(str(tmp_path / "y.pt"), "cpu", "gelu")


def test_openais_torchscript_archives_are_read_as_data(tmp_path: Path):
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
    loaded = load_clip(str(path))
    image = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(loaded.encode_image(image), model.encode_image(image))


def test_downloads_are_verified_and_atomic(tmp_path: Path, clip_file: Path, monkeypatch: pytest.MonkeyPatch):
    digest = hashlib.sha256(clip_file.read_bytes()).hexdigest()
    monkeypatch.setattr(openai_weights, "CACHE", tmp_path / "cache")
    with serving() as server:
        file, url = f"{digest}/RN50.pt", f"{server.address}/{digest}/RN50.pt"
        server.files[file] = clip_file.read_bytes()
        monkeypatch.setitem(WEIGHT_URLS, "RN50", url)
        assert load_clip("RN50").visual.input_resolution == 32
        assert weights_hash("RN50") == digest[:16] == weights_hash(str(clip_file))
        del server.files[file]
        load_clip("RN50")  # from the cache
        (tmp_path / "cache" / "RN50.pt").write_bytes(b"damaged")
        with pytest.raises(WeightsError, match="cannot download .*HTTP 404.* fetch it by hand and put it at"):
            load_clip("RN50")
        server.files[file] = b"something else"
        with pytest.raises(WeightsError, match="wrong sha256 checksum.*: try again"):
            download(url, tmp_path / "cache")
    assert [file.name for file in (tmp_path / "cache").iterdir()] == ["RN50.pt"]


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="not known to torch"):
        pick_device("quantum")
    with pytest.raises(ConfigError, match="CUDA devices: use DEVICE cpu, or auto"):
        pick_device("cuda:99")


def test_the_wrong_clip_package_is_explained(monkeypatch: pytest.MonkeyPatch):
    """PyPI's `clip` is a clipboard tool. One that only lies in the way, as in a checkout, is passed by."""
    monkeypatch.setattr(openai_clip.importlib, "import_module", lambda _: types.ModuleType("clip"))
    with pytest.raises(ImportError, match="pip uninstall -y clip && pip install openai-clip"):
        openai_clip._import_clip()


def test_weights_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot keep https://x/y/RN50.pt .*file/clip.*set HOME"):
        download("https://x/y/RN50.pt", tmp_path / "file" / "clip")

    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(WeightsError, match="no home folder to keep weights in .*: set HOME, or give --backbone PATH"):
        load_clip("RN50")


def test_shapes_that_no_clip_has(tmp_path: Path):
    def refused(content: dict) -> str:
        torch.save(content, tmp_path / "x.pt")
        with pytest.raises(WeightsError, match="does not hold the weights of an OpenAI CLIP") as error:
            load_clip(str(tmp_path / "x.pt"))
        assert "\n" not in str(error.value)
        return str(error.value)

    state = random_clip(layers=1).state_dict()
    refused({**state, "token_embedding.weight": torch.ones(64)})
    refused({**state, "token_embedding.rows": torch.tensor([10**6])})
    assert "transformer.resblocks." in refused(
        {key: value for key, value in state.items() if not key.startswith("transformer.")})
