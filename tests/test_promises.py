"""What attacks on the library have broken, and the tests by which each stays mended."""

import pytest

from problems import missing_tests

MENDED = {
    "writing replaces devices and pipes": [
        "storage/test_atomic.py::test_a_device_is_written_to_and_stays_a_device",
        "storage/test_atomic.py::test_a_link_to_a_pipe_is_written_to_and_stays_a_link",
        "export/test_destinations.py::test_models_written_to_devices_leave_them_what_they_are",
    ],
    "rank 0 has no standard errors": [
        "estimators/regression/test_robust.py::test_a_linear_model_of_rank_zero_does_all_that_others_do",
    ],
    "streams of small batches diverge": [
        "stream/test_stream.py::test_no_batch_is_too_small_to_learn_from",
        "stream/test_verdict.py::test_no_batch_size_ends_worse_than_a_constant",
    ],
    "fits end above the best optimum": [
        "solve/lowrank/test_restarts.py::test_with_noise_no_random_start_of_another_optimiser_ends_lower",
    ],
    "eigenvalues run to infinity without squares": [
        "solve/lowrank/test_moment_sequence.py::test_two_valued_features_do_not_send_eigenvalues_to_"
        "infinity",
        "solve/lowrank/test_moment_sequence.py::test_a_constant_beside_a_two_valued_column_is_no_direction",
    ],
    "the history rises after a warm start": [
        "solve/lowrank/test_moment_sequence.py::test_the_history_does_not_rise_from_a_warm_model_of_"
        "another_target",
    ],
    "intervals promise more than they hold": [
        "solve/fits/test_uncertainty.py::test_with_a_ridge_they_are_those_of_the_posterior",
        "solve/fits/test_uncertainty.py::test_at_full_rank_robust_errors_are_those_of_hc3",
        "estimators/regression/test_robust.py::test_robust_errors_of_hubers_loss_are_those_of_refits_with_"
        "unequal_noise",
    ],
    "Ctrl-C while standard errors are computed is converged": [
        "solve/choose/test_interrupted.py::test_an_interrupt_while_standard_errors_are_computed_says_so",
    ],
    "the history of a stream grows for ever": [
        "stream/test_stream.py::test_the_history_of_a_long_stream_is_bounded",
    ],
    "names drive the terminal": [
        "cli/test_cli.py::test_control_characters_of_names_levels_and_files_are_never_printed",
        "explain/test_summary.py::test_names_are_printed_without_control_characters",
    ],
    "forged files end in errors from the depths": [
        "storage/test_forged_journal.py::test_whatever_a_record_says_the_fit_ends_with_a_model_or_"
        "in_words",
        "export/test_destinations.py::test_steps_so_large_that_standard_errors_are_no_numbers_are_"
        "refused",
        "export/test_forged_numbers.py::test_an_array_of_other_numbers_is_refused_or_predicts_"
        "numbers",
    ],
    "bad cells, rewritten files, Ctrl-C while importing, scales of 1e12": [
        "data/sources/test_messy_files.py::test_one_bad_cell_among_many_numbers_is_refused_by_name",
        "data/sources/test_messy_files.py::test_a_column_of_identifiers_with_too_many_levels_is_refused_"
        "unless_they_are_named",
        "data/sources/test_messy_files.py::test_a_file_rewritten_with_the_same_size_and_time_is_noticed",
        "cli/test_cli.py::test_ctrl_c_during_imports_ends_in_one_line",
        "core/test_graded_eigenvectors.py::test_components_and_eigenvalues_reproduce_m_at_scales_of_1e12",
    ],
}


@pytest.mark.parametrize("broken", MENDED)
def test_what_was_broken_once_has_its_tests(broken):
    assert not missing_tests(MENDED[broken])
