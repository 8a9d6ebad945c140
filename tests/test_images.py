"""Any picture becomes 8-bit RGB; what is no picture is an error with its path."""
import struct
import warnings

import numpy as np
import pytest
from PIL import Image
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


def test_png_under_a_jpeg_name(tmp_path):
    path = tmp_path / "ILSVRC2012_val_00000001.JPEG"
    Image.fromarray(COLOUR).save(path, format="PNG")
    assert (pixels(path) == COLOUR).all()


def test_cmyk(tmp_path):
    found = pixels(save(tmp_path / "a.jpg", COLOUR, "CMYK", quality=95))
    assert abs(found - COLOUR).mean() < 8


def test_grey(tmp_path):
    found = pixels(save(tmp_path / "a.png", RAMP))
    assert (found == RAMP[:, :, None]).all()


def test_grey_with_alpha(tmp_path):
    assert (pixels(save(tmp_path / "a.png", RAMP, "LA")) == RAMP[:, :, None]).all()


def test_palette_with_alpha(tmp_path):
    path = tmp_path / "a.png"
    image = Image.fromarray(COLOUR).quantize(64)
    image.save(path, transparency=bytes(range(64)))
    assert (pixels(path) == np.asarray(image.convert("RGB"))).all()


def test_sixteen_bit_grey_is_scaled_not_clipped(tmp_path):
    found = pixels(save(tmp_path / "a.png", RAMP.astype(np.uint16) * 257))
    assert abs(found - RAMP[:, :, None]).max() <= 1


def test_sixteen_bit_container_with_eight_bit_values(tmp_path):
    assert (pixels(save(tmp_path / "a.png", RAMP.astype(np.uint16))) == RAMP[:, :, None]).all()


def test_sixteen_bit_tiff(tmp_path):
    found = pixels(save(tmp_path / "a.tif", RAMP.astype(np.uint16) * 257))
    assert abs(found - RAMP[:, :, None]).max() <= 1


def test_broken_exif(tmp_path):
    path = save(tmp_path / "a.jpg", COLOUR, exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7fgarbage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # at most a warning
        assert open_image(path).size == (64, 48)


def test_the_exif_orientation_is_left_alone(tmp_path):
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


def test_names_of_pictures():
    assert all(map(is_image_name, ("a.jpg", "a.JPEG", "b.Png", "c.webp")))
    assert not any(map(is_image_name, (".jpg", "._a.jpg", "notes.txt", "jpg")))
