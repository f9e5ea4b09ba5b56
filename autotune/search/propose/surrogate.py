"""A Gaussian process over configs: predicts times where nothing was measured yet.

Matern covariance (5/2) with one length per feature, zero mean, targets standardised. Lengths and noise
maximise the posterior: marginal likelihood times a log-normal prior, narrow or wide.
Sources: C. E. Rasmussen, C. Williams, Gaussian Processes for Machine Learning (2006), 2.2, 4.2, 5.4;
expected improvement: D. Jones, M. Schonlau, W. Welch, J. Global Optimization 13 (1998) 455;
signed steps: M. Riedmiller, H. Braun, RPROP (ICNN 1993); believing the mean of what is under way:
D. Ginsbourger, R. Le Riche, L. Carraro, Kriging is well-suited to parallelize optimization (2010).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

FIT_STEPS = 10  # signed gradient steps per refit; lengths start from those of the last
NARROW, WIDE = 0.5, 1.5  # prior deviations of logarithms of lengths; their mean is 0: features span 0 ... 1
_NOISE = 1e-2  # prior median of its variance, in the targets'; its logarithm has deviation 1
_JITTER = math.sqrt(np.finfo(float).eps)  # a negligible variance
_SMALL = 32  # rows below which halving a matrix costs more calls than it saves operations


def _squared_distances(a: np.ndarray, b: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted by feature; shapes (p, features), (q, features) -> (p, q)."""
    scale = np.sqrt(weights)
    a, b = a * scale, b * scale
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :]
    squares -= 2 * (a @ b.T)
    return np.asarray(np.maximum(squares, 0.0, out=squares))


def _correlation(squared_distances: np.ndarray) -> np.ndarray:
    """Changes its argument, which may be large."""
    squared_distances *= 5
    r = np.sqrt(squared_distances, out=squared_distances)
    correlation: np.ndarray = np.exp(-r)
    correlation *= 1 + r * (1 + r / 3)
    return correlation


