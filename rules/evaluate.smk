"""Scores: the final evaluation of a run, and every evaluation that was made while it learned."""


rule evaluate:
    input:
        unpack(inputs_to_evaluate),
    output:
        scores=paths.scores("{scale}", "{env}", "{method}", "{seed}"),
        manifest=paths.manifest(paths.scores("{scale}", "{env}", "{method}", "{seed}")),
    log:
        "logs/{scale}/{env}/{method}/seed_{seed}/evaluate.log",
    benchmark:
        "logs/{scale}/{env}/{method}/seed_{seed}/evaluate.benchmark.jsonl"
    priority: evaluate_priority
    group:
        run_group
    conda:
        packages_to_play
    threads: job_threads
    resources:
        # The caches of all tasks at once, and their growing memories.
        mem_mb=megabytes(small=1500, paper=12000),
        runtime=minutes(60, 240),
        gpu=play_gpus_of_run,
    params:
        settings=params_of("evaluate_settings", "scale", "env", "method"),
        code=params_of("evaluate_code", "scale", "env", "method"),
    shell:
        "recollect evaluate --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --seed {wildcards.seed} --device auto --threads {threads} > {log} 2>&1"
