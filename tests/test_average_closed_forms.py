"""Long-run averages in closed form: admission to a queue, replacement of machines, (s, S) policies of an inventory."""

import numpy as np
import pytest

import cmdpkit as ck
from cmdpkit.run.status import Status
from long_run import admission, average_lp

METHODS = ("auto", "columns", "lp", "pmd-pd")


# -- queues ----------------------------------------------------------------------------------------------------------


def admission_by_hand(capacity, arrive, serve, limit):
    """Admit below a threshold, with probability q at it: the stationary distribution is a product, q by bisection."""
    ratio = arrive / serve

    def averages(threshold):
        n, q = int(threshold), threshold - int(threshold)
        weights = np.append(ratio ** np.arange(n + 1), q * ratio ** (n + 1))
        weights /= weights.sum()
        return weights @ np.arange(n + 2), serve * (1.0 - weights[0])  # what is admitted is served

    low, high = 0.0, float(capacity)
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if averages(middle)[0] <= limit else (low, middle)
    return averages(low)[1]


@pytest.mark.parametrize(("arrive", "serve", "limit"), [(0.3, 0.4, 1.0), (0.4, 0.3, 2.5), (0.2, 0.2, 0.7)])
def test_admission_to_a_queue_with_a_limit_on_its_length(arrive, serve, limit):
    cmdp = admission(12, arrive, serve, limit)
    result = ck.solve(cmdp, tol=1e-10)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(admission_by_hand(12, arrive, serve, limit), abs=1e-9)
    assert result.constraint_values[0] == pytest.approx(limit, abs=1e-9)


def test_machine_replacement():
    """A machine of age i costs i² to run; a new one costs 40. Cycles of k periods: (40 + Σ_{i<k} i²) / k, period k."""
    n = 12
    P, cost = np.zeros((n, 2, n)), np.zeros((n, 2))
    for i in range(n):
        P[i, 0, min(i + 1, n - 1)], cost[i, 0] = 1.0, i**2
        P[i, 1, 0], cost[i, 1] = 1.0, 40.0 + i**2  # the last period of this machine
    cmdp = ck.CMDP(P, cost=cost, average=True, initial=0, action_axis=1)
    best = min((40.0 + sum(i**2 for i in range(k))) / k for k in range(1, n + 1))
    for method in METHODS:
        result = ck.solve(cmdp, method, tol=1e-6)
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(best, abs=1e-9 if method != "pmd-pd" else 2e-6 * best)


def losses(capacity, arrive, serve, limit):
    """Admission to an M/M/1 queue in ticks: the shortest queue that turns away at most this share of the customers."""
    cmdp = admission(capacity, arrive, serve, 1.0)
    lost = np.column_stack([np.ones(capacity + 1), np.append(np.zeros(capacity), 1.0)])
    length = np.arange(capacity + 1.0)[:, None] * np.ones((1, 2))
    P = np.asarray(cmdp.transitions).reshape(capacity + 1, 2, capacity + 1)
    limits = [ck.AtMost(lost, limit, name="lost")]  # arrivals do not depend on the state: the share of time is theirs
    return ck.CMDP(P, cost=length, constraints=limits, average=True, initial=0, action_axis=1)


def losses_by_hand(arrive, serve, limit):
    """Admit below n customers and with probability q at n: μ(k) ∝ ρᵏ up to n, μ(n + 1) = q ρ μ(n).

    The share lost, (ρⁿ (1 − q) + q ρⁿ⁺¹) / (Σ_{k≤n} ρᵏ + q ρⁿ⁺¹), is the limit for one n and q.
    """
    rho = arrive / serve
    for n in range(1_000):
        powers = rho ** np.arange(n + 2.0)
        total = powers[: n + 1].sum()
        q = (powers[n] - limit * total) / (powers[n] - powers[n + 1] + limit * powers[n + 1])
        if q <= 1.0:
            weights = np.append(powers[: n + 1], q * powers[n + 1])
            return float(weights @ np.arange(n + 2) / weights.sum()), n, q
    raise AssertionError("no threshold")


