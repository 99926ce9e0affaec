"""The rank of a process, by the environment that its launcher has given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Launcher(NamedTuple):
    """The variables in which a launcher tells a process its place; empty: it does not tell."""

    rank: str
    world: str
    local: str
    local_world: str = ""


LAUNCHERS = (
    Launcher("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    Launcher("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),  # flux-environment(7)
    Launcher(  # Open MPI
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    Launcher(  # MVAPICH2, src/pm/mpirun/mpispawn.c
        "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"
    ),
    Launcher("PALS_RANKID", "", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),  # Cray's mpiexec, which sets PMI_SIZE, too
    Launcher("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),  # jsrun, as Lightning reads it
    # Hydra (MPICH, Intel MPI); libfabric's prov/psm3 reads the local ones
    Launcher("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("PMIX_RANK", "", ""),  # PMIx's PMIx_server_setup_fork
    # The last one: `mpirun` in a batch script inherits the place of the script, which is one task.
    Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
"""In order of precedence: a launcher that another one started comes before it. torchrun comes first, and then Flux,
whose brokers any of the others may have started."""


def place_of(env: Mapping[str, str], rank: int = -1) -> tuple[int, int, int, int]:
    """The rank, the size of the world, the local rank and the number of ranks on this node (0: not known).

    What the first launcher does not tell comes from the others, if they know this process by the same rank. ``rank``:
    the rank if it is known.
    """
    rank = number(env, [each.rank for each in LAUNCHERS], -1) if rank < 0 else rank
    same = knowing(env, rank)
    rank = max(rank, 0)
    return (
        rank,
        number(env, [each.world for each in same], 1),
        number(env, [each.local for each in same], rank),
        number(env, [each.local_world for each in same], 0),
    )


def knowing(env: Mapping[str, str], rank: int) -> Sequence[Launcher]:
    """The launchers that know this process by this rank, or do not say its rank."""
    return [each for each in LAUNCHERS if number(env, (each.rank,), rank) == rank]


def number(env: Mapping[str, str], names: Sequence[str], default: int) -> int:
    """That of the first of these variables that has one, with at most 7 digits: the environment may be anybody's."""
    for name in names:
        value = env.get(name, "")
        if value.isascii() and value.isdigit() and len(value) < 8:
            return int(value)
    return default
