"""What everyday use needs, and the tests by which each of it stays so."""

import re
from pathlib import Path

import pytest

from problems import missing_tests

ROOT = Path(__file__).parent.parent
CLASSIFIER, COLUMNS = "estimators/labels/test_classifier.py", "estimators/rows/test_columns.py"
MESSY, CLI, CLI_CLASSES = (
    "data/sources/test_messy_files.py",
    "cli/test_cli.py",
    "cli/test_classification.py",
)
REPORT, DISPLAYS = "explain/test_report.py", "explain/test_model_displays.py"
PHASE, SENSING = "estimators/signals/test_phase.py", "estimators/signals/test_sensing.py"
NEEDED = {
    "1. classes: the logistic loss, from the moments by Gauss–Newton with working weights": [
        f"{CLASSIFIER}::test_rank_zero_is_logistic_regression",
        f"{CLASSIFIER}::test_full_rank_is_logistic_regression_on_all_products",
        "solve/labels/test_logistic.py::test_the_working_least_squares_have_the_gradient_of_the_loss",
        "solve/labels/test_label_table.py::test_ranks_without_restriction_have_the_optimum_of_a_general_minimiser",
        f"{CLASSIFIER}::test_a_factorization_machine_learns_likes",
    ],
    "1. classes: several of them": [
        "estimators/labels/test_joint_classes.py::test_rank_zero_with_a_penalty_is_multinomial_logistic_"
        "regression",
        f"{CLASSIFIER}::test_several_classes_are_predicted_better_than_by_linear_models",
    ],
    "1. classes: weights, penalty and rank": [
        f"{CLASSIFIER}::test_weights_equal_repetition",
        f"{CLASSIFIER}::test_class_weights_are_weights",
        f"{CLASSIFIER}::test_rank_and_penalties_are_found",
    ],
    "1. classes: sparse rows, sources, streams, Dask": [
        f"{CLASSIFIER}::test_every_form_of_the_rows_gives_the_same_model",
        f"{CLASSIFIER}::test_a_source_is_fitted_as_a_table",
        f"{CLASSIFIER}::test_what_a_stream_must_be_told",
        f"{CLASSIFIER}::test_dask_and_threads_give_the_same_classifier",
    ],
    "1. classes: files, ONNX and the command line": [
        "export/test_classifier_files.py::test_a_classifier_comes_back_from_a_file",
        "export/test_classifier_files.py::test_an_onnx_graph_gives_labels_and_probabilities",
        f"{CLI_CLASSES}::test_a_target_that_is_text_is_classified",
        f"{CLI_CLASSES}::test_zero_and_one_are_numbers_unless_asked_otherwise",
    ],
    "1. classes: separable rows, calibration, scikit-learn's checks": [
        f"{CLASSIFIER}::test_rows_that_can_be_separated_have_finite_log_odds",
        f"{CLASSIFIER}::test_probabilities_are_calibrated",
        f"{CLASSIFIER}::test_the_contract_of_scikit_learn",
    ],
    "1. counts by the same steps": [
        "estimators/regression/test_counts.py::test_without_a_penalty_it_is_poisson_regression",
    ],
    "2. ids and codes": [
        f"{COLUMNS}::test_declared_ids_become_levels",
        f"{COLUMNS}::test_declared_columns_of_an_array_are_those_of_a_frame",
        f"{COLUMNS}::test_a_diagnosis_with_rows_names_columns_of_codes",
        f"{CLI}::test_columns_of_codes_are_named_and_become_levels",
        f"{CLI}::test_lists_of_names_may_be_repeated",
    ],
    "2. a missing header": [
        f"{MESSY}::test_csv_without_a_header_is_noticed_and_read",
        f"{CLI}::test_a_file_without_a_header_is_fitted_and_predicted",
    ],
    "2. marks of missing values, spaces, dates": [
        f"{MESSY}::test_marks_of_missing_values_are_noticed",
        f"{CLI}::test_marks_of_missing_values_are_told_and_given",
        f"{MESSY}::test_spaces_around_cells_and_names_are_stripped",
        f"{MESSY}::test_dates_as_text_are_refused",
        f"{MESSY}::test_dates_that_the_reader_recognises_are_refused",
        "estimators/rows/test_input_errors.py::test_dates_are_not_taken_for_numbers",
    ],
    "2. missing values inside the estimator, and what they cost": [
        f"{COLUMNS}::test_missing_values_are_replaced_by_what_the_fit_saw",
        f"{CLI}::test_a_model_fitted_with_means_fills_frames_in_python_too",
        "solve/fits/test_missing_values.py::test_intervals_of_rows_with_missing_values_cover_what_they_promise",
        "solve/fits/test_missing_values.py::test_complete_rows_have_the_intervals_of_a_fit_without_missing_values",
        "solve/fits/test_missing_values.py::test_a_value_that_happens_to_be_the_mean_is_not_missing",
        f"{CLI}::test_cross_validation_tells_the_noise_of_rows_that_are_complete",
    ],
    "2. text through a pipe": [
        f"{COLUMNS}::test_text_goes_through_a_pipeline",
        f"{CLI}::test_rows_come_and_predictions_go_through_pipes",
        f"{CLI}::test_text_and_means_of_the_standard_input_are_those_of_a_file",
        f"{CLI}::test_what_is_noticed_on_the_standard_input_is_told_once",
    ],
    "2. one clear sentence: swapped files, pickles, text, complex X, signs, constants, rows": [
        f"{CLI}::test_what_goes_wrong_is_one_sentence",  # evaluate without a target among them
        "export/test_destinations.py::test_names_of_pickles_are_refused_in_words",
        f"{COLUMNS}::test_text_targets_are_for_the_classifier",
        f"{COLUMNS}::test_complex_rows_are_refused_with_what_to_do",
        f"{COLUMNS}::test_negative_targets_of_a_positive_model_are_warned_of",
        f"{COLUMNS}::test_a_constant_target_is_warned_of",
        f"{MESSY}::test_a_row_of_another_length_is_counted_as_all_rows_are",
        f"{MESSY}::test_a_bad_cell_of_a_file_without_a_header_is_counted_from_its_first_row",
    ],
    "2. pipes that nobody reads, Ctrl-C": [
        f"{CLI}::test_output_that_nobody_reads_is_no_error",
        f"{CLI}::test_ctrl_c_keeps_the_model_so_far",
        f"{CLI}::test_ctrl_c_keeps_what_a_stream_has_learned",
    ],
    "3. one convention for pairs, with standard errors": [
        "explain/test_interactions.py::test_everything_that_names_a_pair_speaks_of_the_coefficient_"
        "of_the_product",
        "explain/test_interactions.py::test_coefficient_and_error_of_a_pair_are_of_the_same_thing",
        "explain/test_interactions.py::test_a_frame_has_every_pair_and_its_error",
    ],
    "3. the summary": [
        "explain/test_summary.py::test_a_summary_is_that_of_least_squares",
        "explain/test_summary.py::test_a_summary_prints_the_fit_in_words",
        "explain/test_summary.py::test_levels_are_said_to_be_differences_from_the_mean",
    ],
    "3. columns as wholes, contributions": [
        "explain/test_contributions.py::test_effects_are_the_deviations_of_contributions",
        "explain/test_contributions.py::test_effects_of_levels_are_told_from_the_mean_or_a_level",
        "explain/test_contributions.py::test_contributions_sum_to_the_prediction",
        "explain/test_contributions.py::test_a_column_with_very_many_levels_needs_no_square_of_them",
    ],
    "3. displays": [
        f"{DISPLAYS}::test_the_heat_map_shows_the_strongest_columns_with_their_signs",
        f"{DISPLAYS}::test_the_surface_of_a_pair_is_what_the_model_predicts",
        f"{DISPLAYS}::test_no_surface_reaches_beyond_the_fitted_rows",
        f"{DISPLAYS}::test_one_prediction_is_taken_apart",
        f"{DISPLAYS}::test_parts_of_one_prediction_that_add_nothing_are_left_out",
        f"{DISPLAYS}::test_displays_of_a_classifier_name_the_class_of_the_log_odds",
        f"{DISPLAYS}::test_the_spectrum_stands_beside_the_noise",
    ],
    "3. the page of a model": [
        f"{REPORT}::test_a_report_says_what_the_model_is_and_how_it_was_validated",
        f"{REPORT}::test_a_report_stands_alone_and_escapes_names",
        f"{REPORT}::test_numbers_are_flush_right_and_bars_have_a_side",
        f"{CLI}::test_the_bars_of_a_page_grow_to_their_own_side",
        f"{CLI}::test_a_page_of_a_model_stands_alone_and_escapes_names",
    ],
    "3. the demo": ["explain/test_displays.py::test_the_demo_runs_and_leaves_a_picture"],
    "4. phases": [
        f"{PHASE}::test_four_measurements_per_entry_are_enough",
        f"{PHASE}::test_the_rank_two_model_of_doubled_rows_finds_the_same_signal",
        f"{PHASE}::test_noise_costs_what_it_must",
        f"{PHASE}::test_gross_errors_have_no_pull_with_the_loss_of_huber",
        f"{PHASE}::test_errors_ignore_sign_and_phase_and_nothing_else",
        f"{PHASE}::test_a_picture_is_recovered_from_coded_diffraction_by_products_alone",
    ],
    "4. matrices": [
        f"{SENSING}::test_a_symmetric_matrix_is_recovered_with_its_diagonal",
        f"{SENSING}::test_any_matrix_is_recovered_from_pairs_of_rows",
        f"{SENSING}::test_pairs_are_the_block_beside_the_diagonal_of_the_symmetric_problem",
    ],
    "5. recommenders": [
        "estimators/machines/test_recommend.py::test_the_best_items_are_those_of_the_highest_predictions",
        "estimators/machines/test_recommend.py::test_embeddings_make_up_the_predictions",
        "estimators/machines/test_recommend.py::test_new_users_and_films_are_known_by_their_other_columns",
        "data/columns/test_label_sets.py::test_each_label_becomes_a_column_of_zeros_and_ones",
        "cli/test_recommend_command.py::test_the_best_items_of_each_user_are_written",
        "cli/test_recommend_command.py::test_marks_of_missing_values_are_those_of_the_fit",
        "estimators/machines/test_factorization.py::test_a_column_that_varies_by_row_hides_no_products_of_"
        "many_levels",
    ],
    "6. pages, and predictions of Dask that stay lazy": [
        "test_docs.py::test_examples_print_what_is_written_below_them",
        "test_docs.py::test_the_lines_about_sources_run",
        f"{CLI}::test_the_commands_in_the_docs_print_what_the_docs_say",
        f"{COLUMNS}::test_the_prediction_of_a_dask_array_is_lazy",
    ],
}


@pytest.mark.parametrize("need", NEEDED)
def test_what_everyday_use_needs_has_its_tests(need):
    assert not missing_tests(NEEDED[need])


def test_the_first_screen_of_the_readme_says_what_it_is_and_when_to_use_something_else():
    lines = (ROOT / "README.md").read_text().splitlines()
    first = "\n".join(lines[:40])
    for words in ("pip install", "```python", "R² on new rows", "Use something else if"):
        assert words in first
    assert max(map(len, lines)) <= 120
    whole = "\n".join(lines)
    for words in ("A single product x₁·x₂", "docs/choosing.md", "save(model"):
        assert words in whole


def test_the_oldest_versions_that_are_tested_are_those_that_are_promised():
    project, make = (ROOT / name for name in ("pyproject.toml", "Makefile"))
    promised = re.search(r'"scikit-learn>=([\d.]+)"', project.read_text())[1]
    assert f"scikit-learn {promised}" in (ROOT / "CONTRIBUTING.md").read_text()
    assert "test-oldest:" in make.read_text()
