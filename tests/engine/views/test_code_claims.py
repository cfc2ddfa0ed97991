"""A fold that changes without a new version: a generation is folded by the code that claimed it last, and no other."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold.engine.views.code_claims import mixture
from leftfold.engine.views.generations import change
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.errors import ConfigurationError, InfrastructureError, ViewNotBuilt
from leftfold.ports.flush import Phase
from tests.engine.views.deployments import Deploys, view_of


@pytest.fixture
def shop() -> Deploys:
    """Ten events folded by a projector of the old code, which keeps running."""
    return Deploys.begun("old")


def status(shop: Deploys, code: str) -> list[str]:
    return mixture(shop.store, shop.store.registry("spelled"), view_of(code), code)


def test_a_projector_of_the_old_code_never_writes_a_held_generation_of_the_new_code(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    shop.fold(10)
    assert shop.rows(shop.generation(Phase.HELD)) == {f"h{n}": "bb" for n in range(1, 6)}
    assert shop.live() == shop.whole("a")
    assert [reported["by"] for reported in shop.bench.reports.of("standing by")] == ["old"]


def test_twin_a_projector_that_does_not_know_its_code_folds_the_held_generation(shop: Deploys) -> None:
    shop.stop("old")
    shop.start("a", "old", folds={})
    shop.rebuild("b", hold=True)
    shop.fold(10)
    assert shop.rows(shop.generation(Phase.HELD)) == {f"h{n}": "bbaa" for n in range(1, 6)}


def test_a_promote_is_refused_while_only_projectors_of_other_code_run(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    with pytest.raises(
        ConfigurationError, match=r"only projectors of other code run \(old\); .*leftfold run spelled"
    ) as no:
        shop.promote("b")
    assert no.value.exit_code == 78
    assert shop.live() == shop.whole("a")
    assert any("standing by: old; start one of this code: leftfold run spelled" in text for text in status(shop, "b"))


def test_a_promote_without_any_projector_needs_the_code_that_built_the_generation(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    shop.stop("old")
    shop.write(5)
    with pytest.raises(ConfigurationError, match="is folded by code b, and this code is a"):
        shop.promote("a")
    shop.promote("b")
    assert shop.live() == {f"h{n}": "bb" for n in range(1, 6)}, "there was no projector to fold what was written since"
    shop.join("b", "new")
    assert shop.live() == shop.whole("b")


def test_a_rebuild_that_no_projector_would_follow_is_refused_before_it_begins(shop: Deploys) -> None:
    with pytest.raises(ConfigurationError, match=r"its projectors run other code than this \(old\)"):
        shop.rebuild("b")
    assert len(shop.store.registry("spelled").generations) == 1
    assert shop.rebuild("b", swap_anyway=True).swapped


@pytest.mark.parametrize("order", list(permutations(["first", "second", "promote"])))
def test_a_rolling_deploy_needs_no_stop_in_any_order(order: tuple[str, ...], shop: Deploys) -> None:
    """Two projectors are restarted with the new code, one by one, and the promote comes before, between or after."""
    shop.stop("old")
    shop.start("a", "first")
    shop.join("a", "second")
    shop.rebuild("b", hold=True)
    for step in order:
        shop.fold(7)
        if step != "promote":
            shop.stop(step)
            shop.start("b", step)
        elif order[0] == "promote":
            with pytest.raises(ConfigurationError, match="only projectors of other code run"):
                shop.promote("b")
        else:
            shop.promote("b")
        shop.fold(3)
        lengths = {key: len(text) for key, text in shop.live().items()}
        assert lengths == {key: len(text) for key, text in shop.whole("a").items()}, f"readers stand still at {step}"
    if order[0] == "promote":
        shop.promote("b")
        shop.settle()
    assert shop.live() == shop.whole("b")


def test_a_projector_of_new_code_claims_the_live_generation_and_reports_that(shop: Deploys) -> None:
    shop.start("b", "new")
    shop.write(10)
    shop.projectors["new"].step(0.0)
    for _ in range(20):
        shop.projectors["old"].step(0.0)  # has not looked around since
    shop.settle()
    assert shop.live() == {f"h{n}": "aabb" for n in range(1, 6)}
    assert shop.generation(Phase.LIVE).folds == ("a", "b")
    assert [reported["by"] for reported in shop.bench.reports.of("fold changed")] == ["new"]
    assert [reported["by"] for reported in shop.bench.reports.of("standing by")] == ["old"]
    for code in "ab":
        assert any(
            "was folded by other code of the same version: first by a, now by b" in t for t in status(shop, code)
        )


def test_superseded_code_never_claims_a_generation_again_by_itself(shop: Deploys) -> None:
    shop.join("b", "new")
    for name in ("old", "new"):
        shop.stop(name)
    shop.start("a", "old")
    shop.fold(5)
    assert shop.generation(Phase.LIVE).fold == "b"
    assert shop.live() == {f"h{n}": "aa" for n in range(1, 6)}
    assert any("gets it back by: leftfold rollback spelled" in text for text in status(shop, "a"))
    shop.promote("a", "kept")
    shop.settle()
    assert shop.live() == {f"h{n}": "aaa" for n in range(1, 6)}


def test_in_development_an_edit_that_is_undone_claims_the_generation_again(shop: Deploys) -> None:
    for code in "ba":
        shop.stop("old")
        shop.start(code, "old", takes_back=True)
        shop.fold(5)
    assert shop.live() == {f"h{n}": "aaba" for n in range(1, 6)}


def test_after_a_rollback_projectors_of_either_code_fold_their_own_generation(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    shop.join("b", "new")
    shop.promote("b")
    shop.fold(5)
    assert shop.live() == shop.whole("b")
    assert shop.rows(shop.generation(Phase.KEPT)) == shop.whole("a")
    shop.promote("b", "kept")
    for name in ("old", "new"):
        shop.stop(name)
    shop.start("b", "new")
    shop.start("a", "old")
    shop.fold(5)
    assert shop.live() == shop.whole("a")
    assert shop.rows(shop.generation(Phase.KEPT)) == shop.whole("b")


def test_a_rollback_is_refused_when_no_projector_of_its_code_runs(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    shop.join("b", "new")
    shop.promote("b")
    shop.stop("old")
    with pytest.raises(ConfigurationError, match="is for projectors of code a, and only projectors of other code run"):
        shop.promote("b", "kept")


def test_a_rollback_after_all_projectors_were_restarted_makes_the_kept_generation_live(shop: Deploys) -> None:
    """The order that the page allows: the new code claims what readers see before the promote, and keeps it then."""
    shop.rebuild("b", hold=True)
    shop.stop("old")
    shop.join("b", "new")
    shop.promote("b")
    assert shop.generation(Phase.KEPT).folds == ("a", "b")
    shop.stop("new")
    shop.start("a", "old")
    shop.fold(5)
    shop.promote("a", "kept", patience=0.0, timeout=60.0)
    shop.fold(5)
    assert shop.generation(Phase.LIVE).folds == ("b", "a")
    assert {key: len(text) for key, text in shop.live().items()} == {key: len(t) for key, t in shop.whole("a").items()}


def test_waiting_code_claims_only_after_a_long_absence_of_the_code_that_folds(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    shop.start("b", "new", absence=1e9)
    shop.stop("old")
    shop.settle()
    assert shop.generation(Phase.LIVE).folds == ("a",), "a pause of the old projectors is no deploy"
    shop.join("b", "new", absence=0.0)
    assert shop.generation(Phase.LIVE).folds == ("a", "b")


def test_a_projector_that_is_made_again_in_its_process_claims_nothing(shop: Deploys) -> None:
    started = set[str]()
    shop.rebuild("b", hold=True)
    shop.join("b", "new", started=started)
    held = shop.generation(Phase.HELD)
    change(shop.store, "spelled", lambda registry: registry.without(held.id))
    shop.join("b", "new", started=started)
    assert shop.generation(Phase.LIVE).folds == ("a",)
    shop.join("b", "new")
    assert shop.generation(Phase.LIVE).folds == ("a", "b"), "a new process claims"


def test_other_code_cannot_promote_the_live_generation(shop: Deploys) -> None:
    with pytest.raises(ConfigurationError, match="is folded by code a, and this code is c"):
        shop.promote("c", "live")
    shop.join("b", "new")
    shop.stop("old")
    with pytest.raises(ConfigurationError, match="only projectors of other code run"):
        shop.promote("a", "live")
    assert shop.generation(Phase.LIVE).fold == "b"


def test_a_claim_between_reading_checkpoints_and_the_next_flush_is_noticed(
    shop: Deploys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old projector starts again; once it has read its registry, the new one claims the generation."""
    shop.stop("old")

    def overtaken(*reported: Any, **options: Any) -> Any:
        monkeypatch.setattr("leftfold.engine.views.projector.ProjectionWriter", ProjectionWriter)
        shop.start("b", "new")
        shop.write(5)
        shop.projectors["new"].step(0.0)
        shop.projectors["new"].step(0.0)
        return ProjectionWriter(*reported, **options)

    monkeypatch.setattr("leftfold.engine.views.projector.ProjectionWriter", overtaken)
    shop.start("a", "old").step(0.0)
    assert shop.projectors["old"].writers() == []
    shop.write(5)
    for _ in range(5):
        shop.projectors["old"].step(0.0)
    shop.settle()
    assert shop.live() == {f"h{n}": "aabb" for n in range(1, 6)}


