"""Effects: permitted once, and again only by somebody's word (table E, E2, E3, E6)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.core.commit import EffectFilter, Park, Resolve, ResolveOutcome, SettleEffect, WaitFilter
from perdure.core.effect import EffectState
from perdure.core.errors import Conflict, EffectNotFoundError
from perdure.core.run import RunStatus
from perdure.core.wait import Resolution, ResolutionKind
from perdure.testing.conformance._bench import LATER, Bench, Owner, effect, said, wait_row
from perdure.testing.conformance._kit import Conformance, Kit

KEY = "r1:1:1:0"
S = EffectState


async def unknown(bench: Bench, **fields: object) -> Owner:
    """A run that waits for a person's word on its effect: its worker died in the body, and the claim was swept."""
    owner = await bench.start()
    await owner.commit(effects=(effect(S.STARTED, **fields),))  # pyright: ignore[reportArgumentType]
    await owner.commit(ending=Park())
    return owner


async def asked(bench: Bench) -> str:
    """The row that asks about it."""
    (wait,) = await bench.store.waits(WaitFilter(run_id="r1", kind=("effect",)))
    return wait.id


class EffectConformance(Conformance):
    """The ledger."""

    async def test_started_names_worker_epoch_and_time(self, kit: Kit) -> None:
        """By the store's clock, so that everybody can tell when it can't be running any more."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            row = effect(S.STARTED, input={"n": 1}, input_hash="h", time_limit=60.0)
            before = await store.now()
            await owner.commit(effects=(row,))
            (stored,) = (await store.load("r1")).effects
            assert (stored.row, stored.run_id, stored.generation) == (row, "r1", 1)
            assert (stored.worker, stored.epoch, stored.settled_at) == ("worker-1", 1, None)
            assert stored.started_at is not None and before <= stored.started_at <= await store.now()

    async def test_done_and_failed_keep_who_started_them(self, kit: Kit) -> None:
        """The row is the same, its state and result are new."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED), effect(S.STARTED, position=1)))
            await owner.commit(effects=(effect(S.DONE, result={"id": 7}), effect(S.FAILED, position=1, error={"code": "tool_error"})))
            done, failed = (await store.load("r1")).effects
            assert (done.state, done.row.result, done.worker, done.epoch) == (S.DONE, {"id": 7}, "worker-1", 1)
            assert (failed.state, failed.row.error) == (S.FAILED, {"code": "tool_error"})
            assert done.started_at is not None and done.settled_at is not None

    async def test_what_is_done_or_failed_stays_so(self, kit: Kit) -> None:
        """A commit that would change it is refused whole."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED), effect(S.STARTED, position=1)))
            await owner.commit(effects=(effect(S.DONE, result=1), effect(S.FAILED, position=1)))
            before = await store.load("r1")
            for write in (effect(S.STARTED), effect(S.PLANNED), effect(S.FAILED), effect(S.DONE, position=1), effect(S.STARTED, position=1)):
                with pytest.raises(Conflict):
                    await store.commit(owner.next(effects=(write,)))
            assert await store.load("r1") == before

    @pytest.mark.parametrize("state", [S.PLANNED, S.DONE, S.FAILED, S.UNKNOWN])
    async def test_only_started_effects_become_unknown_with_their_claim(self, kit: Kit, state: EffectState) -> None:
        """A planned one, known not to have happened, stays planned: nobody is asked about it."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED, unknown="retry"),))
            status = (await owner.commit(effects=(effect(state, unknown="retry"),), ending=Park())).status
            assert await bench.effect_state() is state
            assert status is RunStatus.PENDING

    @pytest.mark.parametrize("word", ["ask", "verify", "retry"])
    async def test_only_ask_opens_a_row(self, kit: Kit, word: str) -> None:
        """What verifies or retries goes on by itself."""  # case A2
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED, unknown=word),))
            kit.advance(LATER)
            await bench.sweep()
            assert await bench.effect_state() is S.UNKNOWN
            assert await bench.status() is (RunStatus.WAITING if word == "ask" else RunStatus.PENDING)
            assert await bench.events() == [
                "run.created", "run.claimed", "run.recovered", "effect.unknown", *(("wait.opened", "run.waiting") if word == "ask" else ()),
            ]  # fmt: skip

    async def test_an_effect_that_is_asked_about_already_is_not_asked_twice(self, kit: Kit) -> None:
        """The end of the claim finds the row that the commit opened."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED),))
            await owner.commit(effects=(effect(S.UNKNOWN),), waits=(wait_row("w1", kind="effect", effect_key=KEY),))
            await owner.commit(ending=Park())
            assert [wait.id for wait in (await store.load("r1")).waits] == ["w1"]

    async def test_an_unknown_effect_left_without_a_row_gets_one(self, kit: Kit) -> None:
        """A claim that ends over it does not hide it behind another wait."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED),))
            await owner.commit(effects=(effect(S.UNKNOWN),))
            assert (await owner.commit(ending=Park())).status is RunStatus.WAITING
            assert (await bench.wait(await asked(bench))).row.effect_key == KEY

    # ── a person's word ────────────────────────────────────────────────────────────────────────────────────
    async def test_it_happened(self, kit: Kit) -> None:
        """The effect is done with the result that the person gave, and the run goes on."""  # case A1
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench)
            told = await store.resolve(Resolve(await asked(bench), said("done", value={"id": 7}, by="ana")))
            assert (told.outcome, told.run_status) == (ResolveOutcome.RESOLVED, RunStatus.PENDING)
            (stored,) = (await store.load("r1")).effects
            assert (stored.state, stored.row.result, stored.settled_by) == (S.DONE, {"id": 7}, "ana")
            assert (await bench.events())[-2:] == ["effect.done", "wait.resolved"]

    async def test_it_did_not_happen_and_shall_not(self, kit: Kit) -> None:
        """The effect has failed, with the reason."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench)
            await store.resolve(Resolve(await asked(bench), said("fail", reason="Called the bank.")))
            (stored,) = (await store.load("r1")).effects
            assert stored.state is S.FAILED and stored.row.error == {"code": "effect_unknown", "message": "Called the bank."}

    async def test_run_it_is_a_permission_to_use_once(self, kit: Kit) -> None:
        """Planned again with a permit; the next `started` uses it up."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench)
            kit.advance(LATER)
            await store.resolve(Resolve(await asked(bench), said("run")))
            (stored,) = (await store.load("r1")).effects
            assert (stored.state, stored.row.permit) == (S.PLANNED, True)
            owner = await bench.own()
            await owner.commit(effects=(effect(S.STARTED),))
            (stored,) = (await store.load("r1")).effects
            assert (stored.row.permit, stored.epoch) == (False, 2)
            await owner.commit(ending=Park())
            waits = await store.waits(WaitFilter(run_id="r1", kind=("effect",), open=None))
            assert [wait.open for wait in waits] == [False, True], "unknown once more: a new row"

    async def test_run_it_waits_until_the_try_before_can_not_be_running(self, kit: Kit) -> None:
        """Started, its time limit and the grace, by the store's clock."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench, time_limit=60.0)
            wait_id = await asked(bench)
            kit.advance(timedelta(seconds=85))
            told = await store.resolve(Resolve(wait_id, said("run")))
            assert told.outcome is ResolveOutcome.REFUSED and told.wait.open and told.message is not None
            with pytest.raises(Conflict):
                await store.settle_effect(SettleEffect(KEY, "run"))
            kit.advance(timedelta(seconds=6))
            assert (await store.resolve(Resolve(wait_id, said("run")))).outcome is ResolveOutcome.RESOLVED

    async def test_a_second_try_is_timed_anew(self, kit: Kit) -> None:
        """Its own start counts, not the first one's."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench, unknown="retry")
            (first,) = (await store.load("r1")).effects
            kit.advance(LATER)
            owner = await bench.own()
            await owner.commit(effects=(effect(S.STARTED),), ending=Park())
            (second,) = (await store.load("r1")).effects
            assert first.started_at is not None and second.started_at is not None
            assert (second.started_at - first.started_at >= LATER, second.epoch) == (True, 2)
            assert (await store.resolve(Resolve(await asked(bench), said("run")))).outcome is ResolveOutcome.REFUSED

    async def test_other_words_are_refused(self, kit: Kit) -> None:
        """Of an effect one says done, run or fail."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench)
            for word in ("approve", None, "maybe"):
                assert (await store.resolve(Resolve(await asked(bench), said(word)))).outcome is ResolveOutcome.REFUSED
            assert await bench.effect_state() is S.UNKNOWN

    async def test_settling_an_effect_resolves_its_row(self, kit: Kit) -> None:
        """By its key instead of the row's id; the same word again is told the same, another one conflicts."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench)
            wait_id = await asked(bench)
            request = SettleEffect(KEY, "done", result=7, by="ana", via="http", reason="saw it")
            settled = await store.settle_effect(request)
            assert (settled.state, settled.row.result, settled.settled_by) == (S.DONE, 7, "ana")
            answer = (await bench.wait(wait_id)).resolution
            assert answer is not None and (answer.decision, answer.value, answer.by, answer.via) == ("done", 7, "ana", "http")
            assert await bench.status() is RunStatus.PENDING
            assert await store.settle_effect(request) == settled
            with pytest.raises(Conflict):
                await store.settle_effect(SettleEffect(KEY, "fail"))

    async def test_an_effect_that_is_not_there_can_not_be_settled(self, kit: Kit) -> None:
        """The key must be known."""
        async with kit.open() as store:
            with pytest.raises(EffectNotFoundError):
                await store.settle_effect(SettleEffect(KEY, "done"))

    @pytest.mark.parametrize("state", [S.STARTED, S.PLANNED, S.DONE, S.FAILED])
    async def test_only_an_unknown_effect_can_be_settled(self, kit: Kit, state: EffectState) -> None:
        """The others are known, or running."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED),))
            if state is not S.STARTED:
                await owner.commit(effects=(effect(state),))
            with pytest.raises(Conflict):
                await store.settle_effect(SettleEffect(KEY, "fail" if state is S.DONE else "done", result=9))
            assert await bench.effect_state() is state

    async def test_what_a_run_finds_out_by_itself_nobody_settles(self, kit: Kit) -> None:
        """While a live run verifies or retries, a person's word could only race it; in a final run it may be said."""
        async with kit.open() as store:
            bench = Bench(store)
            await unknown(bench, unknown="verify")
            with pytest.raises(Conflict):
                await store.settle_effect(SettleEffect(KEY, "done"))
            await bench.cancel()
            assert (await store.settle_effect(SettleEffect(KEY, "done", result=1))).state is S.DONE

    async def test_in_a_final_run_an_unknown_effect_stays_listed_and_can_be_settled(self, kit: Kit) -> None:
        """Its row stays open, and answering it does not move the run."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED),))
            await owner.fail()
            assert (await bench.wait(await asked(bench))).open
            assert [each.key for each in await store.effects(EffectFilter(state=("unknown",)))] == [KEY]
            told = await store.resolve(Resolve(await asked(bench), said("done")))
            assert (told.outcome, told.run_status) == (ResolveOutcome.RESOLVED, RunStatus.FAILED)
            assert await bench.status() is RunStatus.FAILED

    async def test_a_resumed_run_waits_for_the_word_that_is_missing(self, kit: Kit) -> None:
        """The row of this generation is open still."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED),))
            await owner.fail()
            await bench.retry()
            assert await bench.status() is RunStatus.WAITING
            await store.resolve(Resolve(await asked(bench), said("done")))
            assert await bench.status() is RunStatus.PENDING

    async def test_a_full_retry_does_not_wait_for_the_old_life(self, kit: Kit) -> None:
        """Its effects are held instead, whatever their state, and the old row can be answered without moving the run."""  # case O5
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED), effect(S.DONE, position=1, result=1)))
            await owner.fail()
            await bench.retry(mode="full")
            assert await bench.status() is RunStatus.PENDING
            loaded = await store.load("r1")
            assert (loaded.effects, loaded.waits) == ((), ())
            assert [(each.generation, each.state) for each in loaded.held] == [(1, S.UNKNOWN), (1, S.DONE)]
            told = await store.resolve(Resolve(await asked(bench), said("done")))
            assert (told.outcome, told.run_status) == (ResolveOutcome.RESOLVED, RunStatus.PENDING)
            assert [each.state for each in (await store.load("r1")).held] == [S.DONE, S.DONE]

    async def test_a_fork_sees_the_effects_of_its_ancestors(self, kit: Kit) -> None:
        """Nobody pays twice by clicking: a fork of a fork sees both."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.DONE),))
            second = await bench.start("r2", source="fork", parent_run="r1")
            await second.commit(effects=(effect(S.DONE, "r2"),))
            await bench.admit("r3", source="fork", parent_run="r2")
            assert [each.key for each in (await store.load("r3")).held] == ["r1:1:1:0", "r2:1:1:0"]
            await bench.admit("r4", parent_run="r1")
            assert (await store.load("r4")).held == (), "a child is no fork"

    # ── business keys ──────────────────────────────────────────────────────────────────────────────────────
    @pytest.mark.parametrize("state", [S.STARTED, S.UNKNOWN, S.DONE])
    async def test_a_business_key_is_started_once(self, kit: Kit, state: EffectState) -> None:
        """Another run's `started` is refused whole and told which row has it."""
        async with kit.open() as store:
            bench = Bench(store)
            first = await bench.start("r1")
            await first.commit(effects=(effect(S.STARTED, claim="agent:a:pay:42"),))
            if state is not S.STARTED:
                await first.commit(effects=(effect(state, claim="agent:a:pay:42", result=9),))
            second = await bench.start("r2")
            with pytest.raises(Conflict) as caught:
                await store.commit(second.next(effects=(effect(S.STARTED, "r2", claim="agent:a:pay:42"),)))
            details = caught.value.details
            assert (details["key"], details["run_id"], details["state"]) == (KEY, "r1", str(state))
            assert (await store.load("r2")).effects == ()
            with pytest.raises(Conflict):
                # A record and its deed in one commit take the key as well.
                await store.commit(second.next(effects=(effect(S.DONE, "r2", claim="agent:a:pay:42", result=9),)))
            await second.commit(effects=(effect(S.STARTED, "r2", claim="agent:a:pay:43"),))
            assert [each.key for each in await store.effects(EffectFilter(claim="agent:a:pay:42"))] == [KEY]

    @pytest.mark.parametrize("state", [S.PLANNED, S.FAILED])
    async def test_a_business_key_that_is_known_not_to_have_happened_is_free(self, kit: Kit, state: EffectState) -> None:
        """Planned again or failed for certain: another run may start it."""
        async with kit.open() as store:
            bench = Bench(store)
            first = await bench.start("r1")
            await first.commit(effects=(effect(S.STARTED, claim="c"),))
            await first.commit(effects=(effect(state, claim="c"),))
            second = await bench.start("r2")
            await second.commit(effects=(effect(S.STARTED, "r2", claim="c"),))
            third = await bench.start("r3")
            with pytest.raises(Conflict) as caught:
                await store.commit(third.next(effects=(effect(S.STARTED, "r3", claim="c"),)))
            assert caught.value.details["run_id"] == "r2"

    async def test_the_holder_of_a_business_key_may_start_again(self, kit: Kit) -> None:
        """The same call is not in its own way."""
        async with kit.open() as store:
            bench = Bench(store)
            owner = await bench.start()
            await owner.commit(effects=(effect(S.STARTED, claim="c", unknown="retry"),))
            await owner.commit(effects=(effect(S.UNKNOWN, claim="c", unknown="retry"),))
            await owner.commit(effects=(effect(S.STARTED, claim="c", unknown="retry"),))

    async def test_one_who_waits_for_a_business_key_is_woken_by_its_settlement(self, kit: Kit) -> None:
        """By the commit that settles it, with the result."""
        async with kit.open() as store:
            bench = Bench(store)
            first, second = await bench.start("r1"), await bench.start("r2")
            await first.commit(effects=(effect(S.STARTED, claim="c"),))
            row = wait_row("w2", kind="effect", effect_key=KEY)
            assert (await second.park(row)).status is RunStatus.WAITING
            told = await bench.answer("w2", "done")
            assert told.outcome is ResolveOutcome.REFUSED, "the other run's effect is what must be settled"
            await first.commit(effects=(effect(S.DONE, claim="c", result=9),))
            assert await bench.status("r2") is RunStatus.PENDING
            answer = (await bench.wait("w2")).resolution
            assert answer is not None and (answer.kind, answer.value["state"], answer.value["result"]) == (ResolutionKind.EVENT, "done", 9)

    async def test_a_persons_word_on_the_key_wakes_those_who_wait_for_it(self, kit: Kit) -> None:
        """Unknown keeps them waiting; the word settles both."""
        async with kit.open() as store:
            bench = Bench(store)
            first, second = await bench.start("r1"), await bench.start("r2")
            await first.commit(effects=(effect(S.STARTED, claim="c"),))
            await second.park(wait_row("w2", kind="effect", effect_key=KEY))
            await first.commit(ending=Park())
            assert await bench.status("r2") is RunStatus.WAITING
            await store.settle_effect(SettleEffect(KEY, "fail"))
            assert [await bench.status(run_id) for run_id in ("r1", "r2")] == [RunStatus.PENDING, RunStatus.PENDING]

    async def test_a_key_settled_before_the_row_answers_it(self, kit: Kit) -> None:
        """The commit that opens the row looks at the effect first."""
        async with kit.open() as store:
            bench = Bench(store)
            first, second = await bench.start("r1"), await bench.start("r2")
            await first.commit(effects=(effect(S.STARTED, claim="c"),))
            await first.commit(effects=(effect(S.DONE, claim="c", result=9),))
            answer = await second.park(wait_row("w2", kind="effect", effect_key=KEY))
            assert (answer.status, answer.answered) == (RunStatus.PENDING, ("w2",))

    async def test_one_who_waits_for_a_business_key_and_is_cancelled_waits_no_more(self, kit: Kit) -> None:
        """Its row asks about another run's effect: it is closed like any other."""
        async with kit.open() as store:
            bench = Bench(store)
            first, second = await bench.start("r1"), await bench.start("r2")
            await first.commit(effects=(effect(S.STARTED, claim="c"),))
            await second.park(wait_row("w2", kind="effect", effect_key=KEY))
            await bench.cancel("r2")
            assert (await bench.wait("w2")).resolution == Resolution(ResolutionKind.CANCELLED, at=(await bench.run("r2")).finished_at)