def _matern(squared_distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The correlation, and -2 times its derivative by the squared distance."""
    r = np.sqrt(5 * squared_distances)
    decay = np.exp(-r)
    steepness = (5 / 3) * (1 + r) * decay
    return steepness * 0.6 + r * r / 3 * decay, steepness


def _noisy(correlation: np.ndarray, noise: float) -> np.ndarray:
    """The correlation of measurements, each with its own noise; changes its argument, (n, n)."""
    correlation[np.diag_indices(len(correlation))] += noise
    return correlation


def _inverse(lower: np.ndarray) -> np.ndarray:
    """The inverse of a lower triangular matrix, by halves: a fourth of a general one's operations; (n, n)."""
    n, middle = len(lower), len(lower) // 2
    if n <= _SMALL:
        return np.asarray(np.linalg.inv(lower))
    inverse = np.zeros_like(lower)
    first, last = _inverse(lower[:middle, :middle]), _inverse(lower[middle:, middle:])
    inverse[:middle, :middle], inverse[middle:, middle:] = first, last
    inverse[middle:, :middle] = -last @ (lower[middle:, :middle] @ first)
    return inverse


@dataclass
class Lengths:
    """Hyperparameters: logarithms of the length of each feature and, last, of the noise."""

    log: np.ndarray  # (features + 1,)
    width: float = NARROW  # of the prior

    @classmethod
    def prior(cls, num_features: int, width: float = NARROW) -> Lengths:
        return cls(np.append(np.zeros(num_features), math.log(_NOISE)), width)

    @property
    def off(self) -> tuple[np.ndarray, np.ndarray]:
        """Distances from the prior's mean, in its deviations, and these deviations; (features + 1,) each."""
        widths = np.append(np.full(len(self.log) - 1, self.width), 1.0)
        return (self.log - Lengths.prior(len(self.log) - 1).log) / widths, widths

    @property
    def weights(self) -> np.ndarray:
        weights: np.ndarray = np.exp(-2 * self.log[:-1])
        return weights

    @property
    def noise(self) -> float:
        return float(np.exp(self.log[-1])) + _JITTER


def fit_lengths(x: np.ndarray, z: np.ndarray, start: Lengths, steps: int = FIT_STEPS) -> Lengths:
    """Climb the posterior of the hyperparameters; x: (n, features), z: (n,) standardised targets.

    A step is half as long as the prior is wide at first, then longer by a fifth where the gradient keeps its
    sign, and half as long where it does not."""
    log = start.log.copy()
    step, last_sign = start.off[1] / 2, np.zeros(len(log))
    best, best_loss = log, math.inf
    for _ in range(steps):
        loss, gradient = _loss(x, z, Lengths(log, start.width))
        if loss < best_loss:
            best, best_loss = log.copy(), loss
        sign = np.sign(gradient)
        step = step * np.array([0.5, 1.0, 1.2])[1 + (sign * last_sign).astype(int)]
        log = log - sign * step
        last_sign = sign
    return Lengths(best, start.width)


def _loss(x: np.ndarray, z: np.ndarray, lengths: Lengths) -> tuple[float, np.ndarray]:
    """Negative log posterior, the scale of the covariance profiled out, and its gradient."""
    n = len(z)
    distances = _squared_distances(x, x, lengths.weights)
    correlation, steepness = _matern(distances)
    half = _half(correlation, lengths.noise)
    inverse = half.T @ half
    alpha = inverse @ z
    scale = max(float(z @ alpha) / n, _JITTER)
    off, widths = lengths.off
    loss = 0.5 * n * math.log(scale) - float(np.log(np.diag(half)).sum()) + 0.5 * float(off @ off)
    slope = inverse  # 2 d loss / d covariance; with as few passes over n x n numbers as possible
    slope -= np.outer(alpha, alpha / scale)
    trace = 0.5 * np.trace(slope)
    mixed = np.multiply(slope, steepness, out=slope)
    # sum_ij mixed_ij (x_if - x_jf)^2, for every feature f at once
    spread = mixed.sum(axis=1) @ (x * x) - (x * (mixed @ x)).sum(axis=0)
    gradient = np.append(spread * lengths.weights, trace * math.exp(lengths.log[-1]))
    return loss, gradient + off / widths


def _half(correlation: np.ndarray, noise: float) -> np.ndarray:
    """The inverse of the Cholesky factor of the correlation of measurements; (n, n)."""
    return _inverse(np.linalg.cholesky(_noisy(correlation, noise)))


@dataclass
class Predictions:
    """The predictions for some points: their indices in the request, the mean, the explained part of the
    variance, and the expected improvement; shapes (q,), (q, features), (q,), (q, n), (q,)."""

    places: np.ndarray
    points: np.ndarray
    mean: np.ndarray
    explained: np.ndarray
    gain: np.ndarray

    def __add__(self, other: Predictions) -> Predictions:
        """Joins predictions of one request; `other` has the later points."""
        own, others = vars(self), vars(other)
        return Predictions(**{name: np.concatenate([own[name], others[name]]) for name in own})

    def at(self, places: np.ndarray) -> Predictions:
        """Of some of these points."""
        return Predictions(**{name: column[places] for name, column in vars(self).items()})


@dataclass
class Surrogate:
    """The process given measured points, and points under way that are assumed to meet the mean."""

    x: np.ndarray  # (n, features)
    lengths: Lengths
    scale: float
    best: float  # lowest target measured
    _alpha: np.ndarray = field(repr=False)
    _half: np.ndarray = field(repr=False)

    @classmethod
    def condition(cls, x: np.ndarray, z: np.ndarray, pending: np.ndarray, lengths: Lengths) -> Surrogate:
        """x: (n, features) with targets z: (n,); pending: (p, features)."""
        half = _half(_correlation(_squared_distances(x, x, lengths.weights)), lengths.noise)
        alpha = half.T @ (half @ z)
        scale = max(float(z @ alpha) / (len(z) + len(pending)), _JITTER)
        fitted = cls(x, lengths, scale, float(z.min()), alpha, half)
        whole = fitted._with_means(pending) if len(pending) else fitted
        return whole._in_single() if lengths.noise > _NOISE / 1000 else whole

    def _in_single(self) -> Surrogate:
        """In single precision, in which thousands of candidates take half the time. With hardly any noise
        variances would be too inaccurate."""
        x, alpha, half = (part.astype(np.float32) for part in (self.x, self._alpha, self._half))
        return Surrogate(x, self.lengths, self.scale, self.best, alpha, half)

    def _with_means(self, pending: np.ndarray) -> Surrogate:
        """Conditioned also on these points at the mean, which changes no mean; (p, features)."""
        explained = self.covariance(pending) @ self._half.T
        joint = _correlation(_squared_distances(pending, pending, self.lengths.weights))
        last = _half(joint - explained @ explained.T, self.lengths.noise)
        across = -last @ (explained @ self._half)
        half = np.block([[self._half, np.zeros(across.T.shape)], [across, last]])
        x, alpha = np.concatenate([self.x, pending]), np.append(self._alpha, np.zeros(len(pending)))
        return Surrogate(x, self.lengths, self.scale, self.best, alpha, half)

    def covariance(self, points: np.ndarray) -> np.ndarray:
        """With the points it is conditioned on; shape (q, n), in units of `scale`."""
        weights = self.lengths.weights.astype(self.x.dtype)
        covariance: np.ndarray = _correlation(_squared_distances(points, self.x, weights))
        return covariance

    def mean(self, covariance: np.ndarray) -> np.ndarray:
        mean: np.ndarray = covariance @ self._alpha
        return mean

    def predictions(self, points: np.ndarray, most: int) -> Predictions:
        """Of the points of highest expected improvement, best first; (q, features). The variance that one
        measured point explains gives a bound at a small part of the cost, which excludes most."""
        points = points.astype(self.x.dtype)
        covariance = self.covariance(points)
        mean = self.mean(covariance)
        nearest = covariance.max(axis=1, initial=0.0)
        bound = self._gain(mean, 1.0 - nearest * nearest / (1.0 + self.lengths.noise))
        order = np.argsort(-bound, kind="stable")
        found = self._predictions(points, covariance, mean, order[: 2 * most])
        if len(order) > 2 * most:
            least = np.partition(found.gain, -most)[-most]
            rest = order[2 * most :]
            found += self._predictions(points, covariance, mean, rest[bound[rest] > least])
        return found.at(np.argsort(-found.gain, kind="stable")[:most])

    def _predictions(
        self, points: np.ndarray, covariance: np.ndarray, mean: np.ndarray, places: np.ndarray
    ) -> Predictions:
        explained = covariance[places] @ self._half.T
        gain = self._gain(mean[places], 1.0 - (explained * explained).sum(axis=1))
        return Predictions(places, points[places], mean[places], explained, gain)

    def _gain(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        """Expected improvement; variances in units of `scale`."""
        return expected_improvement(self.best, mean, np.sqrt(np.maximum(variance, _JITTER) * self.scale))

    def best_batch(self, predictions: Predictions, size: int) -> list[int]:
        """Those of the highest expected improvement, each chosen as if those before it had met their mean."""
        if size == 1:
            return [int(predictions.gain.argmax())]
        weights = self.lengths.weights.astype(self.x.dtype)
        within = _correlation(_squared_distances(predictions.points, predictions.points, weights))
        joint = within - predictions.explained @ predictions.explained.T
        return self._greedy(predictions.mean, joint, min(size, len(predictions.gain)))

    def _greedy(self, mean: np.ndarray, joint: np.ndarray, size: int) -> list[int]:
        chosen: list[int] = []
        for _ in range(size):
            variance = np.maximum(np.diag(joint), _JITTER)
            gain = self._gain(mean, variance)
            gain[chosen] = -1.0
            pick = int(gain.argmax())
            chosen.append(pick)
            joint = joint - np.outer(joint[pick], joint[pick]) / (variance[pick] + self.lengths.noise)
        return chosen


def expected_improvement(best: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """The expected amount by which a normal variable is below `best`, zero where it stays above."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    # Logistic form of the normal distribution function, within 2e-4 (Page 1977)
    below = 1.0 / (1.0 + np.exp(-np.clip(1.5976 * z + 0.07056 * z**3, -50.0, 50.0)))
    gain: np.ndarray = deviation * (z * below + density)
    return gain
