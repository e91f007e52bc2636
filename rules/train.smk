"""Runs: one method in one environment with one seed. Checkpoints lie outside the outputs, so a retry resumes."""


rule train:
    input:
        unpack(inputs_to_train),
    output:
        policy=paths.policy("{scale}", "{env}", "{method}", "{seed}"),
        policy_manifest=paths.manifest(
            paths.policy("{scale}", "{env}", "{method}", "{seed}")
        ),
        table=paths.train_table("{scale}", "{env}", "{method}", "{seed}"),
        table_manifest=paths.manifest(
            paths.train_table("{scale}", "{env}", "{method}", "{seed}")
        ),
    log:
        "logs/{scale}/{env}/{method}/seed_{seed}/train.log",
    benchmark:
        "logs/{scale}/{env}/{method}/seed_{seed}/train.benchmark.jsonl"
    priority: train_priority
    group:
        run_group
    conda:
        packages_to_play
    threads: job_threads
    resources:
        # Histories or replay, and the batch: activations of 128 windows of 1600 tokens where there is no GPU.
        mem_mb=megabytes(small=1500, paper=16000),
        runtime=minutes(120, 1440, resumes=True),
        gpu=train_gpus,
    params:
        settings=params_of("train_settings", "scale", "env", "method"),
        code=params_of("train_code", "scale", "env", "method"),
    shell:
        "recollect train --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --seed {wildcards.seed} --device auto --threads {threads} > {log} 2>&1"
