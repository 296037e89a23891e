"""How likely it is that chance alone did this. Pure."""

from __future__ import annotations

from math import exp, lgamma, log, log1p


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """The probability of at least `hits` in so many independent trials, each with this chance.

    It also bounds the probability where the trials have different chances with this mean, if `hits` lies above what is
    expected by one or more (Hoeffding 1956, On the distribution of the number of successes in independent trials).
    """
    if successes <= 0 or (probability >= 1 and successes <= trials):
        return 1.0
    if successes > trials or probability <= 0:
        return 0.0
    return min(1.0, sum(exp(_log_probability(count, trials, probability)) for count in range(successes, trials + 1)))


def _log_probability(count: int, trials: int, chance: float) -> float:
    ways = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
    return ways + count * log(chance) + (trials - count) * log1p(-chance)
