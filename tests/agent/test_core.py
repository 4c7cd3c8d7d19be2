"""The pure decisions: what each board should be, in which order, and that no order of outcomes passes the bound."""

from __future__ import annotations

from dataclasses import replace

from flyball_agent.core import (
    UNLOCKED,
    Board,
    Mode,
    PodName,
    Purpose,
    SetLimit,
    SetLock,
    above_target,
    lock_sets,
    lowers,
    mode_of,
    raises,
    supersedes,
    targets_of,
    total_held_milliwatts,
)
from flyball_agent.desired import DesiredSpec, JobGrant
from flyball_agent.gpu import DeviceLimits
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = DeviceLimits(100_000, 400_000, 400_000, tuple(range(210, 1411, 15)))
POD, OTHER = PodName("research", "gpt2-1-0"), PodName("kube-system", "daemon")
JOB = JobGrant("research", "gpt2", "u-1", 1, "gpt2-1-0", 2, 250_000, 1000, 1300)


def board(name: str, held: int = 400_000, *, pods: tuple[PodName, ...] = (), **fields) -> Board:
    return Board(name, LIMITS, held, fields.pop("requested", held), pods=pods, **fields)


def spec(**fields) -> DesiredSpec:
    return DesiredSpec(**{"epoch": 1, "generation": 1, "lease_seconds": 30, "grant_milliwatts": 800_000, **fields})


def test_modes():
    boards = [board("a"), board("b")]
    assert mode_of(None, boards, lease_valid=True) is Mode.ADOPTING
    assert mode_of(spec(), boards, lease_valid=True) is Mode.GRANTED
    assert mode_of(spec(), boards, lease_valid=False) is Mode.FAILSAFE
    for lease_valid in (True, False):
        assert mode_of(spec(grant_milliwatts=200_000), boards, lease_valid) is Mode.FLOOR


def test_each_board_gets_what_its_pods_say():
    boards = [board("job", pods=(POD,)), board("idle"), board("foreign", pods=(OTHER,))]
    targets = targets_of(spec(jobs=(JOB,)), boards, Mode.GRANTED)
    assert (targets["job"].limit_milliwatts, targets["job"].lock) == (250_000, (990, 1290))
    assert (targets["idle"].limit_milliwatts, targets["idle"].lock) == (100_000, UNLOCKED)
    assert (targets["foreign"].purpose, targets["foreign"].limit_milliwatts) == (Purpose.UNTOUCHED, None)
    assert targets["foreign"].lock is None


def test_foreign_boards_are_touched_only_as_far_as_they_are_reserved():
    boards = [board("a", pods=(OTHER,)), board("b", pods=(OTHER,), lock=(900, 900))]
    targets = targets_of(spec(foreign_gpus=1), boards, Mode.GRANTED)
    assert targets["a"].limit_milliwatts == 400_000  # 0 in the spec: the board's default
    assert targets["b"].limit_milliwatts is None
    assert targets["b"].lock == UNLOCKED  # ours, left over from a job
    targets = targets_of(spec(foreign_gpus=2, foreign_limit_milliwatts=180_000), boards, Mode.GRANTED)
    assert [targets[name].limit_milliwatts for name in "ab"] == [180_000, 180_000]


def test_a_shared_board_gets_the_least_of_its_jobs_and_is_foreign_where_one_is():
    second = replace(JOB, uid="u-2", pod_name="bert-1-0", power_limit_milliwatts=200_000)
    shared = (POD, PodName("research", "bert-1-0"))
    targets = targets_of(spec(jobs=(JOB, second)), [board("a", pods=shared)], Mode.GRANTED)
    assert targets["a"].limit_milliwatts == 200_000
    targets = targets_of(spec(jobs=(JOB,)), [board("a", pods=shared)], Mode.GRANTED)
    assert targets["a"].purpose is Purpose.UNTOUCHED


def test_failsafe_only_ever_lowers_a_target():
    boards = [board("job", pods=(POD,)), board("idle"), board("foreign", pods=(OTHER,))]
    settings = {"jobs": (JOB,), "failsafe_limit_milliwatts": 180_000}
    targets = targets_of(spec(**settings), boards, Mode.FAILSAFE)
    assert targets["job"].limit_milliwatts == 180_000
    assert targets["idle"].limit_milliwatts == 100_000
    assert targets["foreign"].limit_milliwatts is None
    assert targets_of(spec(jobs=(JOB,)), boards, Mode.FAILSAFE)["job"].limit_milliwatts == 100_000


def test_limits_out_of_the_boards_range_are_clamped():
    low = replace(JOB, power_limit_milliwatts=1)
    boards = [board("a", pods=(POD,))]
    assert targets_of(spec(jobs=(low,)), boards, Mode.GRANTED)["a"].limit_milliwatts == 100_000
    high = replace(JOB, power_limit_milliwatts=10**9)
    assert targets_of(spec(jobs=(high,)), boards, Mode.GRANTED)["a"].limit_milliwatts == 400_000


