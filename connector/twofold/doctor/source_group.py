"""Checks a source group: its members' topics are in this Kafka, and every connector runs with the
same group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from twofold.config import Config
from twofold.doctor.cluster import CALL_S_MAX
from twofold.doctor.finding import Finder, Finding
from twofold.group.member_commits import last_frontiers, missing_members
from twofold.kafka.kafka_settings import kafka_settings, open_registry
from twofold_avro.records import Frontier

_finding = Finder("kafka")
_WAITS = "global cuts stay where they are until every member's connector runs with the same [group] and prepared.gid_patterns"


def examine_group(config: Config, grant: str) -> Iterator[Finding]:
    """Yield nothing without a group. `grant` is the beginning of a command that gives rights."""
    group = config.group
    if group.name is None:
        return
    settings = replace(kafka_settings(config), call_timeout_s=min(config.kafka.call_timeout, CALL_S_MAX))
    missing = missing_members(settings, group.members)
    for prefix in missing:
        yield _finding.must(
            "group_member",
            f"the group's member {prefix} has no topics in this Kafka, or they are hidden from this user",
            "twofold run refuses",
            f"-- twofold init of {prefix}, or Read on its topics:",
            f"{grant} --operation Read --topic {prefix}. --resource-pattern-type prefixed",
            "-- or without it:",
            f"group.members = [{', '.join(repr(each) for each in group.members if each != prefix)}]".replace("'", '"'),
        )
    known = [each for each in group.members if each not in missing]
    frontiers = last_frontiers(settings, open_registry(config), known)
    for prefix in known:
        if problem := _disagreement(prefix, frontiers.get(prefix), config):
            yield _finding.should(
                "group",
                problem,
                _WAITS,
                f"-- give {prefix} these settings and start it:",
                f'group.name = "{group.name}"',
                f"group.members = [{', '.join(map(repr, group.members))}]".replace("'", '"'),
                f"prepared.gid_patterns = {_list(config.prepared.gid_patterns)}",
            )


def _disagreement(prefix: str, frontier: Frontier | None, config: Config) -> str | None:
    """Return what a member's last frontier says of other settings than ours."""
    if frontier is None:
        return f"the group's member {prefix} has never written a frontier"
    if frontier.group != config.group.name:
        return f"the group's member {prefix} last ran as a member of group {frontier.group}"
    others = {each.prefix for each in frontier.seen}
    if others | {prefix} != {*config.group.members}:
        return f"the group's member {prefix} last ran with the members {', '.join(sorted(others | {prefix}))}"
    if frontier.gid_patterns != config.prepared.gid_patterns:
        return f"the group's member {prefix} last ran with the gid patterns {_list(frontier.gid_patterns)}"
    return None


def _list(patterns: Iterable[str]) -> str:
    """Return the patterns as TOML has them, with their backslashes as they are."""
    return "[" + ", ".join(f"'{each}'" for each in patterns) + "]"
