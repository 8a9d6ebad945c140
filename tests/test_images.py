"""Any image file becomes 8-bit RGB; anything else is an error with its path."""
import contextlib
import io
import os
import resource
import socket
import struct
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from promptcal.datasets.views import images
from promptcal.datasets.views.images import BadImageError, is_image_name, open_image

RAMP = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (48, 1))
COLOUR = np.stack([RAMP, RAMP[:, ::-1], np.full_like(RAMP, 40)], axis=2)


def save(path, array, mode=None, **options):
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def pixels(path) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = open_image(path)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def test_the_content_decides_and_not_the_name(tmp_path):
    path = tmp_path / "ILSVRC2012_val_00000001.JPEG"
    Image.fromarray(COLOUR).save(path, format="PNG")
    assert (pixels(path) == COLOUR).all()


def test_cmyk(tmp_path):
    assert abs(pixels(save(tmp_path / "a.jpg", COLOUR, "CMYK", quality=95)) - COLOUR).mean() < 8


@pytest.mark.parametrize("mode", ["L", "LA"])
def test_grey_with_and_without_alpha(mode, tmp_path):
    assert (pixels(save(tmp_path / "a.png", RAMP, mode)) == RAMP[:, :, None]).all()


def test_palette_with_alpha(tmp_path):
    path = tmp_path / "a.png"
    image = Image.fromarray(COLOUR).quantize(64)
    image.save(path, transparency=bytes(range(64)))
    assert (pixels(path) == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bit_grey_is_scaled_not_clipped(suffix, tmp_path):
    found = pixels(save(tmp_path / f"a.{suffix}", RAMP.astype(np.uint16) * 257))
    assert abs(found - RAMP[:, :, None]).max() <= 1


@pytest.mark.parametrize(("values", "format", "shown"), [
    (np.uint16([[0, 200, 32896, 65535]]), "PNG", [0, 1, 128, 255]),  # by the file's depth, not by its brightest pixel
    (np.uint16([[0, 100, 200, 255]]), "PNG", [0, 0, 1, 1]),
    (np.uint16([[0, 200, 32896, 65535]]), "TIFF", [0, 1, 128, 255]),
    (np.uint16([[0, 200, 32896, 65535]]), "PPM", [0, 1, 128, 255]),
    (np.int32([[-5, 0, 1 << 30, (1 << 31) - 1]]), "TIFF", [0, 0, 128, 255]),
    (np.float32([[0, 0.5, 1, 7]]), "TIFF", [0, 128, 255, 255]),
    (np.float32([[np.nan, -1, np.inf, 0.25]]), "TIFF", [0, 0, 255, 64]),
])
def test_brightness_is_what_a_viewer_shows(values, format, shown, tmp_path):
    Image.fromarray(values).save(tmp_path / "a", format=format)
    assert pixels(tmp_path / "a")[0, :, 0].tolist() == shown


def test_white_is_zero_in_some_tiffs(tmp_path):
    Image.fromarray(np.uint16([[0, 65535]])).save(tmp_path / "a.tif", tiffinfo={262: 0})
    with Image.open(tmp_path / "a.tif") as image:
        expected = [255, 0] if image.tag_v2[262] == 0 else [0, 255]
    assert pixels(tmp_path / "a.tif")[0, :, 0].tolist() == expected


def test_images_that_show_as_black_or_white_get_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(images, "warned", set())
    open_image(save(tmp_path / "dark.png", np.full((4, 4), 200, np.uint16)))
    open_image(save(tmp_path / "light.tif", np.full((4, 4), 200, np.float32)))
    open_image(save(tmp_path / "right.tif", np.full((4, 4), 0.5, np.float32)))
    assert "dark.png: pixels up to 200 where 65535 is white" in caplog.text
    assert "light.tif: floating-point pixels up to 200, where everything from 1 is white" in caplog.text
    open_image(save(tmp_path / "next.png", np.full((4, 4), 100, np.uint16)))
    assert "next.png" not in caplog.text
    assert "right.tif" not in caplog.text


MODES = {  # that Pillow can write
    "PNG": ("1", "L", "P", "LA", "RGBA", "I;16"), "TIFF": ("1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "F"),
    "JPEG": ("1", "L", "CMYK", "YCbCr"), "GIF": ("1", "L", "P", "LA", "RGBA"),
    "BMP": ("1", "L", "P", "RGBA"), "WEBP": ("1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr"),
    "PPM": ("1", "L", "RGBA", "I;16", "F"),
}


@pytest.mark.parametrize(("format", "mode"), [(format, mode) for format, modes in MODES.items() for mode in modes])
def test_half_grey_is_half_grey_in_every_mode(mode, format, tmp_path):
    grey = Image.new("L", (9, 9), 128)
    image = {
        "I;16": lambda: Image.fromarray(np.full((9, 9), 128 * 257, np.uint16)),
        "F": lambda: Image.fromarray(np.full((9, 9), 128 / 255, np.float32)),
        "1": lambda: Image.new("1", (9, 9), 1),
        "P": lambda: grey.convert("RGB").quantize(4),
    }.get(mode, lambda: (grey if mode in "LA" else grey.convert("RGB")).convert(mode))()
    image.save(tmp_path / "a", format=format)
    assert abs(pixels(tmp_path / "a") - (255 if mode == "1" else 128)).max() <= 2


def test_broken_exif(tmp_path):
    path = save(tmp_path / "a.jpg", COLOUR, exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7fgarbage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # at most a warning
        assert open_image(path).size == (64, 48)


def test_the_exif_orientation_is_ignored(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(save(tmp_path / "a.jpg", COLOUR, exif=exif)).size == (64, 48)


@pytest.mark.parametrize("size", [(1, 1), (20000, 20)])
def test_odd_sizes(size, tmp_path):
    Image.new("RGB", size, (1, 2, 3)).save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png").size == size


@pytest.mark.parametrize("damage", ["truncated jpeg", "truncated png", "empty", "text", "bomb", "folder", "absent"])
def test_unreadable_files_are_named(damage, tmp_path):
    path = tmp_path / "bad.jpg"
    if damage == "truncated jpeg":
        path.write_bytes(save(tmp_path / "whole.jpg", COLOUR).read_bytes()[:-300])
    elif damage == "truncated png":
        path.write_bytes(save(tmp_path / "whole.png", COLOUR).read_bytes()[:-60])
    elif damage == "empty":
        path.touch()
    elif damage == "text":
        path.write_text("<html>quota exceeded</html>")
    elif damage == "bomb":
        png = bytearray(save(tmp_path / "whole.png", RAMP).read_bytes())
        png[16:24] = struct.pack(">II", 60000, 60000)
        path.write_bytes(png)
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(BadImageError) as caught:
        open_image(path)
    assert str(caught.value).startswith(f"cannot read image {path}: ")
    assert "\n" not in str(caught.value)


def test_the_line_names_the_file_and_the_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadImageError, match=r"^cannot read image nope.jpg: No such file or directory$"):
        open_image("nope.jpg")
    (tmp_path / "it.jpg").write_bytes(b"")
    with pytest.raises(BadImageError, match=r"^cannot read image it.jpg: it is empty$"):
        open_image("it.jpg")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(trace) (w) file closefile\n"


@pytest.mark.parametrize(("content", "kind"), [
    (EPS, "an EPS drawing"), (b"%PDF-1.4\n", "a PDF"), (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
    (b"<?xml version='1.0'?><svg/>", "an XML file"), (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC image"),
    (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1", "an AVIF image"), (b"DDS " + bytes(124), "a DDS texture"),
    (b"BLP2" + bytes(160), "no image of a supported format"), (b"<html>quota</html>", "a web page"),
    (b"\x0a\x05\x01\x08" + bytes(124), "no image"), (b"\xff\xd8\xff", "damaged"), (b"\x89PNG\r\n\x1a\n", "damaged"),
    (b"GIF89a", "damaged"), (b"RIFF\0\0\0\0WEBPVP8 ", ""), (b"II*\0\x08\0\0\0\xff\xff", ""), (b"P6 9 9 255\n", ""),
    (b"P6 99999999999999 9 255\n", ""), (b"BM" + bytes(60), ""),
], ids=range(18))
def test_only_raster_formats_are_opened(content, kind, tmp_path, monkeypatch):
    """By content, under an image's name; no program is started for them."""
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("a program was started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jpg").write_bytes(content)
    with pytest.raises(BadImageError, match=f"^cannot read image x.jpg: .*{kind}") as caught:
        open_image("x.jpg")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert [path.name for path in tmp_path.iterdir()] == ["x.jpg"]


def test_only_regular_files_are_opened(tmp_path):
    """Reading a pipe may never end, and a device may do anything."""
    os.mkfifo(tmp_path / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.jpg"))
        (tmp_path / "folder.jpg").mkdir()
        (tmp_path / "zero.jpg").symlink_to("/dev/zero")
        for name in ("pipe.jpg", "socket.jpg", "folder.jpg", "zero.jpg"):
            with pytest.raises(BadImageError, match=f"{name}: it is not a regular file"):
                open_image(tmp_path / name)


def test_what_a_decoder_raises_is_a_bad_image(tmp_path, monkeypatch):
    save(tmp_path / "a.png", COLOUR)
    for error in (KeyError("plane"), NotImplementedError("mode"), RecursionError(), MemoryError(), AssertionError()):
        def broken(*_, error=error, **__):
            raise error

        monkeypatch.setattr(Image.Image, "convert", broken)
        with pytest.raises(BadImageError, match=r"a.png: \S+"):
            open_image(tmp_path / "a.png")


def grown(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


def test_huge_images_take_no_memory(tmp_path):
    """30,000 × 30,000 pixels in a few bytes: whole, as a file of any kind can have them."""
    png = save(tmp_path / "whole.png", RAMP).read_bytes()
    bmp, gif = save(tmp_path / "whole.bmp", RAMP).read_bytes(), save(tmp_path / "whole.gif", RAMP).read_bytes()
    side = 30_000
    header = png[12:16] + struct.pack(">II", side, side) + png[24:29]
    huge = [
        grown("a.png", png[:12] + header + struct.pack(">I", zlib.crc32(header)) + png[33:], tmp_path),
        grown("a.bmp", bmp[:18] + struct.pack("<II", side, side) + bmp[26:], tmp_path),
        grown("a.gif", gif[:6] + struct.pack("<HH", side, side) + gif[10:], tmp_path),
        grown("a.ppm", b"P6 30000 30000 255\n", tmp_path),
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path in huge:
        with pytest.raises(BadImageError, match=f"{path.name}: it has .*pixels.*: make it smaller"):
            open_image(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_an_animation_is_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    for name in ("a.gif", "a.png", "a.tif"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
        assert (pixels(tmp_path / name) == (200, 0, 0)).all()


def test_a_file_that_grows_while_it_is_read(tmp_path):
    """Whatever is there of it at each moment: the image, or one line; never half of an image."""
    whole = save(tmp_path / "whole.png", COLOUR).read_bytes()
    for length in range(0, len(whole) + 1, 7):
        path = grown("a.png", whole[:length], tmp_path)
        try:
            assert (pixels(path) == COLOUR).all()
        except BadImageError as error:
            assert "\n" not in str(error)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]),
       st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_any_damage_to_an_image(format, changes):
    buffer = io.BytesIO()
    Image.fromarray(COLOUR).save(buffer, format=format)
    content = bytearray(buffer.getvalue())
    for place, value in changes:
        content[int(place * (len(content) - 1))] = value
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.suppress(BadImageError):
        warnings.simplefilter("ignore")
        assert open_image(grown("x.jpg", content, Path(folder))).mode == "RGB"


def test_names_of_images():
    assert all(map(is_image_name, ("a.jpg", "a.JPEG", "b.Png", "c.webp")))
    assert not any(map(is_image_name, (".jpg", "._a.jpg", "notes.txt", "jpg")))
