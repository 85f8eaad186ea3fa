"""What the contract promises to whoever writes a method, and the tests that show it: each of them is there."""

import re
from pathlib import Path

import pytest

# By promise, the tests that would fail without it.
PROMISES: dict[str, str] = {
    "attributes last for a task in a whole run too, and state survives a kill": """
        test_safe: test_an_attribute_that_would_be_lost_on_resume_is_lost_in_a_whole_run_too
        test_limits: test_a_whole_run_is_as_one_that_goes_on
        test_limits: test_each_task_but_the_first_is_learnt_by_a_learner_that_was_loaded
        test_safe: test_state_survives_a_kill, test_what_a_file_holds_and_changes_is_refused""",
    "the same seed has the same bits, whatever draws": """
        test_safe: test_ordinary_pytorch_code_follows_the_seed, test_what_draws_elsewhere_follows_the_seed_too
        test_safe: test_what_a_network_draws_as_it_grows_is_the_same_after_a_kill
        test_given: test_a_function_makes_other_weights_for_other_seeds, test_data_that_draw_are_the_same_for_every_seed
        test_streams: test_a_stream_that_draws_follows_the_seed""",
    "what could not be resumed fails in the first task": """
        test_members: test_what_could_not_be_resumed_fails_in_the_first_task""",
    "an optimiser of one's own is saved, or refused": """
        test_members: test_killed_and_resumed_has_the_same_bits
        test_safe: test_numbers_of_an_optimisers_groups_survive_a_kill
        test_limits: test_it_ends_the_run_and_says_why""",
    "data are checked": """
        test_stream: test_data_that_would_be_learnt_wrongly_are_refused
        test_given: test_data_that_cannot_be_told_are_refused""",
    "a file that was changed is seen, and those that it imports": """
        test_users: test_all_files_that_a_file_imports_count, test_data_and_backbone_from_files_are_watched""",
    "memory keeps to its budget, test images and later tasks are out of reach, and the record says what was kept": """
        test_safe: test_more_exemplars_than_the_memory_holds_are_refused
        test_safe: test_test_images_and_those_of_other_tasks_are_not_to_be_had
        test_members: test_the_record_says_what_was_kept""",
    "no classifier by exemplars where there are none": """
        test_members: test_without_a_memory_there_is_no_nearest_mean""",
    "the suffix of a report says what it is, and a report of a folder covers all runs in it": """
        test_report_files: test_the_suffix_says_of_which_kind_a_report_is, test_all_runs_below_a_folder
        test_report_files: test_a_suffix_that_says_of_no_kind_is_refused_before_anything_else
        test_cli: test_a_single_run_joins_those_in_its_output_folder""",
    "a run may have no memory at all": """
        test_members: test_memory_none_is_for_those_that_keep_no_exemplars""",
    "exemplars have a state of their own, and a memory may change in every step": """
        test_members: test_extras_of_exemplars_stay_with_them, test_extras_go_wherever_images_go
        test_der_pp: test_exemplars_keep_the_logits_that_they_had_first
        test_docs: test_methods_of_the_docs_go_on_with_the_same_bits""",
    "optimisers by name or of one's own, groups, clipping, a rate by step": """
        test_members: test_optimisers_by_name_learn_and_differ, test_gradients_are_clipped_to_the_given_norm
        test_step: test_a_rate_by_step_is_set_before_each_step""",
    "a network may be replaced, and may not change where a kill would lose it": """
        test_members: test_a_net_that_is_replaced_is_the_one_that_goes_on
        test_members: test_what_could_not_be_resumed_fails_in_the_first_task""",
    "classifiers of one's own, and accuracy within tasks": """
        test_members: test_task_aware_accuracy_is_among_the_classes_of_the_task
        test_members: test_what_is_no_fact_about_a_method_is_refused
        test_report: test_classifiers_of_a_method_s_own_go_by_their_names
        test_foster: test_the_record_has_both""",
    "augmentations of one's own": """
        test_members: test_an_augmentation_of_ones_own_draws_by_the_seed""",
    "random numbers by name, and scalars beside the loss": """
        test_members: test_extras_of_exemplars_stay_with_them, test_killed_and_resumed_has_the_same_bits""",
    "methods without phases have a bar, and learn known classes in their own way": """
        test_members: test_a_bar_moves_with_tasks_where_there_is_no_phase
        test_analytic: test_known_classes_are_learnt_again_without_descent
        test_estimator: test_every_method_learns_on""",
    "a file may import others, and a crash is told by the user's own lines and can be mended": """
        test_users: test_a_file_may_import_its_neighbours_by_any_name
        test_users: test_what_cannot_be_imported_is_told_by_file_and_line
        test_users: test_a_crash_shows_the_users_frames_and_goes_on_when_it_is_mended
        test_users: test_several_runs_show_a_crash_once""",
    "what a GPU or a kill would show too late is found on a CPU": """
        test_check: test_what_a_step_must_not_do_is_named_with_its_line, test_the_command
        test_check: test_what_is_drawn_beside_the_generators_is_named_with_its_line
        test_check: test_what_is_lost_by_a_kill_is_found, test_what_it_must_not_see_is_found
        test_check: test_where_other_tensors_are_is_not_the_cpu""",
    "data, networks and methods are given as objects": """
        test_given: test_data_sets_that_give_images_by_number, test_arrays_tensors_and_their_order_of_axes
        test_given: test_a_method_as_a_class, test_a_run_with_a_module_goes_on_with_the_same_one
        test_given: test_objects_among_settings_are_told_where_they_belong
        test_users: test_names_in_this_process, test_packages_bring_methods_data_and_backbones""",
    "networks keep their weights, may be pretrained, and are told shape and width": """
        test_given: test_a_module_keeps_its_weights_and_is_not_trained_itself, test_a_pretrained_network_in_a_run
        test_given: test_a_function_is_given_shape_and_width_by_their_names
        test_given: test_build_is_told_the_shape_of_images_and_may_ask_for_another_width""",
    "streams are data, and methods say which they can learn": """
        test_streams: test_a_method_learns_the_streams_that_it_says_and_refuses_others
        test_streams: test_streams_from_the_command_line
        test_streams: test_a_stream_of_ones_own_runs_and_goes_on_with_the_same_alone
        test_arrivals: test_few_shots_spare_the_first_task, test_a_long_tail_is_that_of_cifar_lt
        test_arrivals: test_the_class_order_may_follow_the_seed
        test_members: test_accuracy_within_a_task""",
    "from records to a paper": """
        test_report_files: test_all_runs_below_a_folder, test_csv_has_a_row_for_each_number, test_latex_table
        test_report_files: test_markdown_table, test_frame_has_the_rows_of_the_csv
        test_compare: test_the_command_prints_what_a_paper_needs
        test_compare: test_what_differs_in_more_than_the_method_is_no_pair""",
    "the same output folder serves one run and many": """
        test_cli: test_the_same_command_goes_on_with_a_run, test_a_single_run_joins_those_in_its_output_folder""",
}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_is_tested(promise: str) -> None:
    for line in PROMISES[promise].split("\n"):
        file, _, names = line.strip().partition(": ")
        text = Path(__file__).with_name(f"{file}.py").read_text() if file else ""
        for name in names.split(", ") if file else ():
            assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file}: {name}"
