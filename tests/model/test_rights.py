"""The least rights of parts: none for those that an App does not have."""

from __future__ import annotations

import pytest

from leftfold import App
from leftfold.model.rights import ROLES, rights_of
from tests.cli.guild import app as guild
from tests.process.alarms import bells

PARTS = ("worker", "process", "reaction", "stream", "projector")


def test_a_role_without_a_part_in_the_app_has_no_rights() -> None:
    bare = App("bare", partitions=1, deciders=[bells])
    assert [role for role in PARTS if rights_of(bare, role)] == ["worker"]
    assert [role for role in PARTS if rights_of(guild, role)] == ["worker", "process", "reaction", "projector"]
    views = App("views", partitions=1, views=guild.views)
    assert [role for role in PARTS if rights_of(views, role)] == ["projector"]
    assert rights_of(App("none", partitions=1), "deployer"), "the topic of answers"


def test_a_projector_may_read_the_events_of_its_views_and_no_others() -> None:
    views = App("views", partitions=1, views=guild.views)
    assert {right.name for right in rights_of(views, "projector") if "Read" in right.operations} == {"bells.events"}
    bare = App("bare", partitions=1, deciders=[bells])
    assert {right.name for right in rights_of(bare, "rebuild") if "Read" in right.operations} == {"bells.events"}


def test_a_reaction_may_take_the_id_of_its_retries() -> None:
    ids = {right.name for right in rights_of(guild, "reaction") if right.kind == "transactional-id"}
    assert ids == {f"leftfold.{reaction.name}.dead" for reaction in guild.reactions}


@pytest.mark.parametrize("role", ROLES)
def test_only_a_deployer_may_make_topics(role: str) -> None:
    makes = {right.role for right in rights_of(guild, role) if "Create" in right.operations}
    assert makes <= {"deployer"}
