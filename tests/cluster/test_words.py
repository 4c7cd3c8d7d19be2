"""What a user is told on the real control plane: conditions, reasons and Events that say what is so, and nothing else."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.site_bench import Bench, condition, message, reason

LONG = 1_000_000


@pytest.mark.parametrize(
    ("spec", "expected", "words"),
    [
        (
            {"energy": {"budgetKilojoules": 1, "onExhausted": "Suspend"}},
            "BudgetTooSmall",
            "energy.budgetKilojoules is 1, and by its model the job takes",
        ),
    ],
    ids=["budget"],
)
def test_a_job_that_is_not_admitted_says_why(bench: Bench, spec: dict[str, Any], expected: str, words: str) -> None:
    bench.submit("held", gpus=(2, 2), iterations=LONG, **spec)
    raw = bench.wait_said("held", "Admitted", expected, words)
    assert raw["status"]["state"] == expected
    assert not bench.objects("jobs", "/apis/batch/v1")
    bench.wait_told("held", "Warning", expected, words)
    assert not any(event[1] == "Admitted" for event in bench.events("held")), "nothing is taken back"


def test_a_throttled_job_that_goes_over_its_budget_is_told_before_it_does(bench: Bench) -> None:
    bench.submit("over", gpus=(2, 2), iterations=LONG, energy={"budgetKilojoules": 1000, "onExhausted": "Throttle"})
    raw = bench.wait_job("over", lambda raw: reason(raw, "BudgetHealthy") == "ProjectedOverBudget", "over its budget")
    assert condition(raw, "BudgetHealthy") == "False"
    bench.wait_told("over", "Warning", "ProjectedOverBudget", "kJ at the end, and 1000 kJ are allowed")
    bench.wait_running("over")


def test_a_throttled_job_stops_where_it_may_go_no_further_beyond_its_budget(bench: Bench) -> None:
    energy = {"budgetKilojoules": 2, "onExhausted": "Throttle", "maxOverrunPermille": 500}
    bench.submit("over", gpus=(8, 8), iterations=LONG, energy=energy)
    bench.wait_told("over", "Warning", "BudgetExhausted", "energy.onExhausted is Throttle")
    raw = bench.wait_said("over", "Admitted", "WaitingForBudget", "energy.maxOverrunPermille 500")
    assert raw["status"]["energy"]["consumedKilojoules"] >= 3
    bench.wait(lambda: not bench.objects("pods"), lambda: f"its pods have left; {bench.job('over')}")
    bench.change("over", energy={"budgetKilojoules": 10**6})
    bench.wait_running("over")


@pytest.mark.parametrize(("follows", "word"), [("Suspend", "WaitingForBudget"), ("Fail", "Failed")])
def test_a_job_whose_budget_is_spent_waits_or_fails(bench: Bench, follows: str, word: str) -> None:
    """Nobody knows how long it trains, and so whether its budget is enough: it begins."""
    training = {"globalBatchSize": 256, "modelClass": "resnet50"}
    energy = {"budgetKilojoules": 2, "onExhausted": follows}
    bench.submit("spends", gpus=(8, 8), iterations=LONG, training=training, energy=energy)
    bench.wait_told("spends", "Warning", "BudgetExhausted", f"energy.onExhausted is {follows}")
    raw = bench.wait_job("spends", lambda raw: (raw or {})["status"].get("state") == word, word)
    assert "energy budget of 2 kJ" in raw["status"]["explanation"]
    assert (condition(raw, "BudgetHealthy"), reason(raw, "BudgetHealthy")) == ("False", "Exhausted")
    bench.wait(lambda: not any(node["spec"].get("jobs") for node in bench.gpu_nodes()), lambda: "nothing is granted")


def test_of_a_job_that_another_controller_manages_not_one_word_is_written(bench: Bench) -> None:
    made = bench.submit("theirs", gpus=(2, 2), iterations=LONG, managedBy="someone.else/queue")
    bench.submit("ours", gpus=(2, 2), iterations=LONG)
    bench.wait_running("ours")  # by then it has been looked at often
    theirs = bench.job("theirs") or {}
    assert theirs["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert "status" not in theirs


def test_kubectl_waits_for_a_job_that_runs(bench: Bench) -> None:
    bench.submit("awaited", gpus=(2, 2), iterations=LONG, clocks={"minMegahertz": 9999})
    plane = bench.site.cluster.control_plane
    command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "-n", bench.namespace]
    command += ["wait", "--for=condition=Ready", "--timeout=240s", "eaj/awaited"]
    subprocess.run(command, check=True, capture_output=True)
    raw = bench.job("awaited")
    assert (condition(raw, "Ready"), reason(raw, "Ready")) == ("True", "Running")
    assert reason(raw, "BoundsKept") == "OutOfRange"
    words = "clocks.minMegahertz 9999 is above 1410 MHz, the highest there is"
    assert words in message(raw, "BoundsKept")
    bench.wait_told("awaited", "Warning", "BoundsOutOfRange", words)


def test_bounds_below_what_a_gpu_can_take_are_said_with_what_is_used_instead(bench: Bench) -> None:
    bench.submit("low", gpus=(2, 2), iterations=LONG, clocks={"maxMegahertz": 1}, powerLimit={"maxWatts": 1})
    raw = bench.wait_running("low")
    assert (condition(raw, "BoundsKept"), reason(raw, "BoundsKept")) == ("False", "OutOfRange")
    words = (
        "clocks.maxMegahertz 1 is below 210 MHz, the lowest there is; "
        "powerLimit.maxWatts 1 is below 100 W, the smallest there is: that is used instead"
    )
    assert message(raw, "BoundsKept") == words
    bench.wait_told("low", "Warning", "BoundsOutOfRange", words)
    allocation = raw["status"]["allocation"]
    assert (allocation["clockMegahertz"], allocation["powerLimitWatts"]) == (210, 100)
    assert "price" not in raw["status"]["explanation"], "no price holds it at its lowest clock"


def test_a_deadline_that_nothing_meets_is_said_with_the_nearest_that_can_be_met(bench: Bench) -> None:
    due = (datetime.now(UTC) + timedelta(minutes=2)).replace(microsecond=0).isoformat()
    bench.submit("hurried", gpus=(2, 2), iterations=LONG, deadline=due)
    raw = bench.wait_running("hurried")
    assert (condition(raw, "DeadlineAtRisk"), reason(raw, "DeadlineAtRisk")) == ("True", "NoAllocationMeetsIt")
    assert "the earliest possible is 2" in message(raw, "DeadlineAtRisk")
    assert raw["status"]["state"] == "DeadlineAtRisk"
    bench.wait_told("hurried", "Warning", "DeadlineAtRisk", "the earliest possible is 2")
    assert (condition(raw, "Ready"), reason(raw, "Ready")) == ("True", "DeadlineAtRisk")


def test_a_deadline_that_is_past_is_said_and_hurries_nobody(bench: Bench) -> None:
    bench.submit("late", gpus=(2, 2), iterations=LONG, deadline="2020-01-01T00:00:00Z", objective="Energy")
    raw = bench.wait_running("late")
    assert (condition(raw, "DeadlineAtRisk"), reason(raw, "DeadlineAtRisk")) == ("True", "DeadlinePassed")
    assert message(raw, "DeadlineAtRisk") == "2020-01-01T00:00:00Z is past: the job goes on as one without a deadline"
    assert bench.wait_told("late", "Warning", "DeadlineAtRisk") == message(raw, "DeadlineAtRisk")
    assert raw["status"]["allocation"]["clockMegahertz"] < 1410, "the clock of least energy"


def test_a_preempted_job_says_for_whom_until_it_runs_again(bench: Bench) -> None:
    bench.submit("low", gpus=(32, 32), iterations=LONG)
    bench.wait_running("low", 32)
    bench.submit("high", gpus=(32, 32), iterations=LONG, priority=10)
    bench.wait_running("high", 32)
    low = bench.wait_said("low", "Admitted", "Preempted", "Now:")  # a later plan has only said that there are no GPUs
    assert "/high, priority 10 over 0." in message(low, "Admitted")
    bench.api.delete(bench.path("high"))
    bench.wait_running("low", 32)
    bench.wait(
        lambda: {"Preempted", "Resumed"} <= {event[1] for event in bench.events("low")},
        lambda: f"both are told; {bench.events('low')}",
    )


def test_a_job_that_waits_is_told_its_place_and_when_it_starts(bench: Bench) -> None:
    name = "runs".ljust(52, "s")  # as long as a name may be
    bench.submit(name, gpus=(32, 32), iterations=LONG)
    runs = bench.wait_running(name, 32)
    bench.submit("longer", gpus=(32, 32), iterations=LONG)
    bench.submit("next", gpus=(32, 32), iterations=LONG // 10)

    def queue(name: str) -> dict[str, Any]:
        return dict(((bench.job(name) or {}).get("status") or {}).get("queue") or {})

    def places() -> list[tuple[int, int]]:
        return [(queue(each).get("position", 0), queue(each).get("waiting", 0)) for each in ("next", "longer")]

    bench.wait(lambda: places() == [(1, 2), (2, 2)], lambda: f"the shorter comes first; {places()}")
    first, second = queue("next"), queue("longer")
    assert first["basis"] == f"when {bench.namespace}/{name} has ended"
    assert second["basis"] == f"when 2 jobs have ended, the last of them {bench.namespace}/next"
    assert second["expectedStartTime"] > first["expectedStartTime"] > first["time"]
    # What runs has an end with a band, and the next start is near it: by the plan's model, not by the pace seen.
    runs = bench.wait_job(name, lambda raw: "latestCompletionTime" in ((raw or {})["status"]["progress"]), "has a band")
    progress = runs["status"]["progress"]
    assert progress["earliestCompletionTime"] <= progress["estimatedCompletionTime"] <= progress["latestCompletionTime"]
    assert f"{progress['estimatedCompletionTime'][:10]} " in runs["status"]["summary"]["finish"]
    plane = bench.site.cluster.control_plane
    command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "-n", bench.namespace, "get", "eaj", "next"]
    shown = subprocess.run([*command, "-o", "wide"], check=True, capture_output=True, text=True).stdout
    assert " 1/2 " in shown
    # A wait of a minute is told; here it began a day ago.
    began = {"waitingSince": "2020-01-01T00:00:00Z", "time": "2020-01-01T00:00:01Z"}
    bench.api.patch(f"{bench.path('next')}/status", {"status": began})
    bench.wait(
        lambda: any(event[:2] == ("Normal", "Waiting") for event in bench.events("next")),
        lambda: f"told so; {bench.events('next')}",
    )
    (note,) = (note for _, reason, note in bench.events("next") if reason == "Waiting")
    assert "it is number 1 of 2 that wait" in note


def test_an_unknown_model_class_is_said_with_the_nearest_known(bench: Bench) -> None:
    bench.submit("odd", gpus=(2, 2), iterations=LONG, training={"globalBatchSize": 256, "modelClass": "Llama70B"})
    bench.wait_running("odd")
    bench.wait(
        lambda: any(
            event[:2] == ("Warning", "UnknownModelClass") and "(near it: " in event[2] for event in bench.events("odd")
        ),
        lambda: f"told so; {bench.events('odd')}",
    )


def told_of_cap(bench: Bench, name: str) -> dict[str, str]:
    """The notes of the warnings about one of the test's caps, by their reasons."""
    return {
        item["reason"]: item["note"]
        for item in bench.api.list_objects("/apis/events.k8s.io/v1/events")
        if item["regarding"].get("name") == bench.cap_name(name) and item["type"] == "Warning"
    }