def test_buckets_are_shared_among_projectors_of_one_code(shop: Deploys) -> None:
    shop.start("a", "other")
    shop.rebuild("b", hold=True)
    shop.join("b", "new")
    shared = {
        name: {(f.generation.phase, bucket) for f in projector.writers() for bucket in f.buckets}
        for name, projector in shop.projectors.items()
    }
    assert shared["new"] == {(Phase.HELD, bucket) for bucket in range(16)}
    assert shared["old"] | shared["other"] == {(Phase.LIVE, bucket) for bucket in range(16)}
    assert not shared["old"] & shared["other"]


def test_a_projector_of_an_older_version_without_a_code_shares_the_buckets(shop: Deploys) -> None:
    older = shop.start("a", "older", folds={})
    shop.settle()
    assert {len(f.buckets) for projector in (shop.projectors["old"], older) for f in projector.writers()} == {8}


def test_a_spark_stream_claims_generations_as_a_projector_does(shop: Deploys) -> None:
    shop.rebuild("b", hold=True)
    seen, held = shop.generation(Phase.LIVE), shop.generation(Phase.HELD)
    lifecycles = {code: shop.lifecycle(code) for code in "ab"}
    assert {code: set(one.look()) for code, one in lifecycles.items()} == {"a": {seen.id}, "b": {held.id}}
    newest = shop.lifecycle("c")
    assert (set(newest.look()), shop.generation(Phase.LIVE).folds) == ({seen.id}, ("a", "c"))
    assert lifecycles["a"].look() == {}
    assert lifecycles["a"].checkpoints(seen) is None
    assert [details["generation"] for details in shop.bench.reports.of("standing by")] == [
        held.id,
        seen.id,
        held.id,
        seen.id,
    ]


