"""The x-step: every regulariser and constraint, dense and sparse, tall and wide."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Lasso, Ridge

from halfmask.errors import InputError
from halfmask.vertical.block import REGULARISERS, Ball, Block, Box, bounded_rows

CONSTRAINTS = [None, Ball(radius=0.3), Box(low=-0.1, high=0.2)]


def objective(matrix, target, kappa, regulariser, x):
    size = {"l2": x @ x / 2, "l1": np.abs(x).sum(), "none": 0.0}[regulariser]
    return ((matrix @ x - target) ** 2).sum() / 2 + kappa * size


@pytest.mark.parametrize("shape", [(40, 7), (6, 15)])
@pytest.mark.parametrize("regulariser", REGULARISERS)
@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=["free", "ball", "box"])
def test_no_feasible_point_is_better(shape, regulariser, constraint):
    rng = np.random.default_rng(3)
    matrix, target, kappa = rng.normal(size=shape), rng.normal(size=shape[0]) * 3, 0.7
    x = Block(matrix).solve(target, kappa=kappa, regulariser=regulariser, constraint=constraint)
    best = objective(matrix, target, kappa, regulariser, x)
    if constraint is not None:
        assert np.allclose(constraint.project(x), x, atol=1e-12)
    for scale in 10.0 ** np.arange(-6, 1):
        for _ in range(60):
            other = x + scale * rng.normal(size=shape[1])
            other = other if constraint is None else constraint.project(other)
            assert best <= objective(matrix, target, kappa, regulariser, other) + 1e-9
    sparse_x = Block(sparse.csr_array(matrix)).solve(
        target, kappa=kappa, regulariser=regulariser, constraint=constraint
    )
    assert np.allclose(matrix @ x, matrix @ sparse_x, atol=1e-6)


def test_ridge_and_lasso_agree_with_scikit_learn():
    rng = np.random.default_rng(4)
    matrix, target = rng.normal(size=(80, 10)), rng.normal(size=80)
    ridge = Ridge(alpha=2.5, fit_intercept=False).fit(matrix, target).coef_
    assert np.allclose(Block(matrix).solve(target, kappa=2.5), ridge, atol=1e-9)
    lasso = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(matrix, target)
    found = Block(matrix).solve(target, kappa=8.0, regulariser="l1")
    assert np.allclose(found, lasso.coef_, atol=1e-7)


def test_one_decomposition_serves_every_rho():
    rng = np.random.default_rng(5)
    block = Block(rng.normal(size=(50, 6)))
    target = rng.normal(size=50)
    first = block._spectrum
    for kappa in (1e-3, 1.0, 1e3):
        exact = np.linalg.solve(
            block.matrix.T @ block.matrix + kappa * np.eye(6), block.matrix.T @ target
        )
        assert np.allclose(block.solve(target, kappa=kappa), exact)
    assert block._spectrum is first


def test_sparse_blocks_stay_sparse():
    rng = np.random.default_rng(0)
    matrix = sparse.coo_array(np.where(rng.random((200, 50)) < 0.05, rng.random((200, 50)), 0.0))
    block = Block(matrix)
    assert block.is_sparse
    assert sparse.issparse(bounded_rows(matrix, 0.5))


def test_bounded_rows_agree_and_forget_rows_that_are_not_finite():
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(20, 4)) * (rng.random((20, 4)) < 0.7)
    matrix[3, 1], matrix[5, 2] = np.inf, np.nan
    dense = bounded_rows(matrix, 0.8)
    assert np.all(np.linalg.norm(dense, axis=1) <= 0.8 + 1e-12)
    assert not dense[[3, 5]].any()
    assert np.allclose(bounded_rows(sparse.csr_array(matrix), 0.8).toarray(), dense)


@pytest.mark.parametrize("build", [lambda: Ball(radius=0.0), lambda: Box(low=0.1, high=1.0)])
def test_sets_must_contain_zero(build):
    with pytest.raises(InputError):
        build()
