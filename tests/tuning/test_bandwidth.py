from edgespec.tuning.bandwidth import expected_speed, memory_bandwidth


def test_bandwidth_is_that_of_a_memory() -> None:
    assert 1e8 < memory_bandwidth(1) < 1e12


def test_a_token_reads_all_weights() -> None:
    assert expected_speed(1_000_000_000, 20_000_000_000) == 18.0