STEPS = ("write", "step", "look", "start", "stop")
OPERATIONS = ("hold", "promote", "rollback")
events = st.one_of(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(["a1", "a2", "b1", "b2"])),
    st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(["a", "b"])),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(events, max_size=40))
def test_whatever_the_order_rows_are_folded_by_the_code_that_had_claimed_them(steps: list[tuple[str, str]]) -> None:
    shop = Deploys()
    shop.start("a", "a1")
    shop.fold(5)
    for what, name in steps:
        happen(shop, what, name)
        check_spelling(shop)
    for name in list(shop.projectors):
        shop.stop(name)
    seen = shop.generation(Phase.LIVE)
    shop.start(seen.fold, "last")
    before = {key: len(text) for key, text in shop.whole("x").items()}
    shop.fold(5)
    check_spelling(shop)
    for key, text in shop.live().items():
        assert len(text) == before[key] + 1
        assert text.endswith(seen.fold)


def happen(shop: Deploys, what: str, name: str) -> None:
    match what:
        case "write":
            shop.write(3)
        case "start" if name not in shop.projectors:
            shop.start(name[0], name)
            shop.projectors[name].step(0.0)
        case "stop" if name in shop.projectors:
            shop.stop(name)
        case "step" | "look" if name in shop.projectors:
            if what == "look":
                shop.look(name)
            for _ in range(3):
                shop.projectors[name].step(0.0)
        case "hold":
            with suppress(ConfigurationError):
                shop.rebuild(name, hold=True)
        case "promote" | "rollback":
            # With the other code at hand it waits for projectors, which take no steps meanwhile.
            with suppress(ConfigurationError, ViewNotBuilt, InfrastructureError):
                shop.promote(name, "held" if what == "promote" else "kept", timeout=0.1)


def check_spelling(shop: Deploys) -> None:
    """Each row is spelled in the order in which codes claimed its generation; a rollback may give it back to one."""
    for generation in shop.store.registry("spelled").generations.values():
        claims = shop.claims.setdefault(generation.id, list(generation.folds))
        if claims[-1] != generation.fold:
            claims.append(generation.fold)
        order = "".join(f"{code}*" for code in claims)
        for row in shop.rows(generation).values():
            assert re.fullmatch(order, row), f"{row} in {generation}"
