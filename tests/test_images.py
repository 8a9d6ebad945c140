"""Any image file becomes 8-bit RGB; anything else is an error with its path."""
import contextlib
import io
import os
import resource
import socket
import struct
import tempfile
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from promptcal.datasets.views import images
from promptcal.datasets.views.images import BadImageError, open_image

from folders import names

RAMP = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (48, 1))
COLOUR = np.stack([RAMP, RAMP[:, ::-1], np.full_like(RAMP, 40)], axis=2)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
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


def test_palette_with_alpha(tmp_path):
    path = tmp_path / "a.png"
    image = Image.fromarray(COLOUR).quantize(64)
    image.save(path, transparency=bytes(range(64)))
    assert (pixels(path) == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize(("values", "format", "brightness"), [
    # By the file's depth, not by its brightest pixel.
    (np.uint16([[0, 200, 32896, 65535]]), "PNG", [0, 1, 128, 255]),
    (np.uint16([[0, 100, 200, 255]]), "PNG", [0, 0, 1, 1]),
    (np.uint16([[0, 200, 32896, 65535]]), "TIFF", [0, 1, 128, 255]),
    (np.uint16([[0, 200, 32896, 65535]]), "PPM", [0, 1, 128, 255]),
    (np.int32([[-5, 0, 1 << 30, (1 << 31) - 1]]), "TIFF", [0, 0, 128, 255]),
    (np.float32([[0, 0.5, 1, 7]]), "TIFF", [0, 128, 255, 255]),
    (np.float32([[np.nan, -1, np.inf, 0.25]]), "TIFF", [0, 0, 255, 64]),
])
def test_brightness_is_what_a_viewer_shows(values, format, brightness, tmp_path):
    Image.fromarray(values).save(tmp_path / "a", format=format)
    assert pixels(tmp_path / "a")[0, :, 0].tolist() == brightness


def test_white_is_zero_in_some_tiffs(tmp_path):
    Image.fromarray(np.uint16([[0, 65535]])).save(tmp_path / "a.tif", tiffinfo={262: 0})
    expected = [0, 255]
    with Image.open(tmp_path / "a.tif") as image:
        if image.tag_v2[262] == 0:
            expected = [255, 0]
    assert pixels(tmp_path / "a.tif")[0, :, 0].tolist() == expected


def test_images_that_show_as_black_or_white_get_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(images, "warned", threading.Event())
    right = np.full((4, 4), 0.5, np.float32)
    dark = np.full((4, 4), 200, np.uint16)
    for name, array in (("right.tif", right), ("dark.png", dark), ("next.png", dark)):
        open_image(save(tmp_path / name, array))
    assert "dark.png: pixels up to 200 where 65535 is white" in caplog.text
    assert "right.tif" not in caplog.text and "next.png" not in caplog.text


GREY = Image.new("L", (9, 9), 128)
RGB_GREY = GREY.convert("RGB")
HALF_GREY = {
    "L": GREY,
    "LA": GREY.convert("LA"),
    "P": RGB_GREY.quantize(4),
    "RGBA": RGB_GREY.convert("RGBA"),
    "CMYK": RGB_GREY.convert("CMYK"),
    "YCbCr": RGB_GREY.convert("YCbCr"),
    "I;16": Image.fromarray(np.full((9, 9), 128 * 257, np.uint16)),
    "F": Image.fromarray(np.full((9, 9), 128 / 255, np.float32)),
}


@pytest.mark.parametrize(("format", "modes"), {  # that Pillow can write
    "PNG": ("L", "P", "LA", "RGBA", "I;16"),
    "TIFF": ("L", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "F"),
    "JPEG": ("L", "CMYK", "YCbCr"),
    "GIF": ("L", "P", "LA", "RGBA"),
    "BMP": ("L", "P", "RGBA"),
    "WEBP": ("L", "P", "LA", "RGBA", "CMYK", "YCbCr"),
    "PPM": ("L", "RGBA", "I;16", "F"),
}.items())
def test_half_grey_is_half_grey_in_every_mode(format, modes, tmp_path):
    for mode in modes:
        HALF_GREY[mode].save(tmp_path / "a", format=format)
        assert abs(pixels(tmp_path / "a") - 128).max() <= 2, mode


@pytest.mark.parametrize("format", ["PNG", "TIFF", "JPEG", "GIF", "BMP", "WEBP", "PPM"])
def test_an_image_of_one_bit_is_black_and_white(format, tmp_path):
    Image.new("1", (9, 9), 1).save(tmp_path / "a", format=format)
    assert pixels(tmp_path / "a").min() >= 253


def test_the_exif_orientation_is_ignored_and_may_be_broken(tmp_path):
    rotated = Image.Exif()
    rotated[0x0112] = 6
    for exif in (rotated, b"Exif\x00\x00II*\x00\xff\xff\xff\x7fgarbage"):
        path = save(tmp_path / "a.jpg", COLOUR, exif=exif)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # at most a warning
            assert open_image(path).size == (64, 48)


def test_unreadable_files_are_named_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadImageError, match="^cannot read image x: No such file or directory$"):
        open_image("x")
    jpeg = save(tmp_path / "a.jpg", COLOUR).read_bytes()
    png = save(tmp_path / "a.png", COLOUR).read_bytes()
    for content, reason in (
        (b"", "it is empty .*"),
        (jpeg[:-300], ".+"),
        (png[:-60], ".+"),
        (b"quota exceeded", ".* it is not a JPEG, .* convert it to JPEG or PNG"),
    ):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(BadImageError, match=f"^cannot read image x: {reason}$"):
            open_image("x")