def test_caps_that_cannot_hold_what_they_say_say_so(bench: Bench) -> None:
    bench.set_cap("nowhere", 9000, nodeSelector={"matchLabels": {"rack": "nowhere"}})
    bench.set_cap(
        "odd", 12_800, schedule=[{"name": "noon", "cron": "0 99 * * *", "durationSeconds": 600, "watts": 12_000}]
    )
    bench.wait(lambda: reason(bench.cap("nowhere"), "Enforced") == "NoNodes", lambda: f"{bench.cap('nowhere')}")
    assert condition(bench.cap("nowhere"), "Enforced") == "Unknown"
    assert message(bench.cap("nowhere"), "Enforced") == "no node with GPUs is under the cap: see its nodeSelector"
    bench.wait(lambda: condition(bench.cap("odd"), "ScheduleInvalid") == "True", lambda: f"{bench.cap('odd')}")
    assert "cron '0 99 * * *'" in message(bench.cap("odd"), "ScheduleInvalid")
    for name, told in (("nowhere", "NoNodes"), ("odd", "ScheduleInvalid")):
        bench.wait(lambda name=name, told=told: told in told_of_cap(bench, name), lambda: "told so")  # type: ignore[misc]


def test_windows_with_dates_and_with_time_zones_are_followed_and_the_next_change_is_said(bench: Bench) -> None:
    now, nepal = datetime.now(UTC).replace(microsecond=0), timezone(timedelta(hours=5, minutes=45))
    start, end = ((now + timedelta(hours=hours)).astimezone(nepal).isoformat() for hours in (-1, 1))
    drill = {"name": "drill", "start": start, "end": end, "watts": 11_000}
    bench.set_cap("site", 12_000, schedule=[drill])
    status = bench.wait_enforced("site", 11_000)["status"]
    assert status["activeSchedule"] == "drill"
    assert status["nextChange"] == {"time": f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}", "watts": 12_000}
    always = {"name": "always", "cron": "* * * * *", "durationSeconds": 120, "watts": 10_000}
    bench.set_cap("site", 12_000, schedule=[drill, {**always, "timeZone": "Asia/Kathmandu"}])
    assert bench.wait_enforced("site", 10_000)["status"]["activeSchedule"] == "always"
    bench.set_cap("site", 12_000, schedule=[drill, {**always, "timeZone": "Mars/Olympus", "watts": 9000}])
    bench.wait_enforced("site", 9000)
    bench.wait(
        lambda: reason(bench.cap("site"), "ScheduleInvalid") == "TimeZoneUnknown", lambda: f"{bench.cap('site')}"
    )
    assert "timeZone 'Mars/Olympus' is not known" in message(bench.cap("site"), "ScheduleInvalid")


