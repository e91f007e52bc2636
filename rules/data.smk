"""Data: learning histories (generated), frozen language models and published data (fetched)."""


rule generate:
    input:
        unpack(inputs_to_generate),
    output:
        histories=paths.histories("{scale}", "{env}"),
        manifest=paths.manifest(paths.histories("{scale}", "{env}")),
    log:
        "logs/{scale}/{env}/generate.log",
    benchmark:
        "logs/{scale}/{env}/generate.benchmark.jsonl"
    priority: 70
    conda:
        packages_to_play
    threads: generate_threads
    resources:
        # The histories of all tasks are held until they are written: 20 bytes for each of 16 M steps.
        mem_mb=megabytes(small=1500, paper=4000),
        runtime=minutes(60, 480, resumes=True),
        gpu=generate_gpus,
    params:
        settings=params_of("generate_settings", "scale", "env"),
        code=params_of("generate_code", "scale", "env"),
    shell:
        "recollect generate --scale {wildcards.scale} --env {wildcards.env} --threads {threads} > {log} 2>&1"


# They need the internet, so they run where Snakemake runs: compute nodes often have none.
localrules:
    fetch,
    fetch_data,


rule fetch:
    output:
        model=paths.model("{model}"),
        manifest=paths.manifest(paths.model("{model}")),
    log:
        "logs/models/{model}.log",
    benchmark:
        "logs/models/{model}.benchmark.jsonl"
    conda:
        BASE_PACKAGES
    resources:
        mem_mb=1500,
        runtime=60,
    params:
        settings=model_settings,
    shell:
        "recollect fetch --model {wildcards.model} > {log} 2>&1"


rule fetch_data:
    output:
        index=paths.published("{dataset}"),
        manifest=paths.manifest(paths.published("{dataset}")),
    log:
        "logs/published/{dataset}.log",
    benchmark:
        "logs/published/{dataset}.benchmark.jsonl"
    conda:
        BASE_PACKAGES
    resources:
        mem_mb=1500,
        runtime=240,
    params:
        settings=data_settings,
    shell:
        "recollect fetch --data {wildcards.dataset} > {log} 2>&1"
