"""Traces: what a policy saw, did and read in some tasks of its evaluation; some figures and the inspection pages read them."""


rule inspect:
    input:
        unpack(inputs_to_inspect),
    output:
        trace=paths.trace("{scale}", "{env}", "{method}", "{seed}"),
        manifest=paths.manifest(paths.trace("{scale}", "{env}", "{method}", "{seed}")),
    log:
        "logs/{scale}/{env}/{method}/seed_{seed}/inspect.log",
    benchmark:
        "logs/{scale}/{env}/{method}/seed_{seed}/inspect.benchmark.jsonl"
    priority: evaluate_priority
    group:
        run_group
    conda:
        packages_to_play
    threads: job_threads
    resources:
        # An evaluation, and what is written down of it.
        mem_mb=megabytes(small=1500, paper=12000),
        runtime=minutes(60, 240),
        gpu=play_gpus_of_run,
    params:
        settings=params_of("evaluate_settings", "scale", "env", "method"),
        code=params_of("inspect_code", "scale", "env", "method"),
    shell:
        "recollect inspect --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --seed {wildcards.seed} --device auto --threads {threads} > {log} 2>&1"
