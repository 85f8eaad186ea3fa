import math

import numpy as np
import pytest
from scipy.stats import binomtest

from edbl import metrics
from edbl.metrics import Difference

# Three tasks of 2, 1 and 3 classes, worked by hand.
SIZES = [2, 1, 3]
FIRST = np.array([[8, 2], [1, 9]])
SECOND = np.array([[6, 1, 3], [0, 5, 5], [1, 0, 9]])
THIRD = np.array(
    [
        [4, 0, 0, 3, 3, 0],
        [0, 2, 0, 8, 0, 0],
        [0, 0, 5, 0, 0, 5],
        [0, 0, 0, 10, 0, 0],
        [0, 0, 0, 1, 9, 0],
        [1, 1, 0, 0, 0, 8],
    ]
)
RUN = [FIRST, SECOND, THIRD]


def perfect(seen: int) -> metrics.Confusion:
    return np.eye(seen, dtype=np.int64) * 7


def test_accuracy_pools_images() -> None:
    assert metrics.accuracies(RUN) == pytest.approx([17 / 20, 20 / 30, 38 / 60])
    assert metrics.accuracy(np.array([[90, 10], [1, 0]])) == pytest.approx(90 / 101)


def test_averages_with_and_without_the_first_task() -> None:
    assert metrics.average_incremental_accuracy(RUN) == pytest.approx((0.85 + 2 / 3 + 38 / 60) / 3)
    assert metrics.average_without_first(RUN) == pytest.approx((2 / 3 + 38 / 60) / 2)
    assert metrics.last_accuracy(RUN) == pytest.approx(38 / 60)


def test_task_matrix_follows_the_real_task_sizes() -> None:
    nan = math.nan
    expected = [[17 / 20, nan, nan], [11 / 20, 9 / 10, nan], [6 / 20, 5 / 10, 27 / 30]]
    np.testing.assert_allclose(metrics.task_matrix(RUN, SIZES), expected)


def test_forgetting_and_backward_transfer_of_three_tasks() -> None:
    assert metrics.forgetting(RUN, SIZES) == pytest.approx(((0.85 - 0.3) + (0.9 - 0.5)) / 2)
    assert metrics.backward_transfer(RUN, SIZES) == pytest.approx(((0.3 - 0.85) + (0.5 - 0.9)) / 2)


def test_tasks_without_a_new_class_are_left_out() -> None:
    nan = math.nan
    run, sizes = [FIRST, FIRST, SECOND, perfect(3)], [2, 0, 1, 0]
    matrix = [[0.85, nan, nan, nan], [0.85, nan, nan, nan], [0.55, nan, 0.9, nan], [1, nan, 1, nan]]
    np.testing.assert_allclose(metrics.task_matrix(run, sizes), matrix)
    summary = metrics.summary(run, sizes)
    assert summary["forgetting"] == pytest.approx(((0.85 - 1) + (0.9 - 1)) / 2)
    assert summary["backward_transfer"] == pytest.approx(((1 - 0.85) + (1 - 0.9)) / 2)
    assert summary["old_accuracy"] == 1
    assert math.isnan(summary["new_accuracy"])
    assert math.isnan(summary["share_predicted_new"])


def test_forgetting_takes_the_best_row_before_the_last() -> None:
    better_later = [np.array([[5, 5], [5, 5]]), SECOND, THIRD]
    assert metrics.forgetting(better_later, SIZES) == pytest.approx(((0.55 - 0.3) + (0.9 - 0.5)) / 2)
    assert metrics.backward_transfer(better_later, SIZES) == pytest.approx(((0.3 - 0.5) + (0.5 - 0.9)) / 2)


def test_forgetting_is_negative_when_old_tasks_gain() -> None:
    assert metrics.forgetting([np.array([[5, 5], [5, 5]]), perfect(3)], [2, 1]) == pytest.approx(-0.5)


def test_two_tasks_old_new_and_share_predicted_new() -> None:
    assert metrics.old_accuracy(SECOND, 2) == pytest.approx(11 / 20)
    assert metrics.new_accuracy(SECOND, 2) == pytest.approx(9 / 10)
    assert metrics.share_predicted_new(SECOND, 2) == pytest.approx(17 / 30)


