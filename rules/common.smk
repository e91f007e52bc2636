"""What the rules share: names, checks before anything runs, params, priorities and resources.

Every job is one `recollect` command. A rule's params are two short hashes: `settings` (all of the configuration that
the job depends on) and `code` (all of the package that it can reach), so that a change reruns what depends on it and
nothing else. What the hashes stand for is written in the manifest beside each artifact.
"""

import gc
import inspect
import runpy
import sys
from functools import lru_cache

from recollect.settings.errors import UserError
from recollect.settings.resolve import (
    canonical,
    environment_mapping,
    fetched_model,
    figure_settings,
    method_mapping,
    names,
    published_data,
    uses_gpu,
)
from recollect.settings.still import hold_still
from recollect.stages import dependencies, inputs, packs, paths, provenance
from recollect.stages.check import check_once


wildcard_constraints:
    scale=r"[\w-]+",
    env=r"[\w-]+(\.[\w-]+)*",  # an environment, or one of gymnasium's by its id: gym.CartPole-v1
    method=r"[\w-]+(\.[\w.,=+\[\]-]+)?",  # a method, method.variant or method.KEY=VALUE
    seed=r"\d+",
    figure=r"[\w-]+",
    model=r"[\w.-]+",
    dataset=r"[\w-]+",
    vocabulary=r"[\w-]+",


# ------------------------------------------------------------------------------------ checked before anything runs
try:
    hold_still()
    dependencies.find_commands()
    # A killed Snakemake's lock goes; the flock is held for as long as this variable lives.
    STALE_LOCK = runpy.run_path(f"{workflow.basedir}/workflow/stale_lock.py")
    ALIVE = STALE_LOCK["clear"]()
    check_once()
    SELECTED = dependencies.selection(config)
    dependencies.check_targets(sys.argv[1:])
    # Snakemake's own records, where `dvc pull` or `dvc checkout` brought others than those known here.
    runpy.run_path(f"{workflow.basedir}/workflow/provenance.py")["restore"]()
except UserError as error:
    sys.exit(f"error: {error}")


# ------------------------------------------------------------------------------------------------- ten thousand jobs
# Millions of small objects that stay: no need to look for garbage among them so often.
gc.set_threshold(200_000, 50, 50)


def lift_default_rate_limit():
    """On one machine cores are the limit. Snakemake's own, 100 jobs a second, makes it look at all ready jobs once a second
    for every job that has ended: a third of a core in a run of 166 jobs. A limit that somebody chose stays.
    """
    chosen = workflow.scheduling_settings.max_jobs_per_timespan
    default = chosen is not None and (chosen.max_jobs, chosen.timespan) == (100, 1)
    if default and workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


def quick(function):
    """Write a function's parameters down: Snakemake works them out several times for each job."""
    function.__signature__ = inspect.signature(function)
    return function


# ----------------------------------------------------------------------------------------------------------- packages
BASE_PACKAGES = f"../envs/{SELECTED.packages}.yaml"


@lru_cache(maxsize=None)
def family_of(scale, env):
    return environment_mapping(scale, env).get("family", SELECTED.packages)


def packages_to_play(wildcards):
    """The conda environment of a job that makes a world: that of the packages which the world needs."""
    return f"../envs/{family_of(wildcards.scale, wildcards.env)}.yaml"


# ------------------------------------------------------------------------------------------------- inputs and params
# Called for every job of the run, but computed once for all seeds.
embed_inputs = lru_cache(maxsize=None)(dependencies.embed_inputs)
train_inputs = lru_cache(maxsize=None)(inputs.train_inputs)
evaluate_models = lru_cache(maxsize=None)(dependencies.evaluate_models)
policy_method = lru_cache(maxsize=None)(inputs.policy_method)
figure_inputs = lru_cache(maxsize=None)(inputs.figure_inputs)
embedder_runs = lru_cache(maxsize=None)(dependencies.embedder_runs)


@lru_cache(maxsize=None)
def hash_of(part, *names):
    """The hash of a text of recollect.stages.provenance, e.g. `settings 0123456789abcdef`."""
    text = getattr(provenance, part)(*names)
    if part.endswith("_code"):
        return f"code {text}"
    return f"settings {provenance.digest(text)}"


