"""ADMM sharing: the optimum, any number of parties, noise in each of its forms, and failures."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from halfmask.accounting.gaussian import gaussian_epsilon, gaussian_mu
from halfmask.accounting.ledger import MemoryLedger
from halfmask.audit.refutations import theorem_1_noise
from halfmask.errors import AccountingError, BudgetExceededError, InputError
from halfmask.mechanisms.noise import noise_source
from halfmask.mechanisms.release import Releaser
from halfmask.vertical import admm_party
from halfmask.vertical.admm import ADMM_LOSSES, AdmmConfig, DivergenceWarning, admm_loss, run_admm
from halfmask.vertical.admm_party import AdmmParty, ShareNoise
from halfmask.vertical.block import Ball, Box
from halfmask.vertical.channel import LocalChannel
from halfmask.vertical.party import hide_labels


def sides(matrix, parties, **options):
    cuts = np.array_split(np.arange(matrix.shape[1]), parties)
    return {f"p{i}": AdmmParty(matrix[:, cut], **options) for i, cut in enumerate(cuts)}


def channel_of(named):
    return LocalChannel(named)


def coefficients(named):
    return np.concatenate([side.x for side in named.values()])


@pytest.mark.parametrize("parties", [1, 2, 5])
def test_sharing_reaches_the_central_optimum(columns, parties):
    matrix, labels = columns
    named = sides(matrix, parties, strength=1.0)
    run_admm(channel_of(named), labels, AdmmConfig(rho=0.3, rounds=1500))
    central = LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=5000)
    assert np.allclose(coefficients(named), central.fit(matrix, labels).coef_[0], atol=1e-4)


@pytest.mark.parametrize("loss", ADMM_LOSSES)
@pytest.mark.parametrize(
    ("regulariser", "constraint"),
    [("l2", None), ("l1", None), ("l2", Ball(radius=0.5)), ("l2", Box(low=-0.2, high=0.3))],
)
def test_every_loss_and_regulariser_descends_to_its_minimum(columns, loss, regulariser, constraint):
    matrix, labels = columns
    matrix = matrix[:, :6]
    named = sides(matrix, 2, strength=2.0, regulariser=regulariser, constraint=constraint)
    run_admm(channel_of(named), labels, AdmmConfig(loss=loss, rho=0.5, rounds=400))

    def objective(pieces):
        scores = matrix @ np.concatenate(pieces)
        size = sum(np.abs(x).sum() if regulariser == "l1" else x @ x / 2 for x in pieces)
        return admm_loss(loss).value(scores, labels).sum() + 2.0 * size

    found = [side.x for side in named.values()]
    best, rng = objective(found), np.random.default_rng(0)
    for _ in range(300):
        other = [x + rng.normal(size=3) * 10 ** rng.uniform(-3, 0) for x in found]
        other = [x if constraint is None else constraint.project(x) for x in other]
        assert best <= objective(other) * (1 + 1e-4)


def test_as_written_and_sharing_are_one_for_a_single_party(columns):
    matrix, labels = columns
    results = []
    for update in ("sharing", "as-written"):
        named = sides(matrix, 1, strength=1.0)
        run_admm(channel_of(named), labels, AdmmConfig(update=update, rounds=7))
        results.append(coefficients(named))
    assert np.array_equal(*results)


def test_as_written_diverges_with_many_parties_and_says_so(columns):
    rng = np.random.default_rng(2)
    common = rng.normal(size=(300, 1))
    matrix = common + 0.5 * rng.normal(size=(300, 8))
    labels = np.sign(common[:, 0] + 0.5 * rng.normal(size=300))
    with pytest.warns(DivergenceWarning, match="sharing"):
        run_admm(
            channel_of(sides(matrix, 8, strength=0.1)),
            labels,
            AdmmConfig(update="as-written", rho=0.05, rounds=40),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_admm(
            channel_of(sides(matrix, 8, strength=0.1)), labels, AdmmConfig(rho=0.05, rounds=40)
        )


def test_sparse_blocks_give_the_same_shares(columns):
    matrix, labels = columns
    matrix = np.where(np.abs(matrix) > 1, matrix, 0.0)
    dense = sides(matrix, 2, strength=1.0)
    held = sides(sparse.csc_array(matrix), 2, strength=1.0)
    for named in (dense, held):
        run_admm(channel_of(named), labels, AdmmConfig(rounds=5))
    assert np.allclose(coefficients(dense), coefficients(held), atol=1e-10)


def test_residuals_stop_the_run(columns):
    matrix, labels = columns
    config = AdmmConfig(rho=0.3, rounds=600, tolerance=1e-3)
    result = run_admm(channel_of(sides(matrix, 3, strength=1.0)), labels, config)
    assert result.converged
    assert len(result.history) < 600


def test_a_run_resumes_after_any_finished_round(columns):
    matrix, labels = columns
    whole, halves = sides(matrix, 2, strength=1.0), sides(matrix, 2, strength=1.0)
    run_admm(channel_of(whole), labels, AdmmConfig(rounds=10))
    channel = channel_of(halves)
    first = run_admm(channel, labels, AdmmConfig(rounds=4))
    run_admm(channel, labels, AdmmConfig(rounds=10), state=first)
    assert np.array_equal(coefficients(whole), coefficients(halves))


@pytest.mark.parametrize("kind", ["row", "column"])
@pytest.mark.parametrize("update", ["sharing", "as-written"])
def test_private_shares_are_charged_once_and_never_more_than_agreed(
    columns, releaser, kind, update
):
    matrix, labels = columns
    epsilon, rounds = 2.0, 4
    noise = ShareNoise(kind=kind, rounds=rounds, ratio=gaussian_mu(epsilon, 1e-6) * (1 - 1e-9))
    doors = [releaser(epsilon=epsilon, seed=seed) for seed in (1, 2)]
    named = {
        f"p{i}": AdmmParty(matrix[:, cut], strength=1.0, noise=noise, releaser=door)
        for i, (cut, door) in enumerate(zip((slice(0, 6), slice(6, 12)), doors, strict=True))
    }
    channel = channel_of(named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        result = run_admm(channel, labels, AdmmConfig(update=update, rounds=rounds))
        for door in doors:
            (event,) = door.events
            assert gaussian_epsilon(event.replace * np.sqrt(event.count), 1e-6) <= epsilon
        for side in named.values():
            assert not np.allclose(side.released, side.block.scores(side.x))
        with pytest.raises(AccountingError):
            run_admm(channel, labels, AdmmConfig(update=update, rounds=5), state=result)


def test_the_noise_of_a_share_has_the_declared_size(columns, releaser):
    """Isotropic in R^N, with std = bound·√rounds/μ: measured on many rounds of one target."""
    from halfmask.vertical.admm_party import row_sensitivity

    matrix, _ = columns
    noise = ShareNoise(kind="row", rounds=40, ratio=0.5, radius=2.0, target_bound=3.0)
    side = AdmmParty(matrix, strength=1.0, noise=noise, releaser=releaser())
    bound = row_sensitivity(target_bound=3.0, kappa=10.0, row_norm=1.0, radius=2.0).replace
    gaps = []
    for _ in range(40):
        share = side.share(residual=np.ones(300), dual=np.zeros(300), rho=0.1, divisor=1)
        gaps.append(share - side.block.scores(side.x))
    assert np.std(gaps) == pytest.approx(bound * np.sqrt(40) / 0.5, rel=0.03)
    assert np.linalg.norm(side.x) <= 2.0


def test_budget_is_refused_before_anything_is_released(columns, releaser):
    matrix, _ = columns
    noise = ShareNoise(kind="row", rounds=3, ratio=gaussian_mu(3.0, 1e-6))
    with pytest.raises(BudgetExceededError):
        AdmmParty(matrix, strength=1.0, noise=noise, releaser=releaser(epsilon=1.0))


def test_a_rho_that_rounding_could_exploit_is_refused(columns, releaser):
    matrix, _ = columns
    noise = ShareNoise(kind="row", rounds=3, ratio=0.1)
    side = AdmmParty(matrix, strength=1.0, noise=noise, releaser=releaser())
    with pytest.raises(InputError, match="rounding"):
        side.share(residual=np.zeros(300), dual=np.zeros(300), rho=1e9, divisor=1)
    side.share(residual=np.zeros(300), dual=np.zeros(300), rho=1e5, divisor=1)


def test_as_written_noise_stays_in_the_column_space(columns):
    matrix, labels = columns
    noise = ShareNoise(kind="as-written", std=5.0)
    door = Releaser(MemoryLedger(epsilon=1.0, delta=1e-6), noise_source(3))
    side = AdmmParty(matrix, strength=1.0, noise=noise, releaser=door)
    share = side.share(residual=labels, dual=labels, rho=1.0, divisor=1)
    outside = share - matrix @ np.linalg.lstsq(matrix, share, rcond=None)[0]
    assert np.linalg.norm(outside) <= 1e-9 * np.linalg.norm(share)
    assert not noise.is_private


def test_the_broadcast_dual_gives_labels_away_unless_they_are_hidden(columns):
    matrix, labels = columns
    zero_one = (labels + 1) / 2
    result = run_admm(channel_of(sides(matrix, 2, strength=1.0)), labels, AdmmConfig(rounds=3))
    assert np.array_equal(np.sign(result.dual), -labels)

    ledger = MemoryLedger(epsilon=1.0, delta=1e-6)
    hidden = hide_labels(zero_one, epsilon=1.0, releaser=Releaser(ledger, noise_source(5)))
    assert ledger.spent() == pytest.approx(1.0, abs=1e-3)
    result = run_admm(
        channel_of(sides(matrix, 2, strength=1.0)), hidden.signed, AdmmConfig(rounds=3)
    )
    agree = np.mean(np.sign(result.dual) == -labels)
    assert agree == pytest.approx(1 / (1 + np.exp(-1)), abs=0.12)


def test_hidden_labels_are_unbiased():
    labels = np.repeat([0.0, 1.0], 50_000)
    ledger = MemoryLedger(epsilon=5.0, delta=1e-6)
    hidden = hide_labels(labels, epsilon=0.8, releaser=Releaser(ledger, noise_source(1)))
    assert hidden.targets[:50_000].mean() == pytest.approx(0.0, abs=0.03)
    assert hidden.targets[50_000:].mean() == pytest.approx(1.0, abs=0.03)
    assert set(np.round(hidden.targets, 9)) == {
        round(-hidden.excess, 9),
        round(1 + hidden.excess, 9),
    }
    with pytest.raises(InputError):
        hide_labels(labels * 2, epsilon=0.8, releaser=Releaser(ledger, noise_source(1)))


def test_twenty_rounds_of_the_papers_noise_cost_far_less_than_its_corollary_says():
    std = theorem_1_noise(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    assert std == pytest.approx(4.84, abs=0.01)
    # Corollary 1 says 55.8 at the same delta.
    assert gaussian_epsilon(math.sqrt(20) / std, 2.1e-4) == pytest.approx(3.27, abs=0.01)


@pytest.mark.parametrize(
    "wrong",
    [{"loss": "huber"}, {"rho": 0.0}, {"update": "jacobi"}, {"rounds": 0}, {"tolerance": -1.0}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError):
        AdmmConfig(**wrong)


def test_row_noise_refuses_what_its_proof_does_not_cover(columns, releaser):
    matrix, _ = columns
    noise = ShareNoise(kind="row", rounds=3, ratio=0.1)
    for options in ({"regulariser": "l1"}, {"constraint": Box(low=-1, high=1)}, {"strength": 0.0}):
        with pytest.raises(InputError):
            AdmmParty(
                matrix, **{"strength": 1.0, "noise": noise, "releaser": releaser(), **options}
            )
    with pytest.raises(InputError):
        AdmmParty(matrix, strength=1.0, noise=noise)
    with pytest.raises(InputError):
        AdmmParty(matrix, strength=1.0, noise=ShareNoise(kind="row"), releaser=releaser())
    with pytest.raises(InputError):
        ShareNoise(kind="gaussian")


def test_columns_that_do_not_fit_in_memory_are_refused_before_a_charge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admm_party, "available", lambda: 1000)
    book = MemoryLedger(epsilon=1.0, delta=1e-6)
    with pytest.raises(InputError, match="nothing was charged"):
        AdmmParty(np.ones((50, 6)), strength=1.0, releaser=Releaser(book, noise_source(1)))
    assert book.events() == ()