def test_perfect_run() -> None:
    summary = metrics.summary([perfect(2), perfect(3), perfect(6)], SIZES)
    assert summary == pytest.approx(
        {
            "average_incremental_accuracy": 1.0,
            "average_without_first": 1.0,
            "last_accuracy": 1.0,
            "forgetting": 0.0,
            "backward_transfer": 0.0,
            "old_accuracy": 1.0,
            "new_accuracy": 1.0,
            "share_predicted_new": 0.5,
        }
    )


def test_worst_run_forgets_everything() -> None:
    only_new = np.zeros((4, 4), dtype=np.int64)
    only_new[:, 2] = 5
    only_new[2:] = np.diag([5, 5, 5, 5])[2:]
    summary = metrics.summary([perfect(2), only_new], [2, 2])
    assert summary["forgetting"] == 1.0
    assert summary["backward_transfer"] == -1.0
    assert summary["old_accuracy"] == 0.0
    assert summary["new_accuracy"] == 1.0
    assert summary["share_predicted_new"] == 1.0


def test_single_task() -> None:
    summary = metrics.summary([FIRST], [2])
    assert summary["forgetting"] == 0.0
    assert summary["backward_transfer"] == 0.0
    assert math.isnan(summary["average_without_first"])
    assert math.isnan(summary["old_accuracy"])
    assert summary["new_accuracy"] == summary["last_accuracy"] == pytest.approx(0.85)


def test_no_task_at_all() -> None:
    summary = metrics.summary([], SIZES)
    assert all(math.isnan(value) for value in summary.values())


def test_unfinished_run_may_know_more_sizes() -> None:
    assert metrics.task_matrix(RUN[:2], SIZES).shape == (2, 2)
    assert metrics.summary(RUN[:2], SIZES)["new_accuracy"] == pytest.approx(0.9)


def test_class_without_test_images() -> None:
    bare = SECOND.copy()
    bare[2] = 0
    matrix = metrics.task_matrix([FIRST, bare], SIZES)
    assert math.isnan(matrix[1, 1])
    assert math.isnan(metrics.new_accuracy(bare, 2))
    assert metrics.forgetting([FIRST, bare], SIZES) == pytest.approx(0.85 - 0.55)
    never = [np.zeros((2, 2), dtype=np.int64), np.diag([0, 0, 4])]
    assert math.isnan(metrics.forgetting(never, SIZES))
    assert math.isnan(metrics.accuracy(never[0]))
    assert metrics.average_incremental_accuracy(never) == 1.0


def test_steps_of_twenty_and_a_single_last_class() -> None:
    """Groups of ten whatever the protocol, and a lost last class, are known faults of other toolkits."""
    sizes = [20, 20, 20, 20, 1]
    confusions = [perfect(int(seen)) for seen in np.cumsum(sizes)]
    confusions[-1][80] = 0
    confusions[-1][80, 0] = 7
    matrix = metrics.task_matrix(confusions, sizes)
    assert matrix.shape == (5, 5)
    np.testing.assert_array_equal(matrix[-1], [1, 1, 1, 1, 0])
    assert metrics.forgetting(confusions, sizes) == 0.0