def params_of(part, *wildcard_names):
    """A param: the hash of one part of the provenance for the job's wildcards."""

    def hashed(wildcards):
        return hash_of(part, *(wildcards[name] for name in wildcard_names))

    return quick(hashed)


def memory_code_of(stage):
    """A param: the hash of the code that embeds or indexes."""

    def hashed(wildcards):
        of = (wildcards.scale, wildcards.env, wildcards.method)
        return hash_of("memory_code", stage, *of)

    return quick(hashed)


def model_settings(wildcards):
    """A param: the hash of where a frozen model comes from and what it must be."""
    return f"settings {provenance.digest(canonical(fetched_model(wildcards.model)))}"


def data_settings(wildcards):
    """A param: the hash of where published data come from and what they must be."""
    return f"settings {provenance.digest(canonical(published_data(wildcards.dataset)))}"


def inputs_to_generate(wildcards):
    return inputs.generate_inputs(wildcards.scale, wildcards.env)


def inputs_to_embed_vocabulary(wildcards):
    return inputs.vocabulary_inputs(wildcards.scale, wildcards.vocabulary)


def inputs_to_embed_images(wildcards):
    return inputs.embed_images_inputs(wildcards.scale, wildcards.env)


def inputs_to_embed(wildcards):
    return embed_inputs(wildcards.scale, wildcards.env, wildcards.method)


def inputs_to_train(wildcards):
    return train_inputs(wildcards.scale, wildcards.env, wildcards.method)


def inputs_to_inspect(wildcards):
    of = (wildcards.scale, wildcards.env, wildcards.method)
    policy = paths.policy(*of[:2], policy_method(*of), wildcards.seed)
    return {"policy": policy, **evaluate_models(*of)}


def inputs_to_evaluate(wildcards):
    of = (wildcards.scale, wildcards.env, wildcards.method)
    table = paths.train_table(*of[:2], policy_method(*of), wildcards.seed)
    return {"train": table, **inputs_to_inspect(wildcards)}


def inputs_of_figure(wildcards):
    return figure_inputs(wildcards.scale, wildcards.figure)


def selected(stage, scale=SELECTED.scale):
    """What one stage makes for the selected figures."""
    return dependencies.artifacts(stage, scale, SELECTED.figures)


def shown_in_report(wildcards):
    scale = wildcards.scale
    files = [
        paths.figure(scale, figure, suffix)
        for figure in SELECTED.figures
        for suffix in (".pdf", ".png", ".csv", ".json")
    ]
    return files + selected("page", scale)


def settings_of_report(wildcards):
    return hash_of("report_text", wildcards.scale, *SELECTED.figures)


# ---------------------------------------------------------------------------------- what Snakemake's own report says
def figure_category(wildcards):
    return figure_settings(wildcards.scale, wildcards.figure).category or "Figures"


def figure_caption(wildcards):
    """A param for workflow/report/figure.rst: title, caption and what stands behind them."""
    chosen = figure_settings(wildcards.scale, wildcards.figure)
    return {
        "title": chosen.title or chosen.name,
        "text": " ".join(chosen.caption.split()),
        "seeds": ", ".join(str(seed) for seed in chosen.seeds),
        "methods": ", ".join(chosen.methods),
    }


# ---------------------------------------------------------------------------------------------------------- priorities
@lru_cache(maxsize=None)
def method_of(scale, env, method):
    return method_mapping(scale, env, method)


def has_memory(wildcards):
    settings = method_of(wildcards.scale, wildcards.env, wildcards.method)
    return settings.get("memory") is not None


def learns_online(wildcards):
    settings = method_of(wildcards.scale, wildcards.env, wildcards.method)
    return settings.get("data") == "online"


def train_priority(wildcards):
    """Longest chain first: generate (70), the embedder's run, embed (50), index (45), what reads a memory, the rest."""
    run = (wildcards.method, int(wildcards.seed))
    if run in embedder_runs(wildcards.scale, wildcards.env):
        return 60
    if has_memory(wildcards):
        return 40
    return 30 if learns_online(wildcards) else 20


def evaluate_priority(wildcards):
    """Below all training, so that the last jobs are short ones and the cores end together."""
    return 12 if has_memory(wildcards) else 10


# ----------------------------------------------------------------------------------------------------------- resources
# What a machine needs to have. What a machine is (partitions, number of GPUs) stands in workflow/profiles.
PAPER = "paper"  # the one scale that asks for GPUs and for more than two cores


