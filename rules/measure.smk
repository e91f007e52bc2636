"""Speeds: how fast a method learns and acts. No part of any run, whose bytes do not depend on the machine."""


rule measure:
    input:
        unpack(inputs_to_train),
    output:
        speed=paths.speed("{scale}", "{env}", "{method}", "{seed}"),
        manifest=paths.manifest(paths.speed("{scale}", "{env}", "{method}", "{seed}")),
    log:
        "logs/{scale}/{env}/{method}/seed_{seed}/measure.log",
    benchmark:
        "logs/{scale}/{env}/{method}/seed_{seed}/measure.benchmark.jsonl"
    conda:
        packages_to_play
    # As many as a small machine has, so that nothing runs beside it.
    threads: generate_threads
    resources:
        # As training.
        mem_mb=megabytes(small=1500, paper=16000),
        runtime=minutes(30, 120),
        gpu=train_gpus,
    params:
        settings=params_of("evaluate_settings", "scale", "env", "method"),
        code=params_of("measure_code", "scale", "env", "method"),
    shell:
        "recollect measure --scale {wildcards.scale} --env {wildcards.env} --method {wildcards.method}"
        " --seed {wildcards.seed} --device auto --threads {threads} > {log} 2>&1"
