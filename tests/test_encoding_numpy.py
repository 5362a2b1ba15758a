"""The encoding of values of NumPy, pandas and polars by `publish`."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import quire
from quire._message import to_bytes
from support.waiting import PATIENCE

numpy = pytest.importorskip("numpy")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")


@dataclass
class Fill:
    at: object
    took: object


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (pandas.NaT, None),
        (pandas.NA, None),
        (numpy.datetime64("NaT"), None),
        (numpy.timedelta64("NaT"), None),
        (Fill(pandas.NaT, {numpy.int64(1)}), {"at": None, "took": [1]}),
        (pandas.Timestamp("2026-01-02T03:04:05.000006789Z"), "2026-01-02T03:04:05.000006789+00:00"),
        (pandas.Timedelta(minutes=1), "PT1M"),
        (pandas.Timedelta(days=-2, nanoseconds=-1), "-P2DT0.000000001S"),
        (numpy.timedelta64(90, "m"), "PT1H30M"),
        (numpy.timedelta64(86_400 * 10**9 + 1, "ns"), "P1DT0.000000001S"),
        (numpy.timedelta64(3660 * 10**9 + 5, "ns"), "PT1H1M0.000000005S"),
        (numpy.timedelta64(86_400 * 10**9, "ns"), "P1D"),
        (numpy.timedelta64(0, "ns"), "PT0S"),
        (numpy.datetime64("2026-01-02T03:04:05.000006789"), "2026-01-02T03:04:05.000006789"),
        ([numpy.int64(2**62), numpy.uint64(2**64 - 1)], [2**62, 2**64 - 1]),
        ([numpy.float64(0.1), numpy.float32(0.5), numpy.bool_(True)], [0.1, 0.5, True]),
    ],
)
def test_a_value_of_numpy_or_pandas_is_published_as_that_of_python(data: object, expected: object) -> None:
    assert json.loads(to_bytes([data])) == [expected]
    assert json.loads(to_bytes(data)) == expected


@pytest.mark.parametrize(
    "data", [numpy.timedelta64(1, "M"), numpy.timedelta64(1, "ps"), numpy.arange(2), pandas.Series([1])]
)
def test_a_value_of_numpy_without_a_form_in_json_is_refused(data: object) -> None:
    with pytest.raises(TypeError, match=r"at /a: .* has no form in JSON"):
        to_bytes({"a": data})


@pytest.mark.parametrize("number", [numpy.float64("inf"), numpy.float32("nan")])
def test_a_number_of_numpy_that_json_does_not_have_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="at /a"):
        to_bytes({"a": number})


def test_a_data_frame_is_no_list_of_messages() -> None:
    frame = pandas.DataFrame({"id": [1, 2], "at": [pandas.Timestamp("2026-01-02T03:04:05Z"), pandas.NaT]})
    with quire.Client("memory:") as client:
        for table in (frame, polars.DataFrame({"id": [1]})):
            with pytest.raises(quire.ConfigError, match=r"items: expected a list of messages, got a table"):
                client.publish_many("orders", table)
        subscription = client.subscribe("orders")
        client.publish_many("orders", frame.to_dict("records"))
        rows = [subscription.get(timeout=PATIENCE).json() for _ in range(2)]
    assert rows == [{"id": 1, "at": "2026-01-02T03:04:05Z"}, {"id": 2, "at": None}]