def generate_threads(wildcards):
    """All agents learn at once as batched matrix products: two threads where two cores are the promise."""
    return 8 if wildcards.scale == PAPER else 2


def job_threads(wildcards):
    """One thread each, so that jobs run side by side: two jobs of one thread do more than one job of two threads."""
    return 4 if wildcards.scale == PAPER else 1


def generate_gpus(wildcards):
    """For source agents that look at images; the others learn faster on CPU cores."""
    source = environment_mapping(wildcards.scale, wildcards.env).get("source") or {}
    return int(wildcards.scale == PAPER and uses_gpu(source.get("algorithm", "ppo")))


def train_gpus(wildcards):
    """One GPU per run at paper scale: long sequences are backpropagated through, also by the online methods."""
    return int(wildcards.scale == PAPER)


def vocabulary_gpus(wildcards):
    """CLIP reads several texts for each of ten thousand words and more."""
    return int(wildcards.scale == PAPER)


def encode_gpus(wildcards):
    """A convolutional network looks at every image of the histories, millions of them."""
    return int(wildcards.scale == PAPER)


def play_gpus(wildcards):
    """Embedding and in-context evaluation batch thousands of windows; online methods play a few short episodes."""
    return int(wildcards.scale == PAPER and not learns_online(wildcards))


@lru_cache(maxsize=None)
def sizes_of_packs():
    """From group-components of the profile; none where nothing is grouped. Known only after parsing."""
    listed = workflow.group_settings.group_components
    return [size for name, size in listed.items() if name.startswith("pack_")]


@lru_cache(maxsize=None)
def pack_of(scale, env, method):
    """How many seeds are trained and scored in one job of a cluster."""
    if scale != PAPER or not sizes_of_packs():
        return 1
    fitting = packs.fitting(scale, env, method, SELECTED.job_hours)
    return max(size for size in (1, *sizes_of_packs()) if size <= fitting)


def seeds_together(wildcards):
    return pack_of(wildcards.scale, wildcards.env, wildcards.method)


def run_group(wildcards):
    """The job of a cluster that a run belongs to: with its scores and traces, and with other seeds where they fit."""
    if not sizes_of_packs():
        # Inside a SLURM job, which knows no profile: a run that fails does not keep the others from running.
        workflow.execution_settings.keep_going |= workflow.remote_exec
        for stage in ("train", "evaluate", "inspect"):  # not to be asked for every job
            workflow.get_rule(stage).group = None
        return None
    group = f"run_{wildcards.scale}_{wildcards.env}_{wildcards.method}"
    # What stands for a group's name in group-components, as `run_{scale}_{env}_{method}` would.
    workflow.parent_groupids[group] = f"pack_{seeds_together(wildcards)}"
    return group


def play_gpus_of_run(wildcards):
    """In a pack one by one, as all else, so that neither memory nor cores add up."""
    return int(seeds_together(wildcards) > 1) or play_gpus(wildcards)


def megabytes(small, paper):
    """RAM in MB, more at each attempt. Not computed from input sizes: that doubles the time of a large dry run.

    Measured peaks at smoke scale: 350 (online methods) to 680 MB (language model); torch alone takes 300.
    """

    def mem_mb(wildcards, attempt):
        return (paper if wildcards.scale == PAPER else small) * attempt

    return quick(mem_mb)


def minutes(small, paper, resumes=False):
    """Wall time in minutes: a generous limit at paper scale, where jobs are killed at it.

    What resumes needs no more at the next attempt, nor what shares a SLURM job with it: more would be beyond the limits of
    most partitions. The runs of a pack share the limit of one. `job_hours` makes the longest SLURM jobs shorter: a run
    with its scores and traces, and a memory's keys with their index.
    """

    def runtime(wildcards, attempt):
        limit = paper if wildcards.scale == PAPER else small
        if "seed" not in wildcards.keys():
            limit = min(limit, int(SELECTED.job_hours * 60 / 2))
            return limit if resumes else limit * attempt
        limit = int(limit * packs.shrunk(SELECTED.job_hours))
        limit = -(-limit // seeds_together(wildcards))
        return limit if resumes or sizes_of_packs() else limit * attempt

    return quick(runtime)


for asked in list(globals().values()):
    if inspect.isfunction(asked) and asked.__code__.co_varnames[:1] == ("wildcards",):
        quick(asked)