def test_more_than_a_hundred_classes_keep_their_order() -> None:
    sizes = [10] * 20
    confusions = [perfect(int(seen)) for seen in np.cumsum(sizes)]
    last = confusions[-1]
    for task in range(20):
        lost = last[task * 10 : task * 10 + 10]
        rows = np.arange(10)
        lost[rows[: task // 2], 10 * task + rows[: task // 2]] = 0
        lost[rows[: task // 2], 0 if task else 1] = 7
    np.testing.assert_allclose(metrics.task_matrix(confusions, sizes)[-1], [1 - (task // 2) / 10 for task in range(20)])


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 3\)"):
        metrics.task_matrix(RUN, [2, 2, 2])
    with pytest.raises(ValueError, match="3 confusion matrices"):
        metrics.task_matrix(RUN, [2, 1])


def test_summary_holds_each_metric_under_its_name() -> None:
    assert metrics.summary(RUN, SIZES) == pytest.approx(
        {
            "average_incremental_accuracy": (17 / 20 + 20 / 30 + 38 / 60) / 3,
            "average_without_first": (20 / 30 + 38 / 60) / 2,
            "last_accuracy": 38 / 60,
            "forgetting": 0.475,
            "backward_transfer": -0.475,
            "old_accuracy": 11 / 30,
            "new_accuracy": 27 / 30,
            "share_predicted_new": 47 / 60,
        }
    )


def test_a_paired_difference_and_its_interval() -> None:
    difference = Difference.of([3.0, 5.0, 4.0, 8.0], [1.0, 2.0, 0.0, 3.0])  # 2, 3, 4, 5
    assert difference.mean == 3.5
    assert difference.half == pytest.approx(3.182446 * np.sqrt(5 / 3) / 2)  # 2.054
    two = Difference.of([1.0, 3.0], [0.0, 0.0])
    assert two.mean == 2.0
    assert two.half == pytest.approx(12.706205)
    assert (Difference.of([1.0], [3.0]).mean, Difference((-2.0,)).half) == (-2.0, math.inf)
    spread = ((-5.0, -3.0, -4.0, -2.0), (-5.0, -3.0, 4.0, 2.0), (2.0, 3.0, 4.0, 5.0), (7.0,))
    assert [Difference(values).sign for values in spread] == [-1, 0, 1, 0]


def test_p_values_are_those_of_the_literature() -> None:
    # Student (1908), hours of sleep gained by ten patients through two drugs: t = 4.0621, p = 0.002833 (R's t.test).
    one = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    other = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    difference = Difference.of(one, other)
    assert difference.t_test == pytest.approx(0.002833, abs=5e-7)
    assert (difference.mean - difference.half, difference.mean + difference.half) == pytest.approx(
        (0.7001142, 2.4598858)
    )
    # Ranks of 4, 2, 3, 1 with one negative: of 16 signs, 2 give a sum of 1 or less at either end.
    assert Difference((4.0, 2.0, 3.0, -1.0)).wilcoxon == 2 * 2 / 16
    assert Difference((4.0, 2.0, 3.0, 1.0, 5.0, 0.0)).wilcoxon == 2 / 32  # a zero has no sign


def test_ranks_are_of_what_differs_and_not_of_what_floats_lose() -> None:
    tied = [(0.9, 0.8), (0.8, 0.7), (0.7, 0.8), (0.4, 0.1)]
    assert Difference.of(*zip(*tied, strict=True)).wilcoxon == Difference((1.0, 1.0, -1.0, 3.0)).wilcoxon


@pytest.mark.parametrize("values", [(3.0,), (0.0,), (0.0, 0.0, 0.0)])
def test_one_pair_and_equal_pairs_have_no_test(values: tuple[float, ...]) -> None:
    assert math.isnan(Difference(values).t_test)
    assert math.isnan(Difference(values).wilcoxon)


def test_the_same_difference_everywhere() -> None:
    assert Difference((1.0, 1.0, 1.0)).half == 0.0
    assert Difference((1.0, 1.0, 1.0)).t_test == 0.0


@pytest.mark.parametrize(("right", "images"), [(48, 48), (0, 5), (7, 20), (1, 1)])
def test_the_interval_of_a_share_is_wilsons(right: int, images: int) -> None:
    wanted = binomtest(right, images).proportion_ci(method="wilson")
    np.testing.assert_allclose(metrics.interval(right, images), (wanted.low, wanted.high), atol=1e-7)


def test_the_share_of_nothing_may_be_anything() -> None:
    assert metrics.interval(0, 0) == (0.0, 1.0)


def test_calibration_error_is_the_mean_gap_of_bins() -> None:
    confidence = np.array([0.61, 0.65, 0.95, 1.0])  # bins 10 and 15 of 15
    right = np.array([True, False, True, True])
    wanted = (2 * abs(0.5 - 0.63) + 2 * abs(1 - 0.975)) / 4
    assert metrics.calibration_error(confidence, right) == pytest.approx(wanted)
    assert metrics.calibration_error(np.ones(3), np.ones(3, bool)) == 0
    assert math.isnan(metrics.calibration_error(np.ones(0), np.ones(0, bool)))
