"""The settings of a source group: sources whose databases share global transactions."""

from __future__ import annotations

from pydantic import Field, model_validator

from twofold.config.kinds import Name, Part, TopicPrefix


class GroupConfig(Part):
    """The sources whose databases share global transactions; the same in each connector."""

    name: Name | None = Field(None, description="The group's name.")
    members: tuple[TopicPrefix, ...] = Field((), description="Topic prefixes of all members, this one's included.")

    @model_validator(mode="after")
    def _is_a_group(self) -> GroupConfig:
        if not self.members and self.name is None:
            return self
        if not self.members or self.name is None:
            raise ValueError(
                'a group needs both settings, for example name = "bank" and members = ["bank_east", "bank_west"]'
            )
        if len(set(self.members)) != len(self.members) or len(self.members) == 1:
            raise ValueError(f"members is {', '.join(self.members)}: name two prefixes or more, each once")
        return self