def test_lowers_first_then_raises_within_what_is_free():
    boards = [board("idle", 400_000), board("job", 100_000, pods=(POD,))]
    wanted = spec(jobs=(JOB,), grant_milliwatts=350_000)
    targets = targets_of(wanted, boards, Mode.GRANTED)
    assert lowers(boards, targets) == [SetLimit("idle", 400_000, 100_000)]
    assert raises(boards, targets, wanted.grant_milliwatts) == []  # nothing before the cut is read back
    after = [board("idle", 100_000), boards[1]]
    assert raises(after, targets, wanted.grant_milliwatts) == [SetLimit("job", 100_000, 250_000)]


def test_a_board_that_stays_up_is_paid_for_by_the_raise():
    boards = [board("stuck", 300_000), board("job", 100_000, pods=(POD,))]
    targets = targets_of(spec(jobs=(JOB,)), boards, Mode.GRANTED)
    assert raises(boards, targets, 450_000) == [SetLimit("job", 100_000, 150_000)]
    assert above_target(boards, targets) == ["stuck"]


def test_a_limit_that_still_settles_counts_as_the_old_one():
    settling = board("a", 400_000, requested=100_000)
    targets = targets_of(spec(), [settling], Mode.GRANTED)
    assert lowers([settling], targets) == []  # asked for already
    assert above_target([settling], targets) == ["a"]  # but not there yet


def test_a_lost_board_keeps_its_watts_and_is_not_called():
    lost = board("lost", 400_000, requested=None, usable=False)
    boards = [lost, board("job", 100_000, pods=(POD,))]
    targets = targets_of(spec(jobs=(JOB,)), boards, Mode.GRANTED)
    assert lowers(boards, targets) == []
    assert lock_sets(boards, targets) == [SetLock("job", (990, 1290))]
    assert raises(boards, targets, 550_000) == [SetLimit("job", 100_000, 150_000)]
    assert above_target(boards, targets) == []


def test_locks_are_set_where_they_differ_or_nobody_knows():
    boards = [board("new"), board("free", lock=UNLOCKED), board("ours", lock=(900, 900))]
    targets = targets_of(spec(), boards, Mode.GRANTED)
    assert lock_sets(boards, targets) == [SetLock("new", UNLOCKED), SetLock("ours", UNLOCKED)]
    unlockable = replace(boards[0], limits=DeviceLimits(100_000, 400_000, 400_000))
    assert lock_sets([unlockable], targets_of(spec(), [unlockable], Mode.GRANTED)) == []


def test_only_a_higher_pair_supersedes():
    assert supersedes((0, 0), None)
    assert supersedes((2, 1), (1, 9))
    assert not supersedes((1, 9), (1, 9))
    assert not supersedes((1, 99), (2, 1))


MILLIWATTS = st.integers(100_000, 400_000)
LOW_OR_ANY = st.just(100_000) | MILLIWATTS
RARELY = st.sampled_from([False, False, False, True])


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(LOW_OR_ANY, MILLIWATTS, RARELY, RARELY), min_size=1, max_size=8),
    st.floats(0, 1.2),
    st.lists(st.sampled_from(["done", "done", "lie", "late"]), min_size=16, max_size=16),
    st.randoms(use_true_random=False),
)
def test_no_order_of_sets_and_no_lie_passes_the_larger_of_grant_and_before(rows, grant_share, outcomes, random):
    """Sets of one round in any order, each done, ignored, or enforced late: the true total stays within the bound."""
    jobs = tuple(
        replace(JOB, uid=f"u-{i}", pod_name=f"p-{i}", power_limit_milliwatts=row[1]) for i, row in enumerate(rows)
    )
    requested = {f"g{i}": row[0] for i, row in enumerate(rows)}
    enforced = dict(requested)
    usable = {f"g{i}": not row[2] for i, row in enumerate(rows)}
    pods = {f"g{i}": () if row[3] else (PodName("research", f"p-{i}"),) for i, row in enumerate(rows)}

    def read() -> list[Board]:
        return [
            Board(
                name,
                LIMITS,
                max(requested[name], enforced[name]),
                requested[name] if ok else None,
                ok,
                None,
                pods[name],
            )
            for name, ok in usable.items()
        ]

    targets = targets_of(spec(jobs=jobs), read(), Mode.GRANTED)
    grant = round(grant_share * sum(target.limit_milliwatts for target in targets.values()))
    bound = max(grant, total_held_milliwatts(read()))
    outcome = iter(outcomes)
    for decide in (lambda: lowers(read(), targets), lambda: raises(read(), targets, grant)):
        sets = decide()
        random.shuffle(sets)
        for change in sets:
            what = next(outcome)
            if what == "lie":
                continue
            requested[change.uuid] = change.new_milliwatts
            if what == "done":
                enforced[change.uuid] = change.new_milliwatts
            true_total = sum(max(requested[name], enforced[name]) for name in requested)
            assert true_total <= bound
    if all(what == "done" for what in outcomes):
        below = [name for name, ok in usable.items() if ok and requested[name] < targets[name].limit_milliwatts]
        room = grant - sum(requested.values())
        assert not below or room <= 0  # nothing is held back that the grant would allow
