"""`twofold demo`: a story of a small bank, of two banks, or of one over two databases, told on this
machine with real servers. It ends with status 0 only if the mirror tables are what the story says.
"""

from twofold.demo.cast import check_spark
from twofold.demo.group_story import tell_group_story
from twofold.demo.shard_story import tell_shard_story
from twofold.demo.story import tell_story

__all__ = ["check_spark", "tell_group_story", "tell_shard_story", "tell_story"]
