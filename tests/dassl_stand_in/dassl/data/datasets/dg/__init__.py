from .wilds import *  # noqa: F403
