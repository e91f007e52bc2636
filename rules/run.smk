"""Runs: one method in one environment with one seed, trained and scored in one process.

- Checkpoints lie outside the outputs, so a retry resumes. Outputs are updated and not deleted beforehand: where only the
  way a policy is judged has changed, the command finds the policy as it should be and does not train again.
- At scales of large runs, seeds that fit into one job share it: a rule for each such set of seeds (recollect.stages.packs).
"""

# Packs of the scales that somebody names: also inside a SLURM job, whose command names its scale.
SAID = " ".join(sys.argv)
NAMED = {SELECTED.scale, *(scale for scale in names("scales") if scale in SAID)}
RUNS = packs.rules(sorted(NAMED), SELECTED.job_hours, SELECTED.seeds_together)


def make_rule(rule_name, seeds, constraints):
    # Snakemake reads `shell` again when a job starts: each rule needs a `RUN` of its own, which a loop would not give it.
    RUN = rule_of("run", seeds=seeds, at_a_time=SELECTED.seeds_at_a_time)

    rule:
        name:
            rule_name
        input:
            RUN.reads,
        output:
            **RUN.outputs(update),
        log:
            RUN.log,
        wildcard_constraints:
            **constraints,
        priority: RUN.priority
        conda:
            RUN.conda
        threads: RUN.threads
        resources:
            **RUN.resources,
        params:
            **RUN.params,
        shell:
            RUN.command


for rule_name, (seeds, constraints) in RUNS.items():
    make_rule(rule_name, seeds, constraints)
