"""Which tests show what each field does that people may write."""

from __future__ import annotations

# Where a planner's test shows what a field does, another one shows that the planner is given it.
PLANNED = "test_a_job_under_way"
METER = "test_each_number_of_a_meter_makes_another_run"

SHOWN: dict[str, dict[str, str | tuple[str, ...]]] = {
    "energyawarejobs": {
        "gpus.min": (PLANNED, "test_memory_and_batch_bound_the_sizes"),
        "gpus.max": (PLANNED, "test_a_job_grows_only_if_that_pays_for_its_restart"),
        "gpus.resourceName": (
            "test_a_job_starts_on_the_nodes_that_offer_what_it_asks_for",
            "test_gpus_under_another_name_are_planned_granted_and_trained_on",
        ),
        "training.globalBatchSize": (PLANNED, "test_memory_and_batch_bound_the_sizes"),
        "training.iterations": (
            "test_submit_run_succeed",
            "test_a_job_that_cannot_end_within_its_budget_does_not_begin",
        ),
        "training.maxLocalBatchSize": (PLANNED, "test_memory_and_batch_bound_the_sizes"),
        "training.modelClass": (
            "test_an_unknown_model_class_is_told_once_for_each_spec_with_the_nearest_known",
            "test_an_unknown_model_class_is_said_with_the_nearest_known",
            "test_an_unknown_class_gets_the_generic_prior_and_case_does_not_matter",
        ),
        "template": (
            "test_every_container_gets_it_and_only_the_first_gets_gpus",
            "test_jobs_go_where_their_pods_fit",
            "test_a_misspelt_field_of_the_template_is_refused",
        ),
        "objective": (PLANNED, "test_time_takes_the_highest_clock_and_energy_the_cheapest"),
        "energy.budgetKilojoules": (PLANNED, "test_an_energy_budget_bounds_size_and_clock"),
        "energy.onExhausted": (
            "test_a_spent_budget",
            "test_a_job_whose_budget_is_spent_waits_or_fails",
            "test_a_spent_budget_waits_and_a_throttled_job_takes_its_smallest_size",
        ),
        "energy.maxOverrunPermille": (
            "test_a_throttled_job_goes_beyond_its_budget_as_far_as_it_may",
            "test_a_throttled_job_stops_where_it_may_go_no_further_beyond_its_budget",
        ),
        "flexibleUntil": (
            "test_it_says_when_it_starts_and_what_that_saves",
            "test_a_job_that_can_wait_starts_when_the_signal_is_low",
        ),
        "deadline": (
            PLANNED,
            "test_a_deadline_is_met_with_the_fewest_joules",
            "test_a_deadline_that_nothing_meets_is_said_with_the_nearest_that_can_be_met",
        ),
        "clocks.minMegahertz": (PLANNED, "test_every_plan_keeps_every_promise"),
        "clocks.maxMegahertz": (PLANNED, "test_every_plan_keeps_every_promise"),
        "powerLimit.maxWatts": (PLANNED, "test_the_user_may_lower_the_limit_and_then_runs_at_a_clock_that_fits_it"),
        "elasticity.mode": ("test_resizable", "test_a_cap_below_what_jobs_need_pauses_one_and_says_so"),
        "elasticity.minSecondsBetweenResizes": (
            PLANNED,
            "test_a_job_that_a_cap_stops_soon_after_its_start_waits_until_it_may_be_resized",
            "test_a_job_that_has_run_for_long_goes_on_as_soon_as_there_are_watts",
        ),
        "profileKey": "test_jobs_share_by_key_within_a_namespace_only",
        "pipeline.stages": (
            "test_the_trainer_has_the_plan_of_its_pipeline",
            "test_a_plan_of_another_pipeline_than_the_jobs_is_not_followed",
        ),
        "pipeline.microbatches": (
            "test_the_trainer_has_the_plan_of_its_pipeline",
            "test_a_plan_of_another_pipeline_than_the_jobs_is_not_followed",
        ),
        "pipeline.plan.configMap": (
            "test_the_trainer_has_the_plan_of_its_pipeline",
            "test_a_pipelines_boards_run_at_the_clocks_of_its_plan",
        ),
        "pipeline.plan.key": "test_the_trainer_has_the_plan_of_its_pipeline",
        "pipeline.plan.measure.highestMegahertz": (
            "test_a_job_that_measures_itself_is_told_at_which_clocks_and_starts_without_a_plan"
        ),
        "pipeline.plan.measure.lowestMegahertz": (
            "test_a_job_that_measures_itself_is_told_at_which_clocks_and_starts_without_a_plan"
        ),
        "pipeline.plan.measure.stepMegahertz": (
            "test_a_job_that_measures_itself_is_told_at_which_clocks_and_starts_without_a_plan"
        ),
        "recurrence.batchSizes": "test_the_first_run_has_the_jobs_own_batch_size_and_the_next_ones_explore_from_there",
        "recurrence.targetMetric": (
            "test_the_run_of_a_recurring_job_is_told_what_it_trains_to_and_which_batch_size_its_rates_are_for",
            "test_a_run_knows_what_it_trains_to",
        ),
        "recurrence.energyWeightPermille": "test_a_runs_cost_weighs_joules_against_seconds_of_its_gpus",
        "priority": (PLANNED, "test_a_preempted_job_says_for_whom_until_it_runs_again"),
        "suspend": (
            "test_a_suspended_job_does_not_wait_to_leave",
            "test_suspend_and_resume_go_on_from_the_checkpoint",
        ),
        "managedBy": (
            "test_of_a_job_that_another_controller_manages_not_a_word_is_written",
            "test_of_a_job_that_another_controller_manages_not_one_word_is_written",
        ),
        "failurePolicy.maxRestarts": (
            "test_after_the_last_restart_the_job_fails_and_keeps_its_pods",
            "test_the_last_crash_ends_the_job_and_leaves_its_pod_to_be_looked_at",
        ),
        "failurePolicy.restartsWindowSeconds": "test_failures_count_no_more_after_a_time_without_one",
        "startupTimeoutSeconds": (
            "test_the_job_says_how_long_a_start_may_take",
            "test_gpus_that_a_job_cannot_use_go_to_another",
        ),
        "ttlSecondsAfterFinished": (
            "test_ended_jobs_are_removed_after_their_time",
            "test_a_job_that_has_ended_goes_after_its_time",
        ),
    },
    "powercaps": {
        "watts": (
            "test_the_base_is_the_watts_or_the_share_of_the_largest_limits_and_the_overhead",
            "test_a_cap_is_lowered_before_anything_is_raised",
        ),
        "permilleOfMax": "test_the_base_is_the_watts_or_the_share_of_the_largest_limits_and_the_overhead",
        "nodeSelector.matchLabels": (
            "test_only_the_nodes_that_the_selector_takes_count",
            "test_two_caps_over_the_same_nodes_are_both_held",
        ),
        "nodeSelector.matchExpressions[].key": "test_select_names_the_matching_nodes",
        "nodeSelector.matchExpressions[].operator": "test_select_names_the_matching_nodes",
        "nodeSelector.matchExpressions[].values": "test_select_names_the_matching_nodes",
        "enforcement": "test_a_cap_that_adds_up_predicted_draw_holds_back_predicted_draw",
        "onInfeasible": (
            "test_a_plan_pauses_jobs_under_a_cap_that_cannot_be_held_where_the_cap_says_so",
            "test_a_cap_below_what_jobs_need_pauses_one_and_says_so",
        ),
        "staticOverheadWatts": "test_a_cap_that_is_held",
        "schedule[].name": "test_a_schedule_in_force_is_named_and_forgotten_when_it_ends",
        "schedule[].cron": "test_the_lowest_open_window_counts",
        "schedule[].durationSeconds": "test_the_lowest_open_window_counts",
        "schedule[].timeZone": "test_a_cron_follows_the_clocks_of_its_zone",
        "schedule[].start": "test_a_window_with_dates_comes_once",
        "schedule[].end": "test_a_window_with_dates_comes_once",
        "schedule[].watts": "test_the_lowest_open_window_counts",
        "energyBudget.kilojoules": (
            "test_a_budget_is_spread_over_what_is_left_of_its_period",
            "test_what_is_used_while_no_operator_runs_is_charged_to_the_budget_of_its_cap",
        ),
        "energyBudget.periodSeconds": "test_a_budget_is_spread_over_what_is_left_of_its_period",
        "rampWattsPerSecond": "test_a_rise_is_ramped_and_a_cut_is_not",
        "failsafe": "test_a_cap_that_chooses_no_failsafe_has_chosen_the_minimum",
        "failsafeWattsPerGpu": ("test_the_strictest_of_each_rule_counts", "test_the_failsafe_is_passed_on"),
        "failsafeHoldSeconds": "test_a_cap_that_chooses_no_failsafe_has_chosen_the_minimum",
        "meter.prometheus.endpoint": (
            "test_a_query_is_one_value_and_its_time",
            "test_only_the_operators_endpoints_are_asked",
        ),
        "meter.prometheus.query": "test_a_query_is_one_value_and_its_time",
        "meter.prometheus.timeQuery": "test_a_query_is_one_value_and_its_time",
        "meter.file": "test_a_file_has_watts_and_their_time",
        "meter.intervalSeconds": "test_a_meter_is_read_again_after_its_interval",
        "meter.settleSeconds": (METER, "test_a_cap_that_falls_is_no_breach_before_the_meter_can_show_it"),
        "meter.targetPermille": (METER, "test_above_the_target_limits_are_shaped_into_the_band_and_stay_there"),
        "meter.releasePermille": (METER, "test_a_cut_is_over_once_limits_may_add_up_to_the_release_threshold_again"),
        "meter.breachSeconds": (METER, "test_a_breach_is_cut_by_priority_first_and_then_all_of_it"),
        "meter.silentSeconds": (METER, "test_a_silent_meter_lowers_by_itself_in_the_stated_time"),
        "meter.silentPermille": (METER, "test_a_silent_meter_lowers_by_itself_in_the_stated_time"),
        "meter.releaseSeconds": (
            METER,
            "test_limits_come_back_once_the_load_is_gone_slowly_and_then_are_the_caps_alone",
        ),
        "foreignPods": "test_a_cap_limits_foreign_pods_unless_told_otherwise",
        "foreignWeights[].namespace": "test_namespaces_share_by_the_weights_that_the_cap_gives_them",
        "foreignWeights[].permille": "test_namespaces_share_by_the_weights_that_the_cap_gives_them",
        "foreignWeights[].pods[].selector.matchLabels": (
            "test_pods_of_a_namespace_share_by_the_weights_that_the_cap_gives_to_their_labels"
        ),
        "foreignWeights[].pods[].selector.matchExpressions[].key": (
            "test_of_the_weights_for_a_pods_labels_the_least_counts_and_never_more_than_its_namespaces"
        ),
        "foreignWeights[].pods[].selector.matchExpressions[].operator": (
            "test_of_the_weights_for_a_pods_labels_the_least_counts_and_never_more_than_its_namespaces"
        ),
        "foreignWeights[].pods[].selector.matchExpressions[].values": "test_select_names_the_matching_nodes",
        "foreignWeights[].pods[].permille": (
            "test_pods_of_a_namespace_share_by_the_weights_that_the_cap_gives_to_their_labels"
        ),
        "reserveNodes": "test_the_largest_distances_are_held_back",
        "releaseSeconds": "test_a_deleted_cap_holds_for_its_release_seconds",
    },
    "energyquotas": {
        "gpus": "test_a_namespaces_gpus_go_to_the_highest_priority_and_then_to_the_oldest",
        "watts": "test_watts_carry_gpus_at_their_default_limits_and_smallest_sizes_at_less",
        "energyBudget.kilojoules": (
            "test_the_words_name_the_quota_and_when_it_is_free_again",
            "test_a_budget_that_is_spent_stops_a_namespace_and_no_new_job_gets_it_back",
        ),
        "energyBudget.periodSeconds": "test_a_new_period_begins_with_the_share_of_what_was_used_in_it",
        "highestPriority": (
            "test_a_priority_above_what_its_namespaces_quotas_allow_counts_as_the_highest_allowed",
            "test_no_priority_is_above_what_the_quotas_of_the_namespace_allow",
        ),
    },
}


def shown_by(shown: str | tuple[str, ...]) -> tuple[str, ...]:
    return (shown,) if isinstance(shown, str) else shown
