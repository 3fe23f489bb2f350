"""Known machines as coefficients, and where each number is from. Values only."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.simulation.costs import (
    AlignmentCosts,
    Costs,
    DraftCosts,
    VerifyCosts,
    WireCosts,
)

CPU_PAIR = Costs(
    # Measured: 21 ms for 1 row x 1 token, 30 ms for 8 x 1, 24 ms for 1 x 6, 60 ms for 8 x 6. This
    # plane gives 21.0, 29.7, 24.7 and 59.3; what attention costs is hidden in it.
    verify=VerifyCosts(fixed_seconds=19.8e-3, per_row_seconds=0.5e-3, per_token_seconds=0.74e-3),
    # Measured: about 3 ms a step up to a few rows, slowly growing with rows.
    draft=DraftCosts(
        fixed_seconds=0.3e-3,
        per_step_seconds=2.8e-3,
        per_row_step_seconds=0.15e-3,
        per_token_seconds=0.05e-3,
    ),
    alignment=AlignmentCosts(fixed_seconds=0.5e-3, per_moved_token_seconds=2e-6),
    wire=WireCosts(seconds=1.5e-3),
)
"""The default pair on two cores."""

DATA_CENTRE = Costs(
    verify=VerifyCosts(fixed_seconds=25e-3),
    draft=DraftCosts(fixed_seconds=4e-3),
    wire=WireCosts(seconds=1e-3),
)
"""A large target and a small draft on accelerators of their own: a pass costs the same whatever is
in it, up to the batch size. Round numbers, for shapes rather than forecasts."""

PAPER = Costs(
    # arXiv 2510.22876, anatomy of a round on an A100 with Vicuna-7B/68M, B = 4, K = 5: verify
    # 24.9 ms, draft 15.2 ms, alignment 15.3 ms (EQSPEC). How these grow with B is not printed; the
    # alignment is the line through 15.3 ms at B = 4 and a share of 40 % at B = 32 (their Fig. 5b),
    # for rows of about 200 tokens.
    verify=VerifyCosts(
        fixed_seconds=23e-3,
        per_row_seconds=0.3e-3,
        per_token_seconds=0.01e-3,
        per_context_token_seconds=0.5e-6,
    ),
    draft=DraftCosts(fixed_seconds=0.7e-3, per_step_seconds=2.8e-3, per_row_step_seconds=0.025e-3),
    alignment=AlignmentCosts(fixed_seconds=12.6e-3, per_moved_token_seconds=4.4e-6),
)
"""The machine of the EQSPEC/EXSPEC paper: drafts and target on one device, no wire."""

PRESETS: Mapping[str, Costs] = {
    "cpu-pair": CPU_PAIR,
    "data-centre": DATA_CENTRE,
    "paper": PAPER,
}