def test_a_cap_below_what_jobs_need_pauses_one_and_says_so(bench: Bench) -> None:
    """32 GPUs cannot go below 3,200 W; at 2,450 W half of them may be busy."""
    bench.set_cap("site", bench.site.plan.max_watts)
    bench.submit("rigid", gpus=(16, 16), iterations=LONG, elasticity={"mode": "Never"})
    bench.submit("soft", gpus=(16, 16), iterations=LONG, priority=5)
    bench.wait_running("rigid")
    bench.wait_running("soft")
    bench.set_cap("site", 1700, onInfeasible="FloorOnly")
    bench.wait(lambda: reason(bench.cap("site"), "Feasible") == "FloorsExceedCap", lambda: f"{bench.cap('site')}")
    bench.wait(lambda: "Infeasible" in told_of_cap(bench, "site"), lambda: f"told so; {told_of_cap(bench, 'site')}")
    bench.wait_at_floor()
    assert [bench.job(name)["status"]["state"] for name in ("rigid", "soft")] == ["Running", "Running"]  # type: ignore[index]
    bench.set_cap("site", 2450, onInfeasible="Pause")
    bench.wait_said("soft", "Admitted", "WaitingForPower", "cannot be held")
    bench.wait(
        lambda: any(
            event[:2] == ("Normal", "Paused") and "-site cannot be held" in event[2] for event in bench.events("soft")
        ),
        lambda: f"told so, and by which cap; {bench.events('soft')}",
    )
    assert (bench.job("rigid") or {})["status"]["state"] == "Running", "paused last of all, whatever its priority"
    bench.set_cap("site", bench.site.plan.max_watts)
    bench.wait_running("soft")
    bench.wait(
        lambda: any(event[:2] == ("Normal", "Resumed") for event in bench.events("soft")),
        lambda: f"told that it goes on; {bench.events('soft')}",
    )
    assert (bench.job("rigid") or {})["status"]["allocation"]["incarnation"] == 1