POSTSCRIPT = (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(trace) (w) file closefile\n")
NO_RASTER = "it is not a JPEG"


@pytest.mark.parametrize(("content", "reason"), [
    (POSTSCRIPT, NO_RASTER),
    (b"%PDF-1.4\n", NO_RASTER),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", NO_RASTER),
    (b"<?xml version='1.0'?><svg/>", NO_RASTER),
    (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", NO_RASTER),
    (b"\0\0\0\x1cftypavif\0\0\0\0avifmif1", NO_RASTER),
    (b"DDS " + bytes(124), NO_RASTER),
    (b"BLP2" + bytes(160), NO_RASTER),
    (b"<html>quota</html>", NO_RASTER),
    (b"\x0a\x05\x01\x08" + bytes(124), NO_RASTER),
    (b"\xff\xd8\xff", "damaged"),
    (b"\x89PNG\r\n\x1a\n", "damaged"),
    (b"GIF89a", "damaged"),
    (b"RIFF\0\0\0\0WEBPVP8 ", ""),
    (b"II*\0\x08\0\0\0\xff\xff", ""),
    (b"P6 9 9 255\n", ""),
    (b"P6 99999999999999 9 255\n", ""),
    (b"BM" + bytes(60), ""),
], ids=range(18))
def test_only_raster_formats_are_opened(content, reason, tmp_path, monkeypatch):
    """By content, under an image's name; no program is started for them."""
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("a program was started"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.jpg").write_bytes(content)
    with pytest.raises(BadImageError, match=f"^cannot read image x.jpg: .*{reason}") as caught:
        open_image("x.jpg")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert names(tmp_path) == ["x.jpg"]


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


def test_huge_images_take_no_memory(tmp_path):
    """30,000 × 30,000 pixels in a few bytes: complete, as a file of any kind can have them."""
    png = save(tmp_path / "small.png", RAMP).read_bytes()
    bmp = save(tmp_path / "small.bmp", RAMP).read_bytes()
    gif = save(tmp_path / "small.gif", RAMP).read_bytes()
    side = 30_000
    header = png[12:16] + struct.pack(">II", side, side) + png[24:29]
    checksum = struct.pack(">I", zlib.crc32(header))
    huge = {
        "a.png": png[:12] + header + checksum + png[33:],
        "a.bmp": bmp[:18] + struct.pack("<II", side, side) + bmp[26:],
        "a.gif": gif[:6] + struct.pack("<HH", side, side) + gif[10:],
        "a.ppm": b"P6 30000 30000 255\n",
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, content in huge.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadImageError, match=f"{name}: it has .*pixels.*: make it smaller"):
            open_image(tmp_path / name)
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < 100_000  # kilobytes


def test_an_animation_is_its_first_frame(tmp_path):
    first = Image.new("RGB", (8, 8), (200, 0, 0))
    second = Image.new("RGB", (8, 8), (0, 200, 0))
    for name in ("a.gif", "a.png", "a.tif"):
        first.save(tmp_path / name, save_all=True, append_images=[second])
        assert (pixels(tmp_path / name) == (200, 0, 0)).all()


formats = st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
bytes_at = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(formats, bytes_at, st.floats(0, 1.5))
def test_any_damage_to_an_image(format, changes, length):
    """Also a file that is still being written: the image, or an error."""
    buffer = io.BytesIO()
    Image.fromarray(COLOUR).save(buffer, format=format)
    content = bytearray(buffer.getvalue())
    for position, value in changes:
        content[int(position * (len(content) - 1))] = value
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "x.jpg"
        path.write_bytes(content[: int(length * len(content))])
        with contextlib.suppress(BadImageError):
            assert open_image(path).mode == "RGB"