@pytest.mark.parametrize(("arrive", "serve", "limit"), [(0.3, 0.4, 0.1), (0.4, 0.3, 0.4), (0.2, 0.4, 0.01)])
def test_admission_to_a_queue_with_a_limit_on_losses(arrive, serve, limit):
    expected, n, q = losses_by_hand(arrive, serve, limit)
    result = ck.solve(losses(25, arrive, serve, limit), tol=1e-10)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(expected, abs=1e-9)
    assert result.constraint_values[0] == pytest.approx(limit, abs=1e-9)
    assert result.policy.probabilities[n, 1] == pytest.approx(q, abs=1e-7)


# -- machines --------------------------------------------------------------------------------------------------------


def wearing(survive, planned, failed, limit):
    """A machine of age i survives a period with survive[i]; it is replaced when it fails, or before, at less cost.

    State i is the age, action 1 replaces the machine at once, so that a new one begins the period.
    """
    S = len(survive)
    P, cost, failures = np.zeros((S, 2, S)), np.zeros((S, 2)), np.zeros((S, 2))
    for i in range(S):
        for a, age in ((0, i), (1, 0)):
            P[i, a, min(age + 1, S - 1)] += survive[age]
            P[i, a, 0] += 1.0 - survive[age]
            failures[i, a] = 1.0 - survive[age]
            cost[i, a] = failed * failures[i, a] + (planned if a else 0.0)
    limits = [] if limit is None else [ck.AtMost(failures, limit, name="failures")]
    return ck.CMDP(P, cost=cost, constraints=limits, average=True, initial=0, action_axis=1)


def wearing_by_hand(survive, planned, failed, limit):
    """Renewal and reward: replaced at age T, with probability q at T − 1 already, a cycle has E periods and F failures.

    Its E, F and planned replacements are linear in q, and the averages are their quotients. The best is at an integer
    age, or where the limit is met exactly.
    """
    alive = np.append(1.0, np.cumprod(survive[:-1]))  # reaches age i
    options = []
    for T in range(1, len(survive)):
        periods, fail = (np.array([x[: T - 1].sum(), x[:T].sum()]) for x in (alive, alive * (1.0 - np.array(survive))))
        # At the ends of q: replaced at age T − 1, and at age T
        planned_for = np.array([alive[T - 1], alive[T]])
        shares = [1.0] if T == 1 else [0.0, 1.0]
        if limit is not None and T > 1:
            slope = (fail - limit * periods)[0] - (fail - limit * periods)[1]
            shares.append((fail - limit * periods)[0] / slope)
        for q in shares:
            weights = np.array([1.0 - q, q])
            rate = (weights @ fail) / (weights @ periods)
            if -1e-12 <= q <= 1.0 + 1e-12 and (limit is None or rate <= limit + 1e-12):
                options.append((planned * (weights @ planned_for) + failed * (weights @ fail)) / (weights @ periods))
    return min(options)


@pytest.mark.parametrize("limit", [None, 0.06, 0.045, 0.03])
def test_a_machine_that_is_replaced_before_it_fails(limit):
    survive = [*(0.99 - 0.015 * np.arange(20) ** 1.3), 0.0]
    expected = wearing_by_hand(survive, 1.0, 6.0, limit)
    for method in ("auto", "lp"):
        result = ck.solve(wearing(survive, 1.0, 6.0, limit), method, tol=1e-10)
        assert result.status is Status.OPTIMAL
        assert result.objective == pytest.approx(expected, abs=1e-9)
    assert result.objective == pytest.approx(average_lp(wearing(survive, 1.0, 6.0, limit)), abs=1e-8)


# -- inventories -----------------------------------------------------------------------------------------------------

DEMAND = np.array([0.25, 0.3, 0.2, 0.15, 0.1])
LOWEST, HIGHEST = -6, 18  # levels after ordering
ORDER, HOLD, MISS = 7.0, 0.5, 4.0


def levels():
    return np.arange(LOWEST, HIGHEST + 1)