def test_a_cap_that_goes_up_and_down_leaves_a_job_that_it_has_paused_until_its_time(bench: Bench) -> None:
    """32 busy GPUs draw some 2,300 W at their smallest limits: a job on all of them has no place under 1,700 W."""
    full, low = bench.site.plan.max_watts, 1700
    bench.set_cap("site", full)
    bench.submit("soft", gpus=(32, 32), iterations=LONG, seconds_between_resizes=600)
    bench.wait_running("soft")
    words = "paused less than minSecondsBetweenResizes 600 s after its last start"
    for _ in range(4):
        bench.set_cap("site", low)
        bench.wait_said("soft", "Admitted", "PowerBackOff", words)
        bench.set_cap("site", full)
        bench.wait_enforced("site", full)
    said = message(bench.job("soft"), "Admitted")
    assert said.startswith(words)
    assert "; the next start is at 2" in said
    assert words in bench.wait_told("soft", "Normal", "Paused", "its 32 GPUs on node-000")
    bench.submit("other", gpus=(32, 32), iterations=LONG)  # may have the GPUs meanwhile
    bench.wait_running("other")
    assert reason(bench.job("soft"), "Admitted") == "PowerBackOff"
    assert (bench.job("soft") or {})["status"]["allocation"]["incarnation"] == 1
    assert sum(why == "Paused" for _, why, _ in bench.events("soft")) == 1


def test_the_tables_of_nodes_and_caps_are_in_watts(bench: Bench) -> None:
    watts = bench.site.plan.max_watts // 2
    bench.set_cap("site", watts)
    bench.wait_enforced("site", watts)
    plane = bench.site.cluster.control_plane
    command = [str(plane.kubectl), "--kubeconfig", str(plane.kubeconfig()), "get"]

    def shown(*what: str) -> list[dict[str, str]]:
        """kubectl's table, row by row: each cell by its heading."""
        header, *rows = subprocess.run(
            [*command, *what], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        starts = [found.start() for found in re.finditer(r"\S+", header)]
        ends = [*starts[1:], None]
        cells = [[row[begin:end].strip() for begin, end in zip(starts, ends, strict=True)] for row in rows]
        return [dict(zip(header.split(), row, strict=True)) for row in cells]

    nodes = shown("gpunodes")
    assert len(nodes) == bench.site.plan.nodes
    assert all(re.fullmatch(r"[\d.]+ k?W", node["LIMITS"]) and node["READY"] == "True" for node in nodes), nodes
    assert sum(float(node["LIMITS"].split()[0]) * (1000 if "k" in node["LIMITS"] else 1) for node in nodes) <= watts
    (cap,) = shown("powercaps", bench.cap_name("site"))
    assert str(watts) in " ".join(cap.values()), cap
