"""The one place that imports OpenAI's `clip`.

`clip.clip` begins with `from pkg_resources import packaging`, only to compare torch's version. Current setuptools has
no `pkg_resources` any more (and torch excludes the old setuptools that has), so a stand-in with that one attribute is
put in its place for the duration of the import. PyPI's package called `clip` is a clipboard tool: who installed that
one is told which to take.
"""
from __future__ import annotations

import sys
import types

import packaging.version

INSTALL_HINT = (
    "The installed module 'clip' is not OpenAI's CLIP (the PyPI package 'clip' is a clipboard tool). "
    "Run: pip uninstall -y clip && pip install openai-clip"
)


def _import_clip() -> types.ModuleType:
    stand_in = types.ModuleType("pkg_resources")
    stand_in.packaging = packaging
    real = sys.modules.get("pkg_resources")
    sys.modules["pkg_resources"] = stand_in
    try:
        import clip
    except ImportError as error:
        raise ImportError("OpenAI's CLIP is not installed. Run: pip install openai-clip") from error
    finally:
        if real is None:
            del sys.modules["pkg_resources"]
        else:
            sys.modules["pkg_resources"] = real
    if not hasattr(clip, "tokenize"):
        raise ImportError(INSTALL_HINT)
    return clip


clip = _import_clip()
CLIP = clip.model.CLIP
tokenizer = clip.clip._tokenizer  # the BPE tokenizer all of OpenAI's models share
WEIGHT_URLS: dict[str, str] = clip.clip._MODELS  # name -> address; the last folder of the address is the SHA-256