def period_cost(y):
    """Holding and missing units at the end of a period that begins with y."""
    left = y - np.arange(DEMAND.size)
    return float(DEMAND @ (HOLD * np.maximum(left, 0) + MISS * np.maximum(-left, 0)))


def short(y):
    """The probability that the demand of a period exceeds y."""
    return float(DEMAND[np.arange(DEMAND.size) > y].sum())


def stock(limit=None):
    """State: stock, below 0 if owed; action: the level up to which is ordered. Demand is owed until it is met."""
    goods = np.arange(LOWEST - DEMAND.size + 1, HIGHEST + 1)
    after = levels()
    available = after[None, :] >= goods[:, None]
    P = np.zeros((goods.size, after.size, goods.size))
    for d, p in enumerate(DEMAND):
        P[:, np.arange(after.size), np.searchsorted(goods, after - d)] += p
    cost = np.array([period_cost(y) for y in after]) + ORDER * (after[None, :] > goods[:, None])
    shortages = np.broadcast_to([short(y) for y in after], cost.shape)
    limits = [] if limit is None else [ck.AtMost(shortages, limit, name="short")]
    initial = int(np.searchsorted(goods, 0))
    return ck.CMDP(P, cost=cost, constraints=limits, available=available, average=True, initial=initial, action_axis=1)


def s_S_averages(low, high):
    """(cost, shortages) per period when stock of at most `low` is filled up to `high`, by renewal theory.

    m(j) is the expected number of periods that begin j below `high` in a cycle: m(0) = 1/(1 − p_0) and
    m(j) = Σ_i p_i m(j − i)/(1 − p_0). A cycle ends when the demand since the order reaches high − low.
    """
    m = np.zeros(high - low)
    for j in range(high - low):
        arrive = sum(DEMAND[i] * m[j - i] for i in range(1, min(j, DEMAND.size - 1) + 1))
        m[j] = (arrive + (j == 0)) / (1.0 - DEMAND[0])
    begins = high - np.arange(high - low)
    cost = ORDER + m @ np.array([period_cost(y) for y in begins])
    return cost / m.sum(), (m @ np.array([short(y) for y in begins])) / m.sum()


def all_s_S():
    return np.array([s_S_averages(s, S) for S in levels() for s in range(LOWEST - 1, S)])


def test_the_best_s_S_policy():
    """Scarf: with a fixed cost per order some (s, S) policy is the best of all."""
    costs = all_s_S()[:, 0]
    result = ck.solve(stock(), tol=1e-10)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(costs.min(), abs=1e-9)
    pairs = [(s, S) for S in levels() for s in range(LOWEST - 1, S)]
    low, high = pairs[int(costs.argmin())]
    goods = np.arange(LOWEST - DEMAND.size + 1, HIGHEST + 1)
    seen = ck.evaluate(stock(), result.policy).occupancy.sum(axis=1) > 1e-12
    filled = levels()[result.policy.probabilities.argmax(axis=1)]
    np.testing.assert_array_equal(filled[seen], np.where(goods <= low, high, goods)[seen])


@pytest.mark.parametrize("limit", [0.1, 0.05, 0.02])
def test_s_S_policies_with_a_limit_on_shortages(limit):
    """At every price of a shortage an (s, S) policy is the best, so that the optimum mixes two of them."""
    points = all_s_S()
    inside, outside = points[points[:, 1] <= limit], points[points[:, 1] > limit]
    share = (limit - inside[:, None, 1]) / (outside[None, :, 1] - inside[:, None, 1])
    expected = min(inside[:, 0].min(), ((1.0 - share) * inside[:, None, 0] + share * outside[None, :, 0]).min())
    result = ck.solve(stock(limit), tol=1e-10)
    assert result.status is Status.OPTIMAL
    assert result.objective == pytest.approx(expected, abs=1e-9)
    assert result.constraint_values[0] == pytest.approx(limit, abs=1e-9)
    assert result.objective > points[:, 0].min() + 1e-4  # the limit binds
