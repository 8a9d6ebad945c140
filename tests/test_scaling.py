"""SaLS and temperature scaling: by hand, recovered from drawn labels, and bad input."""

import numpy as np
import pytest
import torch
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.arrays import log_softmax
from promptcal.trainers.functional.posthoc import cross_fit_temperature, fit_temperature

from made_runs import over_confident


def test_sals_by_hand():
    z = torch.tensor([0.0, 5.0, 10.0])
    z0 = torch.tensor([3.0, 1.0, 2.0])
    torch.testing.assert_close(cal.sals(z, z0), torch.tensor([1.0, 2.0, 3.0]))
    array = cal.sals(z.numpy(), z0.numpy())
    assert isinstance(array, np.ndarray) and array.dtype == np.float32
    constant = cal.sals(torch.full((2, 3), 7.0), torch.tensor([[1.0, 2.0, 5.0], [4.0, 4.0, 4.0]]))
    assert constant.tolist() == [[3.0] * 3, [4.0] * 3]


def test_sals_is_batched_and_takes_the_zero_shot_range():
    generator = torch.Generator().manual_seed(0)
    z, z0 = (torch.randn(2, 3, 50, generator=generator) * 30 for _ in range(2))
    out = cal.sals(z, z0)
    torch.testing.assert_close(out.amax(-1), z0.amax(-1))
    torch.testing.assert_close(out.amin(-1), z0.amin(-1))
    assert torch.equal(out.argmax(-1), z.argmax(-1))
    torch.testing.assert_close(out[1, 2], cal.sals(z[1, 2], z0[1, 2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sals_keeps_the_winner_where_rounding_merges_logits(dtype):
    close = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]], dtype=dtype)
    close[0, 1] += torch.finfo(dtype).eps
    close[1, 2] += torch.finfo(dtype).eps
    out = cal.sals(close, torch.tensor([1000.0, 1000.5, 999.0], dtype=dtype).expand(2, 3))
    assert out.argmax(-1).tolist() == [1, 2]
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(("z", "z0"), [
    ([[1.0, 2.0]], [[1.0, 2.0, 3.0]]),
    ([np.nan, 1.0], [1.0, 2.0]),
    ([1.0, 2.0], [np.inf, 2.0]),
    (1.0, 1.0),
    ([], []),
])
def test_sals_refuses(z, z0):
    with pytest.raises(ValueError, match="ogits"):
        cal.sals(np.array(z), np.array(z0))


def test_temperature_is_recovered():
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(20000, 5))
    p = np.exp(log_softmax(logits))
    # drawn from p: calibrated at T = 1
    labels = (p.cumsum(axis=1) > rng.random((20000, 1))).argmax(axis=1)
    for temperature in (0.5, 1.0, 3.0):
        assert fit_temperature(logits * temperature, labels) == pytest.approx(temperature, rel=0.05)


def test_cross_fitted_temperature_calibrates_and_keeps_the_predictions():
    logits, labels, confidence, correct = over_confident()
    scaled, temperatures = cross_fit_temperature(logits, labels)
    assert (scaled.argmax(1) == logits.argmax(1)).all()
    for t in temperatures:
        assert t > 1
    assert cal.nll(scaled, labels) < cal.nll(logits, labels)
    assert cal.ece(*cal.top_class(scaled, labels)) < cal.ece(confidence, correct) / 2
    with pytest.raises(ValueError, match="Two samples"):
        cross_fit_temperature(logits[:1], labels[:1])
