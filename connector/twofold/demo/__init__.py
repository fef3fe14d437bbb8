"""`twofold demo`: a story of a small bank, told on this machine with real servers. It ends with
status 0 only if the mirror table equals the source.
"""

from twofold.demo.cast import check_spark
from twofold.demo.story import tell_story

__all__ = ["check_spark", "tell_story"]
