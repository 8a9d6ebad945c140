"""Whether a list of ImageNet's class names is CoOp's: published figures hold for those names alone.

The list itself is not kept here, only hashes of its lines, which tell where another list differs.
"""
from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping

# Of the sorted lines `<wnid> <name>`, joined by line feeds.
WHOLE = "51b5b1d8b800502030c5556eb206abaafdd682ef363ff7a7077591ea3c9befa5"
# The first two bytes of the SHA-256 of each of the thousand lines.
LINES = base64.b64decode(
    "KkhlXAZlwJu5X3b2Z6atGYYcVTkGlrxENV5QK9Fj/uS7ah68bXho9hHqXrrhA80a64K2ZH/DKMi5nGeeot0YyOASSMxV9GR/HFIrgiPPNCJb"
    "hMQSJfBk4RBI16wZLGS2KzW7naq0doJsaddYXsWOKpPM6aeq/WKlIdsn1AhciLJCXr2zMGqtSGcE494iwqF6qlcg4RUAWIJLgcV/pYZZjb2b"
    "QOE545ox5UQnvxSAwO7NAj4VAfjm8hGpyP0WxLCm7N5eJsux9HhLZ72Bxq3fnmWAVhc+2cxqLlBfme8U2nCrylqlLB74xvrGbEDd8pDPk1aB"
    "agLd8MxfER3AzfWMUKAmx41pw7rnwAPWr1swaSMxtYj5Vq1O5XiptwdxGsB8GHfHDdGhFMGHZ+OkRRjM+QRiE3xXis7eGSnqhflJJOVGmDRi"
    "2FVctOdVyim5UZqbyBlzjfQJ3HvZ09XxKbLNDrGZDa7hMjILixXOJ9HztjBELqqjSHoNV2MkMBDF7i6LvT2aLpsYQeaNWL9g4l+LCl/Lhe12"
    "FpPN2AOM7GYVJVacr26fCD9cI/F/MiKIdx8f8vGAf1FT5VZwe2kDPTvmXVKTVhkfzORVuKVttS7+iUtyrq+5IbFdcsngvzLklmfJhV7eG/Zd"
    "JNOkHK7raGQmj1y4Ok4kIuEt/j1G75dDAafeA8KYhGTWKlFWPH4C+PKOufIZcFqYqWHpA4Q2hOXV8pV3LnKi3Nrcmqxqq0OirGee2xkMYkxG"
    "NzYejb3Fq5UOQ2KtcYlZ7RyH/RjrADgM1NyCwoiOA5j5boHWLO33HJkDTlXU0dprFmV7JpKPWJSZ1dDGB2j3ZB4eal3EmvzH7dAWmgskCqGp"
    "32N1XqdySM+7Okj6UIjA/hRaLcstWVOFqcFGiyid2EUExted3X3N/8w3qjIR5ecYgh69nVBT65TT1A/Am10bm2O7eBHSXRiBVo56jDl5pn7L"
    "XRpwzdfPxIQ1nYBAPFxvnKtAipZoqqSeIav5aGoe86fDjwb3ptNj8Ps9WYBD6Am6tmOOn2BUKjbamsTWTg2+zljinkusDCmo077wwdrOFQp2"
    "eeWDABUggd9OOHaXp4amV4/OAdkLDzLhHAN/kdYN5fZDNslnjJArXb0TPb8NxBlaz52E7dXkEd3LH04plr519CzBdfNjpf4GqLVd9w2oOVAS"
    "AACbKDQ1cS2EIeTrcFkoWW5X7Yi+2ZuD4StSBz1CVAP5ZTvhgGTr54AXf8aGJfBS3PVfwDxLbn4w10CADLfHeFDYZyhyJ0HhitmFmGPyeMbD"
    "imPABM3C7qcWq0gJ82Uv2HFBCmqC1vqnp2HyTBg69wJrwKtozGf3FXotmMxH8PSlurvDI1gFqQ8HaWmfGzbSWVUBCvqdz6PhMOxcRE9F5BXk"
    "0HHhjgXfMXEP4zykqquv/lyZSEf8S7wLnRaaIMarDa5m4yGBtvMY3CCVyVKOILZSN+sFBQ4hGJo5mDLIX0K2lZFagD60jmIidy4imTAxJCQU"
    "mg5PeJOzAfCAK5qTCyoFpEFmzG1y3rWkNtWiiITTmwZ9u0ylIEi2niSPKQkXcmUbCK4Lj2zTwAEsAU8YnU3xF9MS+Y7ZmeV0hbMyK8WitQ/N"
    "tWBXzXMFAp0QqwYXCSfRjSLl5+hml17EAhCM0c1CMPNaeYvw/qw/xENsVafsSIFb9CC24ZCROCrPooonUKFaWZpIi5FcKsBP4ryLi1Evk9zM"
    "mbvI2DReElmFMiE7oDe7qUq90BY5i/rZ+54gfopLg1awTD/RlYNgFFQ4USkzhLTpbopjAmq++L/lOqeMlf78gxjK6P82V0dLMYbgqivPjnNQ"
    "I5/ZuhclEjgBti+3Ua9GmQKBTe3hekHpEeBkhpT8RB3HIP9P4VrElfhr87HsL5iprj20uEXlzQFlzx2Ek6WTLfqw2vlr1AQUgdbLxvMfENWy"
    "0XxEvMwxSYcBernNUEDWNFbvIjf8HQ5Jm/vM+R0HAFJjbzq+LrzOamGHK8j2PkfU60NWv1SVx3Yz+79gcV4cEDE6B1hWDxJXEzvK4AAHOoWi"
    "VmwUt9zv2ADi9tfSQ104aL5eAVWxTV7uwAcFqYL49XvHgWDa/ogKSfqYM/HxWagMdMDMdhlRvtdkPeW3eop+ACnlniuLaZzISHxABYlk9/rK"
    "Xwp2q5qpTzCWDg6L+gXf7VQpEt69o1P5OGBCzc3I/yiatbiDERsoR06xUFsXtvZcVoub8YjSZ9YkYUWVfJIKNMz9UGiRbAIICwcJtOqNoC5n"
    "CG+Gxkwxio0+Vj7UXIqSt9U9a7jFvKJnULqXlKQPkZaVrFrr9FGZjdAAVK6j5ngNNqN0jV5UgflG9pN7Zbm+u5x/u8AQY8yhGOxU+4IOOrJ9"
    "CYpPfADDmsFDHTyLZSgTAsnhBHHtIP9EcEU9LM71cla/OuWlz79F1+akXfku4mGaWtVXmpEvnDjwhHvT0aurP6lBSed82L0E0M9V5ZHj9DFA"
    "eecZdRtwkX81lsBRYh60RHoUn+IXc89zjJmC8TLkJWbYD9m+W58O7uhIA9q4dEltgvjCiK+bjT6FWBEPsSqAjH8FyJth1XG7SO5fOpIn7zXj"
    "6G+GV7jeqmZCv4jzzQ2sJ3QWaD6Dy3zKH5FfIadM26VeTA7QZecN1Zzc7heQ1OpJzgoemQQMWvM="
)


def differences(names: Mapping[str, str]) -> str:
    """How class names by WordNet id differ from CoOp's, in words; "" if they do not."""
    lines = sorted(f"{wnid} {name}" for wnid, name in names.items())
    if hashlib.sha256("\n".join(lines).encode()).hexdigest() == WHOLE:
        return ""
    if len(lines) != len(LINES) // 2:
        return f"it names {len(lines):,} classes, CoOp's list {len(LINES) // 2:,}"
    other = [line for place, line in enumerate(lines)
             if hashlib.sha256(line.encode()).digest()[:2] != LINES[2 * place : 2 * place + 2]]
    shown = ", ".join(f"'{line[:60]}'" for line in other[:3])
    return f"{len(other) or 'some'} of its names are not CoOp's{f', such as {shown}' if other else ''}"
